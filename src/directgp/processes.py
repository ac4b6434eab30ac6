"""Start worker processes, from a server that has imported the library once where there is one."""

import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import BaseContext

_IMPORTED = ["directgp.experiments.comparison"]


def worker_context() -> BaseContext:
    """Return how processes are started: forked from a server that has no threads, or spawned."""
    # Libraries of macOS may start threads when they are imported.
    return multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")


def start_server() -> None:
    """Let the server import the library, while this process does the same."""
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
