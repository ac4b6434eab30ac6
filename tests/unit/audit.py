"""The events that the interpreter reports while a function runs."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

UNWANTED = (
    *("compile", "exec", "import", "marshal.", "pickle."),
    *("os.exec", "os.posix_spawn", "os.remove", "os.rename", "os.system"),
    *("ctypes.dlopen", "shutil.", "socket.", "subprocess."),
)
"""How the names of events begin that reading a file must not cause."""


class Event(NamedTuple):
    """One event, see `sys.audit`."""

    name: str
    arguments: str


_RECORDS: dict[int, list[Event]] = {}
"""By the thread that records; empty while nobody does."""


def _record(name: str, arguments: tuple[object, ...]) -> None:
    if _RECORDS and (events := _RECORDS.get(threading.get_ident())) is not None:
        events.append(Event(name, str(arguments)[:200]))


@cache
def _install() -> None:
    """Once and for good: an audit hook cannot be removed."""
    sys.addaudithook(_record)


@contextmanager
def _recorded() -> Iterator[list[Event]]:
    _install()
    thread = threading.get_ident()
    _RECORDS[thread] = []
    try:
        yield _RECORDS[thread]
    finally:
        del _RECORDS[thread]


def events_of(function: Callable[[], object]) -> list[Event]:
    """Return the events of a second call, when all that is imported on demand is there."""
    function()
    with _recorded() as events:
        function()
    return events
