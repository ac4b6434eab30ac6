"""Start worker processes, from a server that has imported the library once, and end the program."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from types import FrameType
from typing import NoReturn

__all__ = ["start_server"]

_IMPORTED = ["directgp.experiments.comparison"]


def worker_context() -> BaseContext:
    """Return how processes are started: forked from a server that has no threads, or spawned."""
    # Libraries of macOS may start threads when they are imported.
    return multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")


def start_server() -> None:
    """Start the fork server; it imports the library in parallel with this process."""
    context = worker_context()
    if context.get_start_method() != "forkserver":
        return
    from multiprocessing import forkserver, resource_tracker

    context.set_forkserver_preload(_IMPORTED)
    # The start of the tracker, which the server needs, would end the block.
    resource_tracker.ensure_running()
    with block_interrupt():
        forkserver.ensure_running()


@contextmanager
def block_interrupt() -> Iterator[None]:
    """Start processes in this block that never receive Ctrl-C, not even while they start."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, as Python does; end the program at once if it imports a module.

    Some libraries catch the exception when they are imported, and the program would go on.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            exit_at_once(128 + number, "Interrupted.")
        frame = frame.f_back
    raise KeyboardInterrupt


def exit_at_once(code: int, sentence: str = "") -> NoReturn:
    """End this process, its workers and their server, which may take seconds by themselves."""
    for worker in multiprocessing.active_children():
        # Kill workers first: one that is starting would print that its shared objects are gone.
        with suppress(OSError, ValueError):
            worker.kill()
    server = sys.modules.get("multiprocessing.forkserver")
    pid = getattr(getattr(server, "_forkserver", None), "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    if sentence:
        with suppress(OSError):
            os.write(2, f"{sentence}\n".encode())
    os._exit(code)
