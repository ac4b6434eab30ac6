"""Save and load fitted estimators."""

import copy
import math
import os
from dataclasses import replace
from importlib import import_module
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, FiniteFloat, JsonValue

from directgp.errors import cause_of
from directgp.estimators.column_kinds import ColumnKinds, EncodedColumn
from directgp.estimators.members import Member, set_members
from directgp.estimators.outputs import hold
from directgp.estimators.predictions import PredictingEstimator
from directgp.estimators.preprocessing import ColumnScaling, Imputation, Scalings
from directgp.estimators.settings import DESCRIBED, device_of
from directgp.estimators.summary import summary_of
from directgp.kernels.summands import summands_of
from directgp.likelihoods.capabilities import description
from directgp.persistence import (
    MODEL,
    MemberState,
    ModelState,
    load_model,
    refuse_estimators,
    save_model,
)
from directgp.persistence.schema import ColumnSpec
from directgp.predictive.mixture import are_weights
from directgp.training.result import (
    BetaPath,
    Count,
    Name,
    Size,
    Strict,
    Text,
    TrainingResult,
)

_RECORDED = ("beta", "hyperparameters", "fit_seconds", "exposed", "num_rows", "num_merged")
"""Fitted attributes, without their last underscore, that a file holds as they are."""

_PROBED = 16
"""Inducing inputs at which a loaded model must predict finite numbers."""

Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
"""Share of a term in the variance of f."""

_LABELS = np.array([[0.0], [1.0], [3.0]])
"""Targets that are not scaled."""

Mode = Literal["joint", "fixed", "elbo", "held"]
"""Mode of training."""


class _MemberRecord(Strict):
    """A member of a mixture in a file."""

    weight: Annotated[FiniteFloat, Field(gt=0)]
    """Weight in the mixture."""

    beta: Size
    """Weight of the KL term."""

    hyperparameters: Mode
    """Mode of training."""

    label: Text
    """Kernel, likelihood, mode and β in words."""

    stacked: bool
    """Whether its inputs have the columns of the stack."""

    loss: float | None
    """Mean validation loss."""


class _FitRecord(Strict):
    """The record of a fit in a file; files of earlier versions lack the fields with a default."""

    inputs_rounded: bool
    """Whether scaled inputs are rounded."""

    targets_rounded: bool
    """Whether scaled targets are rounded."""

    objective: Name
    """Name of the training loss."""

    path: dict[str, JsonValue] | None
    """The candidates, without models."""

    seconds: Size
    """Wall time of the last training."""

    threshold: FiniteFloat | None
    """Threshold of a classifier."""

    findings: list[Text]
    """Warnings of the fits."""

    beta: Size
    """Weight of the KL term."""

    hyperparameters: Mode
    """Mode of training."""

    fit_seconds: Size
    """Wall time of the last fit."""

    exposed: bool
    """Whether rows had constants."""

    num_rows: Count
    """Training rows."""

    num_merged: Count
    """Rows that repeat another one."""

    indicated: list[Count] | None = None
    """Columns with gaps in training; None without imputation, and in earlier files."""

    output: Text | None = None
    """Name of the output; None in earlier files."""

    members: list[_MemberRecord] | None = None
    """All members, the heaviest first; None for one member without a stack."""

    sources_rounded: bool | None = None
    """Whether scaled columns of the stack are rounded; None without a stack."""

    term_shares: list[list[Share]] | None = None
    """Share of each term of the kernel, of each latent function; None for a single term."""


def save(
    model: PredictingEstimator, path: str | os.PathLike[str], table: dict[str, Any] | None = None
) -> None:
    """Write a fitted estimator and a description of its table.

    Raises `InvalidInputError` if the file could not be loaded again.
    """
    state = replace(state_of(model), table=table)
    save_model(path, state, lambda decoded: _loaded(decoded, model.device))


