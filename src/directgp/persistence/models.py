"""Save models to files and load them from untrusted files.

A file holds tensors and a manifest of specs (see `schema`). Classes are looked up in the registries
and in fixed tables: no name in a file is imported, and no code in it is run.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from torch import Tensor, nn

from directgp.environment import versions
from directgp.errors import InvalidInputError, ModelFileError, UnsupportedError, cause_of
from directgp.io import Contents, FileKind, as_json, read_file, write_file
from directgp.kernels import Expression, parse
from directgp.kernels.structured import StructuredKernel
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import PointLoss
from directgp.persistence import schema
from directgp.persistence.expressions import build_structured, expression_spec
from directgp.persistence.kernels import (
    build_kernel,
    build_mean,
    fill,
    frozen_names,
    hold,
    kernel_spec,
    mean_spec,
    require_finite,
)
from directgp.persistence.schema import (
    FORMAT,
    FORMAT_OF_SEVERAL,
    FORMAT_WITH_COLUMNS,
    FORMAT_WITH_EXPRESSIONS,
    FORMAT_WITH_MEMBERS,
    FORMAT_WITH_TABLE,
    LAST_FORMAT,
    ChoiceSpec,
    ClassesSpec,
    ColumnSpec,
    ExpressionSpec,
    LikelihoodSpec,
    MemberSpec,
)
from directgp.persistence.stacks import load_stack, numbered, stack_spec, stack_tensors
from directgp.posteriors.prior import Prior
from directgp.posteriors.sparse import SparsePosterior
from directgp.registry import LIKELIHOODS, LOSSES, RULES, Registry
from directgp.stack import Stack
from directgp.training.checkpoint import under
from directgp.training.result import StageResult, StageSpec

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

_LABEL_TYPES: dict[str, type[Any]] = {
    "b": bool,
    "i": int,
    "u": int,
    "f": float,
    "U": str,
    "O": str,
}
"""Python types of labels by the kind of their dtype."""

_ARRAY_DTYPES = ("bool", "uint8", "int32", "int64", "float32", "float64")
"""Types of array parameters that a file can hold."""

_VALUES = "values"
"""Name of the tensor of a parameter that is an array."""


class UnregisteredError(ModelFileError):
    """The likelihood of a model file is not registered; the text is its name."""


class MemberState(NamedTuple):
    """A trained model of a mixture."""

    posterior: SparsePosterior
    """The trained posterior."""

    likelihood: Likelihood
    """The trained likelihood."""


@final
@dataclass(frozen=True)
class ModelState:
    """A fitted estimator in parts."""

    estimator: str
    """Name of the class."""

    params: dict[str, Any]
    """Constructor parameters: None, bools, numbers, strings, lists, tuples and dicts of these,
    arrays, gpytorch kernels, expressions, likelihoods, rules and point losses."""

    posterior: SparsePosterior
    """The trained posterior, of the heaviest member of a mixture."""

    likelihood: Likelihood
    """The trained likelihood, of the heaviest member of a mixture."""

    members: tuple[MemberState, ...] = ()
    """The further members of a mixture."""

    stack: Stack | None = None
    """Trees whose predictions are further columns of the inputs; None without a stack."""

    arrays: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Further finite arrays, such as scalings."""

    classes: NDArray[Any] | None = None
    """Labels of a classifier, in order."""

    feature_names: list[str] | None = None
    """Names of the features, if the training data had any."""

    stages: tuple[StageResult, ...] = ()
    """Results of the training stages."""

    record: dict[str, Any] = field(default_factory=dict)
    """Further values that JSON can hold; NaN and infinities are allowed."""

    versions: dict[str, str] = field(default_factory=dict)
    """Versions of the libraries that wrote the file; set when it is written."""

    others: tuple["ModelState", ...] = ()
    """The models of further outputs."""

    columns: tuple[ColumnSpec, ...] | None = None
    """The columns of the training table; None if all are plain numbers."""

    table: dict[str, Any] | None = None
    """A description of the table, in values that JSON can hold."""


