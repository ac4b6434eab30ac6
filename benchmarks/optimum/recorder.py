"""Record parameters during training; recording time is not counted."""

import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.optimum.jobs import NAMES, Array, Given, Parameters, Run, Settings

_FIRST, _GROWTH = 0.05, 1.15
"""Seconds to the first look, and the factor between the times of two."""


class Recorder:
    """Record the parameters of a run at geometrically growing times.

    Parameters
    ----------
    settings : Settings
        When to end.
    look : callable
        The parameters as they are now; its time does not count.
    """

    def __init__(self, settings: Settings, look: Callable[[], Parameters] = dict) -> None:
        self._settings, self.look = settings, look
        self._since, self._away = time.process_time(), 0.0
        self._next = _FIRST
        self._seconds: list[float] = []
        self._kept: list[Parameters] = []
        self._losses: list[float] = []
        self.steps = 0

    @property
    def seconds(self) -> float:
        """Return the processor time without the time of recording."""
        return time.process_time() - self._since - self._away

    def keep(self) -> None:
        """Record the current parameters."""
        now = self.seconds
        self._seconds.append(now)
        self._kept.append({name: np.array(value) for name, value in self.look().items()})
        self._away += self.seconds - now

    def step(self, loss: float | None = None) -> bool:
        """Count a step, record if it is due, and return whether the run is over."""
        self.steps += 1
        if loss is not None:
            self._losses.append(loss)
        now = self.seconds
        if now >= self._next:
            self.keep()
            self._next = now * _GROWTH
        return now >= self._settings.seconds or self._enough()

    def _enough(self) -> bool:
        window = self._settings.window
        recent = self._losses[-(window or 1) :]
        settled = len(recent) == window and max(recent) - min(recent) <= 1e-4
        return settled or self.steps == self._settings.steps

    def run(self, claimed: float, trace: Array | None = None) -> Run:
        """Return the recorded run, including the final parameters."""
        total = self.seconds
        self.keep()
        stacked = {name: np.stack([kept[name] for kept in self._kept]) for name in NAMES}
        nothing = np.empty((0, 2))
        seconds = np.array(self._seconds)
        return Run(
            seconds, stacked, claimed, self.steps, total, nothing if trace is None else trace
        )


def start(given: Given) -> Parameters:
    """Return the starting parameters with q(u) = p(u)."""
    m = len(given.Z)
    return {
        "Z": given.Z,
        "lengthscale": np.array(given.lengthscale),
        "output_scale": np.array(given.output_scale),
        "mean": np.array(given.mean or 0.0),
        "noise": np.array(given.noise),
        "u_mean": np.zeros(m),
        "u_chol": np.eye(m),
        "jitter": np.array(0.0),
    }


def batches(n: int, size: int | None, seed: int) -> Iterator[Array | slice]:
    """Yield the rows of each step: all rows, or batches of shuffled epochs."""
    random = np.random.default_rng(seed)
    while size is None or size >= n:
        yield slice(None)
    while True:
        order = random.permutation(n)
        yield from (order[i : i + size] for i in range(0, n, size))
