"""Write models to files and load them from untrusted files."""

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from directgp.errors import InvalidInputError, ModelFileError, UnsupportedError
from directgp.io import Contents, FileKind, as_json, read_file, write_file
from directgp.persistence.kernels import require_finite
from directgp.persistence.parts import (
    ModelState,
    classes_spec,
    likelihood_spec,
    load_classes,
    load_likelihood,
    load_param,
    load_posterior,
    load_stage,
    param_spec,
    param_tensors,
    posterior_spec,
    stage_spec,
)
from directgp.persistence.schema import FORMAT, Manifest
from directgp.training.checkpoint import under

MAX_TENSORS = 10_000


def encode(state: ModelState, versions: dict[str, str]) -> Contents:
    """Return the tensors and the manifest of a model."""
    parts = {
        "format": FORMAT,
        "versions": versions,
        "estimator": state.estimator,
        "params": {name: param_spec(name, value) for name, value in state.params.items()},
        "posterior": posterior_spec(state.posterior),
        "likelihood": likelihood_spec(state.likelihood),
        "classes": classes_spec(state.classes, state.classes_dtype),
        "feature_names": state.feature_names,
        "stages": [stage_spec(stage) for stage in state.stages],
        "record": as_json(state.record, "record"),
    }
    return Contents(_tensors(state), Manifest.model_validate(parts).model_dump())


def decode(contents: Contents) -> ModelState:
    """Return the model of tensors and a manifest; raise if they are inconsistent."""
    tensors = contents.tensors
    if len(tensors) > MAX_TENSORS:
        raise ModelFileError(f"it has {len(tensors)} tensors, and {MAX_TENSORS} are allowed")
    manifest = Manifest.model_validate(contents.manifest)
    posterior = load_posterior(manifest.posterior, under("posterior.", tensors))
    classes, classes_dtype = load_classes(manifest.classes)
    state = ModelState(
        estimator=manifest.estimator,
        params={
            name: load_param(spec, name, under("params.", tensors), posterior.Z.shape[-1])
            for name, spec in manifest.params.items()
        },
        posterior=posterior,
        likelihood=load_likelihood(manifest.likelihood, under("likelihood.", tensors)),
        # A safetensors file does not keep the order.
        arrays={name: _array(name, at) for name, at in sorted(under("arrays.", tensors).items())},
        classes=classes,
        classes_dtype=classes_dtype,
        feature_names=manifest.feature_names,
        stages=tuple(load_stage(stage) for stage in manifest.stages),
        record=manifest.record,
        versions=manifest.versions,
    )
    if _tensors(state).keys() != tensors.keys():
        raise ModelFileError("it has tensors that no part of the model owns")
    return state


def _tensors(state: ModelState) -> dict[str, Tensor]:
    """Return all tensors, each prefixed with the name of its part."""
    parts: dict[str, Mapping[str, Tensor]] = {
        "posterior": state.posterior.state_dict(),
        "likelihood": state.likelihood.state_dict(),
        "arrays": {name: torch.tensor(array) for name, array in state.arrays.items()},
    }
    parts |= {f"params.{name}": param_tensors(value) for name, value in state.params.items()}
    return {
        f"{part}.{name}": tensor
        for part, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def _array(name: str, tensor: Tensor) -> NDArray[np.float64]:
    if tensor.dtype != torch.float64:
        raise ModelFileError(f"the array {name} has to be float64, and is {tensor.dtype}")
    require_finite(f"the array {name}", tensor)
    return tensor.clone().numpy()


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
    """Write a model to one file atomically.

    Raises
    ------
    UnsupportedError
        A part is a function, or of a class that files cannot hold.
    InvalidInputError
        A value could not be loaded again, such as a NaN among the parameters.
    ModelFileError
        The file could not be written; an existing file is unchanged.
    """
    try:
        contents = encode(state, _versions())
        # A model that could not be loaded again is not written.
        decode(contents)
    except (UnsupportedError, InvalidInputError):
        raise
    except Exception as error:
        raise InvalidInputError(
            f"The model cannot be saved: {_what(error)}. Fit it again, or change that part."
        ) from error
    write_file(MODEL, path, *contents)


def load_model(path: str | os.PathLike[str], device: torch.device) -> ModelState:
    """Load a model that `save_model` wrote onto the device.

    No code in the file is run, and no name in it is imported.

    Raises
    ------
    ModelFileError
        The file is missing, damaged, of another format or inconsistent.
    """
    name = os.fspath(path)
    contents = read_file(MODEL, path)
    _check_format(name, contents.manifest)
    try:
        state = decode(contents)
    except Exception as error:  # a hostile file may provoke any exception
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
    found, versions = manifest.get("format"), manifest.get("versions")
    if type(found) is not int or found == FORMAT:
        return
    writer = versions.get("directgp") if isinstance(versions, dict) else None
    known = isinstance(writer, str) and 0 < len(writer) < 50
    named = f"directgp {writer}" if known else "the version that wrote it"
    raise ModelFileError(
        f"{path} is a model of format {found}, and this version of directgp reads format"
        f" {FORMAT}. Load it with {named}, or fit and save the model again."
    )


def _what(error: Exception) -> str:
    """Return the cause of an error as one short phrase."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        text = f"{'.'.join(map(str, first['loc'][:8]))}: {first['msg']}"
    else:
        text = str(error) or type(error).__name__
    short = " ".join(text.split())
    return (short if len(short) <= _LONGEST else f"{short[:_LONGEST]}…").rstrip(".")