def save_model(
    path: str | os.PathLike[str],
    state: ModelState,
    check: Callable[[ModelState], object] = lambda decoded: None,
) -> None:
    """Write a model to one file atomically; after an error an existing file is unchanged.

    `check` is called with the decoded model, and raises if it cannot be used.

    Raises `UnsupportedError` if a part is a function or of a class that files cannot hold, and
    `InvalidInputError` if a value could not be loaded again, such as a NaN among the parameters.
    """
    try:
        contents = _encode(state)
        # Decode once: a model that could not be loaded again is not written.
        check(_decode(contents))
    except (UnsupportedError, InvalidInputError):
        raise
    except Exception as error:
        raise InvalidInputError(
            f"The model cannot be saved: {cause_of(error)}. Change the parameter that the cause"
            " names; fit again if the model depends on it."
        ) from error
    write_file(MODEL, path, *contents)


def load_model(path: str | os.PathLike[str], device: torch.device) -> ModelState:
    """Load a model that `save_model` wrote onto the device.

    Raises `ModelFileError` if the file is missing, damaged, of another format or inconsistent.
    """
    name = os.fspath(path)
    contents = read_file(MODEL, path)
    file_format = contents.manifest.get("format")
    written_by = contents.manifest.get("versions")
    if type(file_format) is int and not FORMAT <= file_format <= LAST_FORMAT:
        writer = written_by.get("directgp") if isinstance(written_by, dict) else None
        valid = isinstance(writer, str) and 0 < len(writer) < 50
        named = f"directgp {writer}" if valid else "the version that wrote it"
        raise ModelFileError(
            f"{name} is a model of format {file_format!r:.20}, and this version of directgp reads"
            f" formats {FORMAT} to {LAST_FORMAT}. Load it with {named}, or fit and save the model"
            " again."
        )
    try:
        state = _decode(contents)
    except UnregisteredError as error:
        kind = cause_of(error)
        raise ModelFileError(
            f"{name} has a model with the likelihood {kind!r}, which is not registered in this "
            f"process. Before loading, call directgp.register_likelihood({kind!r}, cls) with its "
            "class, which the file does not hold."
        ) from None
    except Exception as error:  # a hostile file may provoke any exception
        MODEL.damaged(name, cause_of(error), error)
    for output in (state, *state.others):
        for posterior, likelihood in ((output.posterior, output.likelihood), *output.members):
            posterior.to(device)
            likelihood.to(device)
    return state


def _encode(state: ModelState) -> Contents:
    """Return the tensors and the manifest of a model."""
    others = [_encode(output) for output in state.others]
    parts = {
        "format": _format(state),
        "versions": versions(),
        "estimator": state.estimator,
        "params": {name: _param_spec(name, value) for name, value in state.params.items()},
        "posterior": _posterior_spec(state.posterior),
        "likelihood": likelihood_spec(state.likelihood),
        "classes": None if state.classes is None else _classes_spec(state.classes),
        "feature_names": state.feature_names,
        "stages": [StageSpec(**stage.to_json()) for stage in state.stages],
        "record": as_json(state.record, "record"),
    }
    if state.members:
        parts["members"] = [_member_spec(member) for member in state.members]
    if state.stack is not None:
        parts["stack"] = stack_spec(state.stack)
    if state.columns is not None:
        parts["columns"] = list(state.columns)
    # Earlier versions do not know fields that are not set.
    optional = {"members", "stack", "columns", "others", "table"} - parts.keys()
    manifest = schema.Manifest.model_validate(parts).model_dump(exclude=optional)
    if others:
        manifest["others"] = [contents.manifest for contents in others]
    if state.table is not None:
        manifest["table"] = as_json(state.table, "table")
    return Contents(_tensors(state), manifest)


def _format(state: ModelState) -> int:
    """Return the first format that has all fields of the state."""
    outputs = (state, *state.others)
    if any(map(_has_expression, outputs)):
        return FORMAT_WITH_EXPRESSIONS
    if any(output.columns is not None or "columns" in output.params for output in outputs):
        return FORMAT_WITH_COLUMNS
    if any(output.members or output.stack is not None for output in outputs):
        return FORMAT_WITH_MEMBERS
    if state.table is not None:
        return FORMAT_WITH_TABLE
    return FORMAT_OF_SEVERAL if state.others else FORMAT


