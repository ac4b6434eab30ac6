"""What may be asked: marginals, targets, levels and coverage, checked at the public doors."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.errors import refuse, require, require_all
from directgp.shapes import Marginals

Values = Float[Tensor, "..."]


def wide_marginals(marginals: Marginals) -> tuple[Values, Values]:
    """Mean and variance in float64, refused unless finite and the variance positive."""
    mean, variance = marginals.mean, marginals.variance
    require(
        mean.shape == variance.shape,
        "variance of marginals",
        f"of the shape of the mean, {tuple(mean.shape)}",
        f"shape {tuple(variance.shape)}",
    )
    require_all(torch.isfinite(mean), mean, "mean of marginals", "finite")
    allowed = torch.isfinite(variance) & (variance > 0)
    require_all(allowed, variance, "variance of marginals", "positive and finite")
    return mean.double(), variance.double()


def wide_targets(y: Num[Tensor, "..."], like: Values) -> Values:
    """Targets in float64, refused unless finite and of a shape that broadcasts with `like`."""
    try:
        torch.broadcast_shapes(y.shape, like.shape)
    except RuntimeError:
        refuse(
            "y", f"of a shape that broadcasts with {tuple(like.shape)}", f"shape {tuple(y.shape)}"
        )
    require_all(torch.isfinite(y), y, "y", "finite")
    return y.double()


def wide_levels(levels: Sequence[float] | Float[Tensor, " k"], like: Values) -> Values:
    """Levels in float64, on the device and with the number of axes of `like` behind them."""
    tensor = torch.as_tensor(levels, dtype=torch.float64, device=like.device)
    require(tensor.dim() == 1, "levels", "a list of numbers", f"shape {tuple(tensor.shape)}")
    require_all((tensor > 0) & (tensor < 1), tensor, "levels", "between 0 and 1, ends excluded")
    return tensor.reshape(-1, *([1] * like.dim()))


def check_coverage(coverage: float) -> None:
    """Refuse a coverage that no central interval has."""
    require(0 < coverage < 1, "coverage", "between 0 and 1, ends excluded", coverage)
