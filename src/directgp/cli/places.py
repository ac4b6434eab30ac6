"""Places to write to: what may be replaced there, and drafts that are put in place in one step."""

import os
import secrets
from pathlib import Path
from typing import NoReturn

from directgp.errors import InvalidInputError


def check_file_place(out: Path, force: bool, *, inputs: tuple[Path, ...] = ()) -> None:
    """Refuse a place where something is that must not be replaced by a file."""
    _check_parent(out)
    if not os.path.lexists(out):
        return
    if out.is_dir():
        _refuse(out, "a new file", "is a folder", "Name a file in it.")
    if any(each.exists() and out.exists() and out.samefile(each) for each in inputs):
        _refuse(out, "a new file", "is read from", "Name another.")
    if not force:
        _refuse(out, "a new file", "exists", "Name another, or replace it by --force.")


def check_folder_place(out: Path, own: set[str], force: bool) -> None:
    """Refuse a place where something else is than a folder of our own files, or than nothing."""
    _check_parent(out)
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        _refuse(out, "a new folder", "is a file", "Name another.")
    held = {each.name for each in out.iterdir()}
    if held and held != own:
        _refuse(out, "a new folder or that of a model", "holds other things", "Name another.")
    if held and not force:
        _refuse(out, "a new folder", "holds a model", "Name another, or replace it by --force.")


def draft_of(place: Path) -> Path:
    """Where to write what will be put in place, in a folder that is made where it is missing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    return place.with_name(f".{place.name}.{secrets.token_hex(4)}.draft")


def _check_parent(out: Path) -> None:
    """Refuse, before any work, a place that cannot be written to after it."""
    parent = next(each for each in Path(os.path.realpath(out)).parents if os.path.lexists(each))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        allowed = "in a folder that can be written to"
        raise InvalidInputError(f"--out must be {allowed}. Got {str(out)!r}. Name another.")


def _refuse(out: Path, allowed: str, what: str, remedy: str) -> NoReturn:
    raise InvalidInputError(f"--out must be {allowed}. Got {str(out)!r}, which {what}. {remedy}")
