"""Which program has which cell under way, so that no two run the same."""

import time
from dataclasses import dataclass, field
from typing import final

from directgp.experiments.paper.owners import Heart, Owner, is_living
from directgp.experiments.paper.store_file import StoreFile


@final
@dataclass
class UnderWay:
    """The claims of a store."""

    file: StoreFile
    owner: Owner = field(default_factory=Owner.here)
    _heart: Heart | None = field(default=None, init=False)

    def claim(self, key: str) -> bool:
        """Take a cell, unless it is finished or a living program has it."""
        with self.file.writing():
            if self.file.row("select 1 from results where key = ?", key) or self._is_taken(key):
                return False
            owner = self.owner
            values = (key, owner.token, owner.host, owner.pid, time.time())
            self.file.rows("insert or replace into claims values (?, ?, ?, ?, ?)", *values)
        self._heart = self._heart or Heart(self.file.path, owner)
        return True

    def taken(self) -> set[str]:
        """What other programs that live have under way."""
        rows = self.file.rows("select key, owner, host, pid, beat from claims")
        return {key for key, *claim in rows if self._is_anothers(*claim)}

    def release(self, key: str) -> None:
        """Leave a cell to others, if it is ours."""
        ours = (key, self.owner.token)
        with self.file.writing():
            self.file.rows("delete from claims where key = ? and owner = ?", *ours)

    def release_all(self) -> None:
        """Leave all that is ours to others."""
        if self._heart is None:
            return
        self._heart.stop()
        self._heart = None
        with self.file.writing():
            self.file.rows("delete from claims where owner = ?", self.owner.token)

    def _is_taken(self, key: str) -> bool:
        claim = self.file.row("select owner, host, pid, beat from claims where key = ?", key)
        return claim is not None and self._is_anothers(*claim)

    def _is_anothers(self, token: str, where: str, pid: int, beat: float) -> bool:
        return token != self.owner.token and is_living(where, pid, beat)
