"""A file with a table in it, whatever its format."""

from abc import ABC
from pathlib import Path
from typing import NoReturn

from directgp.datasets.readable import ReadableTable
from directgp.errors import refuse


class TableFile(ReadableTable, ABC):
    """A file with a table in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    def refuse_damaged(self, error: Exception) -> NoReturn:
        """Say that the file is not what its name promises."""
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "Write it again, or give it the suffix of its format."
        got = f"{self.shown!r}, of which the reader says: {cause.rstrip('.')}"
        refuse("The data file", "readable", got, remedy)
