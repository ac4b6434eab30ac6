"""Define the results of training: of a stage, of a run, and of a choice between candidates."""

import math
import re
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    StringConstraints,
    field_validator,
)

from directgp.likelihoods.base import Likelihood
from directgp.objectives.base import PointLoss, resolve_point_loss
from directgp.posteriors.sparse import SparsePosterior

Name = Annotated[str, StringConstraints(max_length=200)]
"""A short text in a file."""

Text = Annotated[str, StringConstraints(max_length=10_000)]
"""A text in a file that fits on a page."""

Count = Annotated[int, Field(ge=0, le=2**53)]
"""A count in a file, exact as a float64."""

Size = Annotated[FiniteFloat, Field(ge=0)]
"""A finite number in a file, at least 0."""


class Strict(BaseModel):
    """Values from a file, with strict types and no extra keys."""

    # Defer the validators to the first file that is read or written: they slow the import.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)


class Status(StrEnum):
    """Reason for the end of a run."""

    CONVERGED = "converged"
    """A stopping rule was satisfied."""

    BUDGET = "budget"
    """Steps, evaluations or time ran out."""

    CANCELLED = "cancelled"
    """A callback ended the run."""

    INTERRUPTED = "interrupted"
    """Ctrl-C; the best state so far is kept."""

    FAILED = "failed"
    """No step had a finite value; the stage raised an error."""


@dataclass(frozen=True)
class Stop:
    """A reason to stop."""

    status: Status
    """Kind of the reason."""

    reason: str
    """The reason in one sentence."""


INTERRUPTED = Stop(Status.INTERRUPTED, "Interrupted; the best state so far is kept.")


@dataclass(frozen=True)
class Phase:
    """One of the runs of a race, or of the training of its members on all examples."""

    name: str = ""
    """The candidate in words; empty for a single run."""

    part: int = 1
    """Number of the run, from 1."""

    parts: int | None = 1
    """Number of runs; None in a race, which goes on while further runs pay."""

    final: bool = False
    """Whether the run trains a member of the result on all examples."""


@dataclass(frozen=True)
class Progress:
    """The state of a run after a step, for stopping rules and callbacks."""

    stage: str
    """Name of the stage: "elbo", "log_loss", …"""

    step: int
    """Steps taken; an accepted L-BFGS iteration, or one Adam update."""

    max_steps: int
    """Largest number of steps of the stage."""

    evaluations: int
    """Evaluations of the objective in this stage."""

    loss: float
    """Objective, as a mean over the examples."""

    gradient_norm: float
    """Largest absolute entry of the gradient; NaN with Adam, which does not compute it."""

    seconds: float
    """Wall time since the start of the run."""

    phase: Phase = Phase()
    """The run of a race to which the step belongs."""


@dataclass(frozen=True)
class StageResult:
    """The outcome of one stage of training."""

    stage: str
    """Name of the stage."""

    status: Status
    """Why the stage stopped."""

    reason: str
    """Why the stage stopped, in one sentence."""

    steps: int
    """Steps taken."""

    evaluations: int
    """Evaluations of the objective."""

    loss: float
    """The objective at the end, as a mean over the examples."""

    losses: tuple[float, ...]
    """The objective after each step, as a mean over the examples."""

    jitter: float
    """Largest jitter that the factorisation of K_uu needed beyond the nugget."""

    at_floor: tuple[str, ...]
    """Parameters that ended at their smallest allowed value."""

    ends_training: bool
    """Whether a budget, a callback or Ctrl-C ended not only this stage but the training."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values, for checkpoints and model files."""
        lists = {"losses": list(self.losses), "at_floor": list(self.at_floor)}
        return {**asdict(self), **lists, "status": self.status.value}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "StageResult":
        """Return the result that `to_json` described; raise ValueError for other values."""
        fields = dict(StageSpec.model_validate(plain))
        return cls(**fields | {name: tuple(fields[name]) for name in ("losses", "at_floor")})


class StageSpec(Strict):
    """A `StageResult` in a file; losses may be NaN or infinite."""

    stage: Name
    status: Annotated[Status, Field(strict=False)]
    reason: Text
    steps: Count
    evaluations: Count
    loss: float
    losses: list[float]
    jitter: Size
    at_floor: list[Name]
    ends_training: bool


