"""Draw exactly from the product density q̃(f) ∝ q(f)·p(y|f).

Every sampler returns draws minus the mean of q, shape (k, n).
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.errors import NumericalError
from directgp.integration.contract import ExtraZeros, FlatExamples, has, log_expectations_of
from directgp.integration.peaks import Peak, find_fall, peak_of
from directgp.integration.unimodal import one_peak
from directgp.likelihoods.capabilities import ExactProductSampler
from directgp.numerics.random import (
    Generator,
    exponential,
    sample_between,
    standard_normal,
    uniform,
)
from directgp.numerics.special import log1mexp, log_ndtr
from directgp.shapes import Points, Row

SamplerName = Literal["auto", "paper"]
Proposals = tuple[Float[Tensor, "j r"], Bool[Tensor, "j r"]]
"""Proposals, and which of them are accepted."""

_TRIES = 4
"""Proposals made at once for each draw that the first round rejected."""

_MAX_PAPER_ROUNDS = 32
"""Rounds of the paper's sampler; another one draws what is missing after them."""

_MAX_CELL_ROUNDS = 1000
"""Rounds of the sampler with cells, which accepts almost surely before."""

_MAX_HAT_ROUNDS = 64
"""Rounds of the sampler with a hat, which accepts almost surely before."""

_ROUNDS_BEFORE_CELLS = 3
"""Plain rejection serves most targets of a bounded likelihood and is cheaper than cells."""


def draw_product(
    examples: FlatExamples,
    peak: Peak | None,
    num_samples: int,
    generator: Generator,
    sampler: SamplerName,
) -> Points:
    """Draw by the sampler that suits the likelihood; `peak` is that of q̃, where it is known."""
    likelihood = examples.likelihood
    if sampler == "paper":
        return _draw_bounded(examples, num_samples, generator, _MAX_PAPER_ROUNDS)
    if has(likelihood, ExactProductSampler):
        exact = cast(ExactProductSampler, likelihood)
        return exact.sample_product(*examples[1:], num_samples, generator)
    if has(likelihood, ExtraZeros):
        return draw_inflated(examples, num_samples, generator)
    if likelihood.integration.log_concave:
        return draw_with_hat(examples, peak or peak_of(*examples), num_samples, generator)
    return _draw_bounded(examples, num_samples, generator, _ROUNDS_BEFORE_CELLS)


def draw_inflated(examples: FlatExamples, num_samples: int, generator: Generator) -> Points:
    """Draw from the mixture of q and q·p₀ that extra zeros make of q̃; from q·p₀ where y > 0."""
    _, y, mean, variance = examples
    likelihood = cast(ExtraZeros, examples.likelihood)
    base = FlatExamples(likelihood.base.frozen(), y, mean, variance)
    draws = draw_product(base, None, num_samples, generator, "auto")
    share = likelihood.inflate(y, log_expectations_of(base).value)[1].detach()
    plain = torch.sqrt(variance) * standard_normal(num_samples, mean, generator)
    return torch.where(uniform(num_samples, mean, generator) < share, draws, plain)


def _draw_bounded(
    examples: FlatExamples, num_samples: int, generator: Generator, max_rounds: int
) -> Points:
    """Draw by the paper's sampler in at most these rounds, then by another exact one."""
    draws = draw_as_paper(examples, num_samples, generator, max_rounds)
    index = torch.nonzero(draws.unfinished.any(0)).squeeze(-1)
    if index.numel() == 0:
        return draws.delta
    unfinished = examples.take(index)
    likelihood = unfinished.likelihood
    if likelihood.integration.log_concave or has(likelihood, ExtraZeros):
        rest = draw_product(unfinished, None, num_samples, generator, "auto")
    else:
        rest = draw_from_cells(unfinished, num_samples, generator)
    return torch.where(draws.unfinished, draws.delta.index_copy(1, index, rest), draws.delta)


