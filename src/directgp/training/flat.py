"""Lower bounds of parameters."""

import torch
from jaxtyping import Num
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.numerics.special import softplus_inverse
from directgp.posteriors.sparse import SparsePosterior

# Joint log-loss training may drive the Gaussian noise towards 0 and let the variance of f carry it:
# its floor is relative to the spread of the targets. Targets that do not vary may drive the output
# scale of the kernel towards 0: its floor is where the variance of f would soon underflow.


_RELATIVE_DEVIATION = 1e-3


def floors(
    posterior: SparsePosterior, likelihood: Likelihood, y: Num[Tensor, " n"]
) -> dict[str, float]:
    """The floor of each raw parameter that has one, by name."""
    smallest = torch.finfo(posterior.Z.dtype).tiny ** 0.5
    found = {"prior.raw_output_scale": smallest}
    own = likelihood.floors(_RELATIVE_DEVIATION * _spread(y))
    found |= {f"likelihood.{name}": floor for name, floor in own.items()}
    values = torch.tensor([*found.values()], dtype=torch.float64)
    return dict(zip(found, softplus_inverse(values).tolist(), strict=True))


def _spread(y: Num[Tensor, " n"]) -> float:
    """Interquartile range over that of a standard normal, which outliers do not move."""
    if len(y) == 0:
        return 1.0
    wide = y.double()
    ordered = wide.sort().values
    quarter = len(y) // 4
    lower, upper = ordered[quarter], ordered[len(y) - 1 - quarter]
    for spread in ((upper - lower) / 1.349, wide.std(correction=0), wide.abs().max()):
        if float(spread) > 0:
            return float(spread)
    return 1.0
