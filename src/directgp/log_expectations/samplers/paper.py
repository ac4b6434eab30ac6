"""The paper's product sampler: proposals from a widened q, accepted against the likelihood's peak.

Proposals come from N(μ, n·v) with the largest n ≤ 10 for which q·p ≤ p_max·N(μ, n·v); the rate of
acceptance is E_q[p]/p_max for every such n, so that an implausible target needs a huge number of
proposals. Here the rounds are bounded, and what is left over goes to an exact sampler.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.likelihoods.unimodal import UnimodalInF
from directgp.log_expectations.samplers.rejection import draw_by_rejection
from directgp.numerics.noise import exponential, standard_normal

Row = Float[Tensor, " n"]

_WIDEST = 10


class PaperDraws(NamedTuple):
    """What the paper's sampler achieved within its rounds."""

    delta: Float[Tensor, "k n"]
    """Draws minus the mean of q; meaningless where unfinished."""

    unfinished: Bool[Tensor, "k n"]
    """Draws that no proposal was accepted for."""

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
    """Draws from q̃ by the paper's method; `widen=False` keeps n = 1."""
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
