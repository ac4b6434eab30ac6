"""Constructor parameters of an estimator as specs and tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray
from torch import Tensor

from directgp.errors import ModelFileError, UnsupportedError
from directgp.estimators.persistence import schema
from directgp.estimators.persistence.choices import load_loss, load_rule, loss_spec, rule_spec
from directgp.estimators.persistence.kernels import kernel_spec, load_kernel
from directgp.estimators.persistence.likelihoods import likelihood_spec, load_likelihood
from directgp.estimators.persistence.modules import frozen_names
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.base import Rule
from directgp.objectives.base import PointLoss
from directgp.training.journal import under

_DTYPES = [np.dtype(name) for name in ("bool", "uint8", "int32", "int64", "float32", "float64")]
_VALUES = "values"


def param_spec(name: str, value: Any) -> schema.ParamSpec:
    """What rebuilds a parameter, beside its tensors."""
    if isinstance(value, Kernel):
        frozen = frozen_names(value, "kernel")
        return schema.KernelParam(type="kernel", kernel=kernel_spec(value), frozen=frozen)
    if isinstance(value, Likelihood):
        return schema.LikelihoodParam(type="likelihood", likelihood=likelihood_spec(value))
    if isinstance(value, Rule):
        return schema.RuleParam(type="rule", rule=rule_spec(value))
    if isinstance(value, PointLoss):
        return schema.LossParam(type="loss", loss=loss_spec(value))
    if isinstance(value, np.ndarray) and value.dtype in _DTYPES:
        return schema.ArrayParam(type="array")
    return _plain_spec(name, value)


def param_tensors(value: Any) -> dict[str, Tensor]:
    """The tensors of a parameter."""
    if isinstance(value, Kernel | Likelihood):
        return dict(value.state_dict())
    return {_VALUES: torch.tensor(value)} if isinstance(value, np.ndarray) else {}


def load_param(
    spec: schema.ParamSpec, name: str, tensors: Mapping[str, Tensor], num_features: int
) -> Any:
    """The parameter, from all tensors of all parameters."""
    own = under(f"{name}.", dict(tensors))
    match spec:
        case schema.KernelParam():
            return load_kernel(spec.kernel, own, spec.frozen, num_features)
        case schema.LikelihoodParam():
            return load_likelihood(spec.likelihood, own)
        case schema.RuleParam():
            return load_rule(spec.rule)
        case schema.LossParam():
            return load_loss(spec.loss)
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
    """The value itself; a number or string of numpy's as Python's own."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UnsupportedError(
        f"The parameter {name} is a {type(value).__name__}, and cannot be saved. Give None, a bool,"
        " a number, a string, an array of numbers, a gpytorch kernel, or a likelihood, rule or"
        " point loss of directgp; a source of random numbers as an int or None."
    )
