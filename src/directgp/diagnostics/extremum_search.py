"""Extrema of φ, φ′ and φ″ over f by search: a grid over the effective support, then zooms."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.diagnostics.bounds import DerivativeBounds, Values, density_derivatives
from directgp.likelihoods.unimodal import UnimodalInF

# In widths of the peak; beyond, every likelihood here is flat or vanishing.
_REACH = 200.0
_ZOOM_NODES = 17
# Each zoom divides the bracket by 8: ten bring it below 1e-9 widths, and the value at an
# extremum is wrong by the square of that.
_ZOOMS = 10


@torch.no_grad()
def searched_bounds(
    likelihood: UnimodalInF, y: Float[Tensor, "..."], num_nodes: int = 257
) -> DerivativeBounds:
    """Search for sup φ and for inf and sup of φ′ and φ″ over f, on a grid and around its best node.

    The grid is centre + width·sinh(x) for equispaced x: dense within the peak, out to 200 widths.
    """
    nodes = _nodes(likelihood, y, num_nodes)

    def extreme(order: int, sign: int) -> Values:
        return _largest(lambda f: sign * density_derivatives(likelihood, y, f)[order], nodes)

    # φ′ and φ″ vanish at ±∞, so that neither range excludes 0.
    return DerivativeBounds(
        extreme(0, 1),
        -extreme(1, -1).clamp(min=0.0),
        extreme(1, 1).clamp(min=0.0),
        -extreme(2, -1).clamp(min=0.0),
        extreme(2, 1).clamp(min=0.0),
    )


def _nodes(likelihood: UnimodalInF, y: Values, num_nodes: int) -> Float[Tensor, "k ..."]:
    centre = _first_finite(likelihood.argmax(y), likelihood.argmax(torch.ones_like(y)))
    width = torch.rsqrt(-likelihood.derivatives(y, centre).second)
    last = math.asinh(_REACH)
    x = torch.linspace(-last, last, num_nodes, dtype=y.dtype, device=y.device)
    return centre + width * torch.sinh(x).reshape(-1, *(1 for _ in centre.shape))


def _first_finite(peak: Values, of_one: Values) -> Values:
    """Choose the peak; where it is infinite, that of target 1 (counts of 0), else 0 (labels)."""
    fallback = torch.where(torch.isfinite(of_one), of_one, 0.0)
    return torch.where(torch.isfinite(peak), peak, fallback)


def _largest(function: Callable[[Values], Values], nodes: Float[Tensor, "k ..."]) -> Values:
    """Maximum over f of a smooth function, zooming in on the best node between its neighbours."""
    fractions = torch.linspace(0, 1, _ZOOM_NODES, dtype=nodes.dtype, device=nodes.device)
    fractions = fractions.reshape(-1, *(1 for _ in nodes.shape[1:]))
    for _ in range(_ZOOMS):
        best = function(nodes).argmax(dim=0, keepdim=True).clamp(1, len(nodes) - 2)
        lower, upper = nodes.gather(0, best - 1), nodes.gather(0, best + 1)
        nodes = lower + (upper - lower) * fractions
    return function(nodes).amax(dim=0)