@dataclass(frozen=True)
class TrainingResult:
    """The trained model and the reason for the end of training.

    The posterior and the likelihood are copies; training does not change its arguments.
    """

    posterior: SparsePosterior
    """The trained posterior."""

    likelihood: Likelihood
    """The trained likelihood."""

    objective: str
    """Name of the objective."""

    beta: float
    """Weight of the KL term."""

    hyperparameters: str
    """"joint", "fixed", "elbo" for the plain ELBO solution, or "held" after `update`."""

    stages: tuple[StageResult, ...]
    """Earlier stages, such as an ELBO run or a warm-up by Adam, then the run itself."""

    seconds: float
    """Wall time."""

    @property
    def ended(self) -> bool:
        """Whether a budget, a callback or Ctrl-C ended the training."""
        return self.stages[-1].ends_training

    @property
    def status(self) -> Status:
        """Why the last stage stopped."""
        return self.stages[-1].status

    @property
    def reason(self) -> str:
        """Why the last stage stopped, in one sentence."""
        return self.stages[-1].reason

    @property
    def loss(self) -> float:
        """The objective reached, as a mean over the examples."""
        return self.stages[-1].loss

    @property
    def history(self) -> tuple[float, ...]:
        """The objective after each step of the last stage."""
        return self.stages[-1].losses

    @property
    def steps(self) -> int:
        """Steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    @property
    def evaluations(self) -> int:
        """Evaluations of an objective in all stages."""
        return sum(stage.evaluations for stage in self.stages)

    @property
    def jitter(self) -> float:
        """Largest jitter that any stage needed."""
        return max(stage.jitter for stage in self.stages)

    @property
    def at_floor(self) -> tuple[str, ...]:
        """Parameters that ended at their smallest allowed value."""
        return self.stages[-1].at_floor


@dataclass(frozen=True)
class Failure:
    """A candidate whose training raised an error."""

    beta: float
    """Weight of the KL term."""

    hyperparameters: str
    """The mode: "joint", "fixed" or "elbo"."""

    reason: str
    """Message of the error."""

    label: str = ""
    """The candidate in words; empty in the path of one model."""

    def __str__(self) -> str:
        candidate = self.label or f"{self.hyperparameters}, β = {self.beta:g}"
        return f"{candidate}: {self.reason}"


@dataclass(frozen=True)
class PathPoint:
    """A candidate with its validation loss: a mode and a β of one model, or a model of a race."""

    beta: float
    """Weight of the KL term."""

    hyperparameters: str
    """"joint", "fixed", or "elbo" for the plain ELBO solution."""

    result: TrainingResult | None
    """The trained model; None in the path of an estimator, which stores only the losses."""

    validation_loss: float
    """Mean of the optimised loss over the validation examples."""

    validation_error: float
    """Standard error of the validation loss."""

    difference: float
    """Mean paired difference from the loss of the best candidate."""

    difference_error: float
    """Standard error of the difference."""

    status: str = ""
    """Why the training stopped, in one word; empty for a candidate of a race."""

    rmse: float | None = None
    """Root of the mean square error of E[y] on the validation examples of a race."""

    label: str = ""
    """The candidate in words; empty in the path of one model."""

    weight: float | None = None
    """Weight in the mixture of a race, where the best one alone has 1; None without a race."""

    @property
    def trained(self) -> TrainingResult:
        """The trained model; raises ValueError where only the losses are stored."""
        if self.result is None:
            raise ValueError("This path has only the losses of its candidates, not their models.")
        return self.result


@dataclass(frozen=True)
class BetaPath:
    """Every candidate with its validation loss, and the chosen one."""

    points: tuple[PathPoint, ...]
    """Of one model from the most to the least regularised: ELBO, fixed with falling β, joint with
    falling β. Of a race in the order of their start."""

    chosen: int
    """Index of the chosen point. Of one model the most regularised that is not distinguishable
    from the best, or if training ended before any validation, the β nearest 1; of a race the
    heaviest member of the mixture, or the best."""

    loss: str
    """Name of the loss by which candidates were compared."""

    seconds: float
    """Wall time of the path."""

    failed: tuple[Failure, ...] = ()
    """Candidates that could not be trained."""

    validation: str = ""
    """The validation examples of an estimator, in words."""

    grid: tuple[float, ...] = ()
    """The values of β that were allowed."""

    mixture_loss: float | None = None
    """Mean validation loss of the mixture, each row with weights that have not seen it."""

    mixture_error: float | None = None
    """Standard error of the loss of the mixture."""

    decisions: tuple[str, ...] = ()
    """What a race decided and why, in sentences."""

    @property
    def best(self) -> TrainingResult:
        """The chosen candidate's result."""
        return self.points[self.chosen].trained

    @property
    def beta(self) -> float:
        """The chosen β."""
        return self.points[self.chosen].beta

    @property
    def members(self) -> tuple[PathPoint, ...]:
        """Candidates that the result consists of, the heaviest first, as `members_`."""
        if all(point.weight is None for point in self.points):
            return self.points[self.chosen : self.chosen + 1]
        members = [point for point in self.points if point.weight]
        return tuple(sorted(members, key=lambda point: point.weight or 0.0, reverse=True))

    @property
    def validated(self) -> tuple[float, float]:
        """Validation loss of the result, the mixture or the chosen candidate, and its error."""
        if self.mixture_loss is not None and self.mixture_error is not None:
            return self.mixture_loss, self.mixture_error
        chosen = self.points[self.chosen]
        return chosen.validation_loss, chosen.validation_error

    def in_units(self, scale: float, loss: PointLoss | None = None) -> "BetaPath":
        """Return the path without models, with losses for targets multiplied by `scale`.

        `loss` is the loss by which candidates were compared; by default the built-in loss with the
        name in the path.
        """
        loss = loss or resolve_point_loss(self.loss)
        power = loss.unit_power
        shift = math.log(scale) if loss.log_density else 0.0

        def point(candidate: PathPoint) -> PathPoint:
            errors = ("validation_error", "difference", "difference_error")
            scaled = {name: scale**power * getattr(candidate, name) for name in errors}
            mean = scale**power * candidate.validation_loss + shift
            rmse = None if candidate.rmse is None else scale * candidate.rmse
            return replace(candidate, result=None, validation_loss=mean, rmse=rmse, **scaled)

        path = replace(self, points=tuple(map(point, self.points)))
        if self.mixture_loss is None or self.mixture_error is None:
            return path
        mixture_loss = scale**power * self.mixture_loss + shift
        mixture_error = scale**power * self.mixture_error
        return replace(path, mixture_loss=mixture_loss, mixture_error=mixture_error)

    def to_json(self) -> dict[str, Any]:
        """Return the path without models as plain values, for a model file."""
        points = tuple(replace(point, result=None) for point in self.points)
        plain = asdict(replace(self, points=points))
        for point in plain["points"]:
            del point["result"]
        lists = ("points", "failed", "grid", "decisions")
        return plain | {name: list(plain[name]) for name in lists}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "BetaPath":
        """Return the path that `to_json` described, of this version or an earlier one.

        Raises ValueError for values that do not describe a path.
        """
        spec = _PathSpec.model_validate(plain)
        if not 0 <= spec.chosen < max(1, len(spec.points)):
            raise ValueError("the index of the chosen candidate is out of range")
        fields = spec.model_dump(exclude={"models", "replaced"})
        return cls(
            **fields
            | {
                "points": tuple(PathPoint(result=None, **dict(entry)) for entry in spec.points),
                "failed": tuple(Failure(**dict(entry)) for entry in spec.failed),
                "grid": tuple(spec.grid),
                "decisions": tuple(spec.decisions),
            }
        )


