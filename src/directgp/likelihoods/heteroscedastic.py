"""Gaussian noise whose variance depends on the inputs: a latent function for its logarithm."""

import math
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.integration.contract import Derivatives
from directgp.integration.latents import ReducedIntegrals
from directgp.integration.nodes import NATS, step_for
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.numeric import Draws
from directgp.likelihoods.units import Units
from directgp.numerics.autograd import Slopes
from directgp.numerics.gumbel import check_finite_numbers
from directgp.numerics.random import Generator, exponential, standard_normal
from directgp.shapes import LatentPoints, Latents, Points, Row, Values

_LOG_TWO_PI = math.log(2 * math.pi)

_PAIRS = 1 << 18
"""Pairs of nodes times examples in one array; one node with all others may be more."""

_STRIP = 1.4
"""Im t up to which N(y; μ, v + e^t) stays bounded; π/2 is the limit."""

_SCAN = 64
"""Points of each grid that narrows the range of t."""

_SCANS = 4
"""Number of these grids."""

_MAX_NODES = 20_000
"""Largest number of nodes over the noise."""

_MAX_ROUNDS = 1000
"""Largest number of proposals for each draw of the noise."""


@final
class HeteroscedasticGaussian(Likelihood):
    """p(y given f) = N(y; f_1, e^{f_2}): a mean and the log of the noise variance.

    Given f_2 the integral over f_1 is N(y; μ_1, v_1 + e^{f_2}), so that log E_q[p] is an integral
    over one variable. With v_2 → 0 it is Gaussian noise of variance e^{μ_2}.

    Examples
    --------
    >>> import torch, directgp
    >>> mean, variance = torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [1e-9]])
    >>> directgp.log_expectation(HeteroscedasticGaussian(), torch.zeros(1), mean, variance)
    tensor([-1.2655])
    """

    num_latent = 2
    integration = ReducedIntegrals()
    units = Units(log_variances=(1,))

    def latent_starts(self, y: Row) -> tuple[tuple[float, float], ...]:
        """The noise starts at a tenth of the variance of the targets."""
        variance = max(float(y.var(correction=0)), 1e-6)
        return (float(y.mean()), variance), (math.log(0.1 * variance), 1.0)

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        mean, log_noise = f.unbind(-2)
        return -0.5 * (log_noise + (y - mean).square() * torch.exp(-log_noise))

    @override
    def log_base(self, y: Values) -> Values:
        return torch.full_like(y, -0.5 * _LOG_TWO_PI)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        mean, log_noise = f.unbind(-2)
        precision = torch.exp(-log_noise)
        residual = y - mean
        square = residual.square() * precision
        first = torch.stack([residual * precision, 0.5 * (square - 1)], -2)
        second = torch.stack([-precision, -0.5 * square], -2)
        return Derivatives(-0.5 * (log_noise + square), first, second)

    @override
    def conditional_mean(self, f: Values) -> Values:
        return f[..., 0, :]

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self.noise_variance(f)

    def noise_variance(self, f: Values) -> Values:
        """e^{f_2}."""
        return torch.exp(f[..., 1, :])

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        return np.asarray(mean + np.exp(0.5 * f[..., 1, :]) * random.standard_normal(mean.shape))

    def expected_log_prob(self, y: Values, mean: Values, variance: Values) -> Values:
        """−½(log 2π + μ_2 + ((y − μ_1)² + v_1)·exp(v_2/2 − μ_2))."""
        m, log_noise = mean.double().unbind(-2)
        v, spread = variance.double().unbind(-2)
        square = (y.double() - m).square() + v
        value = _LOG_TWO_PI + log_noise + square * torch.exp(0.5 * spread - log_noise)
        return (-0.5 * value).to(mean.dtype)

    def expected_log_prob_slopes(self, y: Values, mean: Values, variance: Values) -> Slopes:
        """`expected_log_prob` and its slopes."""
        m, log_noise = mean.unbind(-2)
        v, spread = variance.unbind(-2)
        residual = y - m
        precision = torch.exp(0.5 * spread - log_noise)
        square = (residual.square() + v) * precision
        value = -0.5 * (_LOG_TWO_PI + log_noise + square)
        by_mean = torch.stack([residual * precision, 0.5 * (square - 1)], -2)
        return value, by_mean, torch.stack([-0.5 * precision, -0.25 * square], -2)

    def integrate_density(self, y: Row, mean: Latents, variance: Latents) -> Slopes:
        """log ∫ N(t; μ_2, v_2) N(y; μ_1, v_1 + e^t) dt, and its slopes."""
        rows = torch.stack([(y - mean[0]).square(), variance[0], mean[1], variance[1]])
        check_finite_numbers([float(rows.sum())])
        low, high, width = _range(rows)
        needed = (high - low) / step_for(width, _STRIP, NATS)
        number = max(16, math.ceil(float(needed.max()))) if len(y) else 16
        if number > _MAX_NODES:
            raise NumericalError(
                f"The integral over the noise needs {number} nodes. Check mean and variance of f."
            )
        square, _, centre, spread = rows
        places = (torch.arange(number, dtype=y.dtype, device=y.device)[:, None] + 0.5) / number
        t = torch.lerp(low, high, places)
        log_mass, noise = _log_integrand(rows, t)
        top = log_mass.amax(0)
        mass = torch.exp(log_mass - top)
        total = mass.sum(0)
        mass = mass / total
        scale = torch.log((high - low) / number) - 0.5 * (_LOG_TWO_PI + torch.log(spread))
        value = top + torch.log(total) + scale - 0.5 * _LOG_TWO_PI
        precision = 1 / noise
        share = torch.exp(t) * precision
        pull = square * precision
        slope = 0.5 * share * (pull - 1)
        bend = 0.5 * share * (1 - share) * (pull - 1)
        bend = bend - 0.5 * share * share * pull
        # `mixed_slopes` of `directgp.integration.slopes`, balanced for a curvature of 1.
        weight = spread / (1 + spread)
        mixed = weight * (t - centre) / spread + (1 - weight) * slope
        square_mixed = mixed * mixed + (1 - weight) ** 2 * bend
        once = (mass * precision).sum(0)
        twice = (mass * precision * (pull - 1)).sum(0)
        by_mean = torch.stack([(y - mean[0]) * once, (mass * mixed).sum(0)])
        last = (mass * square_mixed).sum(0) - weight * weight / spread
        return value, by_mean, torch.stack([0.5 * twice, 0.5 * last])

    def integrate_log_density(self, y: Row, mean: Latents, variance: Latents) -> Slopes:
        """`expected_log_prob_slopes`."""
        return self.expected_log_prob_slopes(y, mean, variance)

    def sample_product(
        self, y: Row, mean: Latents, variance: Latents, num_samples: int, generator: Generator
    ) -> LatentPoints:
        """Draw f_2 by rejection from q, and f_1 given f_2; return the draws minus the mean.

        N(y; μ_1, v_1 + e^t) is largest where v_1 + e^t = (y − μ_1)², or at t → −∞.
        """
        square = (y - mean[0]).square()
        v, spread = variance.unbind(0)
        best = torch.maximum(square, v)
        bound = -0.5 * (torch.log(best) + square / best)
        t = mean.new_empty(num_samples, len(y))
        missing = torch.ones_like(t, dtype=torch.bool)
        for _ in range(_MAX_ROUNDS):
            proposal = mean[1] + spread.sqrt() * standard_normal(num_samples, y, generator)
            noise = v + torch.exp(proposal)
            ratio = -0.5 * (torch.log(noise) + square / noise) - bound
            hit = missing & (ratio >= -exponential(num_samples, y, generator))
            t = torch.where(hit, proposal, t)
            missing = missing & ~hit
            if not bool(missing.any()):
                break
        else:
            raise NumericalError(
                f"Product sampling could not draw the noise of {int(missing.any(0).sum())} "
                "examples: their targets are far outside of it. The rule 'quadrature' needs no "
                "draws."
            )
        share = v / (v + torch.exp(t))
        spread_left = torch.sqrt(share * torch.exp(t))
        f = share * (y - mean[0]) + spread_left * standard_normal(num_samples, y, generator)
        return torch.stack([f, t - mean[1]], 1)

    def predictive_mean(self, mean: Values, variance: Values) -> Values:
        """μ_1."""
        return mean[..., 0, :]

    def predictive_variance(self, mean: Values, variance: Values) -> Values:
        """v_1 + exp(μ_2 + v_2/2)."""
        return variance[..., 0, :] + torch.exp(mean[..., 1, :] + 0.5 * variance[..., 1, :])

    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """E Φ((y − μ_1)/√(v_1 + e^t)), t ~ N(μ_2, v_2)."""
        deviations, weights = _components(mean, variance)
        x = (y - mean[..., 0, :]).unsqueeze(-2) / deviations
        below: Values = (weights * torch.special.ndtr(x)).sum(-2)
        return below

    def predictive_quantile(self, level: Values, mean: Values, variance: Values) -> Values:
        """The y with P(Y ≤ y) = level, by bisection and Newton's method; symmetric about μ_1."""
        deviations, weights = _components(mean, variance)
        centre = mean[..., 0, :]
        level = torch.broadcast_tensors(level, centre)[0]
        smaller = torch.minimum(level, 1 - level)
        z = -torch.special.ndtri(smaller)
        low = z * deviations.amin(-2)
        high = z * deviations.amax(-2)
        x = 0.5 * (low + high)
        for _ in range(200):
            scaled = x.unsqueeze(-2) / deviations
            tail = (weights * torch.special.ndtr(-scaled)).sum(-2)
            density = (weights * torch.exp(-0.5 * scaled * scaled) / deviations).sum(-2)
            high = torch.where(tail < smaller, x, high)
            low = torch.where(tail > smaller, x, low)
            proposal = x + (tail - smaller) * math.sqrt(2 * math.pi) / density
            inside = (proposal > low) & (proposal < high)
            moved = torch.where(inside, proposal, 0.5 * (low + high))
            done = (moved - x).abs() <= 1e-13 * high
            x = moved
            if bool(done.all()):
                break
        quantile: Values = centre + torch.sign(level - 0.5) * x
        return quantile

    def gaussian_mixture(self, mean: Values, variance: Values) -> tuple[Values, Values]:
        """Deviations √(v_1 + e^t) over nodes t, and their weights."""
        deviations, weights = _components(mean.double(), variance.double())
        return deviations, weights.expand(deviations.shape)

    def predictive_crps(self, y: Values, mean: Values, variance: Values) -> Values:
        """E|N(y − μ_1, w_t)| − ½E|N(0, w_t + w_s)| over two independent noises t and s."""
        deviations, weights = _components(mean.double(), variance.double())
        x = (y.double() - mean.double()[..., 0, :]).unsqueeze(-2) / deviations
        normal = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        size = deviations * (2 * normal + x * (2 * torch.special.ndtr(x) - 1))
        squares = deviations.square()
        # A few nodes at a time: all pairs at once could be too many numbers.
        nodes = max(1, _PAIRS // max(1, squares.numel()))
        both = torch.zeros_like(squares[..., 0, :])
        for weight, block in zip(weights.split(nodes), squares.split(nodes, -2), strict=True):
            pairs = torch.sqrt(squares.unsqueeze(-3) + block.unsqueeze(-2))
            both = both + (weight[:, None] * weights * pairs).sum((-3, -2))
        both = both / math.sqrt(2 * math.pi)
        score: Values = ((weights * size).sum(-2) - both).to(y.dtype)
        return score


def _log_integrand(rows: Float[Tensor, "4 n"], t: Points) -> tuple[Points, Points]:
    """Return −½(log w + r²/w + (t − μ_2)²/v_2) and w = v_1 + e^t."""
    square, v, centre, spread = rows
    noise = v + torch.exp(t)
    return -0.5 * (torch.log(noise) + square / noise + (t - centre).square() / spread), noise


def _range(rows: Float[Tensor, "4 n"]) -> tuple[Row, Row, Row]:
    """Return the ends of the integrand in t, and the width of its narrowest peak.

    Its peaks lie between μ_2 and log(r² − v_1). Grids over the range, and over q, narrow it.
    """
    square, v, centre, spread = rows
    deviation = spread.sqrt()
    peak = torch.log((square - v).clamp(min=1e-300))
    peak = torch.where(square > v, peak, centre)
    reach = math.sqrt(2 * NATS) * deviation
    low = torch.minimum(centre, peak) - reach
    high = torch.maximum(centre, peak) + reach
    places = torch.linspace(0, 1, _SCAN, dtype=v.dtype, device=v.device)[:, None]
    around = centre + reach * (2 * places - 1)
    for _ in range(_SCANS):
        grid = torch.cat([torch.lerp(low, high, places), around]).sort(0).values
        logs, noise = _log_integrand(rows, grid)
        high_enough = logs > logs.amax(0) - NATS - 3
        first = high_enough.to(torch.int8).argmax(0, keepdim=True)
        last = len(grid) - 1 - high_enough.flip(0).to(torch.int8).argmax(0, keepdim=True)
        low = grid.gather(0, (first - 1).clamp(min=0))[0]
        high = grid.gather(0, (last + 1).clamp(max=len(grid) - 1))[0]
    # −ℓ″ is at most ½(e^t/w)²·r²/w + ½.
    share = torch.exp(grid) / noise
    bend = torch.where(high_enough, 0.5 * share * share * square / noise, 0.0).amax(0)
    return low, high, torch.rsqrt(1 / spread + bend)


def _components(mean: Values, variance: Values) -> tuple[Values, Points]:
    """Return √(v_1 + e^t) at k nodes t of q(f_2), of shape (..., k, n), and their weights."""
    _, centre = mean.unbind(-2)
    v, spread = variance.unbind(-2)
    deviation = spread.sqrt()
    reach = math.sqrt(2 * NATS)
    widest = deviation.detach()
    step = float((step_for(widest, _STRIP, NATS) / widest).min()) if widest.numel() else 1.0
    number = max(16, math.ceil(2 * reach / step))
    z = torch.linspace(-reach, reach, number, dtype=mean.dtype, device=mean.device)[:, None]
    weights = torch.exp(-0.5 * z * z)
    log_noise = centre.unsqueeze(-2) + deviation.unsqueeze(-2) * z
    return torch.sqrt(v.unsqueeze(-2) + torch.exp(log_noise)), weights / weights.sum()
