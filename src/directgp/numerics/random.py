"""Draw normal and truncated-normal noise from a generator of the caller."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.numerics.special import log_ndtr, log_ndtri
from directgp.shapes import Values

Generator = torch.Generator | None
"""Source of random numbers; None is torch's global one."""


def fresh_generator(device: torch.device) -> torch.Generator:
    """Return a generator seeded by the operating system; torch's global state is not used."""
    generator = torch.Generator(device)
    generator.seed()
    return generator


def standard_normal(
    num_samples: int, template: Values, generator: Generator
) -> Float[Tensor, "k ..."]:
    """Draw from N(0, 1), `num_samples` for each element of the template."""
    shape = num_samples, *template.shape
    if template.dtype != torch.float64 or template.device.type != "cpu":
        return torch.randn(shape, generator=generator, dtype=template.dtype, device=template.device)
    # Use Box–Muller, √(−2 log u)·(cos φ, sin φ): twice as fast as torch for float64 on a CPU.
    number = math.prod(shape)
    u, phi = torch.rand((2, (number + 1) // 2), generator=generator, dtype=torch.float64)
    # Take the log of 1 − u, which is exact and never 0.
    radius = u.neg_().add_(1).log_().mul_(-2).sqrt_()
    phi.mul_(2 * math.pi)
    drawn = torch.cat([torch.cos(phi).mul_(radius), phi.sin_().mul_(radius)])
    return drawn[:number].reshape(shape)


def uniform(num_samples: int, template: Values, generator: Generator) -> Float[Tensor, "k ..."]:
    """Draw from the open interval (0, 1); 2⁻⁵⁴ replaces the 0 that `torch.rand` may return."""
    return torch.rand(
        (num_samples, *template.shape),
        generator=generator,
        dtype=template.dtype,
        device=template.device,
    ).clamp_(min=2.0**-54)


def exponential(num_samples: int, template: Values, generator: Generator) -> Float[Tensor, "k ..."]:
    """Draw from the exponential distribution of rate 1."""
    return uniform(num_samples, template, generator).log_().neg_()


def sample_above(lower: Float[Tensor, "*shape"], generator: Generator) -> Float[Tensor, "*shape"]:
    """Draw z ~ N(0, 1) given z > lower, one for each bound.

    Solves log Φ(−z) = log Φ(−lower) + log(1 − U) with U uniform, in float64. Accurate for any
    bound, from −∞ to far in the tail, up to the spacing of floating-point numbers at z.
    """
    bound = lower.detach().double()
    log_survival = log_ndtr(-bound) + torch.log1p(-uniform(1, bound, generator).squeeze(0))
    return torch.maximum(-log_ndtri(log_survival), bound).to(lower.dtype)


def sample_between(
    lower: Float[Tensor, "*shape"], upper: Float[Tensor, "*shape"], generator: Generator
) -> Float[Tensor, "*shape"]:
    """Draw z ~ N(0, 1) given lower < z < upper, one for each pair of bounds.

    Bounds may be infinite. The draw is NaN where lower > upper.
    """
    low = lower.detach().double()
    high = upper.detach().double()
    mirrored = low + high > 0  # the left tail is where log Φ resolves small differences
    a = torch.where(mirrored, -high, low)
    b = torch.where(mirrored, -low, high)
    share = uniform(1, a, generator).squeeze(0)
    # Φ(z) = Φ(b) − U (Φ(b) − Φ(a)), solved as log Φ(b) + log1p(U (Φ(a)/Φ(b) − 1)).
    top = log_ndtr(b)
    z = log_ndtri(top + torch.log1p(share * torch.expm1(log_ndtr(a) - top)))
    z = torch.where(b - a < 1e-7, _invert_narrow(a, b, share), z)
    z = torch.where(mirrored, -z, z).clamp(low, high)
    return torch.where(low <= high, z, torch.nan).to(lower.dtype)


def _invert_narrow(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """Solve Φ(z) = Φ(b) − U (Φ(b) − Φ(a)) for a narrow interval.

    There φ(z) ∝ exp(rate·z), rate = −(a + b)/2, to machine precision: the neglected exponent,
    −(z − midpoint)²/2, is at most width²/8 in size. With x = rate·width,
    b − z = −width log1p(U expm1(−x))/x.
    """
    width = b - a
    x = (-(a + b) / 2 * width).clamp(min=1e-100)  # x → 0 is the uniform distribution
    return b + width * torch.log1p(share * torch.expm1(-x)) / x
