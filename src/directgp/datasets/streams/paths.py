"""From what the user names to the Parquet files that are meant."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from directgp.datasets.wording import listed, nearest
from directgp.errors import refuse

Named = str | os.PathLike[str]

_SUFFIXES = (".parquet", ".pq")
_WHO = "The data"


def parquet_files(path: Named | Sequence[Named]) -> tuple[Path, ...]:
    """The files named, and those in the folders named, folders in the order of the alphabet.

    Of a folder these are the files whose name ends with ``.parquet`` or ``.pq``, at any depth. What
    begins with ``.`` or ``_`` is left out, file or folder: so writers mark what is not data.
    """
    named = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not named:
        refuse(_WHO, "at least one Parquet file or folder", "an empty list")
    files = [file for one in named for file in _files_at(Path(one))]
    _refuse_twice(files)
    return tuple(files)


def _files_at(path: Path) -> list[Path]:
    if path.is_dir():
        return _files_in(path)
    if not path.exists():
        _refuse_absent(path)
    return [path]


def _files_in(folder: Path) -> list[Path]:
    found = [file for file in folder.rglob("*") if _is_data(file.relative_to(folder))]
    files = sorted(file for file in found if file.is_file())
    if not files:
        remedy = "Name the folder that has them, or the files."
        got = f"none whose name ends with .parquet in {str(folder)!r}"
        refuse(_WHO, "Parquet files", got, remedy)
    return files


def _is_data(path: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return path.suffix.lower() in _SUFFIXES and not hidden


def _refuse_absent(path: Path) -> None:
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    close = nearest(path.name, beside)
    remedy = f"Did you mean {' or '.join(map(repr, close))}?" if close else "Check the path."
    refuse(_WHO, "a file or a folder that exists", repr(str(path)), remedy)


def _refuse_twice(files: list[Path]) -> None:
    places = Counter(file.resolve() for file in files)
    twice = [str(place) for place, number in places.items() if number > 1]
    if twice:
        remedy = "Name each file once, and no folder together with a file in it."
        refuse(_WHO, "files that are named once", f"{listed(twice)} more than once", remedy)
