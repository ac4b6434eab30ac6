"""Integrate over, and draw from, several latents that are independent under q."""

import math
from functools import partial
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from directgp.errors import NumericalError, UnsupportedError
from directgp.likelihoods.base import ExactProductSampler, Likelihood, ReducedIntegral, has
from directgp.log_expectations.nodes import NATS, step_for
from directgp.log_expectations.rule import Estimate, Estimator, FlatExamples, row_blocks
from directgp.numerics.random import Generator, exponential, standard_normal
from directgp.shapes import Latents, Row

LatentDraws = Float[Tensor, "k p n"]


def latent_estimator(likelihood: Likelihood, gibbs: bool) -> tuple[int, Estimator]:
    """Return the number of points for the block size, and the estimator of E_q[p] or E_q[log p].

    It is exact in one dimension where the likelihood can be reduced to one, else a grid over two.
    """
    if has(likelihood, ReducedIntegral):
        return 1, partial(_reduced, gibbs=gibbs)
    if likelihood.num_latent > 2:
        raise UnsupportedError(
            f"Quadrature needs at most two latents, or a likelihood that reduces to one integral. "
            f"Got {type(likelihood).__name__} with {likelihood.num_latent}. Use the objective "
            "'log_loss' with BiasedMonteCarlo or ProductSampling."
        )
    return 1, partial(_over_grid, gibbs=gibbs)


def _reduced(examples: FlatExamples, gibbs: bool) -> Estimate:
    reduced = cast(ReducedIntegral, examples.likelihood)
    integrate = reduced.integrate_log_density if gibbs else reduced.integrate_density
    return Estimate.of(integrate(*examples[1:]))


# A grid over two latents. q·p is at most as wide as q around its mode.

_MAX_NODES = 256
"""Nodes along each latent."""

_MODE_STEPS = 60


def mode_of(examples: FlatExamples) -> Latents:
    """Return the mode of q(f)·p(y given f), or a point near it, relative to the mean.

    Newton steps for each latent on its own, shortened by their number: for a log-concave p none of
    them lowers the density.
    """
    likelihood, y, mean, variance = examples
    delta, precision = torch.zeros_like(mean), 1 / variance
    for _ in range(_MODE_STEPS):
        _, first, second = likelihood.derivatives(y, mean + delta)
        slope = first - delta * precision
        step = slope / (precision - second.clamp(max=0.0)) / len(mean)
        delta = delta + step
        if bool((slope * step < 1e-6).all()):
            break
    return delta


def _over_grid(examples: FlatExamples, gibbs: bool) -> Estimate:
    """Sum over a product of equal steps in each of two latents."""
    likelihood, y, mean, variance = examples
    centre = torch.zeros_like(mean) if gibbs else mode_of(examples)
    second = likelihood.derivatives(y, mean + centre).second
    width = torch.rsqrt(1 / variance + (-second).clamp(min=0.0))
    step = step_for(width, likelihood.strip, NATS)
    reach = math.sqrt(2 * NATS) * variance.sqrt()
    low, high = centre.clamp(max=0.0) - reach, centre.clamp(min=0.0) + reach
    needed = ((high - low) / step).amax(-1).ceil().clamp(min=8)
    numbers = [int(each) for each in needed]
    if max(numbers) > _MAX_NODES:
        raise NumericalError(
            f"Quadrature over two latents needs {max(numbers)} nodes for one of them, more than "
            f"{_MAX_NODES}: the variance of f is large. Use BiasedMonteCarlo or ProductSampling."
        )
    points = math.prod(numbers)
    ends = torch.stack([low, high])
    parts = []
    for block, index in row_blocks(len(y), points, y.device):
        some = examples.take(index)
        parts.append(_sum_grid(some, ends[..., block], numbers, gibbs))
    return Estimate.join(parts)


