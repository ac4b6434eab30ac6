"""Define how a run ended and what it found."""

from dataclasses import dataclass
from enum import StrEnum

from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior


class Status(StrEnum):
    """Why a run stopped, in one word."""

    CONVERGED = "converged"
    """A stopping rule was satisfied."""

    BUDGET = "budget"
    """Steps, evaluations or time ran out."""

    CANCELLED = "cancelled"
    """A callback asked for it."""

    INTERRUPTED = "interrupted"
    """Ctrl-C; the best state so far is kept."""

    FAILED = "failed"
    """No finite way down was found; such a stage ends with an error."""


@dataclass(frozen=True)
class Stop:
    """A reason to stop."""

    status: Status
    reason: str


@dataclass(frozen=True)
class Phase:
    """One of several runs that make up a training."""

    name: str = ""
    """What is being tried, in words."""

    part: int = 1
    """Its number."""

    parts: int = 1
    """How many there will be at most."""


@dataclass(frozen=True)
class Progress:
    """Where a run is; what stopping rules and callbacks see after each step."""

    stage: str
    """What is being trained: "elbo", "log_loss", …"""

    step: int
    """Steps taken; an accepted L-BFGS iteration, or one Adam update."""

    max_steps: int
    """Steps allowed."""

    evaluations: int
    """Evaluations of the objective so far."""

    loss: float
    """Objective, as a mean over the examples."""

    gradient_norm: float
    """Largest absolute entry of the gradient; NaN where the optimiser does not look at it."""

    seconds: float
    """Wall time since the run began."""

    phase: Phase = Phase()
    """Which of the runs of a search this is."""


@dataclass(frozen=True)
class StageResult:
    """How one stage of training went."""

    stage: str
    """Its name, as in `Progress`."""

    status: Status
    reason: str
    steps: int
    evaluations: int

    loss: float
    """The objective at the end, as a mean over the examples."""

    losses: tuple[float, ...]
    """The objective after each step."""

    jitter: float
    """Largest jitter that the factorisation of K_uu needed beyond the nugget."""

    at_floor: tuple[str, ...]
    """Parameters that ended at their smallest allowed value."""

    ends_training: bool
    """Whether a budget, a callback or Ctrl-C ended not only this stage but the training."""


@dataclass(frozen=True)
class TrainingResult:
    """What training found, and why it stopped.

    The posterior and the likelihood are new; those that were given are as they were.
    """

    posterior: SparsePosterior
    likelihood: Likelihood
    objective: str
    beta: float

    hyperparameters: str
    """"joint", "fixed", "elbo" where the plain ELBO solution was chosen, or "held" where `update`
    took them as they were."""

    stages: tuple[StageResult, ...]
    """What came before, such as an ELBO run or a warm-up of Adam, and the run itself."""

    seconds: float

    @property
    def ended(self) -> bool:
        """Whether a budget, a callback or Ctrl-C ended the training."""
        return self.stages[-1].ends_training

    @property
    def status(self) -> Status:
        """Why the last stage stopped, in one word."""
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
    """A candidate whose training ended with an error."""

    beta: float
    hyperparameters: str
    reason: str
