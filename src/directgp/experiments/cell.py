"""Define methods, cells, and the records of finished cells."""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from directgp.environment import machine, versions
from directgp.errors import UnsupportedError, refuse, require
from directgp.registry import LIKELIHOODS, LOSSES, Task, likelihoods_of


@final
@dataclass(frozen=True)
class Method:
    """A training objective, the parameters it trains, and whether β is chosen."""

    name: str
    """Name on the command line."""

    label: str
    """Name in tables and figures."""

    objective: str
    """Name of the objective in `directgp.train`."""

    hyperparameters: Literal["joint", "fixed"]
    """Which parameters are trained for the objective."""

    chooses_beta: bool
    """Whether β is chosen by validation; otherwise β = 1."""

    about: str
    """Description in one sentence."""

    gaussian_only: bool = False
    """Whether the method requires a real-valued target with Gaussian noise."""

    kind: Literal["objective", "model", "baseline"] = "objective"
    """An objective on the chosen model; another choice of the model; or no Gaussian process."""

    @property
    def name_in_text(self) -> str:
        """The name in a sentence: ``the ELBO``, ``log-loss DLM (joint)``."""
        name, comma, mode = self.label.partition(", ")
        article = "the " if name.endswith(("ELBO", "mean", "model")) else ""
        return f"{article}{name} ({mode})" if comma else f"{article}{name}"


def _dlm(loss: str, gaussian_only: bool = False) -> tuple[Method, Method]:
    """Return the joint and the fixed variant of direct loss minimization with a point loss."""
    name = loss.removesuffix("_loss").replace("_", "-")
    words = loss.replace("_", " ")
    label = f"{loss.replace('_', '-')} DLM"
    start = f"Direct loss minimization: the {words} of predictions plus β times the KL term"
    joint = Method(
        name=f"{name}-joint",
        label=f"{label}, joint",
        objective=loss,
        hyperparameters="joint",
        chooses_beta=True,
        about=f"{start}, over all parameters.",
        gaussian_only=gaussian_only,
    )
    fixed = replace(
        joint,
        name=f"{name}-fixed",
        label=f"{label}, fixed",
        hyperparameters="fixed",
        about=f"{start}, over q(u) alone; kernel, noise and inducing inputs are the ELBO's.",
    )
    return joint, fixed


ELBO = Method(
    name="elbo",
    label="ELBO",
    objective="elbo",
    hyperparameters="joint",
    chooses_beta=False,
    about="The evidence lower bound: a bound on the probability of the training data.",
)
"""The start of methods that choose β."""

_ALL = (
    ELBO,
    replace(
        ELBO,
        name="beta-elbo",
        label="β-ELBO",
        chooses_beta=True,
        about="The ELBO with its KL term, which keeps the model near the prior, weighted by β.",
    ),
    replace(
        ELBO,
        name="fitc",
        label="FITC",
        objective="fitc",
        about="The fully independent training conditional, by its own marginal likelihood.",
        gaussian_only=True,
    ),
    *_dlm("log_loss"),
    *_dlm("square_loss", gaussian_only=True),
)

METHODS = {method.name: method for method in _ALL}
"""The methods of the paper, in table order."""

BASIC = replace(
    ELBO,
    name="elbo-basic",
    label="ELBO, basic noise",
    about="The ELBO with Gaussian or Poisson noise in place of the likelihood that was chosen.",
    kind="model",
)
"""The reference for the choice of the likelihood, and the start of methods for Gaussian noise."""

DEFAULT = replace(
    ELBO,
    name="auto",
    label="directgp fit",
    about="The default of directgp fit, on the rows for training and validation: a mixture of "
    "Gaussian processes, some of them with the predictions of boosted trees as features.",
    kind="model",
)
"""The estimator with default parameters: what mixture and trees add to the best objective."""

BASELINES = (
    replace(
        ELBO,
        name="mean",
        label="mean",
        about="The mean and the spread of the training rows, for every row.",
        kind="baseline",
    ),
    replace(
        ELBO,
        name="linear",
        label="linear model",
        about="Bayesian ridge regression, logistic regression, or a Poisson or negative-binomial "
        "GLM.",
        kind="baseline",
    ),
    replace(
        ELBO,
        name="boosting",
        label="gradient boosting",
        about="Gradient boosting of scikit-learn, with noise fitted on the validation rows.",
        kind="baseline",
    ),
)
"""Methods without a Gaussian process."""

_WITHOUT_OBJECTIVE = {method.name: method for method in (BASIC, DEFAULT, *BASELINES)}
"""Methods that are no objective on the chosen model."""


def method_named(name: str) -> Method:
    """Return one of `METHODS`, or ``LOSS-joint`` or ``LOSS-fixed`` of another point loss."""
    methods = METHODS | _WITHOUT_OBJECTIVE
    if name in methods:
        return methods[name]
    losses = [row.name for row in LOSSES.values() if not row.evidence]
    of_losses = {method.name: method for loss in losses for method in _dlm(loss)}
    names_of_losses = [method for method in of_losses if method not in METHODS]
    allowed = f"of {', '.join(methods)}, or of {', '.join(names_of_losses)}"
    require(name in of_losses, "methods", allowed, repr(name))
    return of_losses[name]


def suited_methods(task: Task, likelihood: str = "gaussian") -> tuple[Method, ...]:
    """Return the methods of the paper that suit a task and a likelihood, in table order."""
    gaussian = task == "regression" and LIKELIHOODS[likelihood].conjugate
    return tuple(method for method in _ALL if gaussian or not method.gaussian_only)


