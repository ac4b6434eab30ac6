"""The noise of y about f, as BoTorch asks for it."""

from typing import NoReturn, final

import numpy as np
import torch
from torch import Tensor, nn

from directgp.errors import UnsupportedError, refuse, require
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.gaussian import Gaussian

_WHO = "observation_noise of DirectModel"


@final
class NoiseOfTargets(nn.Module):
    """A Gaussian likelihood's variance in squared units of y, or why there is none."""

    variance: Tensor | None

    def __init__(self, likelihood: Likelihood | None, y_scale: Tensor) -> None:
        super().__init__()
        self.likelihood = None if likelihood is None else type(likelihood).__name__
        variance = None
        if isinstance(likelihood, Gaussian):
            variance = likelihood.noise.detach().to(y_scale) * y_scale.square()
        self.register_buffer("variance", variance)

    def added(self, covariance: Tensor, wanted: bool | Tensor) -> Tensor:
        """The covariance of f, or that of y if wanted."""
        if wanted is False:
            return covariance
        noise = self._variance(wanted, covariance.shape[:-1])
        return covariance + torch.diag_embed(noise.expand(covariance.shape[:-1]))

    def _variance(self, wanted: bool | Tensor, shape: torch.Size) -> Tensor:
        """The given variances, or those of the likelihood."""
        if self.variance is None and self.likelihood is not None:
            self._refuse_likelihood()
        if isinstance(wanted, Tensor):
            return _checked(wanted, shape)
        if self.variance is None:
            remedy = "Give DirectModel the likelihood of the posterior, too."
            refuse(_WHO, "False or a tensor where no likelihood is given", wanted, remedy)
        return self.variance

    def _refuse_likelihood(self) -> NoReturn:
        raise UnsupportedError(
            f"{_WHO} must be False where y given f is not Gaussian. Got the likelihood "
            f"{self.likelihood}. Take the posterior of f, or fit with likelihood='gaussian'."
        )


def _checked(noise: Tensor, shape: torch.Size) -> Tensor:
    """Variances of shape (..., q), from a tensor with the axis of outputs."""
    wanted = (*shape, 1)
    try:
        fits = noise.shape[-1:] == (1,) and np.broadcast_shapes(noise.shape, wanted) == wanted
    except ValueError:
        fits = False
    require(fits, _WHO, f"of a shape that broadcasts to {wanted}", f"shape {tuple(noise.shape)}")
    require(bool((noise >= 0).all()), _WHO, "non-negative variances", "a negative one or NaN")
    return noise.squeeze(-1)
