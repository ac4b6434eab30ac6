"""Wrap a fitted sparse Gaussian process as a BoTorch `Model`."""

import copy
from dataclasses import dataclass
from typing import Any, NoReturn, final

import numpy as np
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from gpytorch.distributions import MultivariateNormal
from jaxtyping import Float64
from linear_operator.operators import DenseLinearOperator, TriangularLinearOperator
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from typing_extensions import override

from directgp.errors import UnsupportedError, refuse, require
from directgp.likelihoods.base import ConjugateLikelihood, Likelihood
from directgp.numerics.linalg import jittered_cholesky
from directgp.posteriors.projection import Joint
from directgp.posteriors.sparse import Factor, SparsePosterior

_NOISE_OWNER = "observation_noise of DirectModel"


@final
class NoiseOfTargets(nn.Module):
    """A Gaussian likelihood's variance in squared units of y, or why there is none."""

    variance: Tensor | None

    def __init__(self, likelihood: Likelihood | None, y_scale: Tensor) -> None:
        super().__init__()
        self.likelihood = None if likelihood is None else type(likelihood).__name__
        variance = None
        if isinstance(likelihood, ConjugateLikelihood):
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
            refuse(_NOISE_OWNER, "False or a tensor where no likelihood is given", wanted, remedy)
        return self.variance

    def _refuse_likelihood(self) -> NoReturn:
        raise UnsupportedError(
            f"{_NOISE_OWNER} must be False where y given f is not Gaussian. Got the likelihood "
            f"{self.likelihood}. Take the posterior of f, or fit with likelihood='gaussian'."
        )


def _checked(noise: Tensor, shape: torch.Size) -> Tensor:
    """Variances of shape (..., q), from a tensor with the axis of outputs."""
    wanted = (*shape, 1)
    try:
        fits = noise.shape[-1:] == (1,) and np.broadcast_shapes(noise.shape, wanted) == wanted
    except ValueError:
        fits = False
    require(
        fits, _NOISE_OWNER, f"of a shape that broadcasts to {wanted}", f"shape {tuple(noise.shape)}"
    )
    require(
        bool((noise >= 0).all()), _NOISE_OWNER, "non-negative variances", "a negative one or NaN"
    )
    return noise.squeeze(-1)


@final
class Covariance(DenseLinearOperator):
    """A covariance that may be singular but for rounding, as of an input that is there twice.

    The jitter of its factor is relative to the variances, so that it suits any units; gpytorch's
    own is 1e-8 to 1e-6 of whatever unit, and comes with a warning. The covariance has none of it.
    """

    @override
    def _cholesky(self, upper: bool | None = False) -> TriangularLinearOperator:
        L = jittered_cholesky(self.tensor).factor
        return TriangularLinearOperator(L.mT if upper else L, upper=bool(upper))


@final
class Normal(MultivariateNormal):
    """gpytorch's normal without its floor of 1e-10 below every variance, whatever its unit."""

    @property
    @override
    def variance(self) -> Tensor:
        variance: Tensor = self.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
        return variance


_SOURCE_OWNER = "fitted of DirectModel"
_ALLOWED = "an estimator of directgp, fitted, or a SparsePosterior"


@dataclass(frozen=True)
class Units:
    """Scaled x is (x − shift) / scale, and so is scaled y."""

    x_shift: Float64[Tensor, " d"]
    x_scale: Float64[Tensor, " d"]
    y_shift: Float64[Tensor, ""]
    y_scale: Float64[Tensor, ""]


@dataclass(frozen=True)
class Source:
    """A copy of a fitted model."""

    posterior: SparsePosterior
    likelihood: Likelihood | None
    units: Units


def source_of(fitted: Any, likelihood: Likelihood | None) -> Source:
    """A copy in float64 that asks for no gradients; refuses what is not fitted."""
    if isinstance(fitted, SparsePosterior):
        return Source(_held(fitted), likelihood, _plain(fitted))
    require(isinstance(fitted, BaseEstimator), _SOURCE_OWNER, _ALLOWED, type(fitted).__name__)
    check_is_fitted(fitted)
    posterior = getattr(fitted, "posterior_", None)
    if not isinstance(posterior, SparsePosterior):
        refuse(
            _SOURCE_OWNER,
            _ALLOWED,
            type(fitted).__name__,
            "Of a pipeline or a search, give the model.",
        )
    require(
        likelihood is None,
        "likelihood of DirectModel",
        "left out where an estimator is given, which has its own",
        type(likelihood).__name__,
    )
    return Source(_held(posterior), fitted.likelihood_, _units(fitted.scalings_, posterior))


def _held(posterior: SparsePosterior) -> SparsePosterior:
    twin = copy.deepcopy(posterior).double().requires_grad_(False)
    # Training leaves its last gradients behind.
    twin.zero_grad()
    return twin


