"""Integrate over several latents that are independent under q."""

import math
from dataclasses import dataclass
from functools import partial
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import NumericalError, UnsupportedError
from directgp.integration.contract import (
    NEEDED_NODES,
    Density,
    Estimate,
    FlatExamples,
    IntegrationMethod,
    Integrator,
    Nodes,
    ReducedDensity,
    require_needed_nodes,
)
from directgp.integration.evaluate import average_slopes, row_blocks
from directgp.integration.nodes import NATS, step_for
from directgp.shapes import Latents

_ONE_LATENT = "of one latent"
"""The likelihoods for which the user may choose nodes."""


@final
@dataclass(frozen=True, kw_only=True)
class ReducedIntegrals(Integrator):
    """Integrals over several latents that the density reduces to integrals over one variable."""

    @override
    def of_density(self, density: Density, nodes: Nodes = NEEDED_NODES) -> IntegrationMethod:
        require_needed_nodes(density, nodes, _ONE_LATENT)
        return IntegrationMethod(1, _reduced_density, self.fixed_work and self.log_concave)

    @override
    def of_log_density(self, density: Density, nats: float) -> IntegrationMethod:
        return IntegrationMethod(1, _reduced_log_density, self.fixed_work and self.log_concave)


def _reduced_density(examples: FlatExamples) -> Estimate:
    return Estimate.of(cast(ReducedDensity, examples.likelihood).integrate_density(*examples[1:]))


def _reduced_log_density(examples: FlatExamples) -> Estimate:
    reduced = cast(ReducedDensity, examples.likelihood)
    return Estimate.of(reduced.integrate_log_density(*examples[1:]))


@final
@dataclass(frozen=True, kw_only=True)
class LatentGrid(Integrator):
    """Integrals over two latents by a product of equal steps, `strip` being right for either."""

    @override
    def of_density(self, density: Density, nodes: Nodes = NEEDED_NODES) -> IntegrationMethod:
        require_needed_nodes(density, nodes, _ONE_LATENT)
        return self._over_grid(density, gibbs=False)

    @override
    def of_log_density(self, density: Density, nats: float) -> IntegrationMethod:
        return self._over_grid(density, gibbs=True)

    def _over_grid(self, density: Density, gibbs: bool) -> IntegrationMethod:
        if density.num_latent > 2:
            raise UnsupportedError(
                "Quadrature needs at most two latents, or a likelihood that reduces to one "
                f"integral. Got {type(density).__name__} with {density.num_latent}. Use the "
                "objective 'log_loss' with BiasedMonteCarlo or ProductSampling."
            )
        return IntegrationMethod(1, partial(_over_grid, strip=self.strip, gibbs=gibbs))


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
    delta = torch.zeros_like(mean)
    precision = 1 / variance
    for _ in range(_MODE_STEPS):
        _, first, second = likelihood.derivatives(y, mean + delta)
        slope = first - delta * precision
        step = slope / (precision - second.clamp(max=0.0)) / len(mean)
        delta = delta + step
        if bool((slope * step < 1e-6).all()):
            break
    return delta


def _over_grid(examples: FlatExamples, strip: float, gibbs: bool) -> Estimate:
    """Sum over a product of equal steps in each of two latents."""
    likelihood, y, mean, variance = examples
    centre = torch.zeros_like(mean) if gibbs else mode_of(examples)
    second = likelihood.derivatives(y, mean + centre).second
    width = torch.rsqrt(1 / variance + (-second).clamp(min=0.0))
    step = step_for(width, strip, NATS)
    reach = math.sqrt(2 * NATS) * variance.sqrt()
    low = centre.clamp(max=0.0) - reach
    high = centre.clamp(min=0.0) + reach
    needed = ((high - low) / step).amax(-1).ceil().clamp(min=8)
    numbers = [int(number) for number in needed]
    if max(numbers) > _MAX_NODES:
        raise NumericalError(
            f"Quadrature over two latents needs {max(numbers)} nodes for one of them, more than "
            f"{_MAX_NODES}: the variance of f is large. Use BiasedMonteCarlo or ProductSampling."
        )
    ends = torch.stack([low, high])
    return Estimate.join(
        _sum_grid(examples.take(index), ends[..., block], numbers, gibbs)
        for block, index in row_blocks(len(y), math.prod(numbers), y.device)
    )


def _sum_grid(
    examples: FlatExamples, ends: Float[Tensor, "2 p n"], numbers: list[int], gibbs: bool
) -> Estimate:
    """Sum over a grid of these numbers of nodes between the ends, relative to the mean."""
    likelihood, y, mean, variance = examples
    low, high = ends
    places = [(torch.arange(k, dtype=low.dtype, device=low.device) + 0.5) / k for k in numbers]
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
        # ∂_μ E_q[ℓ] = E_q[ℓ′] and ∂_v E_q[ℓ] = ½E_q[ℓ″].
        by_mean, by_variance = (
            torch.where(share > 0, share * slope, 0.0).sum(0) for slope in (first, 0.5 * second)
        )
        parameters = average_slopes(likelihood, y, mean + delta, weights)
        return Estimate(total.sum(0) + likelihood.log_base(y), by_mean, by_variance, parameters)
    log_mass = value + log_q
    top = log_mass.amax(0)
    mass = torch.exp(log_mass - top)
    total = mass.sum(0)
    mass = mass / total
    # With nodes held, ∂_μ log E_q[p] = E_q̃[S] and ∂_v log E_q[p] = ½E_q̃[S² − 1/v], S = δ/v.
    pull = delta / variance
    mean_slope = (mass[:, None] * pull).sum(0)
    variance_slope = 0.5 * (mass[:, None] * (pull * pull - 1 / variance)).sum(0)
    parameters = average_slopes(likelihood, y, mean + delta, mass)
    log_mean = top + torch.log(total) + log_scale
    return Estimate(log_mean + likelihood.log_base(y), mean_slope, variance_slope, parameters)
