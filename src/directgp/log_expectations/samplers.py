"""Draw exactly from the product density q̃(f) ∝ q(f)·p(y|f)."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.errors import NumericalError, UnsupportedError
from directgp.likelihoods.base import ExactProductSampler, Likelihood, UnimodalInF
from directgp.log_expectations.product_density import Peak, find_fall, peak_of
from directgp.numerics.random import exponential, sample_between, standard_normal, uniform
from directgp.numerics.special import log1mexp, log_ndtr
from directgp.shapes import Points, Row

Proposal = Callable[
    [Int[Tensor, " r"] | None, int], tuple[Float[Tensor, "j r"], Bool[Tensor, "j r"]]
]
"""Examples (None for all) and a number of tries → proposals and which of them are accepted."""

_TRIES = 4
"""Proposals made at once for each draw that the first round refused."""


def draw_by_rejection(
    propose: Proposal, num_samples: int, max_rounds: int
) -> tuple[Points, Bool[Tensor, "k n"]]:
    """Points, and which of them are still missing after the last round."""
    draws, accepted = propose(None, num_samples)
    missing = torch.nonzero(~accepted.reshape(-1)).squeeze(-1)
    flat = draws.reshape(-1)
    for _ in range(max_rounds - 1):
        if missing.numel() == 0:
            break
        tries, hits = propose(missing % draws.shape[-1], _TRIES)
        first = hits.to(torch.int8).argmax(0, keepdim=True)
        found = hits.any(0)
        flat[missing[found]] = tries.gather(0, first).squeeze(0)[found]
        missing = missing[~found]
    unfinished = torch.zeros_like(flat, dtype=torch.bool)
    unfinished[missing] = True
    return flat.reshape(draws.shape), unfinished.reshape(draws.shape)


def require_finished(unfinished: Bool[Tensor, "k n"], who: str) -> None:
    """Raise where a sampler that always ends has not."""
    if bool(unfinished.any()):
        examples = int(unfinished.any(0).sum())
        raise NumericalError(
            f"{who} could not draw from q(f)·p(y given f) for {examples} examples. "
            f"Check their mean, variance and target for NaN or infinity, or for a target absurdly "
            f"far from the mean; the rule 'quadrature' needs no draws."
        )


# The line is cut into cells, fine around the peak of the likelihood. In each cell the likelihood is
# at most its maximum there, so a cell drawn with weight maximum × q(cell), and f drawn from q in
# that cell, is accepted with probability p(y given f) / maximum. Exact for any cells.


Cells = Float[Tensor, "c n"]

_CELLS_PER_SIDE = 48

_REACH = 9.0
"""Deviations of q beyond which the two open cells begin."""

_MAX_CELL_ROUNDS = 1000
_WHO = "The sampler for bounded likelihoods"


def draw_from_cells(
    likelihood: UnimodalInF,
    y: Row,
    mean: Row,
    variance: Row,
    num_samples: int,
    generator: torch.Generator | None,
) -> Points:
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

    draws, unfinished = draw_by_rejection(propose, num_samples, _MAX_CELL_ROUNDS)
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


# h = log q̃ is concave, so that a cap above its top and the tangents at a point on either side
# bound it from above. With the tangent points where h has fallen by about 1, a Gaussian peak
# accepts √π/2 = 0.886 of the proposals, and any other log-concave peak about as many.


_MAX_HAT_ROUNDS = 64

_UNEVEN = 0.3
"""Tangents touch where the logarithm of the fall of h is between −0.3 and 0.3."""


class Hat(NamedTuple):
    """Cap and tangents; lengths are measured from the mode, heights from the cap."""

    centre: Row
    """δ of the (nearly) mode."""

    cap: Row
    """Height of the flat piece, above any value of h."""

    left: Row
    """Distance at which the left tangent meets the cap."""

    right: Row
    """Distance at which the right tangent meets the cap."""

    left_scale: Row
    """1/slope of the left tangent: the mean of its exponential tail."""

    right_scale: Row
    """1/slope of the right tangent."""


def draw_with_hat(
    likelihood: Likelihood,
    y: Row,
    mean: Row,
    variance: Row,
    peak: Peak,
    num_samples: int,
    generator: torch.Generator | None,
) -> Points:
    """Exact draws from q̃ minus the mean, about 1.13 proposals for each."""
    hat = build_hat(likelihood, y, mean, variance, peak)

    def propose(
        index: Int[Tensor, " r"] | None, tries: int
    ) -> tuple[Float[Tensor, "j r"], Bool[Tensor, "j r"]]:
        if index is None:
            return _propose(likelihood, y, mean, variance, hat, tries, generator)
        some = Hat(*(column[index] for column in hat))
        chosen = y[index], mean[index], variance[index]
        return _propose(likelihood.take(index), *chosen, some, tries, generator)

    draws, unfinished = draw_by_rejection(propose, num_samples, _MAX_HAT_ROUNDS)
    require_finished(unfinished, "The sampler for log-concave likelihoods")
    return draws


def build_hat(likelihood: Likelihood, y: Row, mean: Row, variance: Row, peak: Peak) -> Hat:
    """The hat of each example.

    The top of h lies between δ̂, wherever that was found, and a tangent point, so it is at most
    |h′(δ̂)|·distance above h(δ̂); and at most v·h′(δ̂)²/2, since h is 1/v-strongly concave.
    """
    one = torch.ones_like(mean)
    fall = find_fall(lambda f: likelihood.derivatives(y, f), mean, variance, peak, one, _UNEVEN)
    slope = peak.slope.abs()
    excess = slope * torch.minimum(0.5 * variance * slope, fall.distance.amax(0))
    scale = 1 / fall.steepness
    meets = fall.distance - (fall.fallen + excess) * scale
    return Hat(peak.delta, peak.height + excess, *meets, *scale)


def _propose(
    likelihood: Likelihood,
    y: Row,
    mean: Row,
    variance: Row,
    hat: Hat,
    tries: int,
    generator: torch.Generator | None,
) -> tuple[Float[Tensor, "j n"], Bool[Tensor, "j n"]]:
    """Points from the hat, and whether each lies under the density."""
    middle = hat.left + hat.right
    total = hat.left_scale + middle + hat.right_scale
    area = total * uniform(tries, mean, generator)
    left_tail = torch.log(area / hat.left_scale).clamp_(max=0.0)
    right_tail = torch.log((total - area) / hat.right_scale).clamp_(max=0.0)
    flat = torch.minimum((area - hat.left_scale).clamp_(min=0.0), middle)
    offset = flat - hat.left + hat.left_scale * left_tail - hat.right_scale * right_tail
    delta = hat.centre + offset
    log_prob = likelihood.log_kernel(y, mean + delta)
    height = torch.addcmul(log_prob, delta * delta, -0.5 / variance)
    bound = hat.cap + left_tail + right_tail
    return delta, height + exponential(tries, mean, generator) >= bound


# Proposals come from N(μ, n·v) with the largest n ≤ 10 for which q·p ≤ p_max·N(μ, n·v); the rate of
# acceptance is E_q[p]/p_max for every such n, so that an implausible target needs a huge number of
# proposals. Here the rounds are bounded, and what is left over goes to an exact sampler.


_WIDEST = 10


class PaperDraws(NamedTuple):
    """What the paper's sampler achieved within its rounds."""

    delta: Points
    """Points minus the mean of q; meaningless where unfinished."""

    unfinished: Bool[Tensor, "k n"]
    """Points that no proposal was accepted for."""

    proposals: Row
    """Expected number of proposals for each draw, p_max / E_q[p], as seen: proposals / accepted."""

    accepted: Row
    """More than were asked for: proposals come several at a time."""