def methods_to_compare(
    task: Task, names: Sequence[str] | None, likelihood: str
) -> tuple[Method, ...]:
    """Return the methods of a comparison in table order; the likelihood may be "auto"."""
    basic = likelihoods_of(task)[0] if likelihood == "auto" else likelihood
    suited = suited_methods(task, basic)
    without_objective = tuple(
        m for m in _WITHOUT_OBJECTIVE.values() if m is not BASIC or likelihood == "auto"
    )
    if names is None:
        return (*suited, *without_objective)
    require(
        bool(names),
        "methods",
        f"at least one of {', '.join((*METHODS, *_WITHOUT_OBJECTIVE))}",
        "none",
    )
    wanted = {method_named(name) for name in names}
    if BASIC in wanted and BASIC not in without_objective:
        allowed = "another if the likelihood is given"
        refuse("methods", allowed, repr(BASIC.name), "Leave it out.")
    losses = sorted(wanted - {*_ALL, *_WITHOUT_OBJECTIVE.values()}, key=lambda method: method.name)
    for method in (*(m for m in _ALL if m in wanted and m not in suited), *losses):
        _check_loss(method, suited, basic)
    return tuple(method for method in (*_ALL, *losses, *without_objective) if method in wanted)


def _check_loss(method: Method, suited: Sequence[Method], likelihood: str) -> None:
    """Raise `InvalidInputError` for a method whose loss does not suit the likelihood."""
    if method in _ALL:
        allowed = f"of {', '.join(method.name for method in suited)} here"
        remedy = f"{method.label} needs a real-valued target with Gaussian noise."
        refuse("methods", allowed, repr(method.name), remedy)
    try:
        LOSSES[method.objective].make().check(LIKELIHOODS[likelihood].make())
    except UnsupportedError as error:
        allowed = f"of losses that suit the likelihood {likelihood}"
        refuse("methods", allowed, repr(method.name), str(error))


class Frozen(BaseModel):
    """An immutable, validated record that is stored as JSON."""

    # Losses may be infinite or NaN, and are restored as such.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants"
    )


class Outcome(Frozen):
    """The numbers that a cell produces."""

    seconds: float
    """Processor time of the training; wall time on a GPU."""

    @property
    def headline(self) -> dict[str, float]:
        """The numbers to print when the cell is finished."""
        return {}


class TrainingOutcome(Outcome):
    """The numbers of a trained method."""

    scores: dict[str, float]
    """Means over the test rows, by the names of `directgp.metrics`."""

    num_test: int
    """Test rows."""

    beta: float
    """Weight of the KL term; NaN without a Gaussian process, and for a mixture of several."""

    status: str
    """How the chosen run stopped."""

    reason: str
    """Why the chosen run stopped."""

    evaluations: int
    """Evaluations of objectives and their gradients, of all runs."""

    failed: tuple[str, ...] = ()
    """Values of β that could not be trained, each with the reason."""

    @property
    @override
    def headline(self) -> dict[str, float]:
        return {**self.scores, "β": self.beta}


_Self = TypeVar("_Self", bound="Cell")


class Cell(Frozen):
    """One unit of work: everything that decides a result."""

    outcome_type: ClassVar[type[Outcome]]

    if TYPE_CHECKING:
        # Each subclass declares its fields, since their order is part of the key.
        size: int
        """Training rows."""

    @property
    def key(self) -> str:
        """The sha256 of all fields: equal for equal cells only."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def start(self) -> "Cell | None":
        """The cell whose trained model this one starts from."""
        return None

    @property
    @abstractmethod
    def title(self) -> str:
        """Description in one line."""

    @property
    @abstractmethod
    def group(self) -> str:
        """Row of the cell in the progress display; cells of a group take similar time per row."""

    @property
    def expected_seconds(self) -> float:
        """Expected processor time, to within a factor of about two; NaN if unknown."""
        return math.nan

    def replace(self: _Self, **changes: Any) -> _Self:
        """Return a validated copy with some fields changed."""
        return type(self).model_validate({**dict(self), **changes})


C = TypeVar("C", bound=Cell)
C_co = TypeVar("C_co", bound=Cell, covariant=True)
O_co = TypeVar("O_co", bound=Outcome, covariant=True)


def with_starts(cells: Iterable[C]) -> Iterator[C]:
    """Yield each cell after the one that it starts from."""
    for cell in cells:
        start: Any = cell.start
        if start is not None:
            yield from with_starts([start])
        yield cell


@final
class Circumstances(Frozen):
    """Machine, device and versions of the libraries of a finished cell; not in its key."""

    versions: dict[str, str]
    """Versions of directgp, Python and the libraries."""

    machine: str
    """Processor."""

    device: str
    """CPU, or the name of the GPU."""

    finished: str
    """Date and time, UTC."""

    @classmethod
    def here(cls, device: str) -> "Circumstances":
        """Return the circumstances of this process."""
        return cls(
            versions=versions(),
            machine=machine(),
            device="CPU" if device == "cpu" else torch.cuda.get_device_name(device),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )


@final
@dataclass(frozen=True, eq=False)
class Record(Generic[C_co, O_co]):
    """A finished cell."""

    cell: C_co
    """What was asked for."""

    outcome: O_co
    """Numbers of the result."""

    circumstances: Circumstances
    """Where and when the cell was run."""

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays of the result, by name."""

    model: bytes = b""
    """The trained model, where other cells start from it; `Store.records` leaves it out."""


@final
@dataclass(frozen=True)
class FailedRecord(Generic[C_co]):
    """A cell that failed."""

    cell: C_co
    """What was asked for."""

    reason: str
    """Why it failed."""

    attempts: int = 1
    """How often it failed."""


def seed_of(*numbers: int) -> int:
    """Return a seed that is independent for different numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def generator_of(*numbers: int) -> torch.Generator:
    """Return a CPU generator with the seed of these numbers."""
    return torch.Generator().manual_seed(seed_of(*numbers))
