"""Write scaling, imputation and posterior of a fitted estimator as a program."""

import copy
import math
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, cast

import numpy as np
import torch

from directgp.errors import UnsupportedError
from directgp.estimators.preprocessing import GRID, MAX_DEVIATIONS, ColumnScaling, Scalings
from directgp.export.program import Value, concatenate
from directgp.kernels.profiles import RBF
from directgp.posteriors.marginals import Stationary
from directgp.posteriors.sparse import SparsePosterior

_EPS = float(np.finfo(np.float64).eps)
"""Rounding error of float64."""

_MARGIN = 1e-9
"""Relative margin of the bounds, for rounding."""

_NEAR = 1e3
"""Squared distance from the centre, in lengthscales, up to which products give D²."""

_FARTHEST = 1e150
"""Scaled inputs are clipped here: squares are finite, and every kernel is 0."""


@dataclass(frozen=True)
class Latent:
    """Mean and variance of f at each row, of shape (n, 1), and bounds of both for any row.

    mean = c + Aᵀm and variance = s² − ‖A‖² + ‖SᵀA‖² with ‖A‖² ≤ s², so that by the inequality of
    Cauchy and Schwarz the mean is within s·‖m‖ of c, and the variance at most s²·max(1, ‖S‖²).
    """

    mean: Value
    """Mean of f."""

    variance: Value
    """Variance of f."""

    lower: float
    """Lower bound of the mean."""

    upper: float
    """Upper bound of the mean."""

    largest_variance: float
    """Upper bound of the variance."""

    @property
    def deviation(self) -> Value:
        """Standard deviation of f."""
        return self.variance.sqrt()

    @property
    def largest_deviation(self) -> float:
        """Bound of the standard deviation."""
        return math.sqrt(self.largest_variance)


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
    """Return every latent function at scaled inputs; raise for kernels other than RBF, Matérn."""
    if not posterior.prior.fused or posterior.prior.structure is not None:
        raise UnsupportedError(
            "A model is exported if its kernel is 'rbf', 'matern12', 'matern32' or 'matern52' on "
            f"all features and its mean zero or constant. Got {posterior.prior.kernel}. Fit with "
            "one of these kernels."
        )
    number = posterior.num_latent
    members = [posterior] if number == 1 else [posterior.latent(p) for p in range(number)]
    shared = number > 1 and posterior.Z.dim() == 2
    latents: list[Latent] = []
    A = None
    for member in members:
        # Evaluate a shared kernel once.
        A = A if shared and A is not None else _whitened(x, member)
        latents.append(_latent(A, member))
    return latents


def _whitened(x: Value, posterior: SparsePosterior) -> Value:
    """Return A = K_fu L⁻ᵀ, of shape (n, m)."""
    with torch.no_grad():
        wide = in_float64(posterior)
        natural = wide.prior.natural()
        kernel = cast(Stationary, natural.kernel)
        L = wide.factor().L
        inverse = torch.linalg.solve_triangular(L, torch.eye(len(L)).to(L), upper=False)
        weight = 1 / kernel.lengthscale.reshape(-1)
        centre = wide.Z.median(0).values
        Z = ((wide.Z - centre) * weight).numpy()
        scale = float(natural.scale)
    a = (x - centre.numpy()) * weight.expand(Z.shape[1]).numpy()
    a = a.maximum(-_FARTHEST).minimum(_FARTHEST)
    A: Value = _kernel(a, Z, kernel.nu) @ (scale * inverse.mT.numpy())
    return A


def _kernel(a: Value, Z: np.ndarray[Any, np.dtype[np.float64]], nu: float) -> Value:
    """κ(‖a_i − z_j‖) of `posteriors.prior.stationary`."""
    if nu == 0.5 or (Z * Z).sum(1).max() > _NEAR:
        # Use differences for √D² near 0 (other kernels are smooth in D²), and for inputs that are
        # many lengthscales apart.
        gaps = [a.column(j) - Z[None, :, j] for j in range(Z.shape[1])]
        square: Value = reduce(add, (gap * gap for gap in gaps))
    else:
        norms = (a * a).sum() + (Z * Z).sum(1)[None]
        square = (norms - 2.0 * (a @ Z.T)).maximum(0.0)
    if nu == RBF:
        return (-0.5 * square).exp()
    r = (2 * nu * square).sqrt()
    decay = (-1.0 * r).exp()
    if nu == 0.5:
        return decay
    return (1.0 + r if nu == 1.5 else 1.0 + r + r * r / 3.0) * decay


def _latent(A: Value, posterior: SparsePosterior) -> Latent:
    with torch.no_grad():
        wide = in_float64(posterior)
        natural = wide.prior.natural()
        S = wide.u_chol.tril().numpy()
        m = wide.u_mean.numpy()
        scale = float(natural.scale)
        constant = 0.0 if natural.constant is None else float(natural.constant)
    mean = A @ m[:, None] + constant
    T = A @ S
    residual = (scale - (A * A).sum()).maximum(_EPS * scale)
    reach = (1 + _MARGIN) * math.sqrt(scale) * float(np.linalg.norm(m)) + _MARGIN
    largest = (1 + _MARGIN) * scale * max(1.0, float(np.linalg.norm(S, 2)) ** 2)
    return Latent(mean, residual + (T * T).sum(), constant - reach, constant + reach, largest)


def in_float64(posterior: SparsePosterior) -> SparsePosterior:
    """Return a copy in float64 on the CPU."""
    return copy.deepcopy(posterior).cpu().double()