def _sum_grid(
    examples: FlatExamples, ends: Float[Tensor, "2 p n"], numbers: list[int], gibbs: bool
) -> Estimate:
    likelihood, y, mean, variance = examples
    (low, high), like = ends, mean
    places = [(torch.arange(k, dtype=like.dtype, device=like.device) + 0.5) / k for k in numbers]
    share = torch.stack(torch.meshgrid(*places, indexing="ij")).flatten(1).T[..., None]
    delta = low + share * (high - low)
    value, first, second = likelihood.derivatives(y, mean + delta)
    log_q = (-0.5 * delta * delta / variance).sum(1)
    log_step = (torch.log((high - low) / torch.tensor(numbers).to(low)[:, None])).sum(0)
    log_scale = log_step - 0.5 * torch.log(2 * math.pi * variance).sum(0)
    if gibbs:
        weights = torch.exp(log_q + log_scale)
        total = weights * torch.where(weights > 0, value, 0.0)
        share = weights[:, None]
        by_mean, by_variance = (
            torch.where(share > 0, share * each, 0.0).sum(0) for each in (first, 0.5 * second)
        )
        parameters = likelihood.average_slopes(y, mean + delta, weights)
        return Estimate(total.sum(0) + likelihood.log_base(y), by_mean, by_variance, parameters)
    log_mass = value + log_q
    top = log_mass.amax(0)
    mass = torch.exp(log_mass - top)
    total = mass.sum(0)
    mass = mass / total
    # Scores: nodes are held, q moves.
    pull = delta / variance
    mean_slope = (mass[:, None] * pull).sum(0)
    variance_slope = 0.5 * (mass[:, None] * (pull * pull - 1 / variance)).sum(0)
    parameters = likelihood.average_slopes(y, mean + delta, mass)
    log_mean = top + torch.log(total) + log_scale
    return Estimate(log_mean + likelihood.log_base(y), mean_slope, variance_slope, parameters)


# A log-concave p lies below its tangent plane at any point: with that at the mode δ̂ of q·p,
# q·p ≤ c·N(μ + δ̂, v), and a draw f from there is accepted with probability
# p(f) / p(f̂) · exp(−∇ℓ(f̂)·(f − f̂)).

_MAX_ROUNDS = 10_000


def draw_latents(examples: FlatExamples, num_samples: int, generator: Generator) -> LatentDraws:
    """Draw exactly from q(f)·p(y given f); return the draws minus the mean."""
    likelihood, y, mean, variance = examples
    if isinstance(likelihood, ExactProductSampler):
        return likelihood.sample_product(y, mean, variance, num_samples, generator)
    if not likelihood.log_concave:
        raise UnsupportedError(
            f"Product sampling of several latents needs a log-concave likelihood or one with its "
            f"own sampler. Got {type(likelihood).__name__}. Use Quadrature()."
        )
    centre = mode_of(examples)
    height, tilt, _ = likelihood.derivatives(y, mean + centre)
    # That of the tangent, also where the mode is not exact.
    tilted = variance * tilt
    bound = height - (tilt * centre).sum(0)
    draws = mean.new_empty(num_samples, *mean.shape)
    missing = torch.ones(num_samples, len(y), dtype=torch.bool, device=y.device)
    for _ in range(_MAX_ROUNDS):
        _fill(examples, (tilted, tilt, bound), draws, missing, generator)
        if not bool(missing.any()):
            return draws
    raise NumericalError(
        f"Product sampling could not draw for {int(missing.any(0).sum())} examples: almost no "
        "proposal is accepted. Their variance of f is large; the rule 'quadrature' needs no draws."
    )


def _fill(
    examples: FlatExamples,
    hat: tuple[Latents, Latents, Row],
    draws: LatentDraws,
    missing: Tensor,
    generator: Generator,
) -> None:
    """Propose once for every draw that is missing."""
    places: Int[Tensor, "c 2"] = missing.nonzero()
    rows = places[:, 1]
    likelihood, y, mean, variance = examples.take(rows)
    centre, tilt, bound = (each[..., rows] for each in hat)
    z = standard_normal(1, mean, generator)[0]
    delta = centre + variance.sqrt() * z
    ratio = likelihood.log_kernel(y, mean + delta) - bound - (tilt * delta).sum(0)
    accepted = ratio >= -exponential(1, y, generator)[0]
    sample, row = places[accepted].T
    draws[sample, :, row] = delta[:, accepted].T
    missing[sample, row] = False
