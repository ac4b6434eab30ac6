"""Wrap a fitted sparse Gaussian process as a BoTorch `Model`; needs the extra `botorch`."""

import copy
from typing import Any, NoReturn, final

import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DenseLinearOperator, TriangularLinearOperator
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from typing_extensions import override

from directgp.errors import UnsupportedError, refuse, require, require_extra
from directgp.likelihoods.base import ConjugateLikelihood, Likelihood, broadcast_shape
from directgp.numerics.linalg import Cholesky, jittered_cholesky
from directgp.posteriors.sparse import Joint, SparsePosterior
from directgp.text import plural

require_extra("directgp.interop.botorch", "botorch", "botorch")

from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler

__all__ = ["DirectModel"]

_NOISE_OWNER = "observation_noise of DirectModel"
_SOURCE_OWNER = "fitted of DirectModel"
_ALLOWED = "an estimator of directgp, fitted, or a SparsePosterior"
_NO_UPDATE = (
    "DirectModel cannot condition on observations: q(u) was trained, and no formula updates it. "
    "Call partial_fit or fit of the estimator with the new rows and make a new DirectModel; in "
    "place of a look-ahead acquisition function use qLogNoisyExpectedImprovement."
)


@final
class Covariance(DenseLinearOperator):
    """A covariance that may be singular up to rounding, as with a repeated input.

    The factor has a jitter relative to the variances, which suits any units; the jitter of gpytorch
    is absolute, 1e-8 to 1e-6, with a warning. The covariance itself has no jitter.
    """

    @override
    def _cholesky(self, upper: bool | None = False) -> TriangularLinearOperator:
        L = jittered_cholesky(self.tensor).L
        return TriangularLinearOperator(L.mT if upper else L, upper=bool(upper))


@final
class Normal(MultivariateNormal):
    """gpytorch's normal distribution without its floor of 1e-10 for every variance."""

    @property
    @override
    def variance(self) -> Tensor:
        variance: Tensor = self.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
        return variance


@final
class DirectModel(Model):
    """A fitted model as a BoTorch model of f, for acquisition functions.

    It is a float64 copy of the model. A later `fit` or `partial_fit` does not change it: make a
    new one.

    Parameters
    ----------
    fitted : estimator of directgp or SparsePosterior
        Inputs and values of f are in the units of its X and y. For a classifier or a regressor of
        counts f is the latent function, on the scale of the link, for an exposure of 1; for the
        likelihoods "gamma", "log_normal" and "weibull" it is on the scale of log y, for "beta" on
        the scale of log(y/(1 − y)), as in `predict_latent`. For "heteroscedastic" f is the latent
        mean of y.
    likelihood : Likelihood
        The likelihood of a `SparsePosterior`, for `observation_noise`; an estimator has its own.

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
    """Shift of each input."""

    x_scale: Tensor
    """Scale of each input."""

    f_shift: Tensor
    """Shift of f."""

    f_scale: Tensor
    """Scale of f."""

    noise_variance: Tensor | None
    """Variance of Gaussian noise in squared units of y, None without a Gaussian likelihood."""

    L: Tensor
    """Cholesky factor of K_uu."""

    jitter: Tensor
    """Jitter of K_uu."""

    def __init__(self, fitted: Any, likelihood: Likelihood | None = None) -> None:
        super().__init__()
        posterior, own_likelihood, units = _parts(fitted, likelihood)
        self.q = copy.deepcopy(posterior).double().requires_grad_(False)
        # Free the gradients of the last training step.
        self.q.zero_grad()
        for name, value in units.items():
            tensor = torch.tensor(value, dtype=torch.float64, device=self.q.Z.device)
            self.register_buffer(name, tensor)
        self._likelihood = None if own_likelihood is None else type(own_likelihood).__name__
        variance = None
        if isinstance(own_likelihood, ConjugateLikelihood):
            variance = own_likelihood.noise.detach().to(self.f_scale) * self.f_scale.square()
        self.register_buffer("noise_variance", variance)
        for name, value in self.q.factor()._asdict().items():
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
        """Return the joint distribution of f at the q rows of X, differentiable in X.

        Parameters
        ----------
        X : tensor of shape (..., q, d)
            Inputs, in the units of the table that was fitted.
        output_indices : list of int
            None or [0].
        observation_noise : bool or tensor
            True gives the distribution of y, with Gaussian noise. A tensor that broadcasts to
            (..., q, 1) gives the noise variances, in squared units of y.
        posterior_transform : PosteriorTransform
            Applied to the result.
        """
        self._check_outputs(output_indices)
        f = self.joint(X)
        covariance = f.covariance
        if observation_noise is not False:
            noise = self._noise(observation_noise, covariance.shape[:-1])
            covariance = covariance + torch.diag_embed(noise.expand(covariance.shape[:-1]))
        posterior = GPyTorchPosterior(Normal(f.mean, Covariance(covariance)))
        return posterior if posterior_transform is None else posterior_transform(posterior, X)

    def joint(self, X: Tensor) -> Joint:
        """Return mean and covariance of f, in the units of y or on the scale of the link."""
        d = len(self.x_shift)
        fits = X.ndim >= 2 and X.shape[-1] == d
        require(fits, "X of DirectModel", f"of shape (..., q, {d})", f"shape {tuple(X.shape)}")
        home = self.x_shift.device
        remedy = "Move X there, or the model with its to(...)."
        require(X.device == home, "X of DirectModel", f"on the device {home}", X.device, remedy)
        scaled = (X.double() - self.x_shift) / self.x_scale
        f = self.q.joint(scaled, Cholesky(self.L, self.jitter))
        return Joint(self.f_shift + self.f_scale * f.mean, self.f_scale.square() * f.covariance)

    def _noise(self, noise: bool | Tensor, shape: torch.Size) -> Tensor:
        """Return the given noise variances, or the likelihood's, of shape (..., q)."""
        if self.noise_variance is None and self._likelihood is not None:
            raise UnsupportedError(
                f"{_NOISE_OWNER} must be False where y given f is not Gaussian. Got the likelihood "
                f"{self._likelihood}. Take the posterior of f, or fit with likelihood='gaussian'."
            )
        if isinstance(noise, Tensor):
            wanted = (*shape, 1)
            got = tuple(noise.shape)
            fits = got[-1:] == (1,) and broadcast_shape(got, wanted) == wanted
            allowed = f"of a shape that broadcasts to {wanted}"
            require(fits, _NOISE_OWNER, allowed, f"shape {got}")
            negative = "a negative one or NaN"
            require(bool((noise >= 0).all()), _NOISE_OWNER, "non-negative variances", negative)
            return noise.squeeze(-1)
        if self.noise_variance is None:
            remedy = "Give DirectModel the likelihood of the posterior, too."
            refuse(_NOISE_OWNER, "False or a tensor where no likelihood is given", noise, remedy)
        return self.noise_variance

    @override
    def subset_output(self, idcs: list[int]) -> "DirectModel":
        """Return this model, which has one output."""
        self._check_outputs(idcs)
        return self

    @override
    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> NoReturn:
        """Raise `UnsupportedError`: q(u) was trained, and no formula updates it."""
        raise UnsupportedError(_NO_UPDATE)

    def fantasize(self, X: Tensor, sampler: MCSampler, **kwargs: Any) -> NoReturn:
        """Raise `UnsupportedError`, as `condition_on_observations` does."""
        raise UnsupportedError(_NO_UPDATE)

    def _check_outputs(self, indices: list[int] | None) -> None:
        only = indices in (None, [0])
        require(only, "output_indices of DirectModel", "None or [0], its one output", indices)


