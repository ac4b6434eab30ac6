"""Who works on a cell: a program that gives signs of life, and is taken for dead without them."""

import os
import platform
import threading
import time
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

from directgp.errors import StoreError
from directgp.experiments.paper.store_file import StoreFile

LEASE = 120.0
"""Seconds after which a program that gave no sign of life has lost what it had under way."""


@final
@dataclass(frozen=True)
class Owner:
    """One program that has a store open."""

    token: str
    host: str
    pid: int

    @classmethod
    def here(cls) -> "Owner":
        """This one; each time another."""
        return cls(uuid.uuid4().hex, host(), os.getpid())


@cache
def host() -> str:
    """Where process numbers mean the same: the machine, and on Linux the container."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def is_living(where: str, pid: int, beat: float) -> bool:
    """Whether a program gave a sign of life of late, and is there as far as one can see."""
    return time.time() - beat <= LEASE and (where != host() or _runs(pid))


def _runs(pid: int) -> bool:
    """Whether a process of this machine is there; Windows has no way to ask that does no harm."""
    if os.name == "nt":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@final
class Heart:
    """Beats in a thread of its own until it is stopped, however busy the program is.

    Parameters
    ----------
    path : Path
        The store.
    owner : Owner
        Whose claims are kept alive.
    seconds : float
        Between two beats.
    """

    def __init__(self, path: Path, owner: Owner, seconds: float = LEASE / 6) -> None:
        self._path, self._owner, self._seconds = path, owner, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more beats."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            try:
                self._beat()
            except StoreError:
                # The next one makes up for it.
                continue

    def _beat(self) -> None:
        file = StoreFile(self._path, patience=self._seconds)
        try:
            with file.writing():
                token = self._owner.token
                file.rows("update claims set beat = ? where owner = ?", time.time(), token)
        finally:
            file.close()
