"""Transformed density rejection with a hat of three pieces, for log-concave likelihoods.

h = log q̃ is concave, so that a cap above its top and the tangents at a point on either side bound
it from above. With the tangent points where h has fallen by about 1, a Gaussian peak accepts
√π/2 = 0.886 of the proposals, and any other log-concave peak about as many.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.product_density import Peak, find_fall
from directgp.log_expectations.samplers.rejection import draw_by_rejection, require_finished
from directgp.numerics.noise import exponential, uniform

Row = Float[Tensor, " n"]

_MAX_ROUNDS = 64

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
) -> Float[Tensor, "k n"]:
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

    draws, unfinished = draw_by_rejection(propose, num_samples, _MAX_ROUNDS)
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
    """Draws from the hat, and whether each lies under the density."""
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