def _parts(
    fitted: Any, likelihood: Likelihood | None
) -> tuple[SparsePosterior, Likelihood | None, dict[str, Any]]:
    """Return posterior, likelihood and the shifts and scales of inputs and f."""
    if isinstance(fitted, SparsePosterior):
        zeros = np.zeros(fitted.Z.shape[-1])
        units = {"x_shift": zeros, "x_scale": zeros + 1, "f_shift": 0.0, "f_scale": 1.0}
        return _mean_latent(fitted, likelihood), likelihood, units
    name = type(fitted).__name__
    require(isinstance(fitted, BaseEstimator), _SOURCE_OWNER, _ALLOWED, name)
    check_is_fitted(fitted)
    if "outputs_" in vars(fitted):
        several = f"a {name} of {len(fitted.outputs_)} outputs"
        refuse(_SOURCE_OWNER, "a model of one output", several, "Give one of `outputs_`.")
    posterior = getattr(fitted, "posterior_", None)
    if not isinstance(posterior, SparsePosterior):
        refuse(_SOURCE_OWNER, _ALLOWED, name, "Of a pipeline or a search, give the model.")
    number = len(fitted.members_)
    if number > 1 or fitted.stack_ is not None:
        got = f"a {name} of {plural(number, 'Gaussian process', 'Gaussian processes')}"
        got += "" if fitted.stack_ is None else " with a stack"
        allowed = "a model of one Gaussian process, without a stack"
        refuse(_SOURCE_OWNER, allowed, got, "Fit with combine='best' and stack=None.")
    allowed = "None for an estimator, which has its own"
    got = type(likelihood).__name__
    require(likelihood is None, "likelihood of DirectModel", allowed, got)
    complete = fitted.scalings_.imputation is None
    allowed = "fitted with missing='error'"
    remedy = "Impute the inputs before the fit."
    require(complete, _SOURCE_OWNER, allowed, "one with missing='impute'", remedy)
    levels = fitted.columns_ is not None and fitted.columns_.coded
    allowed = "fitted to columns of numbers"
    remedy = "Encode them before the fit."
    require(not levels, _SOURCE_OWNER, allowed, "one with categories or groups", remedy)
    x = fitted.scalings_.inputs
    f = fitted.scalings_.of_latent(fitted.likelihood_)
    units = {"x_shift": x.shift, "x_scale": x.scale, "f_shift": f.shift[0], "f_scale": f.scale[0]}
    return _mean_latent(posterior, fitted.likelihood_), fitted.likelihood_, units


def _mean_latent(posterior: SparsePosterior, likelihood: Likelihood | None) -> SparsePosterior:
    """Return the one latent function, or the first one if the others are variances of y."""
    if posterior.num_latent == 1:
        return posterior
    if likelihood is not None and posterior.num_latent == 1 + len(likelihood.units.log_variances):
        return posterior.latent(0)
    refuse(
        _SOURCE_OWNER,
        "of one latent function, or of heteroscedastic noise",
        f"{posterior.num_latent} latent functions, such as one for each class",
        "Fit each class against the others, or give `latent(k)` of the posterior.",
    )
