"""Save and load fitted estimators."""

import copy
import os
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from directgp.errors import ModelFileError
from directgp.estimators.outputs import hold
from directgp.estimators.preprocessing import ColumnScaling, Imputation, Scalings
from directgp.estimators.settings import device_of
from directgp.persistence import ModelState, load_model
from directgp.training.result import BetaPath, TrainingResult

if TYPE_CHECKING:
    from directgp.estimators.base import SparseGPEstimator


STRUCTURE = (
    "kernel",
    "ard",
    "mean",
    "likelihood",
    "num_inducing",
    "inducing",
    "standardize",
    "missing",
)
"""Parameters that define the model; a warm start cannot change them."""

_RECORDED: dict[str, type] = {
    **{"beta": float, "hyperparameters": str, "fit_seconds": float},
    **{"exposed": bool, "num_rows": int, "num_merged": int},
}
"""Fitted attributes, without their last underscore, that a file holds as they are."""


def state_of(model: "SparseGPEstimator") -> ModelState:
    """Return the fitted attributes and the constructor parameters, of each output."""
    members = vars(model).get("outputs_")
    if members is None:
        return _state_of(model)
    names = getattr(model, "output_names_", [None] * len(members))
    # Parameters may have been set after the fit.
    params = model.get_params(deep=False)
    first, *others = (
        _state_of(copy.copy(member).set_params(**params), output=name)
        for member, name in zip(members, names, strict=True)
    )
    return replace(first, others=tuple(others))


def _state_of(model: "SparseGPEstimator", **more: str | None) -> ModelState:
    params = model.get_params(deep=False)
    params["dtype"] = np.dtype(params["dtype"]).name
    if not isinstance(params["inducing"], str):
        params["inducing"] = np.asarray(params["inducing"], dtype=np.float64)
    result, scalings = model.training_result_, model.scalings_
    imputed = scalings.imputation
    names = getattr(model, "feature_names_in_", None)
    return ModelState(
        estimator=type(model).__name__,
        params=params,
        posterior=model.posterior_,
        likelihood=model.likelihood_,
        arrays={
            f"{name}_{part}": getattr(scaling, part)
            for name, scaling in (("input", scalings.inputs), ("target", scalings.targets))
            for part in ("shift", "scale")
        }
        | ({} if imputed is None else {"medians": imputed.medians}),
        classes=getattr(model, "classes_", None),
        feature_names=None if names is None else list(map(str, names)),
        stages=result.stages,
        record={
            "inputs_rounded": scalings.inputs.rounded,
            "targets_rounded": scalings.targets.rounded,
            "indicated": None if imputed is None else list(imputed.indicated),
            "objective": result.objective,
            "path": None if model.beta_path_ is None else model.beta_path_.to_json(),
            "seconds": result.seconds,
            "threshold": getattr(model, "threshold_", None),
            "findings": list(model.findings_),
            **{name: getattr(model, f"{name}_") for name in _RECORDED},
            **more,
        },
    )


def load(path: str | os.PathLike[str], device: str = "auto") -> Any:
    """Load a model that its `save` method wrote.

    No code in the file is run. Predictions equal those of the saved model, bit for bit on the same
    machine.

    Parameters
    ----------
    path : path
        The file.
    device : str
        Device of the model, and its `device` parameter from now on; "auto" is CUDA if available,
        on whatever device the model was trained.

    Returns
    -------
    SparseGPRegressor, SparseGPClassifier or SparseGPCountRegressor
        Fitted.

    Raises
    ------
    ModelFileError
        The file is missing, damaged, of another format or inconsistent.

    Examples
    --------
    >>> import tempfile, directgp
    >>> from directgp import SparseGPRegressor
    >>> X, y = [[0.0], [0.0], [1.0], [1.0], [2.0], [2.0]], [0.1, -0.1, 1.1, 0.8, 0.1, -0.2]
    >>> model = SparseGPRegressor(objective="elbo", beta=1.0, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model")
    ...     again = directgp.load(f"{folder}/model")
    >>> bool((again.predict(X) == model.predict(X)).all())
    True
    """
    state = load_model(path, device_of(device, "load"))
    try:
        first = _estimator(state, device)
        if not state.others:
            return first
        members = [first, *(_estimator(other, device) for other in state.others)]
        return _with_outputs(
            members, [each.record.get("output") for each in (state, *state.others)]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{os.fspath(path)} cannot be loaded as a model: its record of the fit is incomplete "
            f"({error}). Take another copy of it, or fit and save the model again."
        ) from error


