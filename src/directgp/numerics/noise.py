"""Noise shaped like the examples it is for, from a generator that the caller owns."""

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
    return torch.randn(
        (num_samples, *like.shape), generator=generator, dtype=like.dtype, device=like.device
    )


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