def draw_as_paper(
    likelihood: UnimodalInF,
    y: Row,
    mean: Row,
    variance: Row,
    num_samples: int,
    generator: torch.Generator | None,
    max_rounds: int,
    widen: bool = True,
) -> PaperDraws:
    """Points from q̃ by the paper's method; `widen=False` keeps n = 1."""
    log_max = likelihood.log_max(y)
    width = choose_width(likelihood, y, mean, variance) if widen else torch.ones_like(mean)
    tried, accepted = torch.zeros_like(mean), torch.zeros_like(mean)

    def propose(
        index: Int[Tensor, " r"] | None, tries: int
    ) -> tuple[Float[Tensor, "j r"], Bool[Tensor, "j r"]]:
        chosen = torch.arange(y.shape[0], device=y.device) if index is None else index
        n, v, target = width[chosen], variance[chosen], y[chosen]
        z = standard_normal(tries, v, generator)
        delta = torch.sqrt(n * v) * z
        log_prob = likelihood.take(chosen).log_prob(target, mean[chosen] + delta)
        # log q(δ) − log N(δ; 0, n·v) with δ² = n·v·z²
        log_ratio = 0.5 * (torch.log(n) - (n - 1) * z**2)
        hits = log_prob - log_max[chosen] + log_ratio >= -exponential(tries, v, generator)
        tried.index_add_(0, chosen, torch.full_like(v, tries))
        accepted.index_add_(0, chosen, hits.sum(0).to(v.dtype))
        return delta, hits

    delta, unfinished = draw_by_rejection(propose, num_samples, max_rounds)
    return PaperDraws(delta, unfinished, tried / accepted, accepted)