def _with_outputs(members: "list[SparseGPEstimator]", names: list[Any]) -> "SparseGPEstimator":
    """Return the model whose outputs these are."""
    first = members[0]
    if any(each.n_features_in_ != first.n_features_in_ for each in members):
        raise ValueError("its outputs have different numbers of features")
    model = type(first)(**first.get_params(deep=False))
    for name in ("n_features_in_", "feature_names_in_"):
        if name in vars(first):
            setattr(model, name, getattr(first, name))
    hold(model, members, None if None in names else [*map(str, names)])
    return model


def _estimator(state: ModelState, device: str) -> "SparseGPEstimator":
    make = getattr(import_module("directgp.estimators"), state.estimator)
    model: SparseGPEstimator = make(**{**state.params, "device": device})
    record = state.record
    model.posterior_, model.likelihood_ = state.posterior, state.likelihood
    d, imputation = state.posterior.Z.shape[-1], _imputation(state)
    inputs, targets = _scaling(state, "input", d), _scaling(state, "target", 1)
    model.scalings_ = Scalings(inputs, targets, imputation)
    for name, kind in _RECORDED.items():
        setattr(model, f"{name}_", kind(record[name]))
    path = record["path"]
    model.beta_path_ = None if path is None else BetaPath.from_json(path)
    model.training_result_ = TrainingResult(
        posterior=state.posterior,
        likelihood=state.likelihood,
        objective=str(record["objective"]),
        beta=model.beta_,
        hyperparameters=model.hyperparameters_,
        stages=state.stages,
        seconds=float(record["seconds"]),
    )
    model.n_iter_ = model.training_result_.steps
    model._structure = {name: getattr(model, name) for name in STRUCTURE}
    model.findings_ = tuple(map(str, record["findings"]))
    model.n_features_in_ = d if imputation is None else len(imputation.medians)
    if state.feature_names is not None:
        model.feature_names_in_ = np.array(state.feature_names, dtype=object)
    if state.estimator == "SparseGPClassifier":
        classes, threshold = state.classes, float(record["threshold"])
        if classes is None or len(classes) != getattr(state.likelihood, "num_classes", 2):
            raise ValueError("a classifier needs a class for each label of its likelihood")
        if not 0 < threshold < 1:
            raise ValueError(f"threshold {threshold} is not between 0 and 1")
        model.__dict__.update(classes_=classes, threshold_=threshold)
    return model


def _imputation(state: ModelState) -> Imputation | None:
    """Return the imputation; files of earlier versions have none."""
    indicated = state.record.get("indicated")
    if indicated is None:
        return None
    medians, columns = state.arrays["medians"], tuple(map(int, indicated))
    d = state.posterior.Z.shape[-1] - len(columns)
    if medians.shape != (d,) or sorted({*columns} & {*range(d)}) != list(columns):
        raise ValueError("the imputation needs a median for each feature, and indicators of some")
    return Imputation(medians, columns)


def _scaling(state: ModelState, what: str, d: int) -> ColumnScaling:
    """Return the scaling of the d columns of inputs or targets."""
    shift, scale = (state.arrays[f"{what}_{part}"] for part in ("shift", "scale"))
    if not shift.shape == scale.shape == (d,) or not scale.all():
        raise ValueError(f"the scaling of each {what} needs {d} numbers, and no scale of 0")
    return ColumnScaling(shift, scale, bool(state.record[f"{what}s_rounded"]))
