"""Which sampler draws from q̃, for which likelihood."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.errors import UnsupportedError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.capabilities import ExactProductSampler
from directgp.likelihoods.unimodal import UnimodalInF
from directgp.log_expectations.product_density import Peak, peak_of
from directgp.log_expectations.samplers.cells import draw_from_cells
from directgp.log_expectations.samplers.hat import draw_with_hat
from directgp.log_expectations.samplers.paper import draw_as_paper

Row = Float[Tensor, " n"]
Draws = Float[Tensor, "k n"]

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
) -> Draws:
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
) -> Draws:
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
    delta: Draws,
    unfinished: Bool[Tensor, "k n"],
    left: Int[Tensor, " r"],
    rest: Float[Tensor, "k r"],
) -> Draws:
    """Put the draws of the examples left over where none was accepted."""
    filled = delta.index_copy(1, left, rest)
    return torch.where(unfinished, filled, delta)
