"""Train the members of a mixture on all examples."""

from collections.abc import Sequence
from dataclasses import replace

from directgp.errors import NumericalError
from directgp.likelihoods.base import Likelihood
from directgp.race.entrants import Entrant, Trainers
from directgp.training.data import Model
from directgp.training.result import Failure, Phase, StageResult, Status, TrainingResult
from directgp.training.run import RelativeDecrease
from directgp.training.trainer import elbo_run, fixed_run, joint_run
from directgp.training.validation import for_rows_of

_FEWEST = 25
"""Smallest number of steps on all examples."""

_SHARE = 0.25
"""Steps on all examples over those that validation has judged: more may fit the noise."""

_WINDOW = 10
"""Steps over which the fall of the objective decides whether a member has converged."""


def on_all(
    trainers: Trainers, entrants: Sequence[Entrant], tolerance: float
) -> list[TrainingResult]:
    """Train members on all examples, each from its model of the first split.

    A member goes on while a step lowers its objective by the tolerance. One that fails, or whose
    training was ended, stays as it was.
    """
    results = []
    for number, entrant in enumerate(entrants, start=1):
        candidate, before = entrant.candidate, entrant.results[0]
        data = trainers.models.data(candidate.stacked)
        rows: Likelihood = trainers.models.model(candidate).likelihood
        start = replace(before, likelihood=for_rows_of(before.likelihood, rows))
        if trainers.end is not None:
            results.append(start)
            continue
        trainer = trainers.trainer(data, candidate.label)
        name = f"{candidate.label}, all examples"
        trainer.phase = Phase(name, number, len(entrants), final=True)
        recipe = trainers.recipe
        if trainer.optimizer(recipe, start.posterior) == "lbfgs":
            stopping = RelativeDecrease(_WINDOW, _WINDOW * tolerance)
            most = max(_FEWEST, round(_SHARE * entrant.kept))
            most = min(most, recipe.max_steps or most)
            recipe = replace(recipe, stopping=stopping, max_steps=most)
        try:
            # A state that no step of the objective improved is that of the ELBO.
            if candidate.mode == "elbo" or not entrant.kept:
                result = elbo_run(trainer, recipe, Model.of(start), near=True)
            elif candidate.mode == "fixed":
                base = entrant.base[0]
                base = replace(base, likelihood=for_rows_of(base.likelihood, rows))
                result = fixed_run(trainer, recipe, base, candidate.beta, start)
            else:
                result = joint_run(trainer, recipe, Model.of(start), candidate.beta)
            result = trainers.noted(result, candidate)
            # A limit of the user is no sign that more steps would not pay.
            results.append(settled(result) if trainers.recipe.max_steps is None else result)
        except NumericalError as error:
            trainers.failures.append(
                Failure(candidate.beta, candidate.mode, str(error), candidate.label)
            )
            results.append(start)
    return results


def ended(result: TrainingResult, end: StageResult) -> TrainingResult:
    """Return a member of a race that the user or a callback ended, with the reason for that."""
    *before, last = result.stages
    last = replace(last, status=end.status, reason=end.reason, ends_training=True)
    return replace(result, stages=(*before, last))


def settled(result: TrainingResult) -> TrainingResult:
    """Return a result that ended where more steps did not pay, as converged."""
    *before, last = result.stages
    if last.ends_training or last.status is not Status.BUDGET:
        return result
    reason = "More steps lower the validation loss by less than they cost."
    return replace(result, stages=(*before, replace(last, status=Status.CONVERGED, reason=reason)))
