"""What all stores share: the version of their tables, and words for what is wrong with the file."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from directgp.errors import StoreError


def schema_of(file: sqlite3.Connection, path: Path, reads: int) -> int:
    """The schema of a store, 0 for a new one; refused unless it is the one that is read."""
    (schema,) = file.execute("pragma user_version").fetchone()
    if schema not in (0, reads):
        raise StoreError(
            f"{path} is a store of schema {schema}, and this version of directgp reads "
            f"schema {reads}. Use the version that wrote it, or another folder."
        )
    return int(schema)


@contextmanager
def telling(path: Path, when_locked: str) -> Iterator[None]:
    """Say in words what is wrong with the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise StoreError(f"{path} {when_locked}") from error
        raise StoreError(
            f"{path} could not be opened or written: {error}. Give a folder that can be "
            "written to and has space."
        ) from error
    except (sqlite3.DatabaseError, SafetensorError, ValueError) as error:
        raise StoreError(
            f"{path} is damaged or not a store of directgp ({_first_line(error)}). "
            "Delete it, or take another folder."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
