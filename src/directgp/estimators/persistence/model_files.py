"""Models written to files, and loaded from files that nobody vouches for."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

import torch
from pydantic import ValidationError

from directgp.errors import InvalidInputError, ModelFileError, UnsupportedError
from directgp.estimators.persistence.coding import decode, encode
from directgp.estimators.persistence.schema import FORMAT
from directgp.estimators.persistence.state import ModelState
from directgp.files import FileKind, read_file, write_file

MODEL = FileKind(
    name="model",
    writer="the save method of a directgp estimator",
    key="directgp.model",
    schema=1,
    error=ModelFileError,
    if_unreadable="Check the path.",
    if_damaged="Take another copy of it, or fit and save the model again.",
    if_other_schema="Load it with the version that wrote it, or fit and save the model again.",
)

_LIBRARIES = ("directgp", "torch", "gpytorch", "numpy", "scikit-learn")
_LONGEST = 300


def save_model(path: str | os.PathLike[str], state: ModelState) -> None:
    """Write a model to one file, which is the old one or the new one at any moment.

    Raises
    ------
    UnsupportedError
        Some part is of a class that files do not know, or is a function.
    InvalidInputError
        Some value would not be loaded again, such as a NaN among the parameters.
    ModelFileError
        The file could not be written; what was there before is as it was.
    """
    try:
        contents = encode(state, _versions())
        # What would be refused on loading is better refused while the model is at hand.
        decode(contents)
    except (UnsupportedError, InvalidInputError):
        raise
    except Exception as error:
        raise InvalidInputError(
            f"The model cannot be saved: {_what(error)}. Fit it again, or change that part."
        ) from error
    write_file(MODEL, path, *contents)


def load_model(path: str | os.PathLike[str], device: torch.device) -> ModelState:
    """Read what `save_model` wrote; the posterior and the likelihood come on the device.

    Nothing in the file is run, and no name in it is imported.

    Raises
    ------
    ModelFileError
        There is no such file, it is damaged, of another format, or says what cannot be.
    """
    name = os.fspath(path)
    contents = read_file(MODEL, path)
    _check_format(name, contents.manifest)
    try:
        state = decode(contents)
    except Exception as error:  # whatever a hostile file provokes is the file's fault
        MODEL.damaged(name, _what(error), error)
    state.posterior.to(device)
    state.likelihood.to(device)
    return state


def _versions() -> dict[str, str]:
    found = {name: _version(name) for name in _LIBRARIES}
    return {**found, "python": platform.python_version()}


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"


def _check_format(path: str, manifest: dict[str, Any]) -> None:
    found = manifest.get("format")
    if type(found) is int and found != FORMAT:
        _other_format(path, found, manifest.get("versions"))


def _other_format(path: str, found: int, versions: object) -> NoReturn:
    writer = versions.get("directgp") if isinstance(versions, dict) else None
    known = isinstance(writer, str) and 0 < len(writer) < 50
    named = f"directgp {writer}" if known else "the version that wrote it"
    raise ModelFileError(
        f"{path} is a model of format {found}, and this version of directgp reads format"
        f" {FORMAT}. Load it with {named}, or fit and save the model again."
    )


def _what(error: Exception) -> str:
    """The cause in one short phrase."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        text = f"{'.'.join(map(str, first['loc'][:8]))}: {first['msg']}"
    else:
        text = str(error) or type(error).__name__
    short = " ".join(text.split())
    return (short if len(short) <= _LONGEST else f"{short[:_LONGEST]}…").rstrip(".")
