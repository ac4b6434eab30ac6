"""Panels of the line of each example, halved until an integrand is smooth on every one."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from directgp.errors import NumericalError

Points = Float[Tensor, "k p"]
Row = Float[Tensor, " p"]
Owner = Int[Tensor, " p"]

Integrand = Callable[[Owner, Points], Points]
"""The example of each panel and places on it → values there."""

_ORDER = 16
_TOLERANCE = 1e-11
"""Two rules of 9 and 17 places agree to this share of the integral; the finer is far better."""

_ROUNDING = 1e-3
_SHARE = 0.15
_GENERATIONS = 3
"""Errors of this share of the integral are let be where halving does not lessen them: where log p
itself is no better."""

_HALVINGS = 60
_MOST = 256
"""Panels that an example may have, on average: more are a sign of noise."""


class Panels(NamedTuple):
    """Intervals [left, right], each on the line of one example."""

    owner: Owner
    left: Float[Tensor, " p"]
    right: Float[Tensor, " p"]

    def select(self, mask: Tensor) -> "Panels":
        """Some of the panels."""
        return Panels(*(column[mask] for column in self))

    def halves(self) -> "Panels":
        """Twice as many panels over the same ground."""
        middle = 0.5 * (self.left + self.right)
        return Panels(
            torch.cat([self.owner, self.owner]),
            torch.cat([self.left, middle]),
            torch.cat([middle, self.right]),
        )

    def gauss_legendre(self) -> tuple[Points, Points]:
        """Places inside the panels and their weights: a kink at an end is on no place."""
        return self._places(*np.polynomial.legendre.leggauss(_ORDER))

    def clenshaw_curtis(self, order: int) -> tuple[Points, Points]:
        """Places with both ends, so that a spike at an end is seen, and their weights."""
        return self._places(*_clenshaw_curtis(order))

    def _places(
        self, x: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> tuple[Points, Points]:
        half = 0.5 * (self.right - self.left)
        column = torch.from_numpy(np.stack([x, weights])).to(half)[..., None]
        return torch.addcmul(self.left + half, column[0], half), column[1] * half


def refined(integrand: Integrand, panels: Panels, num_examples: int) -> Panels:
    """Panels, halved as often as it takes, on which the integrand is integrated well.

    Where both halves err as much as the whole they come from, some times in a row, that is rounding
    and not a kink or a jump, which one of them has.
    """
    finished: list[Panels] = []
    known = panels.left.new_zeros(num_examples)
    before, rough = torch.full_like(panels.left, torch.inf), torch.zeros_like(panels.owner)
    for _ in range(_HALVINGS):
        values, weights, error = _evaluated(integrand, panels)
        size = (weights * values.abs()).sum(0)
        if len(panels.owner) > _MOST * num_examples or not bool(torch.isfinite(size).all()):
            break
        scale = known.index_add(0, panels.owner, size)[panels.owner]
        rough = (rough + 1) * (torch.minimum(error, _sibling(error)) > _SHARE * before)
        noise = (rough >= _GENERATIONS) & (error <= _ROUNDING * scale)
        good = (error <= _TOLERANCE * scale) | noise
        finished.append(panels.select(good))
        if bool(good.all()):
            return Panels(*(torch.cat(column) for column in zip(*finished, strict=True)))
        known = known.index_add(0, panels.owner, size * good)
        panels = panels.select(~good).halves()
        before, rough = error[~good].repeat(2), rough[~good].repeat(2)
    raise NumericalError(
        f"Quadrature did not settle for {len(panels.owner.unique())} examples. Check that "
        "log p(y given f) is finite and does not oscillate fast in f."
    )


def _evaluated(integrand: Integrand, panels: Panels) -> tuple[Points, Points, Row]:
    """Values and weights at the places of panels, and how far two rules differ on each."""
    z, weights = panels.clenshaw_curtis(_ORDER)
    values = integrand(panels.owner, z)
    coarse = (panels.clenshaw_curtis(_ORDER // 2)[1] * values[::2]).sum(0)
    return values, weights, ((weights * values).sum(0) - coarse).abs()


def _sibling(values: Row) -> Row:
    """What the other half of each panel has, in the order of `Panels.halves`."""
    return values.roll(len(values) // 2)


@lru_cache(maxsize=4)
def _clenshaw_curtis(order: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """cos(πj/order) for j = 0 … order, exact for polynomials of that degree on [−1, 1]."""
    angle = np.pi * np.arange(order + 1) / order
    k = np.arange(0, order + 1, 2)
    moments = np.where(k == order, 1.0, 2.0) / (1.0 - k**2)
    moments[0] = 1.0
    weights = 2 / order * np.cos(np.outer(angle, k)) @ moments
    weights[[0, -1]] /= 2
    return np.cos(angle), weights
