"""Where a fit is: its runs and steps so far, and how long it may still take, in words."""

from datetime import timedelta
from typing import final

from directgp.training.result import Progress


@final
class Tally:
    """Counts the steps of a fit.

    Parameters
    ----------
    since : float
        When the fit began, by the clock whose times the methods are given.
    """

    def __init__(self, since: float) -> None:
        self.since = since
        self.runs = 0
        self.steps = 0
        self.last: Progress | None = None
        """The last step seen."""
        self._part_since = since
        self._part_steps = 0
        self._within = 0.0
        self._new_run = True

    def begin_run(self) -> None:
        """Another run follows."""
        self._new_run = True

    def begins_part(self, progress: Progress) -> bool:
        """Whether a part is over and this is the first step of the next."""
        return self.last is not None and _part(progress) != _part(self.last)

    def add(self, progress: Progress, now: float) -> None:
        """Count a step."""
        if self.begins_part(progress):
            self._part_since, self._part_steps, self._within = now, 0, 0.0
        self.runs += self._new_run
        self.steps += 1
        self._part_steps += 1
        # A part may be several runs; what it has done is not undone by the next of them.
        self._within = max(self._within, min(1.0, progress.step / max(1, progress.max_steps)))
        self._new_run, self.last = False, progress

    @property
    def fraction(self) -> float:
        """What is done, between 0 and 1, if no part ends before its last step."""
        if self.last is None:
            return 0.0
        phase = self.last.phase
        return min(1.0, (phase.part - 1 + self._within) / max(1, phase.parts))

    def seconds_left(self, now: float) -> float | None:
        """Mean time of the parts that are over, for each that is not; None before the first."""
        if self.last is None or self.last.phase.part < 2:
            return None
        phase = self.last.phase
        mean = (self._part_since - self.since) / (phase.part - 1)
        current = max(0.0, mean - (now - self._part_since))
        return mean * max(0, phase.parts - phase.part) + current

    def name(self) -> str:
        """What is being trained."""
        return "" if self.last is None else self.last.phase.name or self.last.stage

    def figures(self, now: float) -> str:
        """How far it is."""
        if self.last is None:
            return ""
        words = [self._place(), f"loss {self.last.loss:.4g}", _clock(now - self.since)]
        left = self.seconds_left(now)
        return ", ".join(words if left is None else [*words, f"{_rough(left)} left"])

    def part_line(self, now: float) -> str:
        """The part that is over."""
        if self.last is None:
            return ""
        phase, seconds = self.last.phase, duration(now - self._part_since)
        place = f"{phase.part} of {phase.parts}: " if phase.name else ""
        steps = _count(self._part_steps, "step")
        return f"{place}{self.name()}: {steps}, loss {self.last.loss:.4g}, {seconds}"

    def closing_line(self, now: float, failed: bool) -> str:
        """The fit that is over."""
        seconds = duration(now - self.since)
        counts = f"{_count(self.runs, 'run')}, {_count(self.steps, 'step')}"
        if failed:
            return f"Not fitted, ended after {seconds}: {counts}."
        return f"Fitted in {seconds}: {counts}{self._final_loss()}."

    def _place(self) -> str:
        """Parts of the whole, or steps where there is one part only."""
        if self.last is None:
            return ""
        phase = self.last.phase
        if phase.parts > 1:
            return f"{phase.part} of {phase.parts}"
        return f"{self.last.step:,} of {self.last.max_steps:,} steps"

    def _final_loss(self) -> str:
        # The last of several candidates need not be the one that is kept.
        if self.last is None or not (self.last.phase.parts == 1 or self.name() == "all examples"):
            return ""
        return f", loss {self.last.loss:.4g}"


def duration(seconds: float) -> str:
    """Seconds below a minute, h:mm:ss above."""
    return f"{seconds:.1f} s" if seconds < 59.95 else str(timedelta(seconds=round(seconds)))


def _clock(seconds: float) -> str:
    """Whole seconds, which do not flicker."""
    return f"{int(seconds)} s" if seconds < 60 else duration(seconds)


def _part(progress: Progress) -> tuple[int, str]:
    """What tells a part from the others; the stages of a single run are parts of it."""
    return progress.phase.part, progress.phase.name or progress.stage


def _rough(seconds: float) -> str:
    """No more precise than an estimate is."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    if seconds < 90:
        return f"{5 * round(seconds / 5)} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
