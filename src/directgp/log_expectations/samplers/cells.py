"""Rejection from a piecewise bound, for likelihoods that are bounded but not log-concave.

The line is cut into cells, fine around the peak of the likelihood. In each cell the likelihood is
at most its maximum there, so a cell drawn with weight maximum × q(cell), and f drawn from q in
that cell, is accepted with probability p(y given f) / maximum. Exact for any cells.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.likelihoods.unimodal import UnimodalInF
from directgp.log_expectations.samplers.rejection import draw_by_rejection, require_finished
from directgp.numerics.noise import exponential, uniform
from directgp.numerics.special import log1mexp, log_ndtr
from directgp.numerics.truncated_normal import sample_between

Row = Float[Tensor, " n"]
Cells = Float[Tensor, "c n"]

_CELLS_PER_SIDE = 48

_REACH = 9.0
"""Deviations of q beyond which the two open cells begin."""

_MAX_ROUNDS = 1000
_WHO = "The sampler for bounded likelihoods"


def draw_from_cells(
    likelihood: UnimodalInF,
    y: Row,
    mean: Row,
    variance: Row,
    num_samples: int,
    generator: torch.Generator | None,
) -> Float[Tensor, "k n"]:
    """Exact draws from q̃ minus the mean."""
    deviation = torch.sqrt(variance)
    edges = _edges(likelihood, y, mean, deviation)
    log_max = likelihood.log_max_between(
        y, mean + deviation * edges[:-1], mean + deviation * edges[1:]
    )
    share = torch.softmax(log_max + _log_mass(edges[:-1], edges[1:]), 0).cumsum(0)
    require_finished(~torch.isfinite(share), _WHO)

    def propose(
        index: Int[Tensor, " r"] | None, tries: int
    ) -> tuple[Float[Tensor, "j r"], Bool[Tensor, "j r"]]:
        chosen = torch.arange(y.shape[0], device=y.device) if index is None else index
        some = likelihood.take(chosen)
        cumulative = share[:, chosen].T.contiguous()
        pick = uniform(tries, mean[chosen], generator).T * cumulative[:, -1:]
        cell = torch.searchsorted(cumulative, pick.contiguous()).T
        column = chosen.expand(cell.shape)
        z = sample_between(edges[cell, column], edges[cell + 1, column], generator)
        f = mean[chosen] + deviation[chosen] * z
        log_ratio = some.log_prob(y[chosen], f) - log_max[cell, column]
        return deviation[chosen] * z, log_ratio >= -exponential(tries, f[0], generator)

    draws, unfinished = draw_by_rejection(propose, num_samples, _MAX_ROUNDS)
    require_finished(unfinished, _WHO)
    return draws


def _edges(likelihood: UnimodalInF, y: Row, mean: Row, deviation: Row) -> Cells:
    """Cell edges in deviations of q, spaced geometrically from the peak of the likelihood."""
    peak = likelihood.argmax(y)
    width = torch.rsqrt(-likelihood.derivatives(y, peak).second)
    centre = (peak - mean) / deviation
    reach = centre.abs() + _REACH
    finest = torch.minimum(0.2 * width / deviation, 0.1 * reach)
    step = torch.linspace(0, 1, _CELLS_PER_SIDE, dtype=y.dtype, device=y.device)[:, None]
    offset = finest * torch.exp(step * torch.log(reach / finest))
    open_end = torch.full_like(y, math.inf)[None]
    return torch.cat([-open_end, centre - offset.flip(0), centre[None], centre + offset, open_end])


def _log_mass(lower: Cells, upper: Cells) -> Cells:
    """log(Φ(upper) − Φ(lower)), from whichever tail is the smaller."""
    mirrored = lower + upper > 0
    a, b = torch.where(mirrored, -upper, lower), torch.where(mirrored, -lower, upper)
    top = log_ndtr(b)
    return top + log1mexp(top - log_ndtr(a))
