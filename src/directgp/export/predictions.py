"""Write the predictions of a fitted estimator as a program, and compare the two."""

import copy
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from directgp.environment import versions
from directgp.errors import NumericalError, refuse, require
from directgp.estimators.base import SparseGPEstimator
from directgp.estimators.stacking import with_columns
from directgp.estimators.validation import RowValues, check_shares
from directgp.export.family import TargetFamily
from directgp.export.heads import check_exportable
from directgp.export.latents import in_float64, latents_of, scaled_inputs
from directgp.export.mixtures import MemberProgram, outputs_of
from directgp.export.program import Program, Value, concatenate, run
from directgp.export.stacks import stack_columns
from directgp.likelihoods.base import Likelihood
from directgp.predictive.component import Component
from directgp.predictive.mixture import PredictiveMixture
from directgp.registry import ROW_CONSTANTS

_WHO = "directgp.export"


def program_of(model: Any, levels: Sequence[float] | float, row_value: float | None) -> Program:
    """Return the predictions of a fitted estimator as a program, compared with the estimator."""
    is_estimator = isinstance(model, SparseGPEstimator)
    require(is_estimator, f"model of {_WHO}", "an estimator of directgp", type(model).__name__)
    check_is_fitted(model)
    wanted = tuple(check_shares(levels, f"levels of {_WHO}"))
    number = row_value is None or isinstance(row_value, Real)
    require(number, f"row_value of {_WHO}", "a number", repr(row_value))
    coded = model.columns_ is not None and (model.columns_.coded or model.columns_.has_dates)
    allowed = "fitted to columns of numbers"
    got = "one with dates, categories or groups"
    remedy = "Encode them before the fit."
    require(not coded, f"model of {_WHO}", allowed, got, remedy)
    outputs = vars(model).get("outputs_", [model])
    program = Program()
    parts = []
    for output in outputs:
        for member in output.members_:
            check_exportable(member.likelihood)
        parts.append(_outputs(program, output, wanted, row_value))
    for name in parts[0]:
        joined = concatenate([part[name] for part in parts])
        if name == "quantiles" and len(outputs) > 1:
            joined = joined.reshape(-1, len(outputs), len(wanted))
        elif name in ("mean", "std") and len(outputs) == 1:
            joined = joined.reshape(-1)
        program.outputs[name] = joined.number
    program.facts = _facts(model, outputs, wanted)
    for k, output in enumerate(outputs):
        place = k if len(outputs) > 1 else None
        _check(program, output, place, wanted, row_value, model.n_features_in_)
    return program


def _outputs(
    program: Program, model: Any, levels: tuple[float, ...], row_value: float | None
) -> dict[str, Value]:
    """Add the predictions of a model of one output to the program."""
    scalings = model.scalings_
    x = extended = scaled_inputs(program.X, scalings)
    if model.stack_ is not None:
        extended = concatenate([x, stack_columns(x, model.stack_, scalings.sources)])
    return outputs_of(
        [
            MemberProgram(
                weight,
                _family(model, member.likelihood, levels, row_value),
                latents_of(extended if member.stacked else x, member.posterior),
            )
            for weight, member in zip(model.weights_.tolist(), model.members_, strict=True)
        ]
    )


def _family(
    model: Any, likelihood: Likelihood, levels: tuple[float, ...], row_value: float | None
) -> TargetFamily:
    scaled = _scaled_row_value(model, likelihood, row_value)
    likelihood = copy.deepcopy(likelihood).cpu().double()
    return TargetFamily(likelihood, scaled, model.scalings_.unit, model.scalings_.offset, levels)


