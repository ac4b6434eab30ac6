"""A model as tensors and a manifest, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from directgp.errors import ModelFileError
from directgp.estimators.persistence.classes import classes_spec, load_classes
from directgp.estimators.persistence.likelihoods import likelihood_spec, load_likelihood
from directgp.estimators.persistence.modules import require_finite
from directgp.estimators.persistence.params import load_param, param_spec, param_tensors
from directgp.estimators.persistence.posteriors import load_posterior, posterior_spec
from directgp.estimators.persistence.schema import FORMAT, Manifest
from directgp.estimators.persistence.stages import load_stage, stage_spec
from directgp.estimators.persistence.state import ModelState
from directgp.files import Contents, as_json
from directgp.training.journal import under

MAX_TENSORS = 10_000


def encode(state: ModelState, versions: dict[str, str]) -> Contents:
    """The tensors and the manifest of a model."""
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
    """The model that tensors and a manifest describe, refused where they say what cannot be."""
    tensors = contents.tensors
    if len(tensors) > MAX_TENSORS:
        raise ModelFileError(f"it has {len(tensors)} tensors, and {MAX_TENSORS} are allowed")
    manifest = Manifest.model_validate(contents.manifest)
    posterior = load_posterior(manifest.posterior, under("posterior.", tensors))
    classes, classes_dtype = load_classes(manifest.classes)
    state = ModelState(
        estimator=manifest.estimator,
        params=_params(manifest, under("params.", tensors), posterior.Z.shape[-1]),
        posterior=posterior,
        likelihood=load_likelihood(manifest.likelihood, under("likelihood.", tensors)),
        arrays=_arrays(under("arrays.", tensors)),
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
    """All tensors, each under the name of the part it belongs to."""
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


def _params(manifest: Manifest, tensors: Mapping[str, Tensor], num_features: int) -> dict[str, Any]:
    return {
        name: load_param(spec, name, tensors, num_features)
        for name, spec in manifest.params.items()
    }


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[np.float64]]:
    # A safetensors file does not keep the order.
    return {name: _array(name, tensors[name]) for name in sorted(tensors)}


def _array(name: str, tensor: Tensor) -> NDArray[np.float64]:
    if tensor.dtype != torch.float64:
        raise ModelFileError(f"the array {name} has to be float64, and is {tensor.dtype}")
    require_finite(f"the array {name}", tensor)
    return tensor.clone().numpy()
