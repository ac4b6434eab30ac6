"""Tables of the documentation, from the file of results."""

from pathlib import Path

from benchmarks.defaults.store import Cell, Record


def write_tables(results: dict[Cell, Record], folder: Path) -> None:
    """Write one file per table."""
