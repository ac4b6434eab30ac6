"""Units for parameters, in which the curvature of each is about 1."""

import torch
from torch import Tensor

from directgp.errors import InvalidInputError, NumericalError
from directgp.training.problem import Problem

_PROBE = 1e-4
"""Length of a probe, in natural units."""

_NARROWEST, _WIDEST = 0.2, 5.0
"""Bounds of a unit: one curvature speaks for a whole parameter, and only where it was probed."""


def units(problem: Problem) -> dict[str, Tensor]:
    """A unit for each parameter but q(u)'s, which has a frame.

    The mean curvature c = vᵀHv / size of a parameter comes from one difference of gradients along
    v, its natural unit with random signs (the spread of the inducing inputs in each feature; 1 or
    the value itself for others). The unit is 1/√|c|, within bounds.
    """
    names = [name for name in problem.parameters if name not in ("u_mean", "u_chol")]
    if not names:
        return {}
    signs = torch.Generator().manual_seed(0)
    here = _gradient(problem)
    return {name: _unit(problem, name, here, signs) for name in names}


def _unit(
    problem: Problem, name: str, here: dict[str, Tensor] | None, signs: torch.Generator
) -> Tensor:
    parameter = problem.parameters[name]
    natural = _natural_unit(name, parameter.detach())
    sign = 2 * torch.randint(2, parameter.shape, generator=signs).to(parameter) - 1
    value = parameter.detach().clone()
    with torch.no_grad():
        parameter.add_(_PROBE * natural * sign)
    there = _gradient(problem)
    with torch.no_grad():
        parameter.copy_(value)
    if here is None or there is None:
        return natural
    rise = (natural * sign * (there[name] - here[name])).double().mean().abs() / _PROBE
    stretch = torch.rsqrt(rise).nan_to_num(nan=1.0).clamp(_NARROWEST, _WIDEST)
    return natural * stretch.to(natural)


def _natural_unit(name: str, value: Tensor) -> Tensor:
    if name != "Z":
        return value.abs().clamp(min=1.0)
    spread = value.std(-2, correction=0, keepdim=True)
    return torch.where(spread > 0, spread, 1.0).expand(value.shape)


def _gradient(problem: Problem) -> dict[str, Tensor] | None:
    """The gradient of every parameter here, or None where it cannot be had."""
    for parameter in problem.parameters.values():
        parameter.grad = None
    try:
        problem.prepare()
        problem.value(0).sum().backward()
    except (InvalidInputError, NumericalError):
        return None
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in problem.parameters.items()
    }
