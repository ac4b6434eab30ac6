"""Describe one cell of the experiments of the paper and its result."""

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from directgp.datasets.problem import Task
from directgp.experiments.cell import Frozen
from directgp.experiments.plan import METHODS
from directgp.log_expectations.monte_carlo import BiasedMonteCarlo
from directgp.log_expectations.product_sampling import ProductSampling
from directgp.log_expectations.rule import Rule

SMOOTHING = 1e-4
"""ν of smooth-bMC, as in the authors' code; the paper gives none."""


@final
class RuleFacts(Frozen):
    """A rule by its name and its number of samples."""

    name: Literal["exact", "bmc", "smooth-bmc", "ups", "ups-mixed"] = "exact"
    """"ups" has the score gradient of the paper, "ups-mixed" ours of little variance."""

    samples: int = 0

    @property
    def label(self) -> str:
        """What pictures call it."""
        called = {"bmc": "bMC", "smooth-bmc": "smooth-bMC", "ups": "uPS", "ups-mixed": "uPS (ours)"}
        return "exact" if self.name == "exact" else f"{called[self.name]}-{self.samples}"

    def rule(self) -> Rule | str:
        """As `directgp.train` takes it."""
        match self.name:
            case "exact":
                return "auto"
            case "bmc":
                return BiasedMonteCarlo(self.samples)
            case "smooth-bmc":
                return BiasedMonteCarlo(self.samples, nu=SMOOTHING)
            case "ups":
                return ProductSampling(self.samples, gradient="score")
            case "ups-mixed":
                return ProductSampling(self.samples)


EXACT = RuleFacts()


ProtocolName = Literal["paper", "best"]
"""The paper's optimiser, rules and grid to the letter; or ours."""

_Self = TypeVar("_Self", bound="_Cell")


class _Cell(Frozen):
    """What every cell says."""

    dataset: str
    """Name in the registry."""

    data: str
    """Fingerprint of the rows."""

    task: Task
    size: int
    """Rows that are trained on."""

    num_inducing: int
    repeat: int
    """Which of the random splits."""

    seed: int

    @property
    def key(self) -> str:
        """sha256 of all of it: equal for equal cells only."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def but(self: _Self, **changes: Any) -> _Self:
        """The same but for some fields."""
        return type(self).model_validate({**dict(self), **changes})


@final
class FitCell(_Cell):
    """A method trained until it has converged, β chosen by validation: fig. 1a to 1e."""

    kind: Literal["fit"] = "fit"
    method: str
    """One of `directgp.experiments.plan.METHODS`."""

    betas: tuple[float, ...]
    """To choose from, falling; β = 1 alone where it is not chosen."""

    protocol: ProtocolName
    rule: RuleFacts = EXACT
    max_steps: int | None = None
    """Of one run; None is the protocol's own."""

    @property
    def start(self) -> "FitCell | None":
        """The ELBO solution of the same split, where the method begins there or borrows from it."""
        method = METHODS[self.method]
        from_elbo = method.chooses_beta and self.protocol == "best"
        if not from_elbo and method.hyperparameters != "fixed":
            return None
        return self.but(method="elbo", betas=(1.0,), rule=EXACT)

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.dataset}, {self.size:,} rows, {self.method}, repeat {self.repeat + 1}"


@final
class CurveCell(_Cell):
    """Adam with one β and one rule, looked at on the way: learning curves, fig. 1f and 1i."""

    kind: Literal["curve"] = "curve"
    objective: Literal["elbo", "log_loss"]
    hyperparameters: Literal["joint", "fixed"]
    beta: float
    rule: RuleFacts = EXACT
    ard: bool = False
    learning_rate: float
    batch_size: int | None
    """None is all rows."""

    steps: int
    every: int
    """Steps between two looks at the test rows."""

    num_test: int
    """Test rows at most."""

    @property
    def start(self) -> "CurveCell | None":
        """The ELBO solution, β = 1, whose hyperparameters are held."""
        if self.hyperparameters == "joint":
            return None
        return self.but(objective="elbo", hyperparameters="joint", beta=1.0, rule=EXACT)

    @property
    def title(self) -> str:
        """In words."""
        what = "ELBO" if self.objective == "elbo" else f"DLM {self.hyperparameters}"
        how = "" if self.objective == "elbo" else f", {self.rule.label}"
        return f"{self.dataset}, {what}, β = {self.beta:g}{how}, repeat {self.repeat + 1}"


