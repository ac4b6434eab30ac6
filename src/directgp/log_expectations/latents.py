"""Draw from the product density of several latents that are independent under q."""

from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from directgp.errors import NumericalError, UnsupportedError
from directgp.integration.contract import FlatExamples, has
from directgp.integration.latents import mode_of
from directgp.likelihoods.capabilities import ExactProductSampler
from directgp.numerics.random import Generator, exponential, standard_normal
from directgp.shapes import Latents, Row

LatentDraws = Float[Tensor, "k p n"]

# A log-concave p lies below its tangent plane at any point: with that at the mode δ̂ of q·p,
# q·p ≤ c·N(μ + δ̂, v), and a draw f from there is accepted with probability
# p(f) / p(f̂) · exp(−∇ℓ(f̂)·(f − f̂)).

_MAX_ROUNDS = 10_000


def draw_latents(examples: FlatExamples, num_samples: int, generator: Generator) -> LatentDraws:
    """Draw exactly from q(f)·p(y given f); return the draws minus the mean."""
    likelihood, y, mean, variance = examples
    if has(likelihood, ExactProductSampler):
        exact = cast(ExactProductSampler, likelihood)
        return exact.sample_product(y, mean, variance, num_samples, generator)
    if not likelihood.integration.log_concave:
        raise UnsupportedError(
            f"Product sampling of several latents needs a log-concave likelihood or one with its "
            f"own sampler. Got {type(likelihood).__name__}. Use Quadrature()."
        )
    centre = mode_of(examples)
    height, tilt, _ = likelihood.derivatives(y, mean + centre)
    # The slope of the tangent plane, also where the mode is not exact.
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
    centre, tilt, bound = (column[..., rows] for column in hat)
    z = standard_normal(1, mean, generator)[0]
    delta = centre + variance.sqrt() * z
    ratio = likelihood.log_kernel(y, mean + delta) - bound - (tilt * delta).sum(0)
    accepted = ratio >= -exponential(1, y, generator)[0]
    sample, row = places[accepted].T
    draws[sample, :, row] = delta[:, accepted].T
    missing[sample, row] = False
