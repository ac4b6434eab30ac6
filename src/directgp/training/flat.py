"""Parameters as one flat float64 vector, for optimisers that know vectors alone."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Vector = NDArray[np.float64]


class FlatParameters:
    """The values and gradients of some parameters, end to end in one vector.

    Of u_chol the vector holds the lower triangle, row by row, which is all that is read of it.

    Parameters
    ----------
    parameters : dict of str to Parameter
        What the vector holds.
    """

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._lower = {
            name: torch.ones(p.shape).tril().reshape(-1).nonzero()[:, 0]
            for name, p in parameters.items()
            if name == "u_chol"
        }
        sizes = [self._lower.get(name, p).numel() for name, p in parameters.items()]
        ends = np.cumsum([0, *sizes]).tolist()
        self._places = {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(parameters)}

    def read(self) -> Vector:
        """The values."""
        return self._join({name: p.detach() for name, p in self._parameters.items()})

    def write(self, vector: Vector) -> None:
        """Set the values."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                part = torch.from_numpy(vector[self.place(name)])
                if name in self._lower:
                    zeros = part.new_zeros(parameter.numel())
                    part = zeros.index_copy_(0, self._lower[name], part)
                parameter.copy_(part.view(parameter.shape))

    def gradient(self) -> Vector:
        """The gradients, 0 where there is none."""
        return self._join(
            {
                name: torch.zeros_like(p) if p.grad is None else p.grad
                for name, p in self._parameters.items()
            }
        )

    def clear_gradient(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def floors(self, floors: dict[str, float]) -> Vector | None:
        """The vector of smallest values, if any is given."""
        return self.full(-np.inf, floors) if floors else None

    def full(self, value: float, others: Mapping[str, float | Tensor]) -> Vector:
        """A vector of one value, with others in the places of some parameters."""
        return self._join(
            {
                name: torch.as_tensor(others.get(name, value), dtype=torch.float64).expand(p.shape)
                for name, p in self._parameters.items()
            }
        )

    def place(self, name: str) -> slice:
        """Where a parameter is in the vector; nowhere, if it is not among them."""
        return self._places.get(name, slice(0, 0))

    def _join(self, tensors: dict[str, Tensor]) -> Vector:
        parts = {name: tensor.reshape(-1).double().cpu() for name, tensor in tensors.items()}
        for name, lower in self._lower.items():
            parts[name] = parts[name].index_select(0, lower)
        vector: Vector = torch.cat(list(parts.values())).numpy()
        return vector