def state_of(model: PredictingEstimator) -> ModelState:
    """Return the fitted attributes and the constructor parameters, of each output."""
    members = vars(model).get("outputs_")
    if members is None:
        return _state_of(model)
    names = getattr(model, "output_names_", [None] * len(members))
    params = model.get_params(deep=False)
    first, *rest = (
        _state_of(copy.copy(member).set_params(**params), output=name)
        for member, name in zip(members, names, strict=True)
    )
    return replace(first, others=tuple(rest))


def _state_of(model: PredictingEstimator, **more: str | None) -> ModelState:
    # Parameters may have been set after the fit.
    params = model.get_params(deep=False) | model._fit_params
    _check_stack(params["stack"])
    kinds = model.columns_
    if kinds is None and isinstance(params["columns"], str):
        # A table of plain numbers keeps the format that earlier versions read.
        del params["columns"]
    if params["validation"] == "auto":
        # Earlier versions do not know it.
        del params["validation"]
    params["dtype"] = np.dtype(params["dtype"]).name
    if not isinstance(params["inducing"], str):
        params["inducing"] = np.asarray(params["inducing"], dtype=np.float64)
    result = model.training_result_
    scalings = model.scalings_
    imputed = scalings.imputation
    names = getattr(model, "feature_names_in_", None)
    _, *others = model.members_
    return ModelState(
        estimator=type(model).__name__,
        params=params,
        posterior=model.posterior_,
        likelihood=model.likelihood_,
        members=tuple(MemberState(member.posterior, member.likelihood) for member in others),
        stack=model.stack_,
        arrays={
            f"{name}_{part}": getattr(scaling, part)
            for name, scaling in _scalings_of(model).items()
            for part in ("shift", "scale")
        }
        | ({} if imputed is None else {"medians": imputed.medians}),
        classes=getattr(model, "classes_", None),
        feature_names=None if names is None else list(map(str, names)),
        columns=None if kinds is None else tuple(map(_column_spec, kinds.columns)),
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
            **_record_of_members(model),
            **({} if model._term_shares is None else {"term_shares": model._term_shares}),
            **more,
        },
    )


def _column_spec(column: EncodedColumn) -> ColumnSpec:
    levels = list(column.levels)
    return ColumnSpec(name=column.name, kind=column.kind, unit=column.unit, levels=levels)


def _check_stack(stack: Any) -> None:
    """Raise `UnsupportedError` if the parameter has estimators."""
    sources = stack if isinstance(stack, list | tuple) else [stack]
    names = [type(source).__name__ for source in sources if hasattr(source, "fit")]
    if names:
        refuse_estimators(names)


def _scalings_of(model: PredictingEstimator) -> dict[str, ColumnScaling]:
    """Return the scalings by the name of their arrays; that of a stack only if it is used."""
    scalings = model.scalings_
    by_name = {"input": scalings.inputs, "target": scalings.targets}
    if model.stack_ is not None and scalings.sources is not None:
        by_name["source"] = scalings.sources
    return by_name


def _record_of_members(model: PredictingEstimator) -> dict[str, Any]:
    """Return the record of the members; empty for one without a stack, as in earlier formats."""
    if len(model.members_) == 1 and model.stack_ is None:
        return {}
    members = [
        {
            "weight": weight,
            "beta": member.beta,
            "hyperparameters": member.hyperparameters,
            "label": member.label,
            "stacked": member.stacked,
            "loss": member.loss,
        }
        for member, weight in zip(model.members_, model.weights_.tolist(), strict=True)
    ]
    record: dict[str, Any] = {"members": members}
    sources = _scalings_of(model).get("source")
    return record if sources is None else record | {"sources_rounded": sources.rounded}


def load(path: str | os.PathLike[str], device: str = "auto") -> Any:
    """Load a model that its `save` method wrote.

    No code in the file is run. The loaded model gives the predictions of the saved model, bit for
    bit on the same machine.

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
    >>> one = {"objective": "elbo", "beta": 1.0, "likelihood": "gaussian", "kernel": "rbf"}
    >>> model = SparseGPRegressor(**one, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model")
    ...     again = directgp.load(f"{folder}/model")
    >>> bool((again.predict(X) == model.predict(X)).all())
    True
    """
    return load_with_table(path, device)[0]


