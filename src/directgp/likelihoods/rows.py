"""Hold the constant that each row of the data brings to its likelihood, and index it by example."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
from jaxtyping import Int, Num
from torch import Tensor, nn

from directgp.errors import UnsupportedError, refuse, require_all
from directgp.registry import ROW_CONSTANTS


@final
@dataclass(frozen=True)
class ExampleView:
    """Which examples a likelihood is for, and whether its parameters get gradients."""

    taken: tuple[Tensor | torch.Size, ...] = ()
    """Masks, shapes and indices of the examples, in the order in which they were taken."""

    frozen: bool = False
    """Whether the parameters get no gradients."""

    def of(self, value: Tensor) -> Tensor:
        """Return a constant that broadcasts with (..., n) for the examples taken."""
        if self.frozen:
            value = value.detach()
        for index in self.taken:
            if value.numel() == 1:
                break
            if isinstance(index, torch.Size):
                value = value.expand(index).reshape(-1)
            else:
                wide = value.expand(index.shape) if index.dtype == torch.bool else value
                value = wide[index]
        return value


SomeModule = TypeVar("SomeModule", bound=nn.Module)


@final
@dataclass(frozen=True)
class RowConstants:
    """The constant of each row that p(y given f) depends on, and the buffer that holds it.

    The values are data, and not saved with the likelihood.

    Parameters
    ----------
    argument : str
        A name in `ROW_CONSTANTS`; None if rows bring nothing.
    buffer : str
        Name of the buffer, which is None while the likelihood is for no rows in particular.
    required : bool
        Whether training needs the values; else a likelihood without them has a default.
    proportional : bool
        Whether the mean of y is proportional to the constant; only then "auto" tries the likelihood
        with one.
    stored : callable
        Maps the values to what the buffer holds, such as their log.
    """

    argument: str | None = None
    buffer: str = "row_values"
    required: bool = False
    proportional: bool = True
    stored: Callable[[Tensor], Tensor] | None = None

    def register(self, likelihood: nn.Module) -> None:
        """Give a new likelihood its empty buffer."""
        if self.argument is not None:
            likelihood.register_buffer(self.buffer, None, persistent=False)

    def given(self, likelihood: SomeModule, values: Num[Tensor, "..."] | None) -> SomeModule:
        """Return the likelihood of rows with these values; None returns the likelihood itself."""
        if values is None:
            return likelihood
        name = type(likelihood).__name__
        if self.argument is None:
            raise UnsupportedError(
                f"{name} has no constant of each row. Leave out {' and '.join(ROW_CONSTANTS)}."
            )
        constant = ROW_CONSTANTS[self.argument]
        valid = constant.valid(values)
        require_all(valid, values, f"{constant.name} of {name}", constant.allowed)
        wide = values.double()
        return self._holding(likelihood, wide if self.stored is None else self.stored(wide))

    def without(self, likelihood: SomeModule) -> SomeModule:
        """Return the likelihood, sharing its parameters, for no rows in particular."""
        return self._holding(likelihood, None)

    def subset(self, likelihood: SomeModule, index: Int[Tensor, " r"]) -> SomeModule:
        """Return the likelihood of these rows of the data, sharing its parameters."""
        values = likelihood._buffers.get(self.buffer)
        return likelihood if values is None else self._holding(likelihood, values[..., index])

    def present(self, likelihood: nn.Module) -> bool:
        """Return whether the likelihood is for certain rows of the data."""
        return likelihood._buffers.get(self.buffer) is not None

    def of(self, likelihood: Any) -> Tensor:
        """Return what the buffer holds, for the examples taken; raise if there is nothing."""
        values = likelihood._buffers.get(self.buffer)
        if values is None:
            who = f"{self.argument} of {type(likelihood).__name__}"
            refuse(who, "given for each row", "none", f"Give {self.argument}=.")
        per_example: Tensor = likelihood._view.of(values)
        return per_example

    def _holding(self, likelihood: SomeModule, values: Tensor | None) -> SomeModule:
        if self.argument is None:
            return likelihood
        twin = copy.copy(likelihood)
        twin._buffers = {**likelihood._buffers, self.buffer: values}
        return twin
