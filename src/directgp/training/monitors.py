"""What watches a run and may end it: stopping rules, budgets, progress bars."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from directgp.errors import require
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.result import Progress, Stop


@runtime_checkable
class Monitor(Protocol):
    """Sees every step of a run, and may end it.

    Examples
    --------
    >>> from directgp.training.monitors import Monitor
    >>> class Print(Monitor):
    ...     def __call__(self, progress):
    ...         print(progress.step, progress.loss)
    ...     def reset(self):
    ...         pass
    """

    @abstractmethod
    def __call__(self, progress: Progress) -> Stop | None:
        """Look at the step just taken; a returned `Stop` ends the run."""

    @abstractmethod
    def reset(self) -> None:
        """Forget the steps seen: a run, or the next stage of one, begins."""

    def close(self) -> None:
        """Let go of what is held; called once at the end of a run, also after an error."""
        return None


@final
@dataclass(frozen=True)
class Observer:
    """Looks at the model itself while Adam trains it: for learning curves.

    It sees the model as a step has left it, after the last step too; the result has the best state
    where the loss is exact.

    Parameters
    ----------
    every : int
        Steps between two looks.
    see : callable
        Given the steps taken, the posterior and the likelihood as they are then; it must leave
        them as they are.
    """

    every: int
    see: Callable[[int, SparsePosterior, Likelihood], None]

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        require(self.every >= 1, "every of Observer", "at least 1", self.every)


def close(monitors: Sequence[Monitor]) -> None:
    """Close each that can be closed; a monitor of one's own may have no `close`."""
    for monitor in monitors:
        getattr(monitor, "close", lambda: None)()
