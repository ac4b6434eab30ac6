"""Convert likelihoods between directgp and GPyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, ClassVar, final

import numpy as np
import torch
from gpytorch import likelihoods
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood as GPyTorchBase
from jaxtyping import Num
from linear_operator.operators import ZeroLinearOperator
from torch import Tensor
from torch.distributions import Categorical, Distribution
from torch.distributions.constraints import Constraint, is_dependent
from typing_extensions import override

from directgp.errors import UnsupportedError, refuse, require, require_all
from directgp.interop.gpytorch.latents import MixedSoftmax, latent_marginals
from directgp.likelihoods import Poisson, Probit, Softmax
from directgp.likelihoods.base import Likelihood, check_finite
from directgp.likelihoods.capabilities import Classes
from directgp.likelihoods.gaussian import GaussianNoise
from directgp.likelihoods.rows import ExampleView
from directgp.likelihoods.student_t import StudentTNoise
from directgp.log_expectations.api import expected_log_prob, log_expectation
from directgp.predictive import (
    predictive_cdf,
    predictive_log_density,
    predictive_mean,
    predictive_variance,
)
from directgp.predictive.distributions import distribution_of
from directgp.predictive.moments import example_rows
from directgp.shapes import Marginals, Targets, Values

_REMEDY = "Use gpytorch.mlls for likelihoods of several latent values or examples."

_LOCK = Lock()
_DEPTH = 0
_DEFAULT = True


@final
class GivenLatent(Distribution):
    """p(y given f), with f of shape (..., n), or (..., P, n) for P latents."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, likelihood: Likelihood, f: Values) -> None:
        self.likelihood = likelihood
        self.f = f
        super().__init__(example_rows(likelihood, f).shape, validate_args=False)

    @property
    @override
    def mean(self) -> Values:
        return self.likelihood.conditional_mean(self.f)

    @property
    @override
    def variance(self) -> Values:
        return self.likelihood.conditional_variance(self.f)

    @override
    def log_prob(self, value: Num[Tensor, "..."]) -> Values:
        return self.likelihood.log_prob(value, self.f)

    @override
    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Values:
        f = self.f.expand(*sample_shape, *self.f.shape)
        return _drawn(self.likelihood, f)


@final
class Predictive(Distribution):
    """p(y) = E_q[p(y given f)] of each example, with exact values, tails and quantiles."""

    arg_constraints: ClassVar[dict[str, Constraint]] = {}

    def __init__(self, likelihood: Likelihood, marginals: Marginals) -> None:
        self.likelihood = likelihood
        self.marginals = marginals
        super().__init__(example_rows(likelihood, marginals.mean).shape, validate_args=False)

    @property
    @override
    def mean(self) -> Values:
        return predictive_mean(self.likelihood, self.marginals)

    @property
    @override
    def variance(self) -> Values:
        return predictive_variance(self.likelihood, self.marginals)

    @override
    def log_prob(self, value: Num[Tensor, "..."]) -> Values:
        return predictive_log_density(self.likelihood, value, self.marginals)

    @override
    def cdf(self, value: Num[Tensor, "..."]) -> Values:
        """Return P(Y ≤ value)."""
        return predictive_cdf(self.likelihood, value, self.marginals)

    @override
    def icdf(self, value: float | Values) -> Values:
        """Return the smallest y with P(Y ≤ y) ≥ value; levels broadcast with the examples."""
        mean = self.marginals.mean.double()
        variance = self.marginals.variance.double()
        level = torch.as_tensor(value, dtype=torch.float64, device=mean.device)
        inside = (level > 0) & (level < 1)
        require_all(inside.reshape(-1), level.reshape(-1), "level of icdf", "between 0 and 1")
        if self.likelihood.num_latent == 1:
            level, mean, variance = torch.broadcast_tensors(level, mean, variance)
        level = torch.broadcast_tensors(level, example_rows(self.likelihood, mean))[0]
        with torch.no_grad():
            quantiles = distribution_of(self.likelihood, mean, variance).quantile(level[None])[0]
        return quantiles.to(self.marginals.mean.dtype)

    @override
    def sample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = ()) -> Values:
        mean = self.marginals.mean
        deviation = self.marginals.variance.sqrt()
        shape = *sample_shape, *mean.shape
        with torch.no_grad():
            f = mean + deviation * torch.randn(shape, dtype=mean.dtype, device=mean.device)
        return _drawn(self.likelihood, f)


