"""Provide objectives of directgp as GPyTorch marginal log likelihoods."""

import math
from typing import Any, TypeAlias, final

import gpytorch
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihoodWithMissingObs
from gpytorch.likelihoods import Likelihood as GPyTorchBase
from gpytorch.mlls._approximate_mll import _ApproximateMarginalLogLikelihood
from gpytorch.models.deep_gps import DeepGP
from linear_operator.operators import AddedDiagLinearOperator
from torch import Tensor
from torch.distributions import Distribution
from typing_extensions import override

from directgp.errors import InvalidInputError, UnsupportedError, require, require_all
from directgp.interop.gpytorch.latents import latent_marginals
from directgp.interop.gpytorch.likelihoods import GPyTorchLikelihood
from directgp.interop.gpytorch.translation import check_supported, latents_of, translated
from directgp.likelihoods.base import Likelihood, broadcast_shape, check_shape
from directgp.log_expectations.api import check_arguments
from directgp.log_expectations.rule import Rule
from directgp.objectives.base import GibbsLoss, Objective, PointLoss, resolve_point_loss
from directgp.predictive.moments import example_rows
from directgp.shapes import Marginals, Values

_REMEDY = "Pass model(x), not likelihood(model(x))."


def _check_targets(who: str, y: Tensor, shape: torch.Size, events: int) -> None:
    """Raise `InvalidInputError` for targets of another shape than q(f), such as a column."""
    require(y.numel() > 0, f"y of {who}", "of at least one example", "none")
    fits = broadcast_shape(y.shape, shape) == shape and y.shape[-events:] == shape[-events:]
    remedy = "Flatten a column y with y.squeeze(-1)." if y.shape[-1:] == (1,) else ""
    require(fits, f"y of {who}", f"of the shape of q(f), {tuple(shape)}", tuple(y.shape), remedy)


def _selected(values: Values, mask: Tensor) -> Values:
    """Return the values of the masked examples, behind an axis of latents if present."""
    return values[mask] if values.shape == mask.shape else values.movedim(-2, 0)[:, mask]


def _depends_on(variance: Tensor, likelihood: torch.nn.Module, model: torch.nn.Module) -> bool:
    """Return whether the variances depend on parameters that only the likelihood has."""
    shared = set(model.parameters())
    parameters = [p for p in likelihood.parameters() if p not in shared and p.requires_grad]
    if not parameters or not variance.requires_grad:
        return False
    gradients = torch.autograd.grad(
        variance.sum(), parameters, retain_graph=True, allow_unused=True
    )
    return any(gradient is not None for gradient in gradients)


def _has_noise(q: MultivariateNormal, likelihood: torch.nn.Module) -> bool:
    """Return whether the likelihood's own noise was added to the covariance."""
    covariance = q.lazy_covariance_matrix
    noise = getattr(likelihood, "noise", None)
    if not isinstance(covariance, AddedDiagLinearOperator) or not isinstance(noise, Tensor):
        return False
    added: Tensor = covariance._diag_tensor.diagonal(dim1=-1, dim2=-2)
    try:
        return bool(torch.equal(added, noise.expand(added.shape)))
    except RuntimeError:
        return False


def _log_weights(
    who: str, model: gpytorch.models.GP, q: MultivariateNormal, batch: torch.Size
) -> Tensor:
    """Return equal log weights of a deep GP's samples, or the weights of a DSPP's sigma points.

    Raise `InvalidInputError` if the first axis of q(f) is not the one of samples or points.
    """
    weights: Tensor | None = getattr(model, "quad_weights", None)
    number = "S" if weights is None else len(weights)
    axis = "samples" if weights is None else "sigma points"
    fits = len(batch) > 0 and (weights is None or batch[0] == len(weights))
    allowed = f"of shape ({number}, ..., n), for the {axis} of {type(model).__name__}"
    remedy = "Pass model(x), whose layers add the first axis."
    require(fits, f"q(f) of {who}", allowed, tuple(q.mean.shape), remedy)
    if weights is None:
        weights = q.mean.new_full(batch[:1], -math.log(batch[0]))
    return weights.reshape(-1, *[1] * len(batch))


AnyLikelihood: TypeAlias = GPyTorchBase | Likelihood


