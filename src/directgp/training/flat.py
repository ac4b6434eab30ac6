"""Pack parameters into one flat float64 vector with lower bounds."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Num
from numpy.typing import NDArray
from torch import Tensor, nn

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.counts import NegativeBinomial
from directgp.likelihoods.gaussian import Gaussian
from directgp.likelihoods.student_t import StudentT
from directgp.numerics.special import softplus_inverse
from directgp.posteriors.sparse import SparsePosterior

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


# Joint log-loss training may drive the Gaussian noise towards 0 and let the variance of f carry it:
# its floor is relative to the spread of the targets. Targets that do not vary may drive the output
# scale of the kernel towards 0: its floor is where the variance of f would soon underflow.


_RELATIVE_DEVIATION = 1e-3
_SMALLEST_DF = 0.1
_SMALLEST_DISPERSION = 1e-6


def floors(
    posterior: SparsePosterior, likelihood: Likelihood, y: Num[Tensor, " n"]
) -> dict[str, float]:
    """The floor of each raw parameter that has one, by name."""
    smallest = torch.finfo(posterior.Z.dtype).tiny ** 0.5
    found = {"prior.raw_output_scale": smallest}
    deviation = _RELATIVE_DEVIATION * _spread(y)
    if isinstance(likelihood, Gaussian):
        found["likelihood.raw_noise"] = deviation * deviation
    elif isinstance(likelihood, StudentT):
        found |= {"likelihood.raw_scale": deviation, "likelihood.raw_df": _SMALLEST_DF}
    elif isinstance(likelihood, NegativeBinomial):
        found["likelihood.raw_dispersion"] = _SMALLEST_DISPERSION
    values = torch.tensor([*found.values()], dtype=torch.float64)
    return dict(zip(found, softplus_inverse(values).tolist(), strict=True))


def _spread(y: Num[Tensor, " n"]) -> float:
    """Interquartile range over that of a standard normal, which outliers do not move."""
    if len(y) == 0:
        return 1.0
    wide = y.double()
    ordered = wide.sort().values
    quarter = len(y) // 4
    lower, upper = ordered[quarter], ordered[len(y) - 1 - quarter]
    for spread in ((upper - lower) / 1.349, wide.std(correction=0), wide.abs().max()):
        if float(spread) > 0:
            return float(spread)
    return 1.0
