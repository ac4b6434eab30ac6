"""Write the predictions of a fitted estimator as a program, and compare the two."""

import copy
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from directgp.environment import versions
from directgp.errors import NumericalError, require
from directgp.estimators.base import SparseGPEstimator
from directgp.estimators.frames import deviation
from directgp.estimators.validation import RowValues, check_shares
from directgp.export.family import TargetFamily
from directgp.export.heads import check_exportable, numbers, probabilities
from directgp.export.latents import in_float64, latents_of, scaled_inputs
from directgp.export.program import Program, Value, concatenate, run
from directgp.predictive import predictive_quantiles
from directgp.predictive.api import label_log_probabilities, point_prediction
from directgp.registry import ROW_CONSTANTS
from directgp.shapes import Marginals

_WHO = "directgp.export"


def program_of(model: Any, levels: Sequence[float] | float, row_value: float | None) -> Program:
    """Return the predictions of a fitted estimator as a program, compared with the estimator."""
    is_estimator = isinstance(model, SparseGPEstimator)
    require(is_estimator, f"model of {_WHO}", "an estimator of directgp", type(model).__name__)
    check_is_fitted(model)
    wanted = tuple(check_shares(levels, f"levels of {_WHO}"))
    number = row_value is None or isinstance(row_value, Real)
    require(number, f"row_value of {_WHO}", "a number", repr(row_value))
    members = vars(model).get("outputs_", [model])
    program = Program()
    parts = []
    for member in members:
        check_exportable(member.likelihood_)
        parts.append(_outputs(program, member, wanted, row_value))
    for name in parts[0]:
        joined = concatenate([part[name] for part in parts])
        if name == "quantiles" and len(members) > 1:
            joined = joined.reshape(-1, len(members), len(wanted))
        elif name in ("mean", "std") and len(members) == 1:
            joined = joined.reshape(-1)
        program.outputs[name] = joined.number
    program.facts = _facts(model, members, wanted)
    for k, member in enumerate(members):
        place = k if len(members) > 1 else None
        _check(program, member, place, wanted, row_value, model.n_features_in_)
    return program


def _outputs(
    program: Program, model: Any, levels: tuple[float, ...], row_value: float | None
) -> dict[str, Value]:
    """Add the predictions of a model of one output to the program."""
    family = _family(model, levels, row_value)
    latents = latents_of(scaled_inputs(program.X, model.scalings_), model.posterior_)
    is_label = family.likelihood.task == "classification"
    return (probabilities if is_label else numbers)(family, latents)


def _family(model: Any, levels: tuple[float, ...], row_value: float | None) -> TargetFamily:
    likelihood = copy.deepcopy(model.likelihood_).cpu().double()
    scalings = model.scalings_
    scaled = _scaled_row_value(model, row_value)
    return TargetFamily(likelihood, scaled, scalings.unit, scalings.offset, levels)


def _scaled_row_value(model: Any, row_value: float | None) -> float | None:
    """Return the constant of all rows in the units of training; raise if it is not allowed."""
    likelihood = model.likelihood_
    who = f"row_value of {_WHO}"
    name = type(likelihood).__name__
    argument = likelihood.rows.argument
    if row_value is None:
        allowed = f"the {argument} of all rows, for {name}"
        require(argument is None or not likelihood.rows.required, who, allowed, None)
        return None
    require(argument is not None, who, f"None for {name}, which has no constants", row_value)
    constant = ROW_CONSTANTS[argument]
    value = np.array([float(row_value)])
    allowed = f"{constant.allowed}, the {argument} of all rows"
    require(bool(constant.valid(value).all()), who, allowed, row_value)
    return float(model.scalings_.scaled_rows(RowValues(argument, value), exact=True)[0])


def _facts(model: Any, members: Sequence[Any], levels: tuple[float, ...]) -> dict[str, Any]:
    """Return what a user of the exported model has to know."""
    names = getattr(model, "feature_names_in_", None)
    classes = getattr(model, "classes_", None)
    families = [type(member.likelihood_).__name__ for member in members]
    plain = [] if classes is None else classes.tolist()
    return {
        "estimator": type(model).__name__,
        "likelihood": families[0] if len(families) == 1 else families,
        "num_features": int(model.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
        "classes": [x if isinstance(x, bool | int | float | str) else str(x) for x in plain]
        or None,
        "output_names": getattr(model, "output_names_", None),
        "levels": list(levels) if classes is None else [],
        "missing": "error" if members[0].scalings_.imputation is None else "impute",
        "versions": versions(),
    }


_PROBES = 64
"""Rows of each kind that are compared."""

_ERROR = 1e-6
"""Largest difference from the estimator, relative to the value plus the unit of the targets."""

_TIE = 1e-7
"""Difference of levels within which either of two counts is the quantile."""


def _check(
    program: Program,
    model: Any,
    place: int | None,
    levels: tuple[float, ...],
    row_value: float | None,
    d: int,
) -> None:
    """Raise `NumericalError` if the program differs from what the library computes in float64.

    Rows are inducing inputs, mixtures of them, and others far away; some have gaps if they may.
    """
    generator = np.random.default_rng(0)
    scalings = model.scalings_
    posterior = in_float64(model.posterior_)
    Z = posterior.Z.detach().reshape(-1, posterior.Z.shape[-1]).numpy()
    near = Z[generator.integers(len(Z), size=_PROBES)]
    mixed = Z[generator.integers(len(Z), size=(_PROBES, Z.shape[1])), np.arange(Z.shape[1])]
    far = 3 * np.maximum(Z.std(0), 1) * generator.standard_normal((_PROBES, Z.shape[1]))
    X = scalings.inputs.backward(np.concatenate([near, mixed, far]))[:, :d]
    if scalings.imputation is not None:
        X = np.where(generator.random(X.shape) < 0.1, np.nan, X)
    outputs = run(program, X)
    with torch.no_grad():
        q = posterior.marginals(torch.as_tensor(scalings.scaled_inputs(X)))
        likelihood = _family(model, levels, row_value).for_rows(len(X))
        expected = _expected(likelihood, q, levels)
    for name, (lower, upper) in expected.items():
        got = outputs[name] if place is None else outputs[name][:, place]
        if name == "std":
            got = got / abs(scalings.unit)
        elif name != "probabilities":
            got = (got - scalings.offset) / scalings.unit
        away = np.maximum(lower - got, got - upper) / (1 + np.abs(lower))
        # Negate the comparison, so that NaN is a difference, too.
        if not (away <= _ERROR).all():
            raise NumericalError(
                f"The exported {name} would differ from the estimator by {np.max(away):.1e}, and "
                f"{_ERROR:g} is allowed. Please report this; another likelihood or kernel may work."
            )


def _expected(likelihood: Any, q: Marginals, levels: tuple[float, ...]) -> dict[str, Any]:
    """Return lower and upper bounds of what the library predicts, for scaled targets."""
    if likelihood.task == "classification":
        chances = label_log_probabilities(likelihood, q).exp().T.numpy()
        return {"probabilities": (chances, chances)}
    mean = point_prediction(likelihood, q).numpy()
    std = deviation(likelihood, q).numpy()
    bounds = {"mean": (mean, mean), "std": (std, std)}
    if levels:
        tie = _TIE if likelihood.task == "count" else 0.0
        ends = (np.clip(np.array(levels) + sign * tie, 1e-300, 1 - 1e-16) for sign in (-1, 1))
        low, high = (predictive_quantiles(likelihood, q, end.tolist()).T.numpy() for end in ends)
        bounds["quantiles"] = low, high
    return bounds