def _scaled_row_value(model: Any, likelihood: Likelihood, row_value: float | None) -> float | None:
    """Return the constant of all rows in the units of training; raise if it is not allowed."""
    who = f"row_value of {_WHO}"
    name = type(likelihood).__name__
    argument = likelihood.rows.argument
    if row_value is None:
        allowed = f"the {argument} of all rows, for {name}"
        require(argument is None or not likelihood.rows.required, who, allowed, None)
        return None
    if argument is None:
        refuse(who, f"None for {name}, which has no constants", row_value)
    constant = ROW_CONSTANTS[argument]
    value = np.array([float(row_value)])
    allowed = f"{constant.allowed}, the {argument} of all rows"
    require(bool(constant.valid(value).all()), who, allowed, row_value)
    return float(model.scalings_.scaled_rows(RowValues(argument, value), exact=True)[0])


def _facts(model: Any, outputs: Sequence[Any], levels: tuple[float, ...]) -> dict[str, Any]:
    """Return what a user of the exported model has to know."""
    names = getattr(model, "feature_names_in_", None)
    classes = getattr(model, "classes_", None)
    families = [_name_of_family(output) for output in outputs]
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
        "missing": "error" if outputs[0].scalings_.imputation is None else "impute",
        "versions": versions(),
    }


def _name_of_family(output: Any) -> str:
    """Return the names of the likelihoods of the members, each once."""
    names = (type(member.likelihood).__name__ for member in output.members_)
    return " + ".join(dict.fromkeys(names))


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
    scalings = model.scalings_
    X = _probes(model, d)
    outputs = run(program, X)
    with torch.no_grad():
        expected = _expected(_mixture(model, X, row_value), levels)
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


def _probes(model: Any, d: int) -> NDArray[np.float64]:
    """Return inducing inputs of the heaviest member, mixtures of them, and others far away."""
    generator = np.random.default_rng(0)
    scalings = model.scalings_
    width = len(scalings.inputs.shift)
    inducing = model.posterior_.Z.detach().double().cpu().numpy()
    Z = inducing.reshape(-1, inducing.shape[-1])[:, :width]
    near = Z[generator.integers(len(Z), size=_PROBES)]
    mixed = Z[generator.integers(len(Z), size=(_PROBES, width)), np.arange(width)]
    far = 3 * np.maximum(Z.std(0), 1) * generator.standard_normal((_PROBES, width))
    X: NDArray[np.float64] = scalings.inputs.backward(np.concatenate([near, mixed, far]))[:, :d]
    if scalings.imputation is not None:
        X = np.where(generator.random(X.shape) < 0.1, np.nan, X)
    return X


def _mixture(model: Any, X: NDArray[np.float64], row_value: float | None) -> PredictiveMixture:
    """Return the distribution of the scaled targets, in float64."""
    scaled = torch.as_tensor(model.scalings_.scaled_inputs(X))
    extended = with_columns(scaled, model.stack_, model.scalings_.sources)
    components = []
    for weight, member in zip(model.weights_.tolist(), model.members_, strict=True):
        inputs = extended if member.stacked else scaled
        q = in_float64(member.posterior).marginals(inputs)
        likelihood = _family(model, member.likelihood, (), row_value).for_rows(len(X))
        components.append(Component(weight, likelihood, q))
    return PredictiveMixture(tuple(components))


def _expected(mixture: PredictiveMixture, levels: tuple[float, ...]) -> dict[str, Any]:
    """Return lower and upper bounds of what the library predicts, for scaled targets."""
    if mixture.task == "classification":
        chances = mixture.label_log_probabilities().exp().T.numpy()
        return {"probabilities": (chances, chances)}
    mean = mixture.point_prediction().numpy()
    std = mixture.deviation().numpy()
    bounds = {"mean": (mean, mean), "std": (std, std)}
    if levels:
        tie = _TIE if mixture.task == "count" else 0.0
        ends = (np.clip(np.array(levels) + sign * tie, 1e-300, 1 - 1e-16) for sign in (-1, 1))
        low, high = (mixture.quantiles(end.tolist()).T.numpy() for end in ends)
        bounds["quantiles"] = low, high
    return bounds
