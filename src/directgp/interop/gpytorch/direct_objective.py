"""What the objectives share: losses of checked examples, KL, priors and added losses."""

from typing import Any, TypeAlias

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood as GPyTorchBase
from gpytorch.mlls._approximate_mll import _ApproximateMarginalLogLikelihood
from gpytorch.models.deep_gps import DeepGP
from torch import Tensor
from torch.distributions import Distribution
from typing_extensions import override

from directgp.errors import UnsupportedError
from directgp.interop.gpytorch.given import (
    check_noiseless,
    check_observed,
    check_targets,
    checked_normal,
    missing,
)
from directgp.interop.gpytorch.likelihood import GPyTorchLikelihood
from directgp.interop.gpytorch.translating import check_one_dimensional, translated
from directgp.likelihoods.base import Likelihood
from directgp.log_expectations.evaluate import check_arguments
from directgp.objectives.base import PointLoss
from directgp.objectives.objective import Objective
from directgp.shapes import Marginals

AnyLikelihood: TypeAlias = GPyTorchBase | Likelihood


class DirectObjective(_ApproximateMarginalLogLikelihood):
    """−(1/n) Σ_i loss_i − (β/N)·KL, plus the log priors less the added losses of the model.

    It is called with q(f) = ``model(x)`` and targets, as `gpytorch.mlls.VariationalELBO` is, and
    with what the likelihood's ``forward`` needs besides. For outputs of several tasks the losses of
    an example are summed over its tasks.
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
        # What it refuses is refused before the first step.
        Objective(point_loss, num_data, beta)
        if isinstance(likelihood, Likelihood):
            likelihood = GPyTorchLikelihood(likelihood)
        check_one_dimensional(likelihood)
        super().__init__(likelihood, model, num_data, beta, combine_terms)
        self.point_loss, self.generator, self.step = point_loss, generator, 0

    @override
    def forward(
        self, approximate_dist_f: Distribution, target: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, ...]:
        """The objective, of the shape of the model's batch; its terms where these are asked for."""
        losses = self._losses(approximate_dist_f, target, args, kwargs)
        self.step += int(self.training)
        # Made anew, since loops that anneal β set it.
        objective = Objective(self.point_loss, self.num_data, self.beta)
        loss = objective.combine(losses, self._kl(losses.shape[:-1]))
        log_prior, added = self._log_prior(losses), self._added_loss(losses)
        if self.combine_terms:
            return log_prior - loss - added
        log_likelihood = -losses.mean(-1)
        return log_likelihood, loss + log_likelihood, log_prior, added

    @override
    def _log_likelihood_term(
        self, approximate_dist_f: Distribution, target: Tensor, **kwargs: Any
    ) -> Tensor:
        return -self._losses(approximate_dist_f, target, (), kwargs).sum(-1)

    def _losses(
        self, output: Distribution, y: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        """The loss of each example."""
        who = type(self).__name__
        q = checked_normal(who, output)
        marginals = Marginals(q.mean, q.variance)
        check_noiseless(who, q, marginals.variance, self.likelihood, self.model)
        check_targets(who, y, q)
        likelihood = translated(self.likelihood, q.mean.shape, args, kwargs)
        losses = self._observed(likelihood, y, marginals)
        if isinstance(self.model, DeepGP):
            losses = self._over_samples(losses)
        return losses.sum(-1) if len(q.event_shape) > 1 else losses

    def _observed(self, likelihood: Likelihood, y: Tensor, q: Marginals) -> Tensor:
        """The losses, 0 where a target is missing and may be."""
        gone = missing(self.likelihood, y)
        if gone is None:
            check_observed(type(self).__name__, y)
            return self._checked(likelihood, y, q)
        # Before some are taken, for it is of all that the likelihood has the shape.
        likelihood.check_shape(tuple(q.mean.shape))
        there = ~gone.expand(q.mean.shape)
        some = Marginals(q.mean[there], q.variance[there])
        nothing = torch.zeros_like(q.mean)
        if not bool(there.any()):
            return nothing
        losses = self._checked(likelihood.take(there), y.expand(q.mean.shape)[there], some)
        return nothing.masked_scatter(there, losses)

    def _checked(self, likelihood: Likelihood, y: Tensor, q: Marginals) -> Tensor:
        check_arguments(type(self).__name__, likelihood, y, q.mean, q.variance)
        return self.point_loss(likelihood, y, q, generator=self.generator, step=self.step)

    def _over_samples(self, losses: Tensor) -> Tensor:
        """The losses of a deep GP, whose q(f) is a mixture over the first axis."""
        raise UnsupportedError(
            f"{type(self).__name__} has no loss for a deep GP. Got {type(self.model).__name__}. "
            "Use DirectLogLoss or BetaELBO."
        )

    def _kl(self, batch: torch.Size) -> Tensor:
        """KL[q(u) ‖ p(u)] of each model of the batch, summed where one q(f) has several q(u)."""
        kl: Tensor = self.model.variational_strategy.kl_divergence()
        more = kl.dim() - len(batch)
        return kl.sum(tuple(range(more))) if more > 0 else kl.expand(batch)

    def _log_prior(self, like: Tensor) -> Tensor:
        """Σ log p(hyperparameter) / N."""
        total: Tensor = like.new_zeros(())
        for _, module, prior, value_of, _ in self.named_priors():
            total = total + prior.log_prob(value_of(module)).sum()
        return total.div(self.num_data)

    def _added_loss(self, like: Tensor) -> Tensor:
        """What parts of the model add to the loss."""
        total: Tensor = like.new_zeros(())
        for term in self.model.added_loss_terms():
            total = total + term.loss()
        return total
