"""Write scaling, imputation and posterior of a fitted estimator as a program."""

import copy
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from directgp.errors import UnsupportedError
from directgp.estimators.preprocessing import GRID, MAX_DEVIATIONS, ColumnScaling, Scalings
from directgp.export.kernels import stationary_kernel, structured_kernel
from directgp.export.program import Value, concatenate
from directgp.posteriors.marginals import Stationary
from directgp.posteriors.sparse import SparsePosterior

_EPS = float(np.finfo(np.float64).eps)
"""Rounding error of float64."""

_MARGIN = 1e-9
"""Relative margin of the bounds, for rounding."""


class Bounds(NamedTuple):
    """Bounds of mean and variance of f, for any row."""

    lower: float
    """Lower bound of the mean."""

    upper: float
    """Upper bound of the mean."""

    largest_variance: float
    """Upper bound of the variance."""


@dataclass(frozen=True)
class Latent:
    """Mean and variance of f at each row, of shape (n, 1), and bounds of both for any row.

    mean = c + Aᵀm and variance = k − ‖A‖² + ‖SᵀA‖² with k = k(x, x) and ‖A‖² ≤ k, so that by the
    inequality of Cauchy and Schwarz the mean is within √k·‖m‖ of c, and the variance at most
    k·max(1, ‖S‖²). The largest k of any row gives the bounds.
    """

    mean: Value
    """Mean of f."""

    variance: Value
    """Variance of f."""

    bounds: Bounds | None
    """None if k(x, x) grows without end."""

    @property
    def deviation(self) -> Value:
        """Standard deviation of f."""
        return self.variance.sqrt()

    @property
    def lower(self) -> float:
        """Lower bound of the mean."""
        return self._bounded.lower

    @property
    def upper(self) -> float:
        """Upper bound of the mean."""
        return self._bounded.upper

    @property
    def largest_variance(self) -> float:
        """Upper bound of the variance."""
        return self._bounded.largest_variance

    @property
    def largest_deviation(self) -> float:
        """Upper bound of the standard deviation."""
        return math.sqrt(self.largest_variance)

    @property
    def _bounded(self) -> Bounds:
        """Return the bounds; raise `UnsupportedError` without them."""
        if self.bounds is None:
            raise UnsupportedError(
                "A model whose kernel has a part Linear is exported with Gaussian noise of one "
                "variance alone: mean and variance of f have no bounds, which the tables of other "
                "likelihoods need. Fit with likelihood='gaussian', or without Linear."
            )
        return self.bounds


def scaled_inputs(X: Value, scalings: Scalings) -> Value:
    """Return the inputs in the units of training, with gaps imputed."""
    if scalings.imputation is not None:
        gaps = X.is_nan()
        indicated = scalings.imputation.indicated
        X = gaps.where(scalings.imputation.medians, X)
        if indicated:
            X = concatenate([X, gaps.take(np.array(indicated), axis=1).where(1.0, 0.0)])
    return forward(X, scalings.inputs)


def forward(X: Value, scaling: ColumnScaling) -> Value:
    """The steps of `ColumnScaling.forward`."""
    if not scaling.rounded:
        return (X - scaling.shift) / scaling.scale
    mantissa, exponent = np.frexp(scaling.scale)
    with np.errstate(over="ignore", under="ignore"):
        shift = np.ldexp(scaling.shift, -exponent)
        # Multiply by two factors: 2^−e alone may overflow.
        half = -(exponent // 2)
        factors = np.ldexp(1.0, half), np.ldexp(1.0, -exponent - half)
    z: Value = (X * factors[0] * factors[1] - shift) / mantissa
    return (z.maximum(-MAX_DEVIATIONS).minimum(MAX_DEVIATIONS) * GRID).round() / GRID


def latents_of(x: Value, posterior: SparsePosterior) -> list[Latent]:
    """Return every latent function at scaled inputs; raise for other kernels of gpytorch."""
    if not posterior.prior.fused:
        raise UnsupportedError(
            "A model is exported if its kernel is 'rbf', 'matern12', 'matern32' or 'matern52' on "
            "all features, or an expression such as \"RBF('x') + Periodic('t', period=1.0)\", and "
            f"its mean zero or constant. Got {posterior.prior.kernel}. Fit with one of these "
            "kernels."
        )
    number = posterior.num_latent
    members = [posterior] if number == 1 else [posterior.latent(p) for p in range(number)]
    shared = number > 1 and posterior.Z.dim() == 2
    latents: list[Latent] = []
    whitened = None
    for member in members:
        # Evaluate a shared kernel once.
        if whitened is None or not shared:
            whitened = _whitened(x, member)
        latents.append(_latent(whitened, member))
    return latents


class _Whitened(NamedTuple):
    """A = K_fu L⁻ᵀ and k(x, x) at each row."""

    A: Value
    """Of shape (n, m)."""

    variance: Value | float
    """k(x, x), of shape (n, 1), or a number for all rows."""

    largest_variance: float
    """Upper bound of k(x, x)."""


def _whitened(x: Value, posterior: SparsePosterior) -> _Whitened:
    with torch.no_grad():
        wide = in_float64(posterior)
        natural = wide.prior.natural()
        L = wide.factor().L
        inverse = torch.linalg.solve_triangular(L, torch.eye(len(L)).to(L), upper=False)
        Z = wide.Z.numpy()
        scale = float(natural.scale)
    if isinstance(natural.kernel, Stationary):
        kernel = stationary_kernel(x, Z, natural.kernel)
    else:
        kernel = structured_kernel(x, Z, natural.kernel)
    A = kernel.covariance @ (scale * inverse.mT.numpy())
    variance = scale if kernel.variance is None else scale * kernel.variance
    return _Whitened(A, variance, scale * kernel.largest_variance)


def _latent(whitened: _Whitened, posterior: SparsePosterior) -> Latent:
    with torch.no_grad():
        wide = in_float64(posterior)
        natural = wide.prior.natural()
        S = wide.u_chol.tril().numpy()
        m = wide.u_mean.numpy()
        constant = 0.0 if natural.constant is None else float(natural.constant)
    A, variance, highest = whitened
    mean = A @ m[:, None] + constant
    T = A @ S
    residual = (variance - (A * A).sum()).maximum(_EPS * variance)
    bounds = None
    if math.isfinite(highest):
        reach = (1 + _MARGIN) * math.sqrt(highest) * float(np.linalg.norm(m)) + _MARGIN
        largest = (1 + _MARGIN) * highest * max(1.0, float(np.linalg.norm(S, 2)) ** 2)
        bounds = Bounds(constant - reach, constant + reach, largest)
    return Latent(mean, residual + (T * T).sum(), bounds)


def in_float64(posterior: SparsePosterior) -> SparsePosterior:
    """Return a copy in float64 on the CPU."""
    return copy.deepcopy(posterior).cpu().double()
