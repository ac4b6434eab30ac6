"""A thread that reads what comes next while the present rows are used."""

import threading
from collections import deque
from collections.abc import Iterator
from typing import final

from directgp.datasets.streams.shuffling import Buffer

_DEPTH = 2
"""Buffers held: the one in use, and the next."""

_PATIENCE = 5.0
"""Seconds to wait for a thread that is to end; one that waits for a dead disk is left alone."""


@final
class ReadAhead:
    """Takes buffers from an iterator in a thread of its own."""

    def __init__(self, buffers: Iterator[Buffer]) -> None:
        self._buffers = buffers
        self._held: deque[Buffer] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="directgp rows", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def at(self, position: int) -> Buffer | None:
        """The buffer that has the row, once it is read; None if that row will not come.

        Buffers that end before are let go. An error of the thread is raised here.
        """
        with self._changed:
            while self._held and self._held[0].stop <= position:
                self._held.popleft()
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._held or self._error or not self._reading())
            if self._held:
                return self._held[0] if self._held[0].start <= position else None
            if self._error:
                raise self._error
            return None

    def close(self) -> None:
        """End the thread; more than once is fine."""
        with self._changed:
            self._closed = True
            self._held.clear()
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)

    def _reading(self) -> bool:
        """Whether more can come: not when closed, nor in a fork, which has no such thread."""
        return not self._closed and self._thread.is_alive()

    def _read(self) -> None:
        try:
            for buffer in self._buffers:
                if not self._hold(buffer):
                    break
        except BaseException as error:  # Raised again where the rows are used.
            self._fail(error)
        finally:
            close = getattr(self._buffers, "close", None)
            if close is not None:
                close()

    def _hold(self, buffer: Buffer) -> bool:
        """Wait for room and hold the buffer; False when closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._held) < _DEPTH or self._closed)
            if not self._closed:
                self._held.append(buffer)
                self._changed.notify_all()
            return not self._closed

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
