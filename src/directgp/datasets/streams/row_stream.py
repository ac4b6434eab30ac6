"""Batches without end, read ahead, that can be resumed."""

import weakref
from types import TracebackType
from typing import final

from directgp.datasets.streams.batch import Batch, joined
from directgp.datasets.streams.read_ahead import ReadAhead
from directgp.datasets.streams.shuffling import Buffer, ShuffledRows
from directgp.errors import refuse, require


@final
class RowStream:
    """Batches of rows in random order, epoch after epoch, read by a thread ahead of their use.

    Every epoch has each row once, in an order of its own. Batches take no notice of where an epoch
    ends: all have the same number of rows.
    """

    def __init__(self, rows: ShuffledRows, batch_size: int) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._position = 0
        self._closed = False
        self._ahead: ReadAhead | None = None
        self._ending: weakref.finalize[..., RowStream] | None = None

    def next(self) -> Batch:
        """The next batch, as soon as it is read."""
        parts, position = [], self._position
        end = position + self._batch_size
        while position < end:
            buffer = self._buffer_at(position)
            stop = min(end, buffer.stop)
            parts.append(buffer.batch.rows(position - buffer.start, stop - buffer.start))
            position = stop
        # Last of all: an interrupt before leaves the stream where it was.
        self._position = end
        return joined(parts)

    @property
    def rows(self) -> int:
        """Rows of one epoch."""
        return self._rows.rows

    @property
    def epochs(self) -> float:
        """Rows given out, in epochs."""
        return self._position / self.rows

    def state(self) -> dict[str, int]:
        """Where the stream is, for `restore`."""
        return {"taken": self._position, **self._identity()}

    def restore(self, state: dict[str, int]) -> None:
        """Go on where a stream of the same files, seed, share and buffer was."""
        for name, here in self._identity().items():
            if state.get(name) != here:
                got = f"{state.get(name)} against {here} here"
                remedy = "Resume with the same files, seed, buffer and number of processes."
                refuse(f"{name} of the state", "that of the stream", got, remedy)
        taken = state.get("taken", -1)
        require(taken >= 0, "taken of the state", "a number of rows", state.get("taken"))
        self._stop()
        self._position = taken

    def close(self) -> None:
        """End the thread and let go of the files; more than once is fine."""
        self._closed = True
        self._stop()

    def __enter__(self) -> "RowStream":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _identity(self) -> dict[str, int]:
        """What decides the order of the rows."""
        rank, size = self._rows.share
        decided = {"seed": self._rows.seed, "share": rank, "shares": size}
        return decided | {"rows": self.rows, "buffer_rows": self._rows.buffer_rows}

    def _buffer_at(self, position: int) -> Buffer:
        buffer = self._ahead.at(position) if self._ahead else None
        while buffer is None:
            require(not self._closed, "The stream", "open", "next() after close()")
            # At the beginning, or where an interrupt left the reader ahead of the stream.
            self._start(position)
            buffer = self._ahead.at(position) if self._ahead else None
        return buffer

    def _start(self, position: int) -> None:
        self._stop()
        ahead = ReadAhead(self._rows.buffers(position))
        self._ending = weakref.finalize(self, ahead.close)
        self._ahead = ahead
        ahead.start()

    def _stop(self) -> None:
        if self._ending is not None:
            self._ending()
        self._ahead = self._ending = None
