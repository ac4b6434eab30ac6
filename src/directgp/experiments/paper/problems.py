"""Data sets as the cells of a sweep ask for them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from directgp.datasets.problem import Problem
from directgp.errors import DirectGPError
from directgp.experiments.pools import Shared

_KEPT = 3


@final
@dataclass
class Problems:
    """Data sets by name: the last few are kept, and those that cannot be had remembered."""

    problem_of: Callable[[str], Problem]
    _kept: dict[str, Shared] = field(default_factory=dict, init=False)
    _missing: dict[str, str] = field(default_factory=dict, init=False)

    def get(self, name: str) -> Shared:
        """A data set, for many cells."""
        found = self._kept.pop(name, None) or self._read(name)
        self._kept[name] = found
        for oldest in list(self._kept)[:-_KEPT]:
            del self._kept[oldest]
        return found

    def obstacle(self, name: str) -> str | None:
        """Why a data set could not be had, if so."""
        return self._missing.get(name)

    def _read(self, name: str) -> Shared:
        try:
            return Shared(self.problem_of(name))
        except DirectGPError as error:
            self._missing[name] = str(error)
            raise
