"""What a run shows while it goes, and what it leaves behind."""

from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from types import TracebackType
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from typing_extensions import override

from directgp.training.monitors import Monitor
from directgp.training.result import Progress


@final
@dataclass(eq=False)
class ProgressBar(Monitor):
    """One line for each stage: name, bar, steps, loss, evaluations and time of the run.

    On a terminal the line of the current stage moves. Elsewhere (a file, a pipe, a notebook)
    one line is printed when a stage is over, and nothing before.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where to print; standard error if None.

    Examples
    --------
    >>> import sys
    >>> from rich.console import Console
    >>> from directgp.training.progress import ProgressBar
    >>> from directgp.training.result import Progress
    >>> with ProgressBar(Console(file=sys.stdout, force_terminal=False)) as bar:
    ...     bar(Progress("elbo", 7, 100, 9, 0.5, 0.1, 1.0))
    elbo 7/100 steps, loss 0.5, 9 evaluations, 1.0 s
    """

    console: Console | None = None
    _bars: Bars | None = field(default=None, init=False, repr=False)
    _task: TaskID | None = field(default=None, init=False, repr=False)
    _last: Progress | None = field(default=None, init=False, repr=False)

    @override
    def __call__(self, progress: Progress) -> None:
        """Move the bar."""
        if self._last is not None and self._last.stage != progress.stage:
            self.reset()
        self._last = progress
        if self._target().is_interactive:
            self._draw(progress)

    @override
    def reset(self) -> None:
        """Finish the line of the stage, so that the next step begins another."""
        if self._bars is not None and self._task is not None:
            self._bars.stop_task(self._task)
        elif self._last is not None:
            line = f"{self._last.stage} {_figures(self._last)}"
            self._target().print(line, markup=False, highlight=False, soft_wrap=True)
        self._task = self._last = None

    @override
    def close(self) -> None:
        """Finish the last line and give the terminal back."""
        try:
            self.reset()
        finally:
            bars, self._bars = self._bars, None
            if bars is not None:
                bars.stop()

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _target(self) -> Console:
        """The console, made when it is first needed."""
        self.console = Console(stderr=True) if self.console is None else self.console
        return self.console

    def _draw(self, progress: Progress) -> None:
        """Show the step on a terminal."""
        if self._bars is None:
            self._bars = _bars(self._target())
            self._bars.start()
        if self._task is None:
            self._task = self._bars.add_task(progress.stage, figures="")
        self._bars.update(
            self._task,
            completed=progress.step,
            total=progress.max_steps,
            figures=_figures(progress),
        )


@final
@dataclass(eq=False)
class History(Monitor):
    """Every step of a run, through all its stages; take a new one for another run."""

    records: list[Progress] = field(default_factory=list)

    @override
    def __call__(self, progress: Progress) -> None:
        """Keep the step."""
        self.records.append(progress)

    @override
    def reset(self) -> None:
        """Nothing: the stages of a run make one history."""

    @property
    def losses(self) -> list[float]:
        """The loss after each step."""
        return [record.loss for record in self.records]

    def to_dict(self) -> dict[str, list[Any]]:
        """One list for each field of `Progress`, ready for a data frame; the phase by its name."""
        rows = [asdict(record) | {"phase": record.phase.name} for record in self.records]
        return {column.name: [row[column.name] for row in rows] for column in fields(Progress)}


def _bars(console: Console) -> Bars:
    """The layout of a line; the bar gives way where the terminal is narrow."""
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[figures]}", markup=False),
        console=console,
    )


def _figures(progress: Progress) -> str:
    """What is known after a step, in words."""
    return (
        f"{progress.step}/{progress.max_steps} steps, loss {progress.loss:.5g},"
        f" {progress.evaluations} evaluations, {_duration(progress.seconds)}"
    )


def _duration(seconds: float) -> str:
    """Seconds below a minute, h:mm:ss above."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=int(seconds)))