def load_with_table(path: str | os.PathLike[str], device: str) -> tuple[Any, dict[str, Any] | None]:
    """Load a model, and the description of the table that it was trained on, if there is one."""
    state = load_model(path, device_of(device, "load"))
    try:
        return _loaded(state, device), state.table
    except Exception as error:  # a hostile file may provoke any exception
        MODEL.damaged(os.fspath(path), cause_of(error), error)


def _loaded(state: ModelState, device: str) -> PredictingEstimator:
    """Return the estimator of one or several outputs; raise if its parts are inconsistent."""
    records = [_FitRecord.model_validate(output.record) for output in (state, *state.others)]
    members = [
        # All outputs have the parameters of the first.
        _estimator(replace(output, params=state.params), record, device)
        for output, record in zip((state, *state.others), records, strict=True)
    ]
    if not state.others:
        return members[0]
    return _with_outputs(members, [record.output for record in records])


def _with_outputs(members: list[PredictingEstimator], names: list[Any]) -> PredictingEstimator:
    """Return the model of several outputs, given a model for each."""
    first = members[0]
    for member in members:
        if type(member) is not type(first) or _inputs_of(member) != _inputs_of(first):
            raise ValueError("its outputs are of different estimators or features")
    model = type(first)(**first.get_params(deep=False))
    for name in ("n_features_in_", "feature_names_in_"):
        if name in vars(first):
            setattr(model, name, getattr(first, name))
    hold(model, members, None if None in names else names)
    return model


def _inputs_of(model: PredictingEstimator) -> tuple[int, list[str] | None]:
    names = getattr(model, "feature_names_in_", None)
    return model.n_features_in_, None if names is None else names.tolist()


def _estimator(state: ModelState, record: _FitRecord, device: str) -> PredictingEstimator:
    """Return the estimator of one output; raise if its parts are inconsistent."""
    make = getattr(import_module("directgp.estimators"), state.estimator)
    model: PredictingEstimator = make(**{**state.params, "device": device})
    model._check_parameters()
    d = _num_inputs(state, record)
    members, weights = _members_of(state, record, d)
    _check_members(state, members, model._task)
    imputation = _imputation(state, record.indicated, d)
    inputs = _scaling(state, "input", d, record.inputs_rounded)
    targets = _scaling(state, "target", 1, record.targets_rounded)
    if model._task != "regression" and targets.forward(_LABELS).tolist() != _LABELS.tolist():
        raise ValueError("it scales labels or counts")
    model.scalings_ = Scalings(inputs, targets, imputation, _scaling_of_sources(state, record))
    set_members(model, members, weights)
    model.stack_ = state.stack
    for name in _RECORDED:
        setattr(model, f"{name}_", getattr(record, name))
    model.beta_path_ = None if record.path is None else BetaPath.from_json(record.path)
    if not state.stages:
        raise ValueError("it has no stage of training")
    model.training_result_ = TrainingResult(
        posterior=state.posterior,
        likelihood=state.likelihood,
        objective=record.objective,
        beta=record.beta,
        hyperparameters=record.hyperparameters,
        stages=state.stages,
        seconds=record.seconds,
    )
    model.n_iter_ = model.training_result_.steps
    model._fit_params = {name: getattr(model, name) for name in DESCRIBED}
    model.findings_ = tuple(record.findings)
    model.n_features_in_ = d if imputation is None else len(imputation.medians)
    model.columns_ = _kinds_of(state, model)
    model._term_shares = _term_shares(record, state)
    if state.feature_names is not None:
        if len(state.feature_names) != model.n_features_in_:
            raise ValueError(
                f"it has {len(state.feature_names)} names for {model.n_features_in_} features"
            )
        model.feature_names_in_ = np.array(state.feature_names, dtype=object)
    if state.classes is not None:
        model.__dict__.update(classes_=state.classes, threshold_=_threshold(record.threshold))
    _probe(model)
    return model


