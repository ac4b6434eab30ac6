"""One stage of training as its monitors see it: counts, history and the clock."""

import math
import time
from collections.abc import Callable, Sequence
from typing import final

from directgp.training.monitors import Monitor
from directgp.training.result import Phase, Progress, Status, Stop


@final
class Run:
    """Counts steps and evaluations, keeps the losses, and asks the monitors whether to stop.

    Parameters
    ----------
    stage : str
        Its name.
    max_steps : int
        Steps allowed.
    monitors : sequence of Monitor
        Asked after each step.
    since : float
        `time.perf_counter` at the beginning of the first stage.
    phase : Phase
        Which of several runs this is.
    agree : callable
        Makes of a monitor's reason to stop, or of none, that of all processes.
    """

    def __init__(
        self,
        stage: str,
        max_steps: int,
        monitors: Sequence[Monitor],
        since: float,
        phase: Phase | None = None,
        agree: Callable[[Stop | None], Stop | None] = lambda stop: stop,
    ) -> None:
        self.stage = stage
        self.max_steps = max_steps
        self.evaluations = 0
        self.losses: list[float] = []
        self.exhausted = False
        """Whether the run ended because its own steps were taken."""
        self._monitors = monitors
        self._since = since
        self._phase = phase or Phase()
        self._agree = agree
        for monitor in monitors:
            monitor.reset()

    @property
    def steps(self) -> int:
        """Steps taken."""
        return len(self.losses)

    @property
    def seconds(self) -> float:
        """Wall time since the beginning."""
        return time.perf_counter() - self._since

    def resume(self, losses: Sequence[float], evaluations: int) -> None:
        """Take on the past of an interrupted run, so that monitors know what they knew then."""
        for loss in losses:
            self._watch(loss, math.nan)
        self.evaluations = evaluations

    def step(self, loss: float, gradient_norm: float = math.nan) -> Stop | None:
        """Record one step; a reason to stop, if there is one."""
        stop = self._agree(self._watch(loss, gradient_norm))
        if stop is None and self.steps >= self.max_steps:
            self.exhausted = True
            stop = Stop(Status.BUDGET, f"{self.max_steps} steps were taken, as many as allowed.")
        return stop

    def _watch(self, loss: float, gradient_norm: float) -> Stop | None:
        """Show the monitors a step; the reason to stop of the first that has one."""
        self.losses.append(loss)
        progress = Progress(
            stage=self.stage,
            step=self.steps,
            max_steps=self.max_steps,
            evaluations=self.evaluations,
            loss=loss,
            gradient_norm=gradient_norm,
            seconds=self.seconds,
            phase=self._phase,
        )
        # Each sees every step, also those after one that stops.
        stops = [monitor(progress) for monitor in self._monitors]
        return next((stop for stop in stops if stop is not None), None)
