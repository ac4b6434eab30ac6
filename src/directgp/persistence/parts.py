"""Convert likelihoods, posteriors, rules, losses and estimator parameters to specs and back."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from torch import Tensor, nn

from directgp.errors import ModelFileError, UnsupportedError
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import PointLoss
from directgp.persistence import schema
from directgp.persistence.kernels import (
    build_kernel,
    build_mean,
    fill,
    frozen_names,
    hold,
    kernel_spec,
    load_kernel,
    mean_spec,
    require_finite,
)
from directgp.persistence.schema import (
    ChoiceSpec,
    ClassesSpec,
    LikelihoodSpec,
    PosteriorSpec,
    StageSpec,
)
from directgp.posteriors.prior import Prior
from directgp.posteriors.sparse import SparsePosterior
from directgp.registry import LIKELIHOODS, LOSSES, RULES, Registry
from directgp.training.checkpoint import under
from directgp.training.result import StageResult


class _Settings(BaseModel):
    """Settings of a rule or a point loss, with the types of its fields."""

    model_config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)


def choice_spec(choice: Any, registry: Registry[Any], who: str) -> ChoiceSpec:
    """Return the class and the settings of a rule or a point loss."""
    kind, classes = type(choice).__name__, registry.classes()
    if classes.get(kind) is not type(choice):
        raise UnsupportedError(
            f"The {who} {kind} cannot be saved. Those that can are {', '.join(classes)}."
        )
    settings: dict[str, Any] = {}
    for entry in fields(choice):
        value = getattr(choice, entry.name)
        if isinstance(value, Rule):
            value = choice_spec(value, RULES, "rule")
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


def load_choice(spec: ChoiceSpec, registry: Registry[Any]) -> Any:
    """Return the rule or the point loss of a spec."""
    make = registry.classes().get(spec.kind)
    if make is None:
        raise ModelFileError(f"no rule or point loss {spec.kind!r} is known")
    settings = {
        name: load_choice(value, RULES) if isinstance(value, ChoiceSpec) else value
        for name, value in (spec.model_extra or {}).items()
    }
    types: dict[str, Any] = {entry.name: (entry.type, ...) for entry in fields(make)}
    checked = create_model(spec.kind, __base__=_Settings, **types)(**settings)
    return make(**dict(checked))


_TYPES: dict[str, type[Any]] = {"b": bool, "i": int, "u": int, "f": float, "U": str, "O": str}


def classes_spec(labels: list[Any] | None, dtype: str | None) -> ClassesSpec | None:
    """Return the spec of the labels."""
    if labels is None:
        return None
    kind = np.dtype(dtype)
    if dtype is None or kind.kind not in _TYPES or not _of_kind(labels, kind.kind):
        raise UnsupportedError(
            f"Classes of dtype {dtype} cannot be saved. Those that can are bools, integers, floats"
            " and strings."
        )
    return ClassesSpec(dtype=kind.str, labels=labels)


def load_classes(spec: ClassesSpec | None) -> tuple[list[Any] | None, str | None]:
    """Return the labels and their dtype; raise if it does not hold them exactly."""
    if spec is None:
        return None, None
    dtype = np.dtype(spec.dtype)
    if (
        not _of_kind(spec.labels, dtype.kind)
        or np.array(spec.labels, dtype).tolist() != spec.labels
    ):
        raise ModelFileError(f"its classes are not of dtype {spec.dtype}")
    return spec.labels, spec.dtype


def _of_kind(labels: list[Any], kind: str) -> bool:
    return all(type(label) is _TYPES[kind] for label in labels)


def likelihood_spec(likelihood: Likelihood) -> LikelihoodSpec:
    """Return the spec of a likelihood; exposures are data, and no part of it."""
    kind = type(likelihood).__name__
    classes = LIKELIHOODS.classes()
    if classes.get(kind) is not type(likelihood):
        raise UnsupportedError(
            f"The likelihood {kind} cannot be saved. Those that can are {', '.join(classes)}."
        )
    if any(parameter.numel() != 1 for parameter in likelihood.parameters()):
        raise UnsupportedError(
            f"A {kind} with more than one value a parameter cannot be saved. Save the members of a"
            " batch one by one."
        )
    return LikelihoodSpec(kind=kind, frozen=frozen_names(likelihood, "likelihood"))


def load_likelihood(spec: LikelihoodSpec, tensors: Mapping[str, Tensor]) -> Likelihood:
    """Return the likelihood with its raw parameters, bit for bit."""
    make = LIKELIHOODS.classes().get(spec.kind)
    if make is None:
        raise ModelFileError(f"no likelihood {spec.kind!r} is known")
    likelihood: Likelihood = make()
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


_DTYPES = [np.dtype(name) for name in ("bool", "uint8", "int32", "int64", "float32", "float64")]
_VALUES = "values"


def param_spec(name: str, value: Any) -> schema.ParamSpec:
    """Return the spec of a constructor parameter."""
    if isinstance(value, Kernel):
        frozen = frozen_names(value, "kernel")
        return schema.KernelParam(type="kernel", kernel=kernel_spec(value), frozen=frozen)
    if isinstance(value, Likelihood):
        return schema.LikelihoodParam(type="likelihood", likelihood=likelihood_spec(value))
    if isinstance(value, Rule):
        return schema.RuleParam(type="rule", rule=choice_spec(value, RULES, "rule"))
    if isinstance(value, PointLoss):
        spec = choice_spec(value, LOSSES, "point loss")
        return schema.LossParam(type="loss", loss=spec)
    if isinstance(value, np.ndarray) and value.dtype in _DTYPES:
        return schema.ArrayParam(type="array")
    return _plain_spec(name, value)


def param_tensors(value: Any) -> dict[str, Tensor]:
    """Return the tensors of a constructor parameter."""
    if isinstance(value, Kernel | Likelihood):
        return dict(value.state_dict())
    return {_VALUES: torch.tensor(value)} if isinstance(value, np.ndarray) else {}


def load_param(
    spec: schema.ParamSpec, name: str, tensors: Mapping[str, Tensor], num_features: int
) -> Any:
    """Return a constructor parameter from the tensors of all parameters."""
    own = under(f"{name}.", dict(tensors))
    match spec:
        case schema.KernelParam():
            return load_kernel(spec.kernel, own, spec.frozen, num_features)
        case schema.LikelihoodParam():
            return load_likelihood(spec.likelihood, own)
        case schema.RuleParam():
            return load_choice(spec.rule, RULES)
        case schema.LossParam():
            return load_choice(spec.loss, LOSSES)
        case schema.ArrayParam():
            return _array(name, own)
        case schema.SequenceParam():
            return tuple(spec.values) if spec.type == "tuple" else list(spec.values)
        case _:
            return spec.value


def _array(name: str, own: Mapping[str, Tensor]) -> NDArray[Any]:
    if set(own) != {_VALUES}:
        raise ModelFileError(f"the array {name} is missing")
    return own[_VALUES].clone().numpy()


def _plain_spec(name: str, value: Any) -> schema.ParamSpec:
    if isinstance(value, list | tuple):
        values = [_plain(name, item) for item in value]
        kind: Any = "list" if isinstance(value, list) else "tuple"
        return schema.SequenceParam(type=kind, values=values)
    return schema.PlainParam(type="plain", value=_plain(name, value))


def _plain(name: str, value: Any) -> schema.Plain:
    """Return the value, with numpy scalars as Python's; raise if JSON cannot hold it."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsupportedError(
        f"The parameter {name} is a {type(value).__name__}, and cannot be saved. Give None, a bool,"
        " a number, a string, an array of numbers, a gpytorch kernel, or a likelihood, rule or"
        " point loss of directgp; a source of random numbers as an int or None."
    )


