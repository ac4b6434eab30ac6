"""Find the values that training starts from, and the bounds that it keeps.

A family has a method for each that it knows; these functions give the default of the others.
"""

from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from directgp.integration.contract import has
from directgp.likelihoods.base import Likelihood
from directgp.shapes import Row


@runtime_checkable
class FromTargets(Protocol):
    """The constants to start from are chosen by the targets."""

    @classmethod
    def from_targets(cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0) -> Any:
        """Return the likelihood that training on these targets starts from.

        They are y = (t − offset)/unit of the user's values t; most families need not know that.
        """


@runtime_checkable
class SuitedTargets(Protocol):
    """Some targets do not suit the family, though it allows them."""

    @classmethod
    def suits(cls, y: Float[Tensor, " n"]) -> bool:
        """Return whether ``likelihood="auto"`` should try it for these targets; cheap."""


@runtime_checkable
class RoughLatent(Protocol):
    """The targets give rough values of f."""

    def rough_latent(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return rough values of f, from which a prior starts."""


@runtime_checkable
class RoughStart(Protocol):
    """Training starts from q(u) at rough values of f: at the prior, the noise explains all."""

    def starting_latent(self, y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the rough values of f."""


@runtime_checkable
class UnlikeLatents(Protocol):
    """Several latents of different kinds, each with a kernel of its own."""

    def latent_starts(self, y: Row) -> tuple[tuple[float, float], ...]:
        """Return prior mean and variance that each latent starts from."""


@runtime_checkable
class Floors(Protocol):
    """Positive parameters have smallest allowed values."""

    def floors(self, deviation: float) -> dict[str, float]:
        """Return the smallest allowed value of positive parameters, by name.

        Noise is bounded by `deviation`, a small part of the spread of the targets.
        """


def starting_likelihood(
    family: type[Likelihood], y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
) -> Likelihood:
    """Return the likelihood of a family that training on these targets starts from."""
    if not issubclass(family, FromTargets):
        return family()
    likelihood: Likelihood = family.from_targets(y, unit, offset)
    return likelihood


def suits(family: type[Likelihood], y: Float[Tensor, " n"]) -> bool:
    """Return whether ``likelihood="auto"`` should try the family for these targets."""
    return family.suits(y) if issubclass(family, SuitedTargets) else True


def rough_latent(likelihood: Likelihood, y: Float[Tensor, " n"]) -> Float[Tensor, " n"] | None:
    """Return rough values of f, from which a prior starts, if the targets give them."""
    if has(likelihood, RoughLatent):
        return cast(RoughLatent, likelihood).rough_latent(y)
    if likelihood.task == "count":
        return torch.log(y + 0.5)
    return y if likelihood.task == "regression" else None


def latent_starts(likelihood: Likelihood, y: Row) -> tuple[tuple[float, float], ...]:
    """Return starting prior mean and variance of each latent; empty if they start like one."""
    if has(likelihood, UnlikeLatents):
        return cast(UnlikeLatents, likelihood).latent_starts(y)
    return ()


def parameter_floors(likelihood: Likelihood, deviation: float) -> dict[str, float]:
    """Return the smallest allowed value of positive parameters, by name."""
    return cast(Floors, likelihood).floors(deviation) if has(likelihood, Floors) else {}
