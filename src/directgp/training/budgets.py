"""When a run has had enough: budgets, and a way to end it from outside."""

import threading
from dataclasses import dataclass, field
from typing import final

from typing_extensions import override

from directgp.errors import require
from directgp.training.monitors import Monitor
from directgp.training.result import Progress, Status, Stop


@final
@dataclass(frozen=True)
class TimeBudget(Monitor):
    """Wall time for a whole run, with all its stages; the step under way is finished."""

    seconds: float

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        require(self.seconds > 0, "seconds of TimeBudget", "positive", self.seconds)

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        """Stop when the time is over."""
        if progress.seconds < self.seconds:
            return None
        return _spent(f"{progress.seconds:.1f} of {self.seconds:g} seconds", progress)

    @override
    def reset(self) -> None:
        """Nothing: the clock of the run goes on through its stages."""


@final
@dataclass(eq=False)
class StepBudget(Monitor):
    """Steps of a whole run, all its stages together; use a new one for each run."""

    steps: int
    _taken: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        require(self.steps >= 1, "steps of StepBudget", "at least 1", self.steps)

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        """Stop when the steps are used up."""
        self._taken += 1
        if self._taken < self.steps:
            return None
        return _spent(f"{self._taken} of {self.steps} steps", progress)

    @override
    def reset(self) -> None:
        """Nothing: the steps of all stages count."""


@final
@dataclass(eq=False)
class EvaluationBudget(Monitor):
    """Evaluations of the objective in a whole run; use a new one for each run."""

    evaluations: int
    _before: int = field(default=0, init=False, repr=False)
    _here: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        require(
            self.evaluations >= 1,
            "evaluations of EvaluationBudget",
            "at least 1",
            self.evaluations,
        )

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        """Stop when the evaluations are used up."""
        self._here = progress.evaluations
        total = self._before + self._here
        if total < self.evaluations:
            return None
        return _spent(f"{total} of {self.evaluations} evaluations", progress)

    @override
    def reset(self) -> None:
        """Add up the stages: the counts of `Progress` begin anew in each."""
        self._before, self._here = self._before + self._here, 0


@final
@dataclass(eq=False)
class Cancel(Monitor):
    """Ends a run after its current step when another thread asks for it.

    Once cancelled it stays so, through all stages; take a new one for another run.

    Examples
    --------
    >>> from directgp.training.budgets import Cancel
    >>> from directgp.training.result import Progress
    >>> cancel = Cancel()
    >>> cancel.cancel("The window was closed.")
    >>> cancel(Progress("elbo", 1, 100, 1, 0.5, 0.1, 1.0)).reason
    'The window was closed.'
    """

    _asked: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _reason: str = field(default="", init=False, repr=False)

    def cancel(self, reason: str = "") -> None:
        """Ask the run to end; from any thread, any number of times."""
        self._reason = reason or self._reason
        self._asked.set()

    @override
    def __call__(self, progress: Progress) -> Stop | None:
        """Stop if that was asked for."""
        if not self._asked.is_set():
            return None
        reason = self._reason or f"Cancelled at step {progress.step} of {progress.stage}."
        return Stop(Status.CANCELLED, reason)

    @override
    def reset(self) -> None:
        """Nothing: who asked before a stage began is heard all the same."""


def _spent(what: str, progress: Progress) -> Stop:
    """A stop at the end of a budget."""
    return Stop(Status.BUDGET, f"{what} are used, at a loss of {progress.loss:.5g}.")
