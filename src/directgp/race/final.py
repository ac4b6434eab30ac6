"""Train the members of a mixture on all examples."""

from collections.abc import Sequence
from dataclasses import replace

from directgp.errors import NumericalError
from directgp.likelihoods.base import Likelihood
from directgp.race.entrants import Entrant, Trainers
from directgp.training.data import Model
from directgp.training.result import Failure, Status, TrainingResult
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
    for entrant in entrants:
        candidate, before = entrant.candidate, entrant.results[0]
        data = trainers.models.data(candidate.stacked)
        rows: Likelihood = trainers.models.model(candidate).likelihood
        start = replace(before, likelihood=for_rows_of(before.likelihood, rows))
        if trainers.end is not None:
            results.append(start)
            continue
        trainer = trainers.trainer(data, f"{candidate.label}, all examples", final=True)
        recipe = trainers.recipe
        if not trainers.by_adam(candidate):
            stopping = RelativeDecrease(_WINDOW, _WINDOW * tolerance)
            most = max(_FEWEST, round(_SHARE * entrant.steps))
            most = min(most, recipe.max_steps or most)
            recipe = replace(recipe, stopping=stopping, max_steps=most)
        try:
            if candidate.mode == "elbo":
                result = elbo_run(trainer, recipe, Model.of(start), near=True)
            elif candidate.mode == "fixed":
                result = fixed_run(trainer, recipe, start, candidate.beta, start)
            else:
                result = joint_run(trainer, recipe, Model.of(start), candidate.beta)
            results.append(settled(trainers.noted(result)))
        except NumericalError as error:
            trainers.failures.append(Failure(candidate.beta, candidate.label, str(error)))
            results.append(start)
    return results


def settled(result: TrainingResult) -> TrainingResult:
    """Return a result that ended where more steps did not pay, as converged."""
    *before, last = result.stages
    if last.ends_training or last.status is not Status.BUDGET:
        return result
    reason = "More steps lower the validation loss by less than they cost."
    return replace(result, stages=(*before, replace(last, status=Status.CONVERGED, reason=reason)))