def draw_by_rejection(
    propose: Callable[[Int[Tensor, " r"] | None, int], Proposals], num_samples: int, max_rounds: int
) -> tuple[Points, Bool[Tensor, "k n"]]:
    """Return draws, and a mask of those that are still missing after the last round.

    `propose` takes the indices of examples (None for all) and the number of tries for each.
    """
    draws, accepted = propose(None, num_samples)
    missing = torch.nonzero(~accepted.reshape(-1)).squeeze(-1)
    flat = draws.reshape(-1)
    for _ in range(max_rounds - 1):
        if missing.numel() == 0:
            break
        tries, hits = propose(missing % draws.shape[-1], _TRIES)
        first = hits.to(torch.int8).argmax(0, keepdim=True)
        hit = hits.any(0)
        flat[missing[hit]] = tries.gather(0, first).squeeze(0)[hit]
        missing = missing[~hit]
    unfinished = torch.zeros_like(flat, dtype=torch.bool)
    unfinished[missing] = True
    return flat.reshape(draws.shape), unfinished.reshape(draws.shape)


def _require_finished(unfinished: Bool[Tensor, "k n"], who: str) -> None:
    """Raise `NumericalError` if a sampler that always ends did not end."""
    if bool(unfinished.any()):
        number = int(unfinished.any(0).sum())
        raise NumericalError(
            f"{who} could not draw from q(f)·p(y given f) for {number} examples. "
            f"Check their mean, variance and target for NaN or infinity, or for a target extremely "
            f"far from the mean; the rule 'quadrature' needs no draws."
        )


# Bounded likelihoods: the line is cut into cells, fine around the peak of the likelihood. In each
# cell the likelihood is at most its maximum there, so a cell drawn with weight maximum × q(cell),
# and f drawn from q in that cell, is accepted with probability p(y given f) / maximum. Exact for
# any cells.

Cells = Float[Tensor, "c n"]

_CELLS_PER_SIDE = 48

_REACH = 9.0
"""Deviations of q beyond which the two open cells begin."""


def draw_from_cells(examples: FlatExamples, num_samples: int, generator: Generator) -> Points:
    """Draw exactly for any likelihood with one peak over f."""
    who = "The sampler for bounded likelihoods"
    likelihood = one_peak(examples)
    _, y, mean, variance = examples
    deviation = torch.sqrt(variance)
    edges = _edges(examples, deviation)
    f_edges = mean + deviation * edges
    log_max = likelihood.log_max_between(y, f_edges[:-1], f_edges[1:])
    share = torch.softmax(log_max + _log_mass(edges[:-1], edges[1:]), 0).cumsum(0)
    _require_finished(~torch.isfinite(share), who)

    def propose(index: Int[Tensor, " r"] | None, tries: int) -> Proposals:
        chosen = torch.arange(y.shape[0], device=y.device) if index is None else index
        subset = examples.take(chosen)
        cumulative = share[:, chosen].T.contiguous()
        pick = uniform(tries, subset.mean, generator).T * cumulative[:, -1:]
        cell = torch.searchsorted(cumulative, pick.contiguous()).T
        column = chosen.expand(cell.shape)
        z = sample_between(edges[cell, column], edges[cell + 1, column], generator)
        delta = deviation[chosen] * z
        f = subset.mean + delta
        log_ratio = subset.likelihood.log_prob(subset.y, f) - log_max[cell, column]
        return delta, log_ratio >= -exponential(tries, f[0], generator)

    draws, unfinished = draw_by_rejection(propose, num_samples, _MAX_CELL_ROUNDS)
    _require_finished(unfinished, who)
    return draws


