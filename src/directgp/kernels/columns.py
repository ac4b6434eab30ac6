"""Describe the columns that kernels look at."""

from dataclasses import dataclass
from typing import final

from directgp.registry import ColumnKind


@final
@dataclass(frozen=True)
class ColumnFacts:
    """A column of the inputs of a kernel: z = (x − shift) / scale of a column x of the user."""

    name: str
    """Name of the column."""

    kind: ColumnKind = "number"
    """What the values are."""

    shift: float = 0.0
    """The value that is 0 in the inputs."""

    scale: float = 1.0
    """The unit of the inputs; negative if the sign is reversed."""

    unit: str = ""
    """Unit of x: "days" for dates, else empty."""

    num_levels: int = 0
    """Number of levels of a category or a group, whose codes are 0, 1, …; −1 is an unseen one."""

    @property
    def coded(self) -> bool:
        """Whether the values are codes of levels."""
        return self.kind in ("category", "group")
