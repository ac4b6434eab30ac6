"""Counts with exposure: what likelihoods of a rate share."""

import copy
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar, final

import torch
from jaxtyping import Int, Num
from torch import Tensor
from typing_extensions import override

from directgp.errors import UnsupportedError
from directgp.likelihoods.base import Derivatives, Likelihood, UnimodalInF
from directgp.numerics.special import log1mexp
from directgp.shapes import Targets, Values, require_all

_EXPONENTIAL_BELOW = -400.0
"""Λ ∝ e^f to the last digit here, and further down it underflows."""

SomeCount = TypeVar("SomeCount", bound="CountLikelihood")


class CountLikelihood(UnimodalInF):
    """y ∈ {0, 1, 2, …} with mean e·λ(f); the exposure e is 1 unless given per example."""

    log_concave = True
    log_exposure: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_exposure", None, persistent=False)

    def with_exposure(self: SomeCount, exposure: Num[Tensor, "..."]) -> SomeCount:
        """This likelihood, sharing its parameters, for examples of the given exposures (..., n)."""
        name = f"exposure of {type(self).__name__}"
        allowed = torch.isfinite(exposure) & (exposure > 0)
        require_all(allowed, exposure, name, "positive and finite")
        twin = copy.copy(self)
        twin._buffers = {**self._buffers, "log_exposure": torch.log(exposure.double())}
        return twin

    def without_exposure(self: SomeCount) -> SomeCount:
        """This likelihood, sharing its parameters, for exposures of 1."""
        twin = copy.copy(self)
        twin._buffers = {**self._buffers, "log_exposure": None}
        return twin

    @override
    def for_rows(self: SomeCount, index: Int[Tensor, " r"]) -> SomeCount:
        if self.log_exposure is None:
            return self
        twin = copy.copy(self)
        twin._buffers = {**self._buffers, "log_exposure": self.log_exposure[..., index]}
        return twin

    @override
    def check_targets(self, y: Targets) -> None:
        counts = torch.isfinite(y) & (y >= 0) & (y == torch.floor(y))
        require_all(counts, y, f"y of {type(self).__name__}", "a count, 0, 1, 2, …")

    @abstractmethod
    def cdf(self, y: Values, f: Values) -> Values:
        """P(Y ≤ y given f) for a count y; not differentiable."""

    @abstractmethod
    def log_arrival(self, y: Values, delta: Values) -> Derivatives:
        """Log density of log Λ at log(y+1) + δ, less its maximum at δ = 0, and its δ-derivatives.

        Λ is the arrival of event y + 1: Y ≤ y given f exactly when Λ exceeds the mean count e·λ(f).
        """

    @abstractmethod
    def log_rate_slope(self, f: Values) -> Values:
        """Log of the derivative of the mean count in f."""

    def _per_exposure(self, y: Values) -> Values:
        """y / e."""
        if self.log_exposure is None:
            return y
        return y * torch.exp(-self._per_example(self.log_exposure))

    def _log_rate(self, f: Values) -> Values:
        """f + log e: the log of the mean count when λ = e^f."""
        return f if self.log_exposure is None else f + self._per_example(self.log_exposure)


def exposed(likelihood: Likelihood, exposure: Num[Tensor, "..."] | None) -> Likelihood:
    """A likelihood of counts for examples of these exposures; any likelihood where there are none.

    The parameters are shared.
    """
    if exposure is None:
        return likelihood
    if not isinstance(likelihood, CountLikelihood):
        raise UnsupportedError(
            f"exposure needs a likelihood of counts. Got {type(likelihood).__name__}. "
            "Use Poisson or NegativeBinomial."
        )
    return likelihood.with_exposure(exposure)


def on_cpu(function: Callable[..., Any], *arguments: Tensor) -> Tensor:
    """A function of `scipy.special` on tensors of any device; not differentiable."""
    arrays = (argument.detach().cpu().numpy() for argument in arguments)
    return torch.as_tensor(function(*arrays)).to(arguments[-1])


@final
class AtLeastOne(Likelihood):
    """The event y ≥ 1 of a count likelihood: log(1 − p(0 given f)), concave in f.

    With Λ = −log p(0 given f): ℓ = log(1 − e^{−Λ}), ℓ′ = Λ′ρ, ℓ″ = Λ″ρ − Λ′²ρ(1+ρ), where
    ρ = 1/(e^Λ − 1). For f → −∞ Λ is proportional to e^f, so that ℓ = f + constant.
    """

    log_concave = True

    def __init__(self, counts: CountLikelihood) -> None:
        super().__init__()
        self.counts = counts
        self.strip = counts.strip

    @override
    def take(self, index: Tensor) -> "AtLeastOne":
        return AtLeastOne(self.counts.take(index))

    @property
    @override
    def trainable(self) -> bool:
        return self.counts.trainable

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        bounded = torch.clamp(f, min=_EXPONENTIAL_BELOW)
        return log1mexp(-self.counts.log_kernel(torch.zeros_like(y), bounded)) + (f - bounded)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        bounded = torch.clamp(f, min=_EXPONENTIAL_BELOW)
        value, first, second = self.counts.derivatives(torch.zeros_like(y), bounded)
        rho = 1 / torch.expm1(-value)
        # Where e^−Λ underflows the event is certain, however steep Λ is.
        first, second = (slope.masked_fill(rho == 0, 0.0) for slope in (first, second))
        bend = -second * rho - first**2 * rho * (1 + rho)
        return Derivatives(log1mexp(-value) + (f - bounded), -first * rho, bend)

    @override
    def conditional_mean(self, f: Values) -> Values:
        return torch.exp(self.log_kernel(f, f))

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self.conditional_mean(f) * (1 - self.conditional_mean(f))

    @override
    def check_targets(self, y: Targets) -> None:
        self.counts.check_targets(y)