def _edges(examples: FlatExamples, deviation: Row) -> Cells:
    """Return cell edges in deviations of q, spaced geometrically from the likelihood's peak."""
    likelihood, y, mean, _ = examples
    peak = one_peak(examples).argmax(y)
    width = torch.rsqrt(-likelihood.derivatives(y, peak).second)
    centre = (peak - mean) / deviation
    reach = centre.abs() + _REACH
    finest = torch.minimum(0.2 * width / deviation, 0.1 * reach)
    step = torch.linspace(0, 1, _CELLS_PER_SIDE, dtype=y.dtype, device=y.device)[:, None]
    offset = finest * torch.exp(step * torch.log(reach / finest))
    open_end = torch.full_like(y, math.inf)[None]
    return torch.cat([-open_end, centre - offset.flip(0), centre[None], centre + offset, open_end])


def _log_mass(lower: Cells, upper: Cells) -> Cells:
    """Return log(Φ(upper) − Φ(lower)), computed in the smaller tail."""
    mirrored = lower + upper > 0
    a = torch.where(mirrored, -upper, lower)
    b = torch.where(mirrored, -lower, upper)
    top = log_ndtr(b)
    return top + log1mexp(top - log_ndtr(a))


# Log-concave likelihoods: h = log q̃ is concave, so that a cap above its top and the tangents at a
# point on either side bound it from above. With the tangent points where h has fallen by about 1, a
# Gaussian peak accepts √π/2 = 0.886 of the proposals, and any other log-concave peak about as many.

_UNEVEN = 0.3
"""Tangents touch where the logarithm of the fall of h is between −0.3 and 0.3."""


class Hat(NamedTuple):
    """Cap and tangents; lengths are measured from the mode, heights from the cap."""

    centre: Row
    """δ near the mode."""

    cap: Row
    """Height of the flat piece, above any value of h."""

    left: Row
    """Distance at which the left tangent meets the cap."""

    right: Row
    """Distance at which the right tangent meets the cap."""

    left_scale: Row
    """1/slope of the left tangent: the mean of its exponential tail."""

    right_scale: Row
    """1/slope of the right tangent: the mean of its exponential tail."""


def draw_with_hat(
    examples: FlatExamples, peak: Peak, num_samples: int, generator: Generator
) -> Points:
    """Draw exactly for a log-concave likelihood, with about 1.13 proposals for each draw."""
    hat = build_hat(examples, peak)

    def propose(index: Int[Tensor, " r"] | None, tries: int) -> Proposals:
        if index is None:
            return propose_from_hat(examples, hat, tries, generator)
        hats = Hat(*(column[index] for column in hat))
        return propose_from_hat(examples.take(index), hats, tries, generator)

    draws, unfinished = draw_by_rejection(propose, num_samples, _MAX_HAT_ROUNDS)
    _require_finished(unfinished, "The sampler for log-concave likelihoods")
    return draws


def build_hat(examples: FlatExamples, peak: Peak) -> Hat:
    """Return the hat of each example.

    The top of h lies between δ̂, wherever that was found, and a tangent point, so it is at most
    |h′(δ̂)|·distance above h(δ̂); and at most v·h′(δ̂)²/2, since h is 1/v-strongly concave.
    """
    likelihood, y, mean, variance = examples
    one = torch.ones_like(mean)
    fall = find_fall(lambda f: likelihood.derivatives(y, f), mean, variance, peak, one, _UNEVEN)
    slope = peak.slope.abs()
    excess = slope * torch.minimum(0.5 * variance * slope, fall.distance.amax(0))
    scale = 1 / fall.steepness
    meets = fall.distance - (fall.fallen + excess) * scale
    return Hat(peak.delta, peak.height + excess, *meets, *scale)


def proposals_per_draw(examples: FlatExamples, log_expectations: Row) -> Row:
    """Return the expected proposals of one draw by the default sampler of `ProductSampling`.

    Their number is the area under the hat over the area under the density, or 1 for a likelihood
    whose q̃ is drawn without rejection. The likelihood is log-concave; `log_expectations` is
    log E_q[p] of each example.
    """
    likelihood, y, _, variance = examples
    if isinstance(likelihood, ExactProductSampler):
        return torch.ones_like(variance)
    hat = build_hat(examples, peak_of(*examples))
    log_area = hat.cap + torch.log(hat.left_scale + hat.left + hat.right + hat.right_scale)
    # The density is e^{h}, without log p's part that is free of f and without 1/√(2πv).
    log_constant = 0.5 * torch.log(2 * math.pi * variance) - likelihood.log_base(y)
    return torch.exp(log_area - (log_expectations + log_constant))