def _has_expression(output: ModelState) -> bool:
    """Return whether the kernel of a model, or the parameter, is an expression."""
    posteriors = [output.posterior, *(member.posterior for member in output.members)]
    in_params = any(isinstance(value, Expression) for value in output.params.values())
    return in_params or any(posterior.prior.structure is not None for posterior in posteriors)


def _member_spec(member: MemberState) -> MemberSpec:
    return MemberSpec(
        posterior=_posterior_spec(member.posterior), likelihood=likelihood_spec(member.likelihood)
    )


def _decode(contents: Contents) -> ModelState:
    """Return the model of tensors and a manifest; raise if they are inconsistent."""
    manifest = schema.Manifest.model_validate(contents.manifest)
    if any(output.others for output in manifest.others):
        raise ModelFileError("an output has outputs of its own")
    return _decoded(manifest, contents.tensors)


def _decoded(manifest: schema.Manifest, tensors: dict[str, Tensor]) -> ModelState:
    """Return the model of a validated manifest, and the models of further outputs."""
    tensors_of_outputs = numbered(under("others.", tensors))
    others = [
        _decoded(output_spec, tensors_of_outputs.get(str(k), {}))
        for k, output_spec in enumerate(manifest.others)
    ]
    tensors_of_members = numbered(under("members.", tensors))
    members = [
        _load_member(member_spec, tensors_of_members.get(str(k), {}))
        for k, member_spec in enumerate(manifest.members)
    ]
    stack = manifest.stack
    posterior = _load_posterior(manifest.posterior, under("posterior.", tensors))
    num_features = posterior.Z.shape[-1]
    state = ModelState(
        estimator=manifest.estimator,
        params={
            name: _load_param(spec, name, under(f"params.{name}.", tensors), num_features)
            for name, spec in manifest.params.items()
        },
        posterior=posterior,
        likelihood=_load_likelihood(manifest.likelihood, under("likelihood.", tensors)),
        members=tuple(members),
        stack=None if stack is None else load_stack(stack, under("stack.", tensors)),
        # Sort the names: a safetensors file does not keep the order.
        arrays={
            name: _array(name, tensor) for name, tensor in sorted(under("arrays.", tensors).items())
        },
        classes=None if manifest.classes is None else _load_classes(manifest.classes),
        feature_names=manifest.feature_names,
        stages=tuple(StageResult.from_json(dict(stage)) for stage in manifest.stages),
        record=manifest.record,
        versions=manifest.versions,
        others=tuple(others),
        columns=None if manifest.columns is None else tuple(manifest.columns),
        table=manifest.table,
    )
    if _tensors(state).keys() != tensors.keys():
        raise ModelFileError("it has tensors that no part of the model owns")
    return state


def _load_member(spec: MemberSpec, tensors: dict[str, Tensor]) -> MemberState:
    return MemberState(
        _load_posterior(spec.posterior, under("posterior.", tensors)),
        _load_likelihood(spec.likelihood, under("likelihood.", tensors)),
    )


def _tensors(state: ModelState) -> dict[str, Tensor]:
    """Return all tensors, each prefixed with the name of its part."""
    parts: dict[str, Mapping[str, Tensor]] = {
        "posterior": state.posterior.state_dict(),
        "likelihood": state.likelihood.state_dict(),
        "stack": {} if state.stack is None else stack_tensors(state.stack),
        "arrays": {name: torch.tensor(array) for name, array in state.arrays.items()},
    }
    for name, value in state.params.items():
        if isinstance(value, Kernel | Likelihood):
            parts[f"params.{name}"] = value.state_dict()
        elif isinstance(value, np.ndarray):
            parts[f"params.{name}"] = {_VALUES: torch.tensor(value)}
    for k, member in enumerate(state.members):
        parts[f"members.{k}.posterior"] = member.posterior.state_dict()
        parts[f"members.{k}.likelihood"] = member.likelihood.state_dict()
    parts |= {f"others.{k}": _tensors(output) for k, output in enumerate(state.others)}
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


