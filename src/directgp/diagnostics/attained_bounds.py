"""The smallest valid bounds of φ, φ′ and φ″, target by target."""

import torch
from jaxtyping import Float, Num
from torch import Tensor

from directgp.diagnostics.bounds import DerivativeBounds, Values, density_derivatives
from directgp.diagnostics.critical_points import critical_points
from directgp.diagnostics.extremum_search import searched_bounds
from directgp.errors import UnsupportedError
from directgp.likelihoods import Likelihood
from directgp.likelihoods.unimodal import UnimodalInF


@torch.no_grad()
def tight_bounds(likelihood: Likelihood, y: Num[Tensor, "..."]) -> DerivativeBounds:
    """Compute B = sup φ, [b′, B′] = range of φ′ and [b″, B″] = range of φ″ for each target.

    Exact, from closed-form roots of φ″ and φ‴, for Gaussian, probit, logistic, Student's t,
    Poisson with exponential link and negative binomial; by a search over f, good to about
    1e-12, for Poisson with softplus link and any further likelihood with one peak.

    Parameters
    ----------
    likelihood : Likelihood
        Any likelihood whose density is bounded and has one peak over f.
    y : tensor
        Targets (..., n); labels have each their own range of φ′, which has one sign.

    Examples
    --------
    >>> import torch
    >>> from directgp.likelihoods import Poisson
    >>> tight_bounds(Poisson(), torch.tensor([0.0])).slope_lower
    tensor([-0.3679], dtype=torch.float64)
    """
    if not isinstance(likelihood, UnimodalInF):
        raise UnsupportedError(
            f"tight_bounds needs a likelihood with one peak over f. "
            f"Got {type(likelihood).__name__}. Derive it from UnimodalInF."
        )
    likelihood.check_targets(y)
    y = y.double()
    points = critical_points(likelihood, y)
    if points is None:
        return searched_bounds(likelihood, y)
    density_upper = torch.exp(likelihood.log_max(y))
    slopes = _at_points(likelihood, y, points.slope, 1)
    curvatures = _at_points(likelihood, y, points.curvature, 2)
    return DerivativeBounds(density_upper, *_range_with_zero(slopes), *_range_with_zero(curvatures))


def _at_points(
    likelihood: Likelihood, y: Values, f: Float[Tensor, "k ..."], order: int
) -> Float[Tensor, "k ..."]:
    """Evaluate φ, φ′ or φ″ (order 0, 1, 2) at each f, 0 at an infinite one."""
    finite = torch.isfinite(f)
    values = density_derivatives(likelihood, y, torch.where(finite, f, 0.0))[order]
    return torch.where(finite, values, 0.0)


def _range_with_zero(values: Float[Tensor, "k ..."]) -> tuple[Values, Values]:
    """Smallest and largest of the values and of the limit 0 at ±∞."""
    return values.amin(dim=0).clamp(max=0.0), values.amax(dim=0).clamp(min=0.0)
