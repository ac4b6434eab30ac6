"""What every likelihood is: log p(y given f), its derivatives in f, and its moments."""

import copy
import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn

from directgp.checks import require_all
from directgp.errors import require

SomeLikelihood = TypeVar("SomeLikelihood", bound="Likelihood")


class Derivatives(NamedTuple):
    """ℓ up to the part free of f, and ℓ′, ℓ″: derivatives of log p(y given f) in f."""

    value: Float[Tensor, "..."]
    first: Float[Tensor, "..."]
    second: Float[Tensor, "..."]


class Likelihood(nn.Module, ABC):
    """p(y given f) for one latent value f per example.

    log p(y given f) = `log_kernel` (y, f) + `log_base` (y). Formulas are written for float64 and
    y of floating dtype; shapes broadcast, so that f may carry leading axes of nodes or samples.
    Further abilities are the protocols of `directgp.likelihoods.capabilities`.
    """

    _taken: tuple[Tensor, ...] = ()
    _frozen: bool = False

    log_concave: ClassVar[bool]
    """Whether log p(y given f) is concave in f for every y."""

    strip: float = math.pi
    """Half-width in Im f of the strip about the real line where p(y given f) is analytic and tame;
    it says how fine a quadrature must be (Trefethen and Weideman, SIAM Review 56, 2014)."""

    @abstractmethod
    def log_kernel(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The part of log p(y given f) that depends on f, differentiable in f and parameters."""

    @abstractmethod
    def derivatives(self, y: Float[Tensor, "..."], f: Float[Tensor, "..."]) -> Derivatives:
        """`log_kernel` and the first two derivatives of log p(y given f) in f, outside a graph."""

    def value_and_slope(
        self, y: Float[Tensor, "..."], f: Float[Tensor, "..."]
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
        """`log_kernel` and its first derivative in f, outside a graph."""
        value, first, _ = self.derivatives(y, f)
        return value, first

    @abstractmethod
    def conditional_mean(self, f: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """E[y given f]."""

    @abstractmethod
    def conditional_variance(self, f: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Var[y given f]."""

    @abstractmethod
    def check_targets(self, y: Num[Tensor, "..."] | Bool[Tensor, "..."]) -> None:
        """Refuse targets outside the support, naming the first such value and its index."""

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse parameters or exposures that do not broadcast to examples of this shape.

        Those of some examples only were looked at before they were taken.
        """
        if self._taken:
            return
        name = type(self).__name__
        for key, value in (*self.named_parameters(), *self.named_buffers()):
            try:
                fits = np.broadcast_shapes(value.shape, shape) == shape
            except ValueError:
                fits = False
            wanted = f"of a shape that broadcasts to that of the examples, {tuple(shape)}"
            require(fits, f"{key} of {name}", wanted, tuple(value.shape))

    def log_base(self, y: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The part of log p(y given f) free of f; apart, because it is costly and constant."""
        return torch.zeros_like(y)

    def log_prob(self, y: Num[Tensor, "..."], f: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """log p(y given f), computed in float64 and returned in the dtype of f."""
        wide = y.double()
        return (self.log_kernel(wide, f.double()) + self.log_base(wide)).to(f.dtype)

    def take(self: SomeLikelihood, index: Tensor) -> SomeLikelihood:
        """This likelihood for some of the examples, sharing its parameters.

        A boolean mask over (..., n) selects and flattens; integers index examples so flattened.
        """
        constants = (*self._parameters.values(), *self._buffers.values())
        if all(constant is None or constant.numel() == 1 for constant in constants):
            return self
        twin = copy.copy(self)
        twin._taken = (*self._taken, index)
        return twin

    def for_rows(self: SomeLikelihood, index: Int[Tensor, " r"]) -> SomeLikelihood:
        """This likelihood for some rows of the data, sharing its parameters."""
        return self

    def _per_example(self, value: Tensor) -> Tensor:
        """A parameter or other constant that broadcasts with (..., n), for the examples taken."""
        for index in self._taken:
            if value.numel() == 1:
                break
            value = value.expand(index.shape) if index.dtype == torch.bool else value
            value = value[index]
        return value

    def frozen(self: SomeLikelihood) -> SomeLikelihood:
        """This likelihood, sharing its parameters but asking for no gradient of them."""
        twin = copy.copy(self)
        twin._frozen = True
        return twin

    def repeated(self: SomeLikelihood, number: int) -> SomeLikelihood:
        """A batch of this likelihood: parameters of shape (number, 1), one for each model."""
        twin = copy.deepcopy(self)
        for name, parameter in self.named_parameters(recurse=False):
            many = parameter.detach().reshape(1, 1).repeat(number, 1)
            setattr(twin, name, nn.Parameter(many, parameter.requires_grad))
        return twin

    def member(self: SomeLikelihood, index: int, like: SomeLikelihood) -> SomeLikelihood:
        """One likelihood of a batch that is `repeated` from another like it."""
        twin = copy.deepcopy(like)
        with torch.no_grad():
            batch = dict(self.named_parameters(recurse=False))
            for name, parameter in twin.named_parameters(recurse=False):
                parameter.copy_(batch[name][index].reshape(parameter.shape))
        return twin

    def learned(self) -> list[Tensor]:
        """Parameters and other constants that ask for a gradient."""
        if self._frozen:
            return []
        return [each for each in (*self.parameters(), *self.buffers()) if each.requires_grad]

    @property
    def trainable(self) -> bool:
        """Whether anything of the likelihood asks for a gradient."""
        return bool(self.learned())


def check_finite(y: Num[Tensor, "..."] | Bool[Tensor, "..."], who: str) -> None:
    """Refuse NaN and infinite targets."""
    require_all(torch.isfinite(y), y, f"y of {who}", "finite", "Drop or impute the missing rows.")