@final
class GradientCell(_Cell):
    """Draws of gradients right after initialisation, compared with the exact one: fig. 1g, 1h."""

    kind: Literal["gradients"] = "gradients"
    rules: tuple[RuleFacts, ...]
    draws: int
    """Of each rule's gradient."""

    beta: float
    truth_samples: int
    """Of the bMC gradient that the paper takes for the truth; the exact one is ours."""

    @property
    def start(self) -> None:
        """None: it begins at the beginning."""
        return None

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.dataset}, gradients after initialisation, repeat {self.repeat + 1}"


@final
class SamplerCell(_Cell):
    """Product sampling along a training: draws rejected, and time, of the paper's and of ours."""

    kind: Literal["samplers"] = "samplers"
    looks: tuple[int, ...]
    """Steps of Adam after which the samplers are looked at; 0 is the start."""

    samples: int
    beta: float
    learning_rate: float

    @property
    def start(self) -> None:
        """None: it begins at the beginning."""
        return None

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.dataset}, product samplers along training, repeat {self.repeat + 1}"


PaperCell = FitCell | CurveCell | GradientCell | SamplerCell

_CELL_ADAPTER: TypeAdapter[PaperCell] = TypeAdapter(
    Annotated[PaperCell, Field(discriminator="kind")]
)


def read_cell(text: str) -> PaperCell:
    """A cell from its JSON."""
    return _CELL_ADAPTER.validate_json(text)


@final
class PathPoint(Frozen):
    """One β of a grid; losses of the kind that is optimised, of the normalised target."""

    beta: float
    validation: float
    """NLL, or MSE for square loss."""

    error: float
    """Standard error of the validation loss."""

    test: dict[str, float]
    """Scores of the test rows."""


@final
class FitOutcome(Frozen):
    """Of a `FitCell`."""

    kind: Literal["fit"] = "fit"
    scores: dict[str, float]
    """Means over the test rows, of the normalised target, by the names of `directgp.metrics`."""

    num_test: int
    num_training: int
    """Rows that could be trained on; a learning curve uses fewer."""

    beta: float
    path: tuple[PathPoint, ...]
    """In falling order of β; empty where β is not chosen."""

    history: tuple[tuple[int, float], ...]
    """(step, objective) of the chosen run, thinned."""

    status: str
    reason: str
    """Why the chosen run stopped."""

    evaluations: int
    seconds: float
    """Processor time; wall time on a GPU."""

    failed: tuple[str, ...] = ()
    """Values of β that could not be trained, and why."""


@final
class CurvePoint(Frozen):
    """A look at the test rows."""

    step: int
    epoch: float
    """Share of passes over the training rows."""

    scores: dict[str, float]
    seconds: float
    """Of training up to here, without the looks."""


@final
class CurveOutcome(Frozen):
    """Of a `CurveCell`; `Record.arrays["losses"]` has the NLL of test rows, (points, rows)."""

    kind: Literal["curve"] = "curve"
    points: tuple[CurvePoint, ...]
    num_test: int
    num_training: int = 0
    """Rows that could be trained on; 0 where that is not known."""

    status: str
    reason: str
    seconds: float


@final
class Measured(Frozen):
    """A number and its standard error."""

    value: float
    error: float


@final
class GradientRow(Frozen):
    """One rule and one block of parameters; the last three in units of ‖g*‖²."""

    rule: RuleFacts
    block: str
    """"u_mean" or "u_chol"."""

    alignment: Measured
    """Condition (i): ⟨g, g*⟩/‖g*‖²."""

    squared_norm: Measured
    """Condition (ii): ‖g‖²/‖g*‖²."""

    squared_error: Measured
    """Of one draw, what the paper's figure calls bias."""

    variance: Measured
    squared_bias: Measured
    """Its Monte Carlo floor removed; may come out below 0."""

    seconds: float
    """Processor time of one draw of the marginals' gradients."""


