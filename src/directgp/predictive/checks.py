"""What may be asked: marginals, targets, levels and coverage, checked at the public doors."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.checks import require_all
from directgp.errors import require
from directgp.shapes import Marginals

Values = Float[Tensor, "..."]

_INSIDE = "between 0 and 1, ends excluded"


def wide_marginals(who: str, marginals: Marginals) -> tuple[Values, Values]:
    """Mean and variance in float64, refused unless finite and the variance positive."""
    mean, variance = marginals.mean, marginals.variance
    require(mean.is_floating_point(), f"mean of {who}", "of a floating dtype", mean.dtype)
    require(
        mean.shape == variance.shape,
        f"variance of {who}",
        f"of the shape of the mean, {tuple(mean.shape)}",
        f"shape {tuple(variance.shape)}",
    )
    require(
        mean.dim() > 0, f"mean of {who}", "of shape (..., n)", "a scalar", "Reshape it to (1,)."
    )
    require_all(torch.isfinite(mean), mean, f"mean of {who}", "finite")
    allowed = torch.isfinite(variance) & (variance > 0)
    require_all(allowed, variance, f"variance of {who}", "positive and finite")
    return mean.double(), variance.double()


def wide_targets(who: str, y: Num[Tensor, "..."], like: Values) -> Values:
    """Targets in float64, refused unless finite and of a shape that fits the marginals."""
    fits = y.shape[-1:] == like.shape[-1:] and _broadcast(y, like)
    allowed = f"of shape (..., {like.shape[-1]}), broadcasting with {tuple(like.shape)}"
    require(fits, f"y of {who}", allowed, f"shape {tuple(y.shape)}", "Flatten a column first.")
    require_all(torch.isfinite(y), y, f"y of {who}", "finite")
    return y.double()


def wide_levels(
    who: str, levels: Sequence[float] | Float[Tensor, "..."], like: Values
) -> Float[Tensor, "k ..."]:
    """Levels in float64, with as many axes behind them as `like` has."""
    tensor = torch.as_tensor(levels, dtype=torch.float64, device=like.device)
    name = f"levels of {who}"
    require(tensor.dim() == 1, name, "a list of numbers", f"shape {tuple(tensor.shape)}")
    require_all((tensor > 0) & (tensor < 1), tensor, name, _INSIDE)
    return tensor.reshape(-1, *([1] * like.dim()))


def check_coverage(who: str, coverage: float) -> None:
    """Refuse a coverage that no central interval has."""
    require(0 < coverage < 1, f"coverage of {who}", _INSIDE, coverage)


def _broadcast(*tensors: Tensor) -> bool:
    """Whether the shapes broadcast."""
    try:
        np.broadcast_shapes(*(tensor.shape for tensor in tensors))
    except ValueError:
        return False
    return True
