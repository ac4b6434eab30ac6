"""Base of the likelihoods of positive targets, on the scale of their logarithm."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import require_all
from directgp.likelihoods.base import OriginalUnits, UnimodalInF
from directgp.shapes import Targets, Values

_ADVICE = (
    "For zeros, model whether y > 0 with SparseGPClassifier and the positive values with this "
    "likelihood; or add a constant to y, such as half of the smallest positive value."
)


class PositiveTargets(OriginalUnits, UnimodalInF):
    """p(y given f) of t = unit·y + offset > 0, with f the log of a typical r = t/|unit|.

    A density of r is one of y. Since r does not change with the units of t, nor does f.
    """

    latent_scale = "log"

    @property
    @override
    def latent_offset(self) -> float:
        """log |unit|, so that f is the log of t."""
        return math.log(abs(self.unit))

    @override
    def check_targets(self, y: Targets) -> None:
        t = self._original(y.double())
        positive = torch.isfinite(t) & (t > 0)
        require_all(positive, t, f"y of {type(self).__name__}", "positive and finite", _ADVICE)

    @override
    def rough_latent(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return self.to_line(y.double()).to(y)

    @override
    def argmax(self, y: Values) -> Values:
        return self.to_line(y)

    def to_line(self, y: Values) -> Values:
        """log r."""
        return torch.log(self._relative(y))

    def from_line(self, x: Values) -> Values:
        """The y with log r = x."""
        return self._of_relative(torch.exp(x))

    def line_slope(self, x: Values) -> Values:
        """r."""
        return torch.exp(x)

    def _relative(self, y: Values) -> Values:
        """r."""
        return y * math.copysign(1.0, self.unit) + self.offset / abs(self.unit)

    def _of_relative(self, r: Values) -> Values:
        """The y of r."""
        return (r - self.offset / abs(self.unit)) * math.copysign(1.0, self.unit)