def _drawn(likelihood: Likelihood, f: Values) -> Values:
    """Draw one y for each f, seeded by torch's global generator, as torch's distributions do."""
    random = np.random.RandomState(int(torch.randint(2**31 - 1, ())))
    return torch.as_tensor(likelihood.sample(f, random)).to(f)


@final
class GPyTorchLikelihood(GPyTorchBase):
    """A likelihood of directgp as a GPyTorch likelihood.

    Called with latent values it returns p(y given f), called with q(f) it returns p(y), whose
    ``log_prob``, ``mean``, ``variance``, ``cdf`` and ``icdf`` are exact. Its expectations are those
    of directgp, so that GPyTorch's own objectives are accurate in the tails with it.

    A likelihood of P > 1 latents takes them as GPyTorch has tasks: q(f) is a
    ``MultitaskMultivariateNormal``, and latent values have shape (..., n, P). p(y) of classes is a
    ``torch.distributions.Categorical`` with exact probabilities.

    Parameters
    ----------
    base : directgp.likelihoods.Likelihood
        p(y given f). Its row constant, such as ``exposure=...``, is given in every call.

    Examples
    --------
    >>> import torch, gpytorch
    >>> from directgp.likelihoods import Poisson
    >>> q = gpytorch.distributions.MultivariateNormal(torch.tensor([0.5]), 0.3 * torch.eye(1))
    >>> likelihood = GPyTorchLikelihood(Poisson())
    >>> likelihood.log_marginal(torch.tensor([300.0]), q)
    tensor([-50.6238])
    >>> likelihood(q).icdf(0.95)
    tensor([5.])
    """

    def __init__(self, base: Likelihood) -> None:
        super().__init__()
        self.base = base

    @property
    def has_analytic_marginal(self) -> bool:
        """Whether p(y) is Gaussian."""
        return isinstance(self.base, GaussianNoise)

    def with_arguments(self, *params: Any, **row_values: Tensor | None) -> Likelihood:
        """Return p(y given f) of directgp; inputs that GPyTorch passes are ignored."""
        constants = {name: values for name, values in row_values.items() if values is not None}
        argument = self.base.rows.argument
        if others := constants.keys() - {argument}:
            raise UnsupportedError(
                f"{type(self.base).__name__} has no use for {', '.join(sorted(others))}. "
                + (f"Give {argument}=, or leave it out." if argument else "Leave it out.")
            )
        return self.base.with_row_values(constants.get(argument) if argument else None)

    @override
    def forward(self, function_samples: Tensor, *params: Any, **kwargs: Any) -> GivenLatent:
        """Return p(y given f)."""
        likelihood = self.with_arguments(**kwargs)
        f = function_samples
        if (number := likelihood.num_latent) > 1:
            who = f"f of {type(likelihood).__name__}"
            shape = tuple(f.shape)
            fits = f.dim() > 1 and f.shape[-1] == number
            require(fits, who, f"of shape (..., n, {number})", shape)
            f = f.transpose(-1, -2)
        return GivenLatent(likelihood, f)

    @override
    def marginal(
        self, function_dist: MultivariateNormal, *params: Any, **kwargs: Any
    ) -> MultivariateNormal | Predictive | Categorical:
        """Return p(y): jointly Gaussian for one noise variance, else of each y separately."""
        likelihood = self.with_arguments(**kwargs)
        if not isinstance(likelihood, GaussianNoise) or likelihood.noise.numel() != 1:
            marginals = self._marginals(function_dist)
            if likelihood.num_latent > 1 and isinstance(likelihood, Classes):
                return _classes(likelihood, marginals)
            return Predictive(likelihood, marginals)
        noise = likelihood.noise.to(function_dist.mean)
        covariance = function_dist.lazy_covariance_matrix.add_diagonal(noise)
        if isinstance(function_dist, MultitaskMultivariateNormal):
            order = function_dist._interleaved
            return MultitaskMultivariateNormal(function_dist.mean, covariance, interleaved=order)
        return MultivariateNormal(function_dist.mean, covariance)

    @override
    def expected_log_prob(
        self, observations: Tensor, function_dist: MultivariateNormal, *params: Any, **kwargs: Any
    ) -> Tensor:
        """Return E_q[log p(y given f)] of each example."""
        q = self._marginals(function_dist)
        return expected_log_prob(self.with_arguments(**kwargs), observations, q.mean, q.variance)

    @override
    def log_marginal(
        self, observations: Tensor, function_dist: MultivariateNormal, *params: Any, **kwargs: Any
    ) -> Tensor:
        """Return log E_q[p(y given f)] of each example."""
        q = self._marginals(function_dist)
        return log_expectation(self.with_arguments(**kwargs), observations, q.mean, q.variance)

    def _marginals(self, q: MultivariateNormal) -> Marginals:
        return latent_marginals(type(self.base).__name__, q, self.base.num_latent)


