"""Translate GPyTorch likelihoods to likelihoods of directgp that share their parameters."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, final

import torch
from gpytorch import likelihoods
from gpytorch.likelihoods import Likelihood as GPyTorchBase
from jaxtyping import Float
from linear_operator.operators import ZeroLinearOperator
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint, is_dependent
from typing_extensions import override

from directgp.errors import UnsupportedError, refuse, require, require_all
from directgp.integration.contract import Derivatives
from directgp.integration.latents import LatentGrid
from directgp.interop.gpytorch.likelihoods import GPyTorchLikelihood
from directgp.likelihoods import Poisson, Probit, Softmax
from directgp.likelihoods.base import Likelihood, check_finite
from directgp.likelihoods.gaussian import GaussianNoise
from directgp.likelihoods.rows import ExampleView
from directgp.likelihoods.student_t import StudentTNoise
from directgp.shapes import Targets, Values

_REMEDY = "Use gpytorch.mlls for likelihoods of several latent values or examples."

_LOCK = Lock()
"""Guards the two variables below."""

_DEPTH = 0
"""Number of open contexts of `unvalidated`, in all threads."""

_DEFAULT = True
"""Setting that the last open context restores."""


@final
class GivenGaussian(GaussianNoise):
    """N(y; f, σ²) with σ² of a shape that broadcasts to the shape of the examples."""

    given_noise: Tensor

    def __init__(self, noise: Values) -> None:
        super().__init__()
        # Do not detach: gradients flow through the buffer to the GPyTorch likelihood.
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


@final
class MixedSoftmax(Likelihood):
    """p(y given f) = softmax(W f)_y: K classes that share P latent functions, with W of (K, P).

    The latents of the classes, W f, are correlated, so that the integral over them does not reduce
    to one variable: it is one over f.
    """

    task = "classification"

    weights: Tensor

    def __init__(self, weights: Float[Tensor, "c p"]) -> None:
        super().__init__()
        num_classes, self.num_latent = weights.shape
        self.classes = Softmax(num_classes)
        # Do not detach: gradients flow through the buffer to the GPyTorch likelihood.
        self.register_buffer("weights", weights.double())

    @property
    @override
    def integration(self) -> LatentGrid:
        # Σ_k e^{(W f)_k} has no zero where the phases of its terms differ by less than π.
        weights = self.weights.detach()
        widest = float((weights.amax(0) - weights.amin(0)).max())
        strip = math.pi / widest if widest > 0 else math.inf
        return LatentGrid(strip=strip, log_concave=True)

    def _mixed(self, f: Values) -> Values:
        return self.weights @ f

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        return self.classes.log_kernel(y, self._mixed(f))

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        """∇ℓ = W_y − Σ_k p_k W_k, and ∂²ℓ/∂f_j² is minus the variance of W_kj under p."""
        value, first, _ = self.classes.derivatives(y, self._mixed(f))
        weights = self.weights.T
        chance = self.classes.class_probabilities(self._mixed(f))
        average = weights @ chance
        second = average.square() - weights.square() @ chance
        return Derivatives(value, weights @ first, second.clamp(max=0.0))

    @override
    def conditional_mean(self, f: Values) -> Values:
        return self.classes.conditional_mean(self._mixed(f))

    @override
    def conditional_variance(self, f: Values) -> Values:
        return self.classes.conditional_variance(self._mixed(f))

    @override
    def check_targets(self, y: Targets) -> None:
        self.classes.check_targets(y)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """The weights are the same for all examples."""


@contextmanager
def unvalidated() -> Iterator[None]:
    """Turn off the validation of torch's distributions; several threads may do so at once.

    Quadrature evaluates points in the far tails, where a parameter may underflow to 0 and the
    weight is 0. The last context to end restores the setting at the start of the first one.
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
        # Check fixed supports only: one that depends on f, as of a uniform density, is a property.
        support = getattr(type(distribution), "support", None)
        if isinstance(support, Constraint) and not is_dependent(support):
            inside = support.check(y.double())
            require_all(inside, y, f"y of {name}", "in the support of the likelihood")

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise `UnsupportedError` if p(y given f) of an example depends on other examples.

        Examples are evaluated in groups. This is valid if p(y given f) of an example is the same in
        a group as among all examples, with parameters and arguments either whole or indexed by the
        group.
        """
        if self._view.taken:
            return
        for indexed in (False, True):
            self._indexed = indexed
            if self._is_independent():
                return
        raise UnsupportedError(
            f"The likelihood must give each example a p(y given f) of its own. Got "
            f"{type(self.source).__name__}, in which it depends on other latent values, or on "
            f"parameters or arguments of other examples. {_REMEDY}"
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
            f"The likelihood must have one latent value for each y, and its p(y given f) must have "
            f"the shape of f, {tuple(f.shape)}. Got {type(self.source).__name__}, whose "
            f"p(y given f) is {description}. {_REMEDY}"
        )

    def _of_examples(self, value: Any) -> Any:
        """Return a parameter or argument in float64, indexed by the examples taken."""
        if not isinstance(value, Tensor):
            return value
        wide = value.double() if value.is_floating_point() else value
        return self._view.of(wide) if self._indexed else wide


def _fingerprint(distribution: Distribution) -> Tensor:
    """Return the tensors of a distribution that have one entry for each example, or its moments."""
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
    # Compare `forward`: a subclass that overrides it is another likelihood.
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
            f"The likelihood must have one latent value for each y. Got {name}, {why}. Use a "
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
        got = "noise of other examples"
        refuse(who, f"given for examples of shape {tuple(shape)}", got, remedy)
    noise: Tensor = covariance.diagonal(dim1=-1, dim2=-2)
    if noise.shape[-1] != shape[-1]:
        noise = noise.reshape(*noise.shape[:-1], *shape[-2:])
    require_all(noise > 0, noise, who, "positive")
    return noise