def posterior_spec(posterior: SparsePosterior) -> PosteriorSpec:
    """Return the spec of a posterior."""
    if posterior.u_chol.ndim != 2 or posterior.Z.ndim != 2:
        raise UnsupportedError(
            "A batch of posteriors cannot be saved. Save its members one by one."
        )
    return PosteriorSpec(
        kernel=kernel_spec(posterior.prior.kernel),
        mean=mean_spec(posterior.prior.mean_function),
        nugget=posterior.nugget,
        frozen=frozen_names(posterior, "posterior"),
    )


def load_posterior(spec: PosteriorSpec, tensors: Mapping[str, Tensor]) -> SparsePosterior:
    """Return the posterior with its state; it allocates no tensor larger than those given."""
    Z = _inducing_inputs(tensors)
    d, own = Z.shape[-1], dict(tensors)
    kernel = build_kernel(spec.kernel, under("prior.kernel.", own), d)
    mean = build_mean(spec.mean, under("prior.mean_function.", own), d)
    posterior = SparsePosterior(Prior(kernel, mean, dtype=Z.dtype), Z, spec.nugget)
    fill(posterior, tensors, spec.frozen, "posterior")
    _check_prior(posterior.prior, posterior.Z.detach()[:2])
    return posterior


def _inducing_inputs(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return Z; raise if q(u) does not fit it or the dtypes differ."""
    Z, u_mean, u_chol = (tensors.get(name) for name in ("Z", "u_mean", "u_chol"))
    if Z is None or u_mean is None or u_chol is None:
        raise ModelFileError("the posterior lacks Z, u_mean or u_chol")
    if Z.ndim != 2 or Z.numel() == 0 or Z.dtype not in (torch.float32, torch.float64):
        raise ModelFileError(f"Z of the posterior has shape {list(Z.shape)} and is {Z.dtype}")
    m = Z.shape[0]
    if u_mean.shape != (m,) or u_chol.shape != (m, m):
        raise ModelFileError(f"q(u) has not the shape that {m} inducing inputs need")
    floating = (tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    if any(dtype != Z.dtype for dtype in floating):
        raise ModelFileError(f"the parameters of the posterior are not all {Z.dtype}, as Z is")
    return Z


def _check_prior(prior: Prior, Z: Tensor) -> None:
    """Raise `ModelFileError` if the prior cannot be evaluated at inputs of this width."""
    with torch.no_grad():
        values = (prior.covariance(Z, Z), prior.variance(Z), prior.mean(Z))
    k = Z.shape[0]
    shapes = [tuple(value.shape) for value in values]
    if shapes != [(k, k), (k,), (k,)]:
        raise ModelFileError("the prior gives no single covariance for a pair of inputs")
    if not all(bool(torch.isfinite(value).all()) for value in values):
        raise ModelFileError("the prior is not finite at the inducing inputs")


def stage_spec(stage: StageResult) -> StageSpec:
    """What rebuilds the result of a stage."""
    return StageSpec(**stage.to_json())


def load_stage(spec: StageSpec) -> StageResult:
    """The result of a stage."""
    return StageResult.from_json(dict(spec))


Label = bool | int | float | str


@final
@dataclass(frozen=True)
class ModelState:
    """A fitted estimator in parts."""

    estimator: str
    """The name of its class."""

    params: dict[str, Any]
    """Constructor parameters: None, bools, numbers, strings, lists and tuples of these, arrays,
    gpytorch kernels, likelihoods, rules and point losses."""

    posterior: SparsePosterior
    likelihood: Likelihood

    arrays: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Finite arrays beside the model, such as scalings."""

    classes: list[Label] | None = None
    """The labels of a classifier, in order."""

    classes_dtype: str | None = None
    """`dtype.str` of the labels: of kind b, i, u, f, U, or O where they are strings."""

    feature_names: list[str] | None = None
    stages: tuple[StageResult, ...] = ()

    record: dict[str, Any] = field(default_factory=dict)
    """Further facts as JSON knows them; floats come back exactly, NaN and infinities too."""

    versions: dict[str, str] = field(default_factory=dict)
    """The libraries that wrote the file; filled in as it is written."""

    def labels(self) -> NDArray[Any] | None:
        """The classes as an array of their dtype."""
        return None if self.classes is None else np.array(self.classes, self.classes_dtype)