class DirectObjective(_ApproximateMarginalLogLikelihood):
    """−(1/n) Σ_i loss_i − (β/N)·KL, plus the log priors minus the added losses of the model.

    It is called as `gpytorch.mlls.VariationalELBO`, with q(f) = ``model(x)``, targets and further
    arguments of the likelihood's ``forward``. The losses of an example are summed over its tasks.
    """

    def __init__(
        self,
        likelihood: AnyLikelihood,
        model: gpytorch.models.GP,
        num_data: int,
        point_loss: PointLoss,
        beta: float | Tensor = 1.0,
        combine_terms: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        # Make an objective only to check the arguments.
        Objective(point_loss, num_data, beta)
        if isinstance(likelihood, Likelihood):
            likelihood = GPyTorchLikelihood(likelihood)
        check_supported(likelihood, point_loss.deterministic)
        super().__init__(likelihood, model, num_data, beta, combine_terms)
        self.point_loss = point_loss
        self.generator = generator
        self.step = 0

    @override
    def forward(
        self, approximate_dist_f: Distribution, target: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, ...]:
        """Return the objective, of the shape of the model's batch, or its terms."""
        losses = self._losses(approximate_dist_f, target, *args, **kwargs)
        self.step += int(self.training)
        # Make the objective in every call: a loop that anneals β changes the attribute.
        objective = Objective(self.point_loss, self.num_data, self.beta)
        kl = self._kl(approximate_dist_f, losses.shape[:-1])
        zero = losses.new_zeros(())
        priors = (prior.log_prob(at(m)).sum() for _, m, prior, at, _ in self.named_priors())
        log_prior = sum(priors, zero).div(self.num_data)
        added = sum((term.loss() for term in self.model.added_loss_terms()), zero)
        if self.combine_terms:
            return log_prior - objective.combine(losses, kl) - added
        kl_term = objective.combine(torch.zeros_like(losses), kl)
        return -losses.mean(-1), kl_term, log_prior, added

    @override
    def _log_likelihood_term(
        self, approximate_dist_f: Distribution, target: Tensor, **kwargs: Any
    ) -> Tensor:
        return -self._losses(approximate_dist_f, target, **kwargs).sum(-1)

    def _losses(self, q: Distribution, y: Tensor, /, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss of each example."""
        who = type(self).__name__
        if not isinstance(q, MultivariateNormal):
            raise UnsupportedError(
                f"{who} must be given q(f), a MultivariateNormal. Got {type(q).__name__}. {_REMEDY}"
            )
        marginals = latent_marginals(who, q, latents_of(self.likelihood))
        noisy = _depends_on(marginals.variance, self.likelihood, self.model)
        if noisy or _has_noise(q, self.likelihood):
            raise InvalidInputError(
                f"{who} must be given q(f), the distribution of the latent function. Got one with "
                f"the noise of {type(self.likelihood).__name__} in its variances. {_REMEDY}"
            )
        several = latents_of(self.likelihood) > 1
        shape = marginals.mean[..., 0, :].shape if several else marginals.mean.shape
        events = 1 if several else len(q.event_shape)
        _check_targets(who, y, shape, events)
        deep = isinstance(self.model, DeepGP)
        weights = _log_weights(who, self.model, q, shape[:-events]) if deep else None
        likelihood = translated(self.likelihood, q.mean.shape, *args, **kwargs)
        losses = self._observed(likelihood, y, marginals)
        # Sum over tasks first: they are independent only given a sample or a sigma point.
        losses = losses.sum(-1) if events > 1 else losses
        return losses if weights is None else self._over_samples(losses, weights)

    def _observed(self, likelihood: Likelihood, y: Tensor, q: Marginals) -> Tensor:
        """Return the losses, 0 where a target is missing."""
        who = type(self).__name__
        observed = ~torch.isnan(y)
        zeros = torch.zeros_like(example_rows(likelihood, q.mean))
        if not (complete := bool(observed.all())):
            policy = gpytorch.settings.observation_nan_policy.value()
            missing_allowed = isinstance(self.likelihood, GaussianLikelihoodWithMissingObs)
            if policy == "ignore" and not missing_allowed:
                remedy = "Set gpytorch.settings.observation_nan_policy('mask') for missing targets."
                require_all(observed, y, f"y of {who}", "a number", remedy)
            # Before `take`, since the likelihood has the shape of all examples.
            check_shape(likelihood, tuple(q.mean.shape))
            observed = observed.expand(zeros.shape)
            if not bool(observed.any()):
                return zeros
            likelihood = likelihood.take(observed)
            y = y.expand(zeros.shape)[observed]
            q = Marginals(_selected(q.mean, observed), _selected(q.variance, observed))
        check_arguments(who, likelihood, y, q.mean, q.variance)
        losses = self.point_loss(likelihood, y, q, generator=self.generator, step=self.step)
        return losses if complete else zeros.masked_scatter(observed, losses)

    def _over_samples(self, losses: Tensor, log_weights: Tensor) -> Tensor:
        """Return the losses of a deep GP, whose q(f) is a mixture over the first axis."""
        raise UnsupportedError(
            f"{type(self).__name__} has no loss for a deep GP. Got {type(self.model).__name__}. "
            "Use DirectLogLoss or BetaELBO."
        )

    def _kl(self, q: Distribution, batch: torch.Size) -> Tensor:
        """Return KL[q(u) ‖ p(u)] of each model, summed if one q(f) has several q(u)."""
        kl: Tensor = self.model.variational_strategy.kl_divergence()
        number = latents_of(self.likelihood)
        tasks = isinstance(q, MultitaskMultivariateNormal)
        if number > 1 and not (tasks or isinstance(self.model, DeepGP)):
            one_per_latent = kl.shape[-1:] == (number,)
            allowed = f"one for each of {number} latent functions, with a last batch axis for them"
            remedy = f"Give the variational distribution a batch_shape that ends in {number}."
            require(
                one_per_latent, f"q(u) of {type(self).__name__}", allowed, tuple(kl.shape), remedy
            )
            kl = kl.sum(-1)
        more = kl.dim() - len(batch)
        return kl.sum(tuple(range(more))) if more > 0 else kl.expand(batch)


@final
class DirectLogLoss(DirectObjective):
    """Log-loss DLM: (1/n) Σ_i log E_q[p(y_i given f_i)] − (β/N)·KL, to be maximised.

    It replaces `gpytorch.mlls.PredictiveLogLikelihood`, `DeepPredictiveLogLikelihood` of a DSPP and
    `VariationalELBO`.

    Parameters
    ----------
    likelihood : gpytorch.likelihoods.Likelihood or directgp.likelihoods.Likelihood
        p(y given f) of one latent value, or of several that are independent under q(f).
    model : gpytorch.models.ApproximateGP
        Any variational strategy and kernel, batches of models and of tasks; deep GPs too. Several
        latents of an example are its tasks, or the last batch axis.
    num_data : int
        N, the number of training examples, whatever the size of a batch.
    beta : float or tensor
        β ≥ 0, or one for each model of a batch.
    rule : Rule or {"auto", "closed_form", "quadrature", "bmc", "smooth_bmc", "ups"}
        Method for log E_q[p] and its gradient. "auto" is accurate to many digits, also for your
        own likelihood if it does not oscillate within an eighth of the deviation of q. The step of
        schedules is the number of calls in training mode.
    combine_terms : bool
        If false, return log likelihood, KL·β/N, log prior and added loss separately.
    generator : torch.Generator
        Source of the Monte Carlo rules' draws; freshly seeded by default.

    Examples
    --------
    >>> import gpytorch, torch
    >>> from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
    >>> class Model(gpytorch.models.ApproximateGP):
    ...     def __init__(self, Z):
    ...         q = CholeskyVariationalDistribution(len(Z))
    ...         super().__init__(VariationalStrategy(self, Z, q))
    ...         self.mean, self.kernel = gpytorch.means.ZeroMean(), gpytorch.kernels.RBFKernel()
    ...     def forward(self, x):
    ...         return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))
    >>> x = torch.linspace(0, 1, 20)[:, None]
    >>> model, likelihood = Model(x[::5]), gpytorch.likelihoods.BernoulliLikelihood()
    >>> objective = DirectLogLoss(likelihood, model, num_data=20, beta=0.1)
    >>> loss = -objective(model(x), (x[:, 0] > 0.5).float())
    >>> loss.backward()
    """

    def __init__(
        self,
        likelihood: AnyLikelihood,
        model: gpytorch.models.GP,
        num_data: int,
        beta: float | Tensor = 1.0,
        rule: Rule | str = "auto",
        combine_terms: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        loss = resolve_point_loss("log_loss", rule)
        super().__init__(likelihood, model, num_data, loss, beta, combine_terms, generator)

    @override
    def _over_samples(self, losses: Tensor, log_weights: Tensor) -> Tensor:
        # −log Σ_s w_s exp(−loss_s)
        return -torch.logsumexp(log_weights - losses, 0)


@final
class BetaELBO(DirectObjective):
    """(1/n) Σ_i E_q[log p(y_i given f_i)] − (β/N)·KL, to be maximised: the ELBO where β = 1.

    It replaces `gpytorch.mlls.VariationalELBO`. The parameters are those of `DirectLogLoss`
    without the rule: the expectation is exact.
    """

    def __init__(
        self,
        likelihood: AnyLikelihood,
        model: gpytorch.models.GP,
        num_data: int,
        beta: float | Tensor = 1.0,
        combine_terms: bool = True,
    ) -> None:
        super().__init__(likelihood, model, num_data, GibbsLoss(), beta, combine_terms)

    @override
    def _over_samples(self, losses: Tensor, log_weights: Tensor) -> Tensor:
        return (log_weights.exp() * losses).sum(0)


@final
class DirectLoss(DirectObjective):
    """−(1/n) Σ_i loss_i − (β/N)·KL for any point loss, to be maximised.

    The parameters are those of `DirectLogLoss`, with a loss in place of the rule.

    Parameters
    ----------
    objective : PointLoss or str
        A loss of `directgp.objectives`, or its name: "crps", "square_loss", "absolute_loss",
        "pinball_loss", "zero_one_cost".
    """

    def __init__(
        self,
        likelihood: AnyLikelihood,
        model: gpytorch.models.GP,
        num_data: int,
        objective: PointLoss | str,
        beta: float | Tensor = 1.0,
        combine_terms: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        loss = resolve_point_loss(objective)
        super().__init__(likelihood, model, num_data, loss, beta, combine_terms, generator)