def propose_from_hat(
    examples: FlatExamples, hat: Hat, tries: int, generator: Generator
) -> Proposals:
    """Draw from the hat, and accept what lies under the density."""
    likelihood, y, mean, variance = examples
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


# The paper's sampler proposes from N(μ, n·v) with the largest n ≤ 10 for which
# q·p ≤ p_max·N(μ, n·v). The rate of acceptance is E_q[p]/p_max for every such n, so that an
# improbable target needs a huge number of proposals. The number of rounds is therefore bounded.

_WIDEST = 10


class PaperDraws(NamedTuple):
    """Draws of the paper's sampler after a bounded number of rounds."""

    delta: Points
    """Draws minus the mean of q, meaningless where unfinished."""

    unfinished: Bool[Tensor, "k n"]
    """Where no proposal was accepted."""

    proposals: Row
    """Observed proposals per accepted one, an estimate of p_max / E_q[p]."""

    accepted: Row
    """Accepted proposals: more than were asked for, since several are made at a time."""


def draw_as_paper(
    examples: FlatExamples,
    num_samples: int,
    generator: Generator,
    max_rounds: int,
    widen: bool = True,
) -> PaperDraws:
    """Draw from q̃ by the paper's method; `widen=False` keeps n = 1."""
    log_max = one_peak(examples).log_max(examples.y)
    width = choose_width(examples) if widen else torch.ones_like(examples.mean)
    tried = torch.zeros_like(width)
    accepted = torch.zeros_like(width)

    def propose(index: Int[Tensor, " r"] | None, tries: int) -> Proposals:
        chosen = torch.arange(len(width), device=width.device) if index is None else index
        likelihood, y, mean, v = examples.take(chosen)
        n = width[chosen]
        z = standard_normal(tries, v, generator)
        delta = torch.sqrt(n * v) * z
        log_prob = likelihood.log_prob(y, mean + delta)
        # log q(δ) − log N(δ; 0, n·v) = ½(log n − (n − 1)z²) with δ² = n·v·z².
        log_ratio = 0.5 * (torch.log(n) - (n - 1) * z**2)
        hits = log_prob - log_max[chosen] + log_ratio >= -exponential(tries, v, generator)
        tried.index_add_(0, chosen, torch.full_like(v, tries))
        accepted.index_add_(0, chosen, hits.sum(0).to(v.dtype))
        return delta, hits

    delta, unfinished = draw_by_rejection(propose, num_samples, max_rounds)
    return PaperDraws(delta, unfinished, tried / accepted, accepted)


def choose_width(examples: FlatExamples) -> Row:
    """Return the paper's n: 1 where q is on the likelihood's peak, else the largest valid n ≤ 10.

    N(μ, v) exceeds N(μ, n·v) within r = √(v·log n/(1 − 1/n)) of μ, by at most √n; so n is valid
    when p ≤ p_max/√n there.
    """
    likelihood, y, mean, variance = examples
    peaked = one_peak(examples)
    deviation = torch.sqrt(variance)
    log_max = peaked.log_max(y)
    width = torch.ones_like(mean)
    for n in range(2, _WIDEST + 1):
        r = deviation * math.sqrt(math.log(n) / (1 - 1 / n))
        inside = peaked.log_max_between(y, mean - r, mean + r)
        width = torch.where(inside <= log_max - 0.5 * math.log(n), float(n), width)
    near = [likelihood.log_prob(y, mean + side * deviation) for side in (-1, 1)]
    on_peak = torch.maximum(*near) > log_max - math.log(2)
    return torch.where(on_peak, 1.0, width)
