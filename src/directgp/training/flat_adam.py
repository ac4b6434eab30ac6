"""Adam on all parameters end to end in one vector: few operations, however many there are."""

from typing import final

import torch
from torch import Tensor, nn

_PIECE = 4096
"""Entries that one block of threads works on; a longer piece would leave a device idle."""


@final
class FlatAdam:
    """The values of some parameters with Adam's moments.

    Parameters
    ----------
    parameters : dict of str to Parameter
        Written after each step, and read once, here.
    learning_rate : float
        The size of a step.
    floors : dict of str to float
        Smallest value of some of them.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        learning_rate: float,
        floors: dict[str, float],
    ) -> None:
        self._parameters = list(parameters.values())
        self.learning_rate = learning_rate
        self.values = self._join([parameter.detach() for parameter in self._parameters])
        self._floors = self._join(
            [torch.full_like(p, floors.get(name, -torch.inf)) for name, p in parameters.items()]
        )
        parts = self.values.split([parameter.numel() for parameter in self._parameters])
        self._views = [
            part.view(parameter.shape)
            for part, parameter in zip(parts, self._parameters, strict=True)
        ]
        self._moments = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self._pieces = [self._split(values) for values in (self.values, *self._moments)]
        number = len(self._pieces[0])
        self._steps = torch.zeros(number, dtype=torch.float32, device=self.values.device)
        self._step_of_each = list(self._steps.unbind())

    def gradient(self) -> Tensor:
        """The gradients of the parameters, 0 where there is none."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        return self._join(found)

    def clear_gradient(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self, gradient: Tensor) -> None:
        """One step; the parameters are at their floors at least after it."""
        values, first, second = self._pieces
        self._steps.add_(1)
        torch._fused_adam_(
            values,
            self._split(gradient),
            first,
            second,
            [],
            self._step_of_each,
            lr=self.learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
        torch.maximum(self.values, self._floors, out=self.values)
        self.write()

    def write(self) -> None:
        """Give the parameters their values."""
        with torch.no_grad():
            torch._foreach_copy_(tuple(self._parameters), self._views)

    def spread(self, flags: Tensor) -> Tensor:
        """What is said of each member of a batch of models, said of each of its values."""
        wide = [flags.reshape(-1, *(1,) * (p.ndim - 1)).expand(p.shape) for p in self._parameters]
        return self._join(wide)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that decides how the steps go on."""
        first, second = self._moments
        return {
            "learning_rate": torch.tensor(self.learning_rate, dtype=torch.float64),
            "values": self.values.clone(),
            "first_moment": first.clone(),
            "second_moment": second.clone(),
            "step": self._steps[:1].clone(),
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go to a state that `tensors` has told."""
        self.learning_rate = float(tensors["learning_rate"])
        self.values.copy_(tensors["values"])
        for moment, name in zip(self._moments, ("first_moment", "second_moment"), strict=True):
            moment.copy_(tensors[name])
        self._steps.copy_(tensors["step"].expand(self._steps.shape))
        self.write()

    def _split(self, vector: Tensor) -> list[Tensor]:
        return list(vector.split(_PIECE)) if vector.is_cuda else [vector]

    def _join(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])