def _classes(likelihood: Likelihood, marginals: Marginals) -> Categorical:
    """Return P(Y = k) of every class, differentiable and accurate also where it is tiny."""
    mean = marginals.mean
    variance = marginals.variance
    labels = torch.arange(likelihood.num_latent, device=mean.device)
    log_probabilities = [
        log_expectation(likelihood, k.expand(mean.shape[-1]), mean, variance) for k in labels
    ]
    return Categorical(logits=torch.stack(log_probabilities, -1), validate_args=False)


@final
class GivenGaussian(GaussianNoise):
    """N(y; f, σ²) with σ² of a shape that broadcasts to the shape of the examples."""

    given_noise: Tensor

    def __init__(self, noise: Values) -> None:
        super().__init__()
        # A buffer may be part of a graph that leads to the parameters it was computed from.
        self.register_buffer("given_noise", noise.double())

    @property
    @override
    def noise(self) -> Tensor:
        return self._view.of(self.given_noise)


@final
class GivenStudentT(StudentTNoise):
    """t_ν((y−f)/σ)/σ with ν and σ of shapes that broadcast to the shape of the examples."""

    given_df: Tensor
    given_scale: Tensor

    def __init__(self, df: Values, scale: Values) -> None:
        super().__init__()
        self.register_buffer("given_df", df.double())
        self.register_buffer("given_scale", scale.double())

    @property
    @override
    def df(self) -> Tensor:
        return self._view.of(self.given_df)

    @property
    @override
    def scale(self) -> Tensor:
        return self._view.of(self.given_scale)


@contextmanager
def unvalidated() -> Iterator[None]:
    """Turn off the validation of torch's distributions; threads may nest it.

    Quadrature evaluates points far out, where a parameter may underflow to 0; such points have no
    weight. The last context to end restores the setting that the first one found.
    """
    global _DEPTH, _DEFAULT
    with _LOCK:
        if _DEPTH == 0:
            _DEFAULT = Distribution._validate_args
        _DEPTH += 1
        Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        with _LOCK:
            _DEPTH -= 1
            if _DEPTH == 0:
                Distribution.set_default_validate_args(_DEFAULT)


