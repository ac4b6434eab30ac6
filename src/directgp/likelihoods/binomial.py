"""Successes among a given number of trials, with the logistic link."""

import math
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import betainc
from torch import Tensor
from torch.nn.functional import logsigmoid
from typing_extensions import override

from directgp.errors import require_all
from directgp.integration.contract import Derivatives
from directgp.integration.trapezoid import TrapezoidSums
from directgp.likelihoods.base import UnimodalInF, by_scipy
from directgp.likelihoods.counts import check_counts
from directgp.likelihoods.numeric import Draws
from directgp.likelihoods.rows import RowConstants
from directgp.numerics.special import sigmoids
from directgp.shapes import Targets, Values


@final
class Binomial(UnimodalInF):
    """p(y given f) = C(n, y) σ(f)^y σ(−f)^(n−y): y successes of n trials, which each row brings.

    `with_row_values` (trials) gives the likelihood of some rows; without trials it has none.

    Examples
    --------
    >>> import torch
    >>> likelihood = Binomial().with_row_values(torch.tensor([10.0]))
    >>> likelihood.conditional_mean(torch.zeros(1, dtype=torch.float64)).item()
    5.0
    """

    task = "count"
    rows = RowConstants("trials", required=True)
    # The poles at ±iπ are of order n: |p| grows as cos(Im f/2)^−n, little more than a Gaussian of
    # curvature n/4 as far as the strip. The slopes of the log have simple poles there.
    integration = TrapezoidSums(strip=0.4 * math.pi, log_strip=0.85 * math.pi, fixed_work=True)

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        return y * logsigmoid(f) + (self.rows.of(self) - y) * logsigmoid(-f)

    @override
    def log_base(self, y: Values) -> Values:
        """log C(n, y)."""
        trials = self.rows.of(self)
        return torch.lgamma(trials + 1) - torch.lgamma(y + 1) - torch.lgamma(trials - y + 1)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        trials = self.rows.of(self)
        failures = trials - y
        success, failure, rest = sigmoids(f)
        value = (y * f.clamp(max=0.0)).sub_(failures * f.clamp(min=0.0)).sub_(trials * rest)
        first = (y * failure).sub_(failures * success)
        return Derivatives(value, first, success.mul_(failure) * -trials)

    @override
    def conditional_mean(self, f: Values) -> Values:
        return self.rows.of(self) * torch.sigmoid(f)

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self.conditional_mean(f) * torch.sigmoid(-f)

    def cdf(self, y: Values, f: Values) -> Values:
        """P(Y ≤ y given f) for a count y; not differentiable."""
        trials = self.rows.of(self)
        failures = (trials - y).clamp(min=1.0)
        below = by_scipy(betainc, failures, y + 1, torch.sigmoid(-f))
        return torch.where(y < trials, below, 1.0)

    def doubt(self, y: Values, f: Values) -> tuple[Values, Values]:
        """log of n·σ(±f) ≥ 1 − p where no trial, or every one, succeeds."""
        trials = self.rows.of(self)
        side = torch.where(y == 0, 1.0, torch.where(y == trials, -1.0, 0.0))
        log_doubt = torch.log(trials) + logsigmoid(side * f)
        return torch.where(side == 0, 0.0, log_doubt), side

    @override
    def argmax(self, y: Values) -> Values:
        return torch.log(y) - torch.log(self.rows.of(self) - y)

    def window_centre(self, count: Values) -> Values:
        """Return the f that maximises p(k + ½ given f); NaN beyond the largest count."""
        return self.argmax(count + 0.5)

    @override
    def check_targets(self, y: Targets) -> None:
        check_counts(y, "Binomial")
        if self.rows.present(self):
            remedy = "Exchange y and trials if y has the trials."
            allowed = "at most the number of trials"
            require_all(y <= self.rows.of(self), y, "y of Binomial", allowed, remedy)

    def largest_target(self) -> Tensor:
        """Return the number of trials."""
        return self.rows.of(self)

    def rough_latent(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """log((y + ½)/(n − y + ½))."""
        return torch.log(y + 0.5) - torch.log(self.rows.of(self).to(y) - y + 0.5)

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        trials = self.rows.of(self).cpu().numpy().astype(np.int64)
        return random.binomial(trials, 1 / (1 + np.exp(-f)), f.shape).astype(np.float64)
