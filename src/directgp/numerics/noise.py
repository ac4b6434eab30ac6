"""Noise shaped like the examples it is for, from a generator that the caller owns."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def fresh_generator(device: torch.device) -> torch.Generator:
    """A generator seeded by the operating system, which leaves torch's global state alone."""
    generator = torch.Generator(device)
    generator.seed()
    return generator


def standard_normal(
    num_samples: int, like: Float[Tensor, "..."], generator: torch.Generator | None
) -> Float[Tensor, "k ..."]:
    """Draws from N(0, 1), `num_samples` for each element of `like`."""
    shape = num_samples, *like.shape
    if like.dtype == torch.float64 and like.device.type == "cpu":
        return _box_muller(math.prod(shape), generator).reshape(shape)
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def _box_muller(number: int, generator: torch.Generator | None) -> Float[Tensor, " number"]:
    """√(−2 log u)·(cos φ, sin φ), in half the time that torch takes for float64 on a CPU."""
    half = (number + 1) // 2
    u, phi = torch.rand((2, half), generator=generator, dtype=torch.float64)
    # 1 − u is exact, and never 0.
    radius = u.neg_().add_(1).log_().mul_(-2).sqrt_()
    phi.mul_(2 * math.pi)
    return torch.cat([torch.cos(phi).mul_(radius), phi.sin_().mul_(radius)])[:number]


def uniform(
    num_samples: int, like: Float[Tensor, "..."], generator: torch.Generator | None
) -> Float[Tensor, "k ..."]:
    """Draws from the open interval (0, 1): 2⁻⁵⁴ stands for the 0 that `torch.rand` may return."""
    return torch.rand(
        (num_samples, *like.shape), generator=generator, dtype=like.dtype, device=like.device
    ).clamp_(min=2.0**-54)


def exponential(
    num_samples: int, like: Float[Tensor, "..."], generator: torch.Generator | None
) -> Float[Tensor, "k ..."]:
    """Draws from the exponential distribution of rate 1."""
    return uniform(num_samples, like, generator).log_().neg_()