def _plain(posterior: SparsePosterior) -> Units:
    """Nothing is scaled."""
    zero = posterior.Z.new_zeros(posterior.Z.shape[-1], dtype=torch.float64)
    return Units(zero, zero + 1, zero[0].clone(), zero[0] + 1)


def _units(scalings: Any, posterior: SparsePosterior) -> Units:
    x, y = scalings.inputs, scalings.targets
    values = (x.shift, x.scale, y.shift[0], y.scale[0])
    device = posterior.Z.device
    return Units(*(torch.tensor(each, dtype=torch.float64, device=device) for each in values))


@final
class DirectModel(Model):
    """What a fitted model knows of f, for BoTorch's acquisition functions.

    It is a copy in float64 of the model as it is now: a later `fit` or `partial_fit` leaves it as
    it was, so make a new one.

    Parameters
    ----------
    fitted : estimator of directgp or SparsePosterior
        Inputs and values of f are in the units of its X and y. For a classifier or a regressor of
        counts f is the latent function, on the scale of the link, for an exposure of 1.
    likelihood : Likelihood
        Of a `SparsePosterior`, for `observation_noise`; an estimator has its own.

    Examples
    --------
    >>> import torch
    >>> from directgp.posteriors import SparsePosterior
    >>> X = torch.linspace(0, 1, 5, dtype=torch.float64).reshape(-1, 1)
    >>> model = DirectModel(SparsePosterior.from_data(X, num_inducing=3))
    >>> model.posterior(X.expand(7, 5, 1)).mean.shape
    torch.Size([7, 5, 1])
    """

    x_shift: Tensor
    x_scale: Tensor
    y_shift: Tensor
    y_scale: Tensor
    L: Tensor
    jitter: Tensor

    def __init__(self, fitted: Any, likelihood: Likelihood | None = None) -> None:
        super().__init__()
        source = source_of(fitted, likelihood)
        self.q = source.posterior
        self.noise = NoiseOfTargets(source.likelihood, source.units.y_scale)
        for name, value in (*vars(source.units).items(), *self.q.factor()._asdict().items()):
            self.register_buffer(name, value)
        self.eval()

    @property
    @override
    def num_outputs(self) -> int:
        """One."""
        return 1

    @property
    @override
    def batch_shape(self) -> torch.Size:
        """Axes of a batch of models; none for an estimator."""
        return self.q.u_mean.shape[:-1]

    @override
    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """The joint distribution of f at the q rows of X, differentiable in X.

        Parameters
        ----------
        X : tensor of shape (..., q, d)
            Inputs, in the units of the table that was fitted.
        output_indices : list of int
            None or [0].
        observation_noise : bool or tensor
            True gives the distribution of y, Gaussian noise included; a tensor that broadcasts to
            (..., q, 1) has the variances to add in its place, in squared units of y.
        posterior_transform : PosteriorTransform
            What BoTorch does with it.
        """
        self._check_outputs(output_indices)
        f = self.joint(X)
        covariance = self.noise.added(f.covariance, observation_noise)
        found = GPyTorchPosterior(Normal(f.mean, Covariance(covariance)))
        return found if posterior_transform is None else posterior_transform(found, X)

    def joint(self, X: Tensor) -> Joint:
        """Mean and covariance of f, in the units of y."""
        d = len(self.x_shift)
        fits = X.ndim >= 2 and X.shape[-1] == d
        require(fits, "X of DirectModel", f"of shape (..., q, {d})", f"shape {tuple(X.shape)}")
        home, remedy = self.x_shift.device, "Move X there, or the model with its to(...)."
        require(X.device == home, "X of DirectModel", f"on the device {home}", X.device, remedy)
        scaled = (X.double() - self.x_shift) / self.x_scale
        f = self.q.joint(scaled, Factor(self.L, self.jitter))
        return Joint(self.y_shift + self.y_scale * f.mean, self.y_scale.square() * f.covariance)

    @override
    def subset_output(self, idcs: list[int]) -> "DirectModel":
        """This model, for its one output."""
        self._check_outputs(idcs)
        return self

    @override
    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> NoReturn:
        """Refused: q(u) was trained, and no formula updates it."""
        _refuse_to_condition("condition_on_observations")

    def fantasize(self, X: Tensor, sampler: MCSampler, **kwargs: Any) -> NoReturn:
        """Refused, as `condition_on_observations` is."""
        _refuse_to_condition("fantasize")

    def _check_outputs(self, indices: list[int] | None) -> None:
        only = indices in (None, [0])
        require(only, "output_indices of DirectModel", "None or [0], its one output", indices)


def _refuse_to_condition(method: str) -> NoReturn:
    raise UnsupportedError(
        f"DirectModel.{method} needs a model that a formula updates. Got one with a trained q(u). "
        "Call partial_fit or fit of the estimator with the new rows and make a new DirectModel; in "
        "place of an acquisition function that looks ahead take qLogNoisyExpectedImprovement."
    )