def _kinds_of(state: ModelState, model: PredictingEstimator) -> ColumnKinds | None:
    """Return the kinds of the columns; raise ValueError if they do not fit the model."""
    if state.columns is None:
        return None
    if len(state.columns) != model.n_features_in_:
        raise ValueError(f"it has {len(state.columns)} columns for {model.n_features_in_} features")
    columns = [EncodedColumn(c.name, c.kind, c.unit, tuple(c.levels)) for c in state.columns]
    scaling = model.scalings_.inputs
    for j, column in enumerate(columns):
        if len({*column.levels}) != len(column.levels) or (column.levels and not column.coded):
            raise ValueError(f"the levels of column {j} are not different, or it has no codes")
        if column.coded and (scaling.shift[j], scaling.scale[j]) != (0.0, 1.0):
            raise ValueError(f"it scales the codes of column {j}")
    units = sorted(column.unit for column in columns if column.kind == "place")
    if units not in ([], ["degrees east", "degrees north"]):
        raise ValueError("a place needs a latitude and a longitude")
    return ColumnKinds(tuple(columns))


def _term_shares(record: _FitRecord, state: ModelState) -> list[list[float]] | None:
    """Return the shares of the terms; raise ValueError if they do not fit the kernel."""
    shares = record.term_shares
    if shares is None:
        return None
    structure = state.posterior.prior.structure
    number = 1 if structure is None else len(summands_of(structure))
    if [len(each) for each in shares] != [number] * state.posterior.num_latent:
        raise ValueError(f"its kernel needs a share for each of {number} terms")
    return shares


def _num_inputs(state: ModelState, record: _FitRecord) -> int:
    """Return the number of scaled features, without the columns of the stack."""
    d = state.posterior.Z.shape[-1]
    if state.stack is None or not record.members or not record.members[0].stacked:
        return d
    return d - len(state.stack.names)


def _members_of(state: ModelState, record: _FitRecord, d: int) -> tuple[list[Member], list[float]]:
    """Return the members and their weights; raise ValueError unless they belong together."""
    if record.members is None:
        if state.members or state.stack is not None:
            raise ValueError("it has several models or a stack, and no weights")
        return [_only_member(state, record)], [1.0]
    if len(record.members) != 1 + len(state.members):
        raise ValueError("it has a weight for each of its models, and others")
    weights = [member.weight for member in record.members]
    if not are_weights(weights) or max(weights) > weights[0]:
        raise ValueError("its weights do not sum to 1, or the first is not the largest")
    _check_stack_of(state, record.members, d)
    first = MemberState(state.posterior, state.likelihood)
    members = [
        Member(
            posterior=parts.posterior,
            likelihood=parts.likelihood,
            beta=member.beta,
            hyperparameters=member.hyperparameters,
            label=member.label,
            stacked=member.stacked,
            loss=member.loss,
        )
        for member, parts in zip(record.members, (first, *state.members), strict=True)
    ]
    return members, weights


def _only_member(state: ModelState, record: _FitRecord) -> Member:
    """Return the member of a file without weights; its label is that of the chosen candidate."""
    path = None if record.path is None else BetaPath.from_json(record.path)
    label = path.points[path.chosen].label if path is not None and path.points else ""
    return Member(state.posterior, state.likelihood, record.beta, record.hyperparameters, label)


