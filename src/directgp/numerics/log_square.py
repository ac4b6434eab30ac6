"""The mean logarithm of a shifted square of a Gaussian."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.errors import NumericalError

Values = Float[Tensor, "..."]

_STEP = 0.29
_LOWEST = -36.0
"""log t below which the integrand is lost in rounding; the step errs by e^−34 in a strip of π/2."""


def expected_log_square(offset: Values, mean: Values, variance: Values) -> Values:
    """E[log(c + x²)] for x ~ N(mean, variance) and an offset c > 0, differentiable.

    log a = ∫ (e^{−t} − e^{−ta}) dt/t (Frullani), and E[e^{−tx²}] is a formula; so this is one
    smooth integral over log t, right for any ratio of the arguments, which are scaled to sum to 1.
    """
    size = (offset + mean**2 + variance).detach()
    c, m, v = offset / size, mean**2 / size, variance / size
    if size.numel() == 0:
        return size
    highest = math.log(40.0) - torch.log(c.detach().min()).item()
    if not math.isfinite(highest):
        raise NumericalError(
            "The mean of log(c + x²) met NaN, infinity or an underflow. Check the scale of the "
            "noise, and mean and variance."
        )
    log_t = torch.arange(_LOWEST, highest, _STEP, dtype=size.dtype, device=size.device)
    t = torch.exp(log_t).reshape(-1, *([1] * size.dim()))
    spread = 1 + 2 * t * v
    decay = torch.exp(-t * (c + m / spread)) * torch.rsqrt(spread)
    return torch.log(size) + _STEP * (torch.exp(-t) - decay).sum(0)