class _PointSpec(Strict):
    beta: Size
    hyperparameters: Name
    validation_loss: float
    validation_error: float
    difference: float
    difference_error: float
    status: Name = ""
    rmse: float | None = None
    label: Text = ""
    weight: float | None = None


class _FailureSpec(Strict):
    beta: Size
    hyperparameters: Name
    reason: Text
    label: Text = ""


class _PathSpec(Strict):
    """A `BetaPath` in a file; a candidate that was not validated has the loss NaN.

    `models` and `replaced` are of earlier versions, and are not read.
    """

    points: list[_PointSpec]
    chosen: int
    loss: Name
    seconds: float = math.nan
    failed: list[_FailureSpec]
    validation: Text
    grid: list[Size]
    models: list[JsonValue] = []
    replaced: Name = ""
    mixture_loss: float | None = None
    mixture_error: float | None = None
    decisions: list[Text] = []

    @field_validator("failed", mode="before")
    @classmethod
    def _fields(cls, failed: Any) -> Any:
        """Return failures as fields; earlier versions wrote a text for each."""
        return [_failure(failure) for failure in failed] if isinstance(failed, list) else failed


def _failure(plain: Any) -> Any:
    """Return the fields of a failure from its text."""
    parts = isinstance(plain, str) and re.fullmatch(r"(.*?), β = (\S+): (.*)", plain, re.DOTALL)
    if not parts:
        return plain
    return {"beta": float(parts[2]), "hyperparameters": parts[1], "reason": parts[3]}
