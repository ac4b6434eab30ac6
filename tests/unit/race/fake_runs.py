"""Races of fake runs: the losses of a candidate are a function of its steps."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from directgp.errors import NumericalError
from directgp.estimators.starting_models import with_latents_of
from directgp.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood, StudentT
from directgp.posteriors import SparsePosterior
from directgp.posteriors.prior import Prior
from directgp.race import entrants, final
from directgp.race.candidates import Candidate, Choices
from directgp.race.entrants import Entrant, Trainers
from directgp.race.race import EFFORTS, Combine, Effort, Race
from directgp.training.data import Data, Model
from directgp.training.result import Phase, Progress, StageResult, Status, TrainingResult
from directgp.training.run import Recipe
from directgp.training.trainer import Trainer
from directgp.training.validation import HoldOut, Split, Validation, split
from tests.unit.training.models import normal, seeded

N, M, HELD = 400, 4, 80
"""Examples, inducing inputs, and validation examples of `HoldOut(0.2)`."""

EFFORT = EFFORTS["default"]
NAMES: dict[str, Callable[[], Likelihood]] = {
    "gaussian": Gaussian,
    "student_t": StudentT,
    "heteroscedastic": HeteroscedasticGaussian,
}


def table(n: int = N) -> tuple[Tensor, Tensor]:
    """Rows of three columns; the last stands for that of a stack."""
    X = normal(n, 3)
    return X, X[:, 0] + 0.1 * normal(n, seed=1)


class SmallModels:
    """Untrained models with four inducing inputs."""

    def __init__(self, data: Data, likelihoods: Mapping[str, Likelihood] | None = None) -> None:
        self.all = data
        self.given = dict(likelihoods or {})

    def model(self, candidate: Candidate) -> Model:
        X = self.data(candidate.stacked).X
        kernel: Any = candidate.kernel
        prior = Prior.from_data(X, None, kernel=kernel, ard=candidate.ard, mean="zero")
        named = self.given.get(candidate.likelihood)
        likelihood = NAMES[candidate.likelihood]() if named is None else copy.deepcopy(named)
        posterior = SparsePosterior(prior, X[:M].clone())
        return Model(with_latents_of(likelihood, posterior, self.all.y), likelihood.double())

    def data(self, stacked: bool) -> Data:
        X = self.all.X
        return self.all if stacked else replace(self.all, X=X[:, :-1])


@dataclass(frozen=True)
class Call:
    """A run."""

    label: str
    """The candidate in words."""

    recipe: Recipe
    phase: Phase
    X: Tensor
    """Inputs of the training examples."""

    start: TrainingResult | Model
    """What it started from."""

    @property
    def rows(self) -> int:
        """Number of training examples."""
        return len(self.X)


@dataclass
class FakeRuns:
    """Stands in for training and validation: a run takes its steps and leaves the model.

    The losses of a candidate after its steps are numbers, or one for each validation example.
    """

    loss: Callable[[Candidate, int], float | Tensor]
    fails: Callable[[Call], bool] = lambda call: False
    converges: Callable[[Call], bool] = lambda call: False
    calls: list[Call] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for module in (entrants, final):
            patch.setattr(module, "elbo_run", self._elbo)
            patch.setattr(module, "joint_run", self._joint)
            patch.setattr(module, "fixed_run", self._fixed)
        patch.setattr(Trainers, "judged", lambda trainers, *which: self._judged(trainers, *which))

    @property
    def labels(self) -> list[str]:
        """The candidates that were trained, each once."""
        return list(dict.fromkeys(call.label for call in self.calls))

    def steps(self, label: str) -> int:
        """Steps that the runs of a candidate were allowed."""
        return sum(call.recipe.max_steps or 0 for call in self.calls if call.label == label)

    def _elbo(
        self, trainer: Trainer, recipe: Recipe, model: Model, near: bool = False
    ) -> TrainingResult:
        return self._ran(trainer, recipe, model, model, 1.0, "elbo")

    def _joint(self, trainer: Trainer, recipe: Recipe, model: Model, beta: float) -> TrainingResult:
        return self._ran(trainer, recipe, model, model, beta, "joint")

    def _fixed(
        self,
        trainer: Trainer,
        recipe: Recipe,
        base: TrainingResult,
        beta: float,
        near: TrainingResult | None = None,
    ) -> TrainingResult:
        model = Model(base.posterior, base.likelihood)
        result = self._ran(trainer, recipe, base, model, beta, "fixed")
        return replace(result, stages=(*base.stages, *result.stages))

    def _ran(
        self,
        trainer: Trainer,
        recipe: Recipe,
        start: TrainingResult | Model,
        model: Model,
        beta: float,
        mode: str,
    ) -> TrainingResult:
        phase, _ = trainer.phase, trainer.learnt
        label = phase.name.split(", fold ")[0].removesuffix(", all examples")
        call = Call(label, recipe, phase, trainer.data.X, start)
        self.calls.append(call)
        if self.fails(call):
            raise NumericalError(f"{label} cannot be trained.")
        steps = recipe.max_steps or 500
        progress = Progress(mode, steps, steps, steps, 0.0, 0.0, 0.0, phase)
        stops = [stop for monitor in recipe.monitors if (stop := monitor(progress)) is not None]
        status = Status.CONVERGED if self.converges(call) else Status.BUDGET
        reason = "So it is."
        if stops:
            status, reason, steps = stops[0].status, stops[0].reason, 1
        ends = bool(stops)
        # The name of the stage says whose steps they are.
        stage = StageResult(label, status, reason, steps, steps, 0.0, (0.0,), 0.0, (), ends)
        return TrainingResult(*model[:2], "log_loss", beta, mode, (stage,), 0.0)

    def _judged(
        self, trainers: Trainers, candidate: Candidate, results: Sequence[TrainingResult]
    ) -> Entrant:
        first = results[0]
        steps = sum(stage.steps for stage in first.stages if stage.stage == candidate.label)
        number = sum(len(part.validation) for part in trainers.splits[candidate.stacked])
        losses = torch.as_tensor(self.loss(candidate, steps)).double().expand(number).clone()
        return Entrant(candidate, tuple(results), losses, base=tuple(results))


def choices(**settings: Any) -> Choices:
    """One candidate, apart from the settings."""
    plain: dict[str, Any] = {
        "kernels": ("rbf",),
        "ard": (False,),
        "likelihoods": ("gaussian",),
        "modes": ("joint",),
        "betas": (1.0,),
        "stacked": (False,),
        "num_inducing": M,
        "most_inducing": 0,
    }
    return Choices(**plain | settings)


def splits_of(
    models: SmallModels, validation: Validation, stacked: Sequence[bool] = (False,)
) -> dict[bool, list[Split]]:
    candidate = choices(likelihoods=(next(iter(models.given), "gaussian"),)).first()
    return {
        each: split(
            validation,
            models.data(each),
            *models.model(replace(candidate, stacked=each))[:2],
            seeded(5),
        )
        for each in stacked
    }


def trainers_of(
    validation: Validation | None = None,
    data: Data | None = None,
    likelihoods: Mapping[str, Likelihood] | None = None,
    stacked: Sequence[bool] = (False,),
    n_jobs: int = 1,
    **recipe: Any,
) -> Trainers:
    models = SmallModels(data or Data(*table()), likelihoods)
    parts = splits_of(models, validation or HoldOut(0.2), stacked)
    return Trainers(Recipe(**recipe), models, parts, seeded(6), n_jobs)


def race_of(
    fake: FakeRuns,
    patch: pytest.MonkeyPatch,
    combine: Combine = "mixture",
    effort: Effort = EFFORT,
    settings: Choices | None = None,
    **how: Any,
) -> Race:
    """A race of fake runs, not started."""
    fake.install(patch)
    settings = settings or choices()
    trainers = trainers_of(stacked=settings.stacked, **how)
    return Race(trainers, settings, effort, combine)


def some_of(whole: Mapping[bool, Sequence[Split]], number: int) -> dict[bool, list[Split]]:
    """Splits with that number of training examples, drawn at random."""
    return {
        stacked: [
            replace(
                part,
                training=part.training.take(rows),
                likelihood=part.likelihood.for_rows(rows),
            )
            for part in parts
            for rows in [torch.randperm(len(part.training), generator=seeded(7))[:number]]
        ]
        for stacked, parts in whole.items()
    }


def raced(fake: FakeRuns, patch: pytest.MonkeyPatch, **how: Any) -> Race:
    """A race of fake runs, to its end."""
    race = race_of(fake, patch, **how)
    race.run()
    return race


def entrant(
    candidate: Candidate | None = None, loss: float | Tensor = 0.0, **fields: Any
) -> Entrant:
    """A candidate with these losses and an untrained model."""
    candidate = candidate or choices().first()
    posterior, likelihood = SmallModels(Data(*table(20))).model(candidate)
    result = TrainingResult(posterior, likelihood, "log_loss", 1.0, "joint", (), 0.0)
    losses = torch.as_tensor(loss).double().expand(HELD if isinstance(loss, float) else -1)
    return Entrant(candidate, (result,), losses, **fields)


def weight_of(race: Race, **traits: Any) -> float:
    """Weight of the candidates with these traits."""
    pairs = zip(race.entrants, race.weights.tolist(), strict=True)
    return sum(
        float(weight)
        for each, weight in pairs
        if all(getattr(each.candidate, name) == value for name, value in traits.items())
    )


def trained(race: Race, **traits: Any) -> Entrant:
    """The only candidate with these traits."""
    (found,) = (
        each
        for each in race.entrants
        if all(getattr(each.candidate, name) == value for name, value in traits.items())
    )
    return found
