"""Parameters as one flat float64 vector, for optimisers that know vectors alone."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Vector = NDArray[np.float64]


class FlatParameters:
    """The values and gradients of some parameters, end to end in one vector."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._sizes = [parameter.numel() for parameter in parameters.values()]

    def read(self) -> Vector:
        """The values."""
        return self._join([parameter.detach() for parameter in self._parameters.values()])

    def write(self, vector: Vector) -> None:
        """Set the values."""
        flat = torch.as_tensor(vector, dtype=torch.float64)
        with torch.no_grad():
            parts = flat.split(self._sizes)
            for parameter, part in zip(self._parameters.values(), parts, strict=True):
                parameter.copy_(part.reshape(parameter.shape))

    def gradient(self) -> Vector:
        """The gradients, 0 where there is none."""
        return self._join(
            [
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                for parameter in self._parameters.values()
            ]
        )

    def clear_gradient(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def floors(self, floors: dict[str, float]) -> Vector | None:
        """The vector of smallest values, if any is given."""
        if not floors:
            return None
        sizes = zip(self._parameters, self._sizes, strict=True)
        return np.concatenate([np.full(size, floors.get(name, -np.inf)) for name, size in sizes])

    def _join(self, tensors: list[torch.Tensor]) -> Vector:
        flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
        vector: Vector = flat.cpu().numpy()
        return vector
