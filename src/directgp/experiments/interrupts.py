"""Ctrl-C: who hears it, and when."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import final

from directgp.experiments.worker import StoppedError


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that begin in this block do not hear Ctrl-C, not even before they ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@final
@dataclass
class CtrlC:
    """Whether it was pressed."""

    pressed: bool = False

    def is_set(self) -> bool:
        """Whether work should end."""
        return self.pressed

    def press(self, number: int, frame: FrameType | None) -> None:
        """Ask work to end; who presses twice does not want to wait."""
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


@contextmanager
def hearing_ctrl_c() -> Iterator[CtrlC]:
    """Ctrl-C asks the work in this block to end, and is raised at its end.

    Raised at once, a training would take it for a wish to end early with what it has.
    """
    heard = CtrlC()
    # Only the main thread hears signals, and what was told to ignore them goes on doing so.
    hears = threading.current_thread() is threading.main_thread()
    if not hears or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield heard
        return
    signal.signal(signal.SIGINT, heard.press)
    try:
        yield heard
    except StoppedError as error:
        raise KeyboardInterrupt from error
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if heard.pressed:
        raise KeyboardInterrupt