@final
class Adapted(Likelihood):
    """``source(f, *args, **kwargs).log_prob(y)`` in float64, for all examples of this shape."""

    def __init__(
        self, source: GPyTorchBase, shape: torch.Size, /, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__()
        self.source = source
        self._indexed = False
        self._shape = shape
        self._args = args
        self._kwargs = kwargs

    @override
    def take(self, index: Tensor | torch.Size) -> "Adapted":
        if not self._indexed:
            return self
        twin = Adapted(self.source, self._shape, *self._args, **self._kwargs)
        twin._view = ExampleView((*self._view.taken, index), self._view.frozen)
        twin._indexed = True
        return twin

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        with unvalidated():
            value: Tensor = self._given(f).log_prob(y)
        return value

    @override
    def conditional_mean(self, f: Values) -> Values:
        mean: Tensor = self._given(f).mean
        return mean

    @override
    def conditional_variance(self, f: Values) -> Values:
        variance: Tensor = self._given(f).variance
        return variance

    @override
    def check_targets(self, y: Targets) -> None:
        name = type(self.source).__name__
        check_finite(y, name)
        shape = y.shape if self._view.taken else self._shape
        f = torch.zeros(shape, dtype=torch.float64, device=y.device)
        with unvalidated():
            distribution = self._given(f)
        # A support that depends on f, as for a uniform density, is not a class attribute.
        support = getattr(type(distribution), "support", None)
        if isinstance(support, Constraint) and not is_dependent(support):
            inside = support.check(y.double())
            require_all(inside, y, f"y of {name}", "in the support of the likelihood")

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise `UnsupportedError` if p(y given f) of an example depends on other examples.

        Examples are evaluated in groups. That is valid if the moments in a group are those among
        all examples, with parameters and arguments either whole or indexed by the group.
        """
        if self._view.taken:
            return
        for indexed in (False, True):
            self._indexed = indexed
            if self._is_independent():
                return
        raise UnsupportedError(
            f"The likelihood must give each example a p(y given f) of its own. Got "
            f"{type(self.source).__name__}, in which parameters, arguments or other latent values "
            f"matter to it. {_REMEDY}"
        )

    def _is_independent(self) -> bool:
        """Return whether half of the examples, reordered, have the same moments as among all."""
        f = torch.linspace(-1, 1, self._shape.numel(), dtype=torch.float64).reshape(self._shape)
        f = f.to(next(iter(self.source.parameters()), f).device)
        subset = torch.arange(f.numel(), device=f.device).flip(0)[::2]
        part = self.take(torch.ones_like(f).bool()).take(subset)
        with torch.no_grad(), unvalidated():
            whole = _fingerprint(self._given(f))
            try:
                of_subset = _fingerprint(part._given(f.reshape(-1)[subset]))
            except (RuntimeError, IndexError, ValueError, UnsupportedError):
                return False
        expected = whole.reshape(len(whole), -1)[:, subset]
        return torch.allclose(of_subset, expected, rtol=1e-9, atol=1e-12, equal_nan=True)

    def _given(self, f: Values) -> Distribution:
        """Return p(y given f); raise `UnsupportedError` unless it has one density for each f."""
        named = dict((*self.source.named_parameters(), *self.source.named_buffers()))
        constants = {name: self._of_examples(value) for name, value in named.items()}
        args = tuple(self._of_examples(value) for value in self._args)
        kwargs = {name: self._of_examples(value) for name, value in self._kwargs.items()}
        distribution = torch.func.functional_call(self.source, constants, (f, *args), kwargs)
        description = f"a {type(distribution).__name__}"
        if isinstance(distribution, Distribution):
            if distribution.batch_shape == f.shape and not distribution.event_shape:
                return distribution
            description += f" of shape {tuple(distribution.batch_shape + distribution.event_shape)}"
        raise UnsupportedError(
            f"The likelihood must be one of one latent value, whose p(y given f) has the shape "
            f"of f, {tuple(f.shape)}. Got {type(self.source).__name__}, whose p(y given f) is "
            f"{description}. {_REMEDY}"
        )

    def _of_examples(self, value: Any) -> Any:
        """Return a parameter or argument in float64, indexed by the examples taken."""
        if not isinstance(value, Tensor):
            return value
        wide = value.double() if value.is_floating_point() else value
        return self._view.of(wide) if self._indexed else wide


def _fingerprint(distribution: Distribution) -> Tensor:
    """Return the tensors that a distribution holds for each example, or else its moments."""
    held = [tensor for tensor in vars(distribution).values() if isinstance(tensor, Tensor)]
    values = [tensor for tensor in held if tensor.shape == distribution.batch_shape]
    return torch.stack(
        [tensor.double() for tensor in values or [distribution.mean, distribution.variance]]
    )


def translated(
    likelihood: GPyTorchBase, shape: torch.Size, /, *args: Any, **kwargs: Any
) -> Likelihood:
    """Return a likelihood of directgp that shares the parameters of a GPyTorch likelihood."""
    if isinstance(likelihood, GPyTorchLikelihood):
        return likelihood.with_arguments(*args, **kwargs)
    # A subclass with a forward of its own is another likelihood.
    forward = type(likelihood).forward
    gpytorchs = (forward.__module__ or "").startswith("gpytorch.")
    if isinstance(likelihood, likelihoods._GaussianLikelihoodBase) and gpytorchs:
        return GivenGaussian(_noise(likelihood, shape, *args, **kwargs))
    if forward is likelihoods.BernoulliLikelihood.forward:
        return Probit()
    if forward is likelihoods.PoissonLikelihood.forward:
        return Poisson(link="softplus")
    if forward is likelihoods.StudentTLikelihood.forward:
        return GivenStudentT(likelihood.deg_free, likelihood.noise.sqrt())
    if forward is likelihoods.SoftmaxLikelihood.forward:
        weights = likelihood.mixing_weights
        return Softmax(likelihood.num_classes) if weights is None else MixedSoftmax(weights)
    return Adapted(likelihood, shape, *args, **kwargs)


def latents_of(likelihood: GPyTorchBase) -> int:
    """Return P, the number of latent values of an example."""
    if isinstance(likelihood, GPyTorchLikelihood):
        return likelihood.base.num_latent
    if isinstance(likelihood, likelihoods.SoftmaxLikelihood):
        return int(likelihood.num_features)
    return 1


def check_supported(likelihood: GPyTorchBase, deterministic: bool) -> None:
    """Raise `UnsupportedError` if one y depends on other y, or on latents without a rule."""
    name = type(likelihood).__name__
    softmax = likelihoods.SoftmaxLikelihood
    correlated = (getattr(likelihood, "rank", 0) or 0) > 0
    overridden = isinstance(likelihood, softmax) and type(likelihood).forward is not softmax.forward
    if overridden or correlated or isinstance(likelihood, likelihoods.LikelihoodList):
        why = "with noise correlated between tasks" if correlated else "of several latent values"
        raise UnsupportedError(
            f"The likelihood must be one of one latent value for each y. Got {name}, {why}. Use a "
            "likelihood such as GaussianLikelihood, MultitaskGaussianLikelihood(rank=0), "
            "BernoulliLikelihood, SoftmaxLikelihood or one of directgp, or gpytorch.mlls."
        )
    if not isinstance(likelihood, softmax) or likelihood.mixing_weights is None:
        return
    number = likelihood.num_features
    require(number > 1, f"num_features of {name} with mixing weights", "at least 2", number)
    if number > 2 and deterministic:
        raise UnsupportedError(
            f"{name} with mixing weights is integrated over its features, and only two features "
            f"have a quadrature. Got {number}. Set mixing_weights=False and num_tasks of the model "
            "to num_classes, or use DirectLogLoss with rule='ups' or 'bmc', which draw samples."
        )


def _noise(
    likelihood: likelihoods._GaussianLikelihoodBase, shape: torch.Size, /, *args: Any, **kwargs: Any
) -> Tensor:
    """Return the noise variance of each example; raise `InvalidInputError` without one."""
    who = f"noise of {type(likelihood).__name__}"
    if isinstance(likelihood, likelihoods._MultitaskGaussianLikelihoodBase):
        tasks = likelihood.num_tasks
        fits = len(shape) > 1 and shape[-1] == tasks
        require(fits, who, f"of q(f) for {tasks} tasks, of shape (..., n, {tasks})", tuple(shape))
    covariance = likelihood._shaped_noise_covar(shape, *args, **kwargs)
    if isinstance(covariance, ZeroLinearOperator):
        remedy = "Pass noise=... with every batch."
        refuse(who, f"given for examples of shape {tuple(shape)}", "that of others", remedy)
    noise: Tensor = covariance.diagonal(dim1=-1, dim2=-2)
    if noise.shape[-1] != shape[-1]:
        noise = noise.reshape(*noise.shape[:-1], *shape[-2:])
    require_all(noise > 0, noise, who, "positive")
    return noise
