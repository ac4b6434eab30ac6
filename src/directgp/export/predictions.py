"""Write the predictions of a fitted estimator as a program, and compare the two."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from directgp.errors import NumericalError, require
from directgp.estimators.base import SparseGPEstimator
from directgp.estimators.fitting import check_row_argument
from directgp.estimators.plotting import without_names
from directgp.estimators.validation import RowValues, checked_levels
from directgp.export.heads import Predictive, numbers, probabilities
from directgp.export.latents import latents_of, scaled_inputs
from directgp.export.program import Program, Value, concatenate, run
from directgp.io import versions
from directgp.registry import ROW_CONSTANTS

_WHO = "directgp.export"


def program_of(model: Any, levels: Sequence[float], row_value: float | None) -> Program:
    """Return the predictions of a fitted estimator as a program, checked against the estimator."""
    is_estimator = isinstance(model, SparseGPEstimator)
    require(is_estimator, f"model of {_WHO}", "an estimator of directgp", type(model).__name__)
    check_is_fitted(model)
    wanted = tuple(checked_levels(levels, _WHO)) if len(levels) else ()
    members = vars(model).get("outputs_", [model])
    program = Program()
    found = [_outputs(program, member, wanted, row_value) for member in members]
    for name in found[0]:
        joined = concatenate([each[name] for each in found])
        if name == "quantiles" and len(members) > 1:
            joined = joined.reshape(-1, len(members), len(wanted))
        elif name in ("mean", "std") and len(members) == 1:
            joined = joined.reshape(-1)
        program.outputs[name] = joined.number
    program.facts = _facts(model, members[0], wanted)
    _check(program, model, members[0], wanted, row_value)
    return program


def _outputs(
    program: Program, model: Any, levels: tuple[float, ...], row_value: float | None
) -> dict[str, Value]:
    """Add the predictions of a model of one output to the program."""
    likelihood, scalings = model.likelihood_, model.scalings_
    given = _row_values(likelihood, row_value, 1)
    check_row_argument(likelihood, given and given.argument, _WHO)
    scaled = None if given is None else float(scalings.scaled_rows(given, exact=True)[0])
    latents = latents_of(scaled_inputs(program.X, scalings), model.posterior_)
    wide = copy.deepcopy(likelihood).cpu().double()
    family = Predictive(wide, scaled, scalings.unit, scalings.offset, levels)
    return (probabilities if wide.task == "classification" else numbers)(family, latents)


def _row_values(likelihood: Any, row_value: float | None, n: int) -> RowValues | None:
    """Return the constant of n rows; raise if the likelihood has none, or not this one."""
    if row_value is None:
        return None
    argument = likelihood.row_argument
    allowed = f"given with a likelihood that uses {' or '.join(ROW_CONSTANTS)}"
    require(argument is not None, f"row_value of {_WHO}", allowed, type(likelihood).__name__)
    return RowValues(argument, np.full(n, row_value)).checked(n, _WHO)


def _facts(model: Any, member: Any, levels: tuple[float, ...]) -> dict[str, Any]:
    """Return what a user of the exported model has to know."""
    names = getattr(model, "feature_names_in_", None)
    classes = getattr(model, "classes_", None)
    return {
        "estimator": type(model).__name__,
        "likelihood": type(member.likelihood_).__name__,
        "num_features": int(model.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
        "classes": None if classes is None else classes.tolist(),
        "output_names": getattr(model, "output_names_", None),
        "levels": list(levels),
        "missing": "error" if member.scalings_.imputation is None else "impute",
        "versions": versions(),
    }


_PROBES = 64
_ERROR = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Largest difference from the estimator, relative to the value plus the unit of the targets."""

_TIE = 1e-7
"""Difference of levels within which either of two counts is the quantile."""


def _check(
    program: Program,
    model: Any,
    member: Any,
    levels: tuple[float, ...],
    row_value: float | None,
) -> None:
    """Raise `NumericalError` if the program differs from the estimator.

    Rows are inducing inputs, mixtures of them, and others far away.
    """
    random, Z = np.random.default_rng(0), member.posterior_.Z.detach().cpu().double()
    inducing = Z.reshape(-1, Z.shape[-1]).numpy()
    m, d = inducing.shape
    near = inducing[random.integers(m, size=_PROBES)]
    mixed = inducing[random.integers(m, size=(_PROBES, d)), np.arange(d)]
    far = 3 * inducing.std(0) * random.standard_normal((_PROBES, d))
    X = member.scalings_.inputs.backward(np.concatenate([near, mixed, far]))
    X = X[:, : model.n_features_in_]
    values = _row_values(member.likelihood_, row_value, len(X))
    given = {} if values is None else {values.argument: values.values}
    found = run(program, X)
    with without_names():
        expected = _expected(model, X, levels, given)
    allowed = _ERROR[member.posterior_.Z.dtype]
    for name, (lower, upper) in expected.items():
        unit = 1.0 if name == "probabilities" else abs(member.scalings_.unit)
        away = np.maximum(lower - found[name], found[name] - upper) / (unit + np.abs(lower))
        # NaN is a difference, too.
        if not (away <= allowed).all():
            raise NumericalError(
                f"The exported {name} would differ from the estimator by {away.max():.1e}, and "
                f"{allowed:g} is allowed. Fit with another likelihood, or with more jitter."
            )


def _expected(model: Any, X: Any, levels: tuple[float, ...], given: dict[str, Any]) -> Any:
    """Return lower and upper bounds of what the estimator predicts."""
    if hasattr(model, "classes_"):
        chances = model.predict_proba(X)
        return {"probabilities": (chances, chances)}
    mean = model.predict(X, **given)
    found = {"mean": (mean, mean)}
    if levels and model._task == "count":
        wide = np.clip([[level - _TIE, level + _TIE] for level in levels], 1e-300, 1 - 1e-16)
        ends = model.predict_quantiles(X, wide.reshape(-1), **given).reshape(len(X), -1, 2)
        found["quantiles"] = ends[..., 0], ends[..., 1]
    elif levels:
        quantiles = model.predict_quantiles(X, levels, **given)
        found["quantiles"] = quantiles, quantiles
    return found
