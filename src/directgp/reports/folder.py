"""Write the files of a report, and keep a list of them, so that no other file is touched."""

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, final

from directgp.errors import InvalidInputError, refuse
from directgp.experiments.store import is_store
from directgp.files import (
    locked_folder,
    make_folder,
    open_regular,
    remove_drafts,
    replace_file,
)

MANIFEST = "directgp-files.json"
"""The file that lists what directgp has written to the folder."""

FIGURES = "figures"
"""Folder of the pictures."""

_STORES = ("fits.sqlite", "cells.sqlite")
_JOURNALS = tuple(f"{name}-journal" for name in _STORES)
_FIXED = (*_STORES, *_JOURNALS, "report.json", "verdicts.json", "index.html", "results.parquet")
"""Names of other files that versions without a list wrote."""

_FIGURE = re.compile(
    "(scores|learning|calibration|predicted|importance|dependence|beta|training"
    r"|figure-s?\d{1,2}[a-z]?)\.(png|svg)"
)
"""Names of figures, in every version."""

_LISTED = re.compile(r"(figures/)?\w[\w.-]*", re.ASCII)
"""Names that the list may have."""


def is_figure(name: str) -> bool:
    """Return whether a figure of a report may have this name."""
    return _FIGURE.fullmatch(name) is not None


@final
class ReportFolder:
    """The files that directgp has written to a folder.

    The list is written before the files: a crash leaves none that is not listed. In a folder of an
    earlier version, which has no list, the files are recognised by their names if there is a store
    of directgp among them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = self._listed()
        """Names relative to the folder; some of the files may not exist."""

    def _listed(self) -> set[str]:
        if (self.path / MANIFEST).is_symlink():
            # The file that it leads to would be replaced.
            self._refuse_list()
        try:
            with open_regular(self.path / MANIFEST) as file:
                text = file.read()
        except FileNotFoundError:
            return self._recognised()
        except OSError as error:
            self._refuse_list(error)
        try:
            listed = json.loads(text)
            names = set(listed["files"])
            if listed["sha256"] != _digest(names) or not all(map(_LISTED.fullmatch, names)):
                self._refuse_list()
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self._refuse_list(error)
        return names

    def _refuse_list(self, cause: Exception | None = None) -> NoReturn:
        raise InvalidInputError(
            f"{self.path / MANIFEST} is damaged or was not written by directgp. Use another folder."
        ) from cause

    def _recognised(self) -> set[str]:
        stores = [self.path / name for name in _STORES]
        if not any(
            store.is_file() and not store.is_symlink() and is_store(store) for store in stores
        ):
            return set()
        documents = {name for name in _FIXED if (self.path / name).is_file()}
        return documents | {f"{FIGURES}/{name}" for name in self._names_in_figures()}

    def _names_in_figures(self) -> list[str]:
        """Return the names in the folder of figures that a report may have."""
        figures = self.path / FIGURES
        if figures.is_symlink() or not figures.is_dir():
            return []
        return sorted(filter(is_figure, os.listdir(figures)))

    def holds(self) -> set[str]:
        """Return the names of files that exist and were written by directgp."""
        return {name for name in self.names if os.path.lexists(self.path / name)}

    def check(self, names: Collection[str]) -> None:
        """Raise `InvalidInputError` if a file of these names or a figure is not directgp's."""
        figures = self.path / FIGURES
        if os.path.lexists(figures) and (figures.is_symlink() or not figures.is_dir()):
            self._refuse_file(figures)
        for name in (*names, *(f"{FIGURES}/{name}" for name in self._names_in_figures())):
            file = self.path / name
            if os.path.lexists(file) and (
                name not in self.names or file.is_symlink() or not file.is_file()
            ):
                self._refuse_file(file)

    def _refuse_file(self, file: Path) -> NoReturn:
        got = "one that it has not written"
        remedy = "Move it away, or use another folder."
        refuse(str(file), "free for a file of directgp", got, remedy)

    def add(self, names: Collection[str]) -> None:
        """List files that are to be written; the folder is created if missing."""
        make_folder(self.path)
        with locked_folder(self.path):
            self._add(names)

    def _add(self, names: Collection[str]) -> None:
        # Another program may have changed the list since it was read.
        self.names = self._listed()
        self.check(names)
        self._list(self.names.union(names))

    def _list(self, names: set[str]) -> None:
        self.names = names
        listed = {
            "about": "Files that directgp wrote to this folder. It deletes and replaces no others.",
            "files": sorted(names),
            "sha256": _digest(names),
        }
        replace_file(self.path / MANIFEST, json.dumps(listed, indent=1).encode())

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files, each in one step, and remove figures of an earlier report."""
        make_folder(self.path)
        with locked_folder(self.path):
            self._add(files)
            self._remove_drafts()
            (self.path / FIGURES).mkdir(exist_ok=True)
            for name, data in files.items():
                replace_file(self.path / name, data)
            old = {name for name in self.names if name.startswith(FIGURES)} - files.keys()
            self._delete(old)

    def clear(self) -> None:
        """Delete the files that directgp has written, and no others."""
        with locked_folder(self.path):
            self.names = self._listed()
            self.check(self.names)
            self._remove_drafts()
            self._delete(self.names)
            with suppress(OSError):
                # The folder stays if other programs have files in it.
                (self.path / FIGURES).rmdir()

    def _delete(self, names: set[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        self._list(self.names - names)

    def _remove_drafts(self) -> None:
        """Delete the drafts of listed files that a killed program has left."""
        remove_drafts(self.path, {MANIFEST, *self.names})
        figures = self.path / FIGURES
        if not figures.is_symlink():
            listed = {Path(name).name for name in self.names if name.startswith(f"{FIGURES}/")}
            remove_drafts(figures, listed)


def _digest(names: Collection[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()