# Constructor parameters


def _param_spec(name: str, value: Any) -> schema.ParamSpec:
    if isinstance(value, Kernel):
        frozen = frozen_names(value, "kernel")
        return schema.KernelParam(type="kernel", kernel=kernel_spec(value), frozen=frozen)
    if isinstance(value, Expression):
        return schema.ExpressionParam(type="expression", expression=repr(value))
    if isinstance(value, Likelihood):
        return schema.LikelihoodParam(type="likelihood", likelihood=likelihood_spec(value))
    if isinstance(value, Rule):
        return schema.RuleParam(type="rule", rule=_choice_spec(value, RULES, "rule"))
    if isinstance(value, PointLoss):
        return schema.LossParam(type="loss", loss=_choice_spec(value, LOSSES, "point loss"))
    if isinstance(value, np.ndarray) and value.dtype in _ARRAY_DTYPES:
        return schema.ArrayParam(type="array")
    if isinstance(value, list | tuple):
        values = [_plain(name, item) for item in value]
        kind: Any = "list" if isinstance(value, list) else "tuple"
        return schema.SequenceParam(type=kind, values=values)
    if isinstance(value, Mapping):
        keys: list[Any] = [_plain(name, key) for key in value]
        values = [_plain(name, item) for item in value.values()]
        return schema.MappingParam(type="mapping", keys=keys, values=values)
    return schema.PlainParam(type="plain", value=_plain(name, value))


def _load_param(
    spec: schema.ParamSpec, name: str, tensors: dict[str, Tensor], num_features: int
) -> Any:
    match spec:
        case schema.KernelParam():
            kernel = build_kernel(spec.kernel, tensors, num_features)
            fill(kernel, tensors, spec.frozen, "kernel")
            return kernel
        case schema.ExpressionParam():
            return parse(spec.expression)
        case schema.LikelihoodParam():
            return _load_likelihood(spec.likelihood, tensors)
        case schema.RuleParam():
            return _load_choice(spec.rule, RULES)
        case schema.LossParam():
            return _load_choice(spec.loss, LOSSES)
        case schema.ArrayParam():
            if set(tensors) != {_VALUES}:
                raise ModelFileError(f"the array {name} is missing")
            return tensors[_VALUES].clone().numpy()
        case schema.MappingParam():
            return dict(zip(spec.keys, spec.values, strict=True))
        case schema.SequenceParam():
            return tuple(spec.values) if spec.type == "tuple" else list(spec.values)
        case _:
            return spec.value


