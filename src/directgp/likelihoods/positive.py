"""Base of the likelihoods of positive targets, on the scale of their logarithm."""

import torch
from typing_extensions import override

from directgp.errors import require_all
from directgp.likelihoods.base import UnimodalInF
from directgp.likelihoods.units import OriginalUnits
from directgp.shapes import Row, Targets, Values

_ADVICE = (
    "For zeros, model whether y > 0 with SparseGPClassifier and the positive values with this "
    "likelihood; or add a constant to y, such as half of the smallest positive value."
)


class PositiveTargets(UnimodalInF):
    """p(y given f) of t = unit·y + offset > 0, with f the log of a typical r = t/|unit|.

    A density of r is one of y. Since r does not change with the units of t, nor does f.
    """

    latent_scale = "log"

    units: OriginalUnits

    def __init__(self, unit: float = 1.0, offset: float = 0.0) -> None:
        super().__init__()
        self.units = OriginalUnits.of(type(self).__name__, unit, offset, log_latent=True)

    @override
    def check_targets(self, y: Targets) -> None:
        t = self.units.original(y.double())
        positive = torch.isfinite(t) & (t > 0)
        require_all(positive, t, f"y of {type(self).__name__}", "positive and finite", _ADVICE)

    def rough_latent(self, y: Row) -> Row:
        """Return log r."""
        return self.to_line(y.double()).to(y)

    def starting_latent(self, y: Row) -> Row:
        """Return log r."""
        return self.rough_latent(y)

    @override
    def argmax(self, y: Values) -> Values:
        return self.to_line(y)

    def to_line(self, y: Values) -> Values:
        """log r."""
        return torch.log(self.units.relative(y))

    def from_line(self, x: Values) -> Values:
        """The y with log r = x."""
        return self.units.of_relative(torch.exp(x))

    def line_slope(self, x: Values) -> Values:
        """r."""
        return torch.exp(x)
