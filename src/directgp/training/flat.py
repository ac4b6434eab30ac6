"""Parameters as one flat float64 vector, for optimisers that know vectors alone."""

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

Vector = NDArray[np.float64]


class FlatParameters:
    """The values and gradients of some parameters, end to end in one vector.

    Parameters
    ----------
    parameters : dict of str to Parameter
        What the vector holds.
    frame : tensor of shape (m, m)
        A lower triangular C: the vector holds C⁻¹·u_mean and C⁻¹·u_chol in place of the two.
    units : dict of str to tensor
        What the other parameters are measured in.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        frame: Float[Tensor, "m m"] | None = None,
        units: dict[str, Tensor] | None = None,
    ) -> None:
        self._parameters = parameters
        self._sizes = [parameter.numel() for parameter in parameters.values()]
        self._frame = frame
        self._units = {} if units is None else units

    def read(self) -> Vector:
        """The values."""
        return self._join(
            [self._into_frame(name, p.detach()) for name, p in self._parameters.items()]
        )

    def write(self, vector: Vector) -> None:
        """Set the values."""
        parts = torch.as_tensor(vector, dtype=torch.float64).split(self._sizes)
        with torch.no_grad():
            for (name, parameter), part in zip(self._parameters.items(), parts, strict=True):
                value = part.to(parameter.device).reshape(parameter.shape)
                parameter.copy_(self._out_of_frame(name, value))

    def gradient(self) -> Vector:
        """The gradients, 0 where there is none."""
        return self._join(
            [
                torch.zeros_like(p) if p.grad is None else self._gradient(name, p.grad)
                for name, p in self._parameters.items()
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
        return self._join(
            [
                self._into_frame(name, torch.full_like(p.detach(), floors[name]))
                if name in floors
                else torch.full_like(p.detach(), -torch.inf)
                for name, p in self._parameters.items()
            ]
        )

    def _into_frame(self, name: str, value: Tensor) -> Tensor:
        if name in self._units:
            return value / self._units[name]
        if self._frame is None or name not in ("u_mean", "u_chol"):
            return value
        columns = value.tril() if name == "u_chol" else value.unsqueeze(-1)
        framed: Tensor = torch.linalg.solve_triangular(self._frame, columns.double(), upper=False)
        return framed

    def _out_of_frame(self, name: str, value: Tensor) -> Tensor:
        if name in self._units:
            return value * self._units[name]
        if self._frame is None or name not in ("u_mean", "u_chol"):
            return value
        return self._frame @ value

    def _gradient(self, name: str, gradient: Tensor) -> Tensor:
        if name in self._units:
            return gradient * self._units[name]
        if self._frame is None or name not in ("u_mean", "u_chol"):
            return gradient
        framed = self._frame.mT @ gradient.double()
        return framed.tril() if name == "u_chol" else framed

    def _join(self, tensors: list[Tensor]) -> Vector:
        flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
        vector: Vector = flat.cpu().numpy()
        return vector
