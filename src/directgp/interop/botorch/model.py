"""A fitted sparse Gaussian process as a BoTorch `Model`."""

from typing import Any, NoReturn, final

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from torch import Tensor
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.interop.botorch.noise import NoiseOfTargets
from directgp.interop.botorch.normal import Covariance, Normal
from directgp.interop.botorch.source import source_of
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.joint import Joint
from directgp.posteriors.sparse import Factor


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
