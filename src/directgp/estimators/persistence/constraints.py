"""The constraints of gpytorch's parameters: four classes with their usual transforms."""

import math
from collections.abc import Mapping
from typing import Any, cast, get_args

import gpytorch
import numpy as np
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from torch import Tensor, nn

from directgp.errors import ModelFileError, UnsupportedError
from directgp.estimators.persistence.schema import ConstraintName

_CLASSES: dict[str, type[Any]] = {
    "Positive": Positive,
    "GreaterThan": GreaterThan,
    "LessThan": LessThan,
    "Interval": Interval,
}
_SUFFIX = "_constraint"


def constraint_names(module: gpytorch.Module) -> dict[str, ConstraintName]:
    """The kind of each constraint of a module's own parameters, by the parameter's name."""
    return {
        name.removesuffix(_SUFFIX): _kind(constraint, type(module).__name__)
        for name, constraint in module._constraints.items()
    }


def constrain(
    module: gpytorch.Module, names: Mapping[str, ConstraintName], tensors: Mapping[str, Tensor]
) -> None:
    """Give the module's own parameters constraints of these kinds, with the tensors as bounds."""
    for name, kind in names.items():
        shape = getattr(module, name).shape
        bounds = []
        for side in ("lower_bound", "upper_bound"):
            bound = tensors.get(f"{name}{_SUFFIX}.{side}")
            if bound is None or not _broadcasts(bound.shape, shape):
                raise ModelFileError(f"the {side} of {name} is missing or does not fit it")
            bounds.append(bound)
        module.register_constraint(name, _built(kind, *bounds))


def _kind(constraint: Interval, owner: str) -> ConstraintName:
    kind = type(constraint).__name__
    if _CLASSES.get(kind) is type(constraint) and _usual(constraint):
        return cast(ConstraintName, kind)
    raise UnsupportedError(
        f"The constraint {constraint} of {owner} cannot be saved. Those that can are"
        f" {', '.join(get_args(ConstraintName))} of gpytorch, with their usual transforms."
    )


def _usual(constraint: Interval) -> bool:
    transform = constraint._transform
    if type(constraint) is Interval:
        return transform is torch.sigmoid
    softplus = type(transform) is nn.Softplus
    return softplus and (transform.beta, transform.threshold) == (1, 20)


def _built(kind: ConstraintName, lower: Tensor, upper: Tensor) -> Interval:
    below, above = bool((lower == -math.inf).all()), bool((upper == math.inf).all())
    finite = bool(torch.isfinite(lower).all()), bool(torch.isfinite(upper).all())
    if kind == "Positive" and above and bool((lower == 0).all()):
        return Positive()
    if kind == "GreaterThan" and above and finite[0]:
        return GreaterThan(lower)
    if kind == "LessThan" and below and finite[1]:
        return LessThan(upper)
    if kind == "Interval" and all(finite) and bool((lower < upper).all()):
        return Interval(lower, upper)
    raise ModelFileError(f"the bounds of a constraint are not those of {kind}")


def _broadcasts(shape: torch.Size, target: torch.Size) -> bool:
    try:
        return bool(np.broadcast_shapes(shape, target) == target)
    except ValueError:
        return False
