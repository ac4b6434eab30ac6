"""What is known when a cell of the paper's experiments has been run."""

from dataclasses import dataclass, field
from typing import Annotated, Literal, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from directgp.experiments.cells import Frozen
from directgp.experiments.paper.cells import (
    CurveCell,
    FitCell,
    GradientCell,
    PaperCell,
    SamplerCell,
)
from directgp.experiments.paper.rules import RuleFacts


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

_READER: TypeAdapter[Outcome] = TypeAdapter(Annotated[Outcome, Field(discriminator="kind")])


def read_outcome(text: str) -> Outcome:
    """An outcome from its JSON."""
    return _READER.validate_json(text)


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