def _check_stack_of(state: ModelState, members: list[_MemberRecord], d: int) -> None:
    """Raise ValueError unless the inputs of each member fit, and a stack is used."""
    stack = state.stack
    if (stack is not None) != any(member.stacked for member in members):
        raise ValueError("it has a stack that no model uses, or a model that lacks it")
    if stack is not None and stack.num_features != d:
        raise ValueError(f"its stack has {stack.num_features} inputs for {d}")
    width = 0 if stack is None else len(stack.names)
    first = state.posterior.Z
    posteriors = [state.posterior, *(member.posterior for member in state.members)]
    for member, posterior in zip(members, posteriors, strict=True):
        expected = d + width * member.stacked
        if posterior.Z.shape[-1] != expected or posterior.Z.dtype != first.dtype:
            raise ValueError(
                f"a model has {posterior.Z.shape[-1]} inputs of {posterior.Z.dtype}, and needs"
                f" {expected} of {first.dtype}"
            )


def _check_members(state: ModelState, members: list[Member], task: str) -> None:
    """Raise ValueError unless likelihoods, posteriors and classes are of one task."""
    classes = state.classes
    if (task == "classification") != (classes is not None):
        raise ValueError("it has classes without labels, or labels without classes")
    for member in members:
        likelihood = member.likelihood
        name = type(likelihood).__name__
        if likelihood.task != task:
            raise ValueError(f"a {state.estimator} has no {name} likelihood")
        if likelihood.num_latent != member.posterior.num_latent:
            raise ValueError(
                f"{name} needs {likelihood.num_latent} latent functions, and it has"
                f" {member.posterior.num_latent}"
            )
        if classes is not None and len(classes) != getattr(likelihood, "num_classes", 2):
            raise ValueError("a classifier needs a class for each label of its likelihood")
    # Labels are found by bisection.
    if classes is not None and not np.array_equal(np.unique(classes), classes):
        raise ValueError("its classes are not sorted and different")


def _threshold(value: float | None) -> float:
    if value is None or not 0 < value < 1:
        raise ValueError(f"threshold {value} is not between 0 and 1")
    return value


def _probe(model: PredictingEstimator) -> None:
    """Raise if a model has no summary, or predictions at inducing inputs are not finite."""
    summary_of(model)
    for member in model.members_:
        with torch.no_grad():
            parameters = description(member.likelihood, 1.0)
        if not all(map(math.isfinite, parameters.values())):
            raise ValueError("the parameters of its likelihood are not finite")
        posterior = member.posterior
        inputs = posterior.Z.detach().reshape(-1, posterior.Z.shape[-1])[:_PROBED]
        with torch.no_grad():
            marginals = posterior.predict(inputs)
        # Densities need the square of the mean.
        if not bool((marginals.mean.double().square() + marginals.variance).isfinite().all()):
            raise ValueError("its predictions at its inducing inputs are not finite")


def _imputation(state: ModelState, indicated: list[int] | None, d: int) -> Imputation | None:
    """Return the imputation; files of earlier versions have none."""
    if indicated is None:
        return None
    medians = state.arrays["medians"]
    columns = tuple(indicated)
    d = d - len(columns)
    if medians.shape != (d,) or sorted({*columns} & {*range(d)}) != list(columns):
        raise ValueError("the imputation needs a median for each feature, and indicators of some")
    return Imputation(medians, columns)


def _scaling_of_sources(state: ModelState, record: _FitRecord) -> ColumnScaling | None:
    """Return the scaling of the columns of the stack; None without a stack."""
    if state.stack is None or record.sources_rounded is None:
        if state.stack is not None or record.sources_rounded is not None:
            raise ValueError("it has a stack without a scaling, or a scaling without a stack")
        return None
    return _scaling(state, "source", len(state.stack.names), record.sources_rounded)


def _scaling(state: ModelState, what: str, d: int, rounded: bool) -> ColumnScaling:
    """Return the scaling of the d columns of inputs or targets."""
    shift, scale = (state.arrays[f"{what}_{part}"] for part in ("shift", "scale"))
    if not shift.shape == scale.shape == (d,) or not scale.all():
        raise ValueError(f"the scaling of each {what} needs {d} numbers, and no scale of 0")
    return ColumnScaling(shift, scale, rounded)