def choose_width(likelihood: UnimodalInF, y: Row, mean: Row, variance: Row) -> Row:
    """The paper's n: 1 where q sits on the likelihood's peak, else the largest valid n ≤ 10.

    N(μ, v) exceeds N(μ, n·v) within r = √(v·log n/(1 − 1/n)) of μ, by at most √n; so n is valid
    when p ≤ p_max/√n there.
    """
    deviation, log_max = torch.sqrt(variance), likelihood.log_max(y)
    width = torch.ones_like(mean)
    for n in range(2, _WIDEST + 1):
        r = deviation * math.sqrt(math.log(n) / (1 - 1 / n))
        inside = likelihood.log_max_between(y, mean - r, mean + r)
        width = torch.where(inside <= log_max - 0.5 * math.log(n), float(n), width)
    near = [likelihood.log_prob(y, mean + side * deviation) for side in (-1, 1)]
    on_peak = torch.maximum(*near) > log_max - math.log(2)
    return torch.where(on_peak, 1.0, width)


SamplerName = Literal["auto", "paper"]

_PAPER_ROUNDS = 32
_ROUNDS_BEFORE_CELLS = 3
"""Plain rejection serves most targets of a bounded likelihood and is cheaper than cells."""


def draw_product(
    likelihood: Likelihood,
    y: Row,
    mean: Row,
    variance: Row,
    peak: Peak | None,
    num_samples: int,
    generator: torch.Generator | None,
    sampler: SamplerName,
) -> Points:
    """Exact draws from q̃ minus the mean; `peak` is that of q̃, where it is known."""
    if sampler == "paper":
        return _bounded(likelihood, y, mean, variance, num_samples, generator, _PAPER_ROUNDS)
    if isinstance(likelihood, ExactProductSampler):
        return likelihood.sample_product(y, mean, variance, num_samples, generator)
    if likelihood.log_concave:
        known = peak_of(likelihood, y, mean, variance) if peak is None else peak
        return draw_with_hat(likelihood, y, mean, variance, known, num_samples, generator)
    return _bounded(likelihood, y, mean, variance, num_samples, generator, _ROUNDS_BEFORE_CELLS)


def _bounded(
    likelihood: Likelihood,
    y: Row,
    mean: Row,
    variance: Row,
    num_samples: int,
    generator: torch.Generator | None,
    max_rounds: int,
) -> Points:
    """The paper's sampler for some rounds, then an exact one for the draws left over."""
    if not isinstance(likelihood, UnimodalInF):
        raise UnsupportedError(
            f"Product sampling needs a likelihood that is log-concave, or bounded with one peak "
            f"in f. Got {type(likelihood).__name__}. Use Quadrature or BiasedMonteCarlo."
        )
    draws = draw_as_paper(likelihood, y, mean, variance, num_samples, generator, max_rounds)
    left = torch.nonzero(draws.unfinished.any(0)).squeeze(-1)
    if left.numel() == 0:
        return draws.delta
    some = likelihood.take(left), y[left], mean[left], variance[left]
    if likelihood.log_concave:
        rest = draw_product(*some, None, num_samples, generator, "auto")
    else:
        rest = draw_from_cells(*some, num_samples, generator)
    return _fill(draws.delta, draws.unfinished, left, rest)


def _fill(
    delta: Points,
    unfinished: Bool[Tensor, "k n"],
    left: Int[Tensor, " r"],
    rest: Float[Tensor, "k r"],
) -> Points:
    """Put the draws of the examples left over where none was accepted."""
    filled = delta.index_copy(1, left, rest)
    return torch.where(unfinished, filled, delta)
