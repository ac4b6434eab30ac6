"""What several processes that train one model do together."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, final

from safetensors.torch import load, save
from torch import Tensor

from directgp.errors import CheckpointError, LostProcessError, require
from directgp.files import on_cpu
from directgp.training.checkpoint import Checkpoint
from directgp.training.feeds import Feed
from directgp.training.processes import Processes
from directgp.training.result import Status, Stop
from directgp.training.shares import SharedFeed


@final
class Together:
    """The steps at which processes wait for each other; for one process alone, none.

    Parameters
    ----------
    processes : Processes
        All of them, or None for this one alone.
    """

    def __init__(self, processes: Processes | None = None) -> None:
        several = processes is not None and processes.size > 1
        self._processes = processes if several else None
        self._interrupted = False

    @property
    def alone(self) -> bool:
        """Whether there is but one process."""
        return self._processes is None

    @property
    def rank(self) -> int | None:
        """The number of this process among several; None alone."""
        return None if self._processes is None else self._processes.rank

    @property
    def size(self) -> int:
        """How many processes there are."""
        return 1 if self._processes is None else self._processes.size

    @property
    def writes(self) -> bool:
        """Whether this process is the one that keeps files and shows progress."""
        return not self.rank

    def share(self, feed: Feed) -> Feed:
        """This process's share of the examples."""
        if self._processes is None or feed.shared:
            return feed
        return SharedFeed(feed, self._processes.rank, self._processes.size)

    def mean(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The mean of each tensor over the processes."""
        return tensors if self._processes is None else self._processes.mean(tensors)

    def agree(self, stop: Stop | None) -> Stop | None:
        """The reason to stop of the first process that has one, in all of them."""
        if self._processes is None:
            return stop
        if stop is None and self._interrupted:
            stop = Stop(Status.INTERRUPTED, "Interrupted; the best state so far is kept.")
        rank, size = self._processes.rank, self._processes.size
        speaker = self._processes.smallest(size if stop is None else rank)
        if speaker == size:
            return None
        self._interrupted = False
        said = None if stop is None else [stop.status.value, stop.reason]
        status, reason = self._told(said, speaker)
        return Stop(Status(status), reason)

    def require_same(self, fingerprint: str) -> None:
        """Refuse processes that were given something else than the first one."""
        if self._processes is None:
            return
        rank, size = self._processes.rank, self._processes.size
        other = self._processes.smallest(size if self._told(fingerprint) == fingerprint else rank)
        require(
            other == size,
            "Data, model and settings of train",
            "the same in every process",
            f"others in process {other} than in process 0",
            "Read the same rows in the same order, and build the same model.",
        )

    def first(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the first process, on the CPU."""
        if self._processes is None:
            return tensors
        mine = {name: on_cpu(name, tensor).clone() for name, tensor in tensors.items()}
        return load(self._processes.told(save(mine) if self.writes else b""))

    def read(self, read: Callable[[], Checkpoint | None]) -> Checkpoint | None:
        """What the first process reads, or why it cannot."""
        if self._processes is None:
            return read()
        found, trouble = None, ""
        try:
            found = read() if self.writes else None
        except CheckpointError as error:
            trouble = str(error)
        if trouble := self._told(trouble):
            raise CheckpointError(trouble)
        manifest = self._told(None if found is None else found.manifest)
        tensors = self.first({} if found is None else found.tensors)
        return None if manifest is None else Checkpoint(tensors, manifest)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C waits for the end of the step, so that all processes stop at the same one.

        The SIGTERM by which torchrun ends a job that has lost a process becomes an error that says
        so.
        """
        if self._processes is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        mine = {signal.SIGINT: self._interrupt, signal.SIGTERM: _terminate}
        before = {number: signal.signal(number, handler) for number, handler in mine.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._interrupted:
            signal.raise_signal(signal.SIGINT)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True

    def _told(self, value: Any, by: int = 0) -> Any:
        """A value of one of several processes, of what JSON knows."""
        if self._processes is None:
            return value
        mine = json.dumps(value) if self._processes.rank == by else ""
        return json.loads(self._processes.told(mine.encode(), by))


def _terminate(number: int, frame: FrameType | None) -> None:
    raise LostProcessError(
        "This process was told to end (SIGTERM), as torchrun does when another one is lost."
    )