def _plain(name: str, value: Any) -> schema.Plain:
    """Return the value, with numpy scalars as Python's; raise if JSON cannot hold it."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsupportedError(
        f"The parameter {name} is a {type(value).__name__}, and cannot be saved. Give None, a bool,"
        " a number, a string, an array of numbers, a kernel of gpytorch or directgp, or a"
        " likelihood, rule or point loss of directgp; a source of random numbers as an int or"
        " None."
    )


# Rules and point losses


class _Settings(BaseModel):
    """Settings of a rule or a point loss, with the types of its fields."""

    model_config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)


def _kind(part: Any, registry: Registry[Any], who: str) -> str:
    """Return the name of a class in files; raise `UnsupportedError` if it is not registered."""
    classes = registry.classes()
    for kind, cls in classes.items():
        if cls is type(part):
            return kind
    name = type(part).__name__
    if registry is LIKELIHOODS:
        raise UnsupportedError(
            f"The likelihood {name} cannot be saved, because a file holds no code. Register it "
            f"before saving, and before loading the file elsewhere: "
            f"directgp.register_likelihood({name.lower()!r}, {name})."
        )
    raise UnsupportedError(
        f"The {who} {name} cannot be saved. Those that can are {', '.join(classes)}."
    )


def _choice_spec(choice: Any, registry: Registry[Any], who: str) -> ChoiceSpec:
    """Return the class and the settings of a rule or a point loss."""
    kind = _kind(choice, registry, who)
    settings: dict[str, Any] = {}
    for entry in fields(choice):
        value = getattr(choice, entry.name)
        if isinstance(value, Rule):
            value = _choice_spec(value, RULES, "rule")
        elif callable(value):
            raise UnsupportedError(
                f"{entry.name} of {kind} is a function of the training step, and functions cannot"
                " be saved. Give a number before saving."
            )
        settings[entry.name] = value.item() if isinstance(value, np.generic) else value
    try:
        return ChoiceSpec(kind=kind, **settings)
    except ValidationError as error:
        raise UnsupportedError(
            f"{choice} cannot be saved: its settings have to be plain numbers, bools and the words"
            " that its class knows."
        ) from error


def _load_choice(spec: ChoiceSpec, registry: Registry[Any]) -> Any:
    make = registry.classes().get(spec.kind)
    if make is None:
        raise ModelFileError(f"no rule or point loss {spec.kind!r} is known")
    settings = {
        name: _load_choice(value, RULES) if isinstance(value, ChoiceSpec) else value
        for name, value in (spec.model_extra or {}).items()
    }
    types: dict[str, Any] = {entry.name: (entry.type, ...) for entry in fields(make)}
    checked = create_model(spec.kind, __base__=_Settings, **types)(**settings)
    return make(**dict(checked))


# Labels


def _classes_spec(classes: NDArray[Any]) -> ClassesSpec:
    labels = classes.tolist()
    dtype = classes.dtype
    if not _of_kind(labels, dtype.kind):
        raise UnsupportedError(
            f"Classes of dtype {dtype} cannot be saved. Those that can are bools, integers, floats"
            " and strings."
        )
    return ClassesSpec(dtype=dtype.str, labels=labels)


def _load_classes(spec: ClassesSpec) -> NDArray[Any]:
    """Return the labels; raise `ModelFileError` if the dtype does not hold them exactly."""
    fits = _of_kind(spec.labels, np.dtype(spec.dtype).kind)
    if not fits or np.array(spec.labels, spec.dtype).tolist() != spec.labels:
        raise ModelFileError(f"its classes are not of dtype {spec.dtype}")
    return np.array(spec.labels, spec.dtype)


def _of_kind(labels: list[Any], kind: str) -> bool:
    return all(type(label) is _LABEL_TYPES.get(kind) for label in labels)


# Likelihood and posterior


def likelihood_spec(likelihood: Likelihood) -> LikelihoodSpec:
    """Return the spec of a likelihood; row values are data, and not saved."""
    kind = _kind(likelihood, LIKELIHOODS, "likelihood")
    if any(parameter.numel() != 1 for parameter in likelihood.parameters()):
        raise UnsupportedError(
            f"A {kind} with more than one value a parameter cannot be saved. Save the members of a"
            " batch one by one."
        )
    frozen = frozen_names(likelihood, "likelihood")
    return LikelihoodSpec(kind=kind, frozen=frozen, settings=likelihood.settings())


def _load_likelihood(spec: LikelihoodSpec, tensors: Mapping[str, Tensor]) -> Likelihood:
    """Return the likelihood with its raw parameters, bit for bit."""
    make = LIKELIHOODS.classes().get(spec.kind)
    if make is None:
        raise UnregisteredError(spec.kind)
    likelihood: Likelihood = make(**spec.settings)
    names = [name for name, _ in likelihood.named_parameters()]
    if set(names) != tensors.keys():
        raise ModelFileError(f"the parameters of {spec.kind} are {names}, and not those it has")
    for name in names:
        raw = tensors[name]
        if raw.numel() != 1 or raw.ndim > 2 or raw.dtype not in (torch.float32, torch.float64):
            raise ModelFileError(f"{name} of {spec.kind} has to be one number")
        require_finite(f"{name} of {spec.kind}", raw)
        setattr(likelihood, name, nn.Parameter(raw.clone()))
    hold(likelihood, spec.frozen, "likelihood")
    return likelihood


def _posterior_spec(posterior: SparsePosterior) -> schema.PosteriorSpec:
    number = posterior.num_latent
    if posterior.u_chol.ndim != (2 if number == 1 else 3):
        raise UnsupportedError(
            "A batch of posteriors cannot be saved. Save its members one by one."
        )
    prior = posterior.prior if number == 1 else posterior.prior.latent(0)
    structure = prior.structure
    return schema.PosteriorSpec(
        kernel=kernel_spec(prior.kernel) if structure is None else expression_spec(structure),
        mean=mean_spec(prior.mean_function),
        nugget=posterior.nugget,
        frozen=frozen_names(posterior, "posterior"),
        num_latent=number,
    )


def _load_posterior(spec: schema.PosteriorSpec, tensors: dict[str, Tensor]) -> SparsePosterior:
    """Return the posterior with its state; allocate no tensor larger than the given ones."""
    Z = _inducing_inputs(tensors, spec.num_latent)
    number = spec.num_latent
    d = Z.shape[-1]
    shared = Z.ndim == 2
    in_kernel = under("prior.kernel.", tensors)
    in_mean = under("prior.mean_function.", tensors)
    if number > 1:
        # Take the tensors of the first latent: every latent has a mean, and may have a kernel.
        in_mean = {name: tensor[0] if tensor.ndim else tensor for name, tensor in in_mean.items()}
    if not shared:
        in_kernel = {
            name: tensor[0] if tensor.ndim else tensor for name, tensor in in_kernel.items()
        }
    kernel: Kernel | StructuredKernel
    if isinstance(spec.kernel, ExpressionSpec):
        kernel = build_structured(spec.kernel, in_kernel, d)
    else:
        kernel = build_kernel(spec.kernel, in_kernel, d)
    prior = Prior(kernel, build_mean(spec.mean, in_mean, d), dtype=Z.dtype)
    posterior = SparsePosterior(prior, Z if shared else Z[0], spec.nugget)
    if number > 1:
        posterior = posterior.with_latents(number, shared=shared)
    fill(posterior, tensors, spec.frozen, "posterior")
    # Check that the prior gives finite moments of the right shapes at inputs of this width.
    prior = posterior.prior if number == 1 else posterior.prior.latent(0)
    inputs = posterior.Z.detach().reshape(-1, d)[:2]
    with torch.no_grad():
        values = (prior.covariance(inputs, inputs), prior.variance(inputs), prior.mean(inputs))
    k = len(inputs)
    if [tuple(value.shape) for value in values] != [(k, k), (k,), (k,)]:
        raise ModelFileError("the prior gives no single covariance for a pair of inputs")
    if not all(bool(torch.isfinite(value).all()) for value in values):
        raise ModelFileError("the prior is not finite at the inducing inputs")
    return posterior


def _inducing_inputs(tensors: Mapping[str, Tensor], num_latent: int) -> Tensor:
    """Return Z; raise if q(u) does not fit it or the dtypes differ."""
    Z, u_mean, u_chol = (tensors.get(name) for name in ("Z", "u_mean", "u_chol"))
    if Z is None or u_mean is None or u_chol is None:
        raise ModelFileError("the posterior lacks Z, u_mean or u_chol")
    latents = () if num_latent == 1 else (num_latent,)
    batches = [()] if num_latent == 1 else [(), latents]
    fits = Z.ndim >= 2 and tuple(Z.shape[:-2]) in batches
    if not fits or Z.numel() == 0 or Z.dtype not in (torch.float32, torch.float64):
        raise ModelFileError(f"Z of the posterior has shape {list(Z.shape)} and is {Z.dtype}")
    m = Z.shape[-2]
    if u_mean.shape != (*latents, m) or u_chol.shape != (*latents, m, m):
        raise ModelFileError(f"q(u) does not have the shape that {m} inducing inputs need")
    floating = (tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    if any(dtype != Z.dtype for dtype in floating):
        raise ModelFileError(f"the parameters of the posterior are not all {Z.dtype}, as Z is")
    return Z