@final
class GradientOutcome(Frozen):
    """Of a `GradientCell`.

    `Record.arrays` has each draw's alignment, squared_norm and squared_error under
    ``{statistic}.{rule label}.{block}``, each of shape (draws,).
    """

    kind: Literal["gradients"] = "gradients"
    rows: tuple[GradientRow, ...]
    truth_error: dict[str, float]
    """Squared distance of the paper's truth from the exact gradient, by block, over ‖g*‖²."""

    seconds: float


@final
class SamplerLook(Frozen):
    """The samplers at one moment of training."""

    step: int
    proposals: Measured
    """Of the paper's sampler, a draw, mean over the examples."""

    proposals_narrow: Measured
    """The same with its width held at 1."""

    proposals_ours: Measured
    expected_proposals: float
    """Mean of p_max / E_q[p]: what theory says of the paper's, whatever its width."""

    one_by_one_seconds: float
    """Of a draw for every example by the paper's sampler, one example after another."""

    vectorised_seconds: float
    """The same for all examples at once."""

    bmc_seconds: float
    """Of a gradient by bMC with as many samples."""

    paper_ups_seconds: float
    """Of a gradient by the paper's sampler and score."""

    our_ups_seconds: float
    """Of a gradient by our sampler and control variates."""

    bmc_error: float
    """Squared error of a gradient of the marginals, over the squared norm of the exact one."""

    paper_ups_error: float
    our_ups_error: float


@final
class SamplerOutcome(Frozen):
    """Of a `SamplerCell`."""

    kind: Literal["samplers"] = "samplers"
    samples: int
    looks: tuple[SamplerLook, ...]
    seconds: float


Outcome = FitOutcome | CurveOutcome | GradientOutcome | SamplerOutcome

_RESULT_ADAPTER: TypeAdapter[Outcome] = TypeAdapter(Annotated[Outcome, Field(discriminator="kind")])


def read_outcome(text: str) -> Outcome:
    """An outcome from its JSON."""
    return _RESULT_ADAPTER.validate_json(text)


@final
class Circumstances(Frozen):
    """Where and by what a cell was run; they do not decide which cell it is."""

    versions: dict[str, str]
    machine: str
    device: str
    finished: str
    """Date and time, UTC."""


@final
@dataclass(frozen=True, eq=False)
class Finished:
    """What a cell leaves behind."""

    outcome: Outcome
    circumstances: Circumstances
    model: bytes = b""
    """The ELBO solution that others start from; empty for them."""

    arrays: dict[str, NDArray[np.float32]] = field(default_factory=dict)


@final
@dataclass(frozen=True, eq=False)
class Record:
    """A cell that has been run, as the store has it."""

    cell: PaperCell
    outcome: Outcome
    circumstances: Circumstances
    arrays: dict[str, NDArray[np.float32]] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class FailedRecord:
    """A cell that could not be run."""

    cell: PaperCell
    reason: str
    attempts: int


@final
@dataclass(frozen=True, eq=False)
class Results:
    """All that a sweep has found, to be asked by claims and figures."""

    records: tuple[Record, ...]
    failed: tuple[FailedRecord, ...] = ()
    missing: tuple[PaperCell, ...] = ()
    """Cells of the sweep that have not been run."""

    def fits(self) -> list[tuple[FitCell, FitOutcome]]:
        """Of every fit."""
        return [
            (r.cell, r.outcome)
            for r in self.records
            if isinstance(r.cell, FitCell) and isinstance(r.outcome, FitOutcome)
        ]

    def curves(self) -> list[tuple[CurveCell, CurveOutcome, NDArray[np.float32]]]:
        """Of every learning curve, with the NLL of test rows, (points, rows)."""
        return [
            (r.cell, r.outcome, r.arrays["losses"])
            for r in self.records
            if isinstance(r.cell, CurveCell) and isinstance(r.outcome, CurveOutcome)
        ]

    def gradients(self) -> list[tuple[GradientCell, GradientOutcome, Record]]:
        """Of every study of gradients; the record has the draws."""
        return [
            (r.cell, r.outcome, r)
            for r in self.records
            if isinstance(r.cell, GradientCell) and isinstance(r.outcome, GradientOutcome)
        ]

    def samplers(self) -> list[tuple[SamplerCell, SamplerOutcome]]:
        """Of every study of samplers."""
        return [
            (r.cell, r.outcome)
            for r in self.records
            if isinstance(r.cell, SamplerCell) and isinstance(r.outcome, SamplerOutcome)
        ]
