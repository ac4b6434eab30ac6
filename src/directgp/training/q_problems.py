"""Objectives with q(u) among the trained parameters."""

import math
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.likelihoods.base import Likelihood
from directgp.numerics.gaussian import kl_from_standard
from directgp.objectives.base import LossGradient, Objective, mean_curvature
from directgp.posteriors.blocks import Projection
from directgp.posteriors.collapsed import Whitened, inverse_factor
from directgp.posteriors.projection import project
from directgp.posteriors.sparse import Features, SparsePosterior
from directgp.shapes import Marginals
from directgp.training.data import Data, Model
from directgp.training.problems import Q_PARAMETERS, ModelProblem, trained_parameters


class QProblem(ModelProblem):
    """An objective with q(u) among its parameters."""

    @override
    def recordable(self) -> bool:
        if not (self.data.X.is_cuda and self._group is None and self.posterior.prior.fused):
            return False
        # A graph cannot read values on the host, which a user's likelihood may do.
        fixed = self.likelihood.integration.fixed_work
        return fixed and self.objective.point_loss.fixed_work(self.likelihood)

    @final
    @override
    def value(self, step: int) -> Float[Tensor, "*batch"]:
        data, likelihood = self.batches.examples(self.likelihood)
        marginals, kl = self.q(data.X)
        random = self.randomness.generator
        loss = self.objective.point_loss
        losses = loss(likelihood, data.y, marginals, generator=random, step=step)
        return self.objective.combine(losses, kl, data.weights)

    @abstractmethod
    def q(self, X: Float[Tensor, "n d"]) -> tuple[Marginals, Float[Tensor, "*batch"]]:
        """Return q(f_i) at the inputs of this step, and the KL."""

    @final
    def _point_losses(
        self,
        data: Data,
        likelihood: Likelihood,
        marginals: Marginals,
        kl: Float[Tensor, "*batch"],
        step: int,
    ) -> tuple[Float[Tensor, "*batch"], LossGradient]:
        """Return the value, and the gradient of its point losses in the marginals."""
        share: Tensor | float = (
            1 / len(data) if data.weights is None else data.weights.to(data.X) / len(data)
        )
        random = self.randomness.generator
        objective = self.objective
        loss_gradient = objective.point_loss.gradient(
            likelihood, data.y, marginals, share, generator=random, step=step
        )
        return objective.combine(loss_gradient.losses, kl, data.weights), loss_gradient

    @property
    def _kl_weight(self) -> float | Tensor:
        beta = self.objective.beta
        number = self.objective.num_data
        return beta.to(self.data.X) / number if isinstance(beta, Tensor) else float(beta / number)

    @override
    def frame(self) -> Float[Tensor, "*latent m m"] | None:
        """Return C with C Cᵀ = N·P⁻¹, P = β I + A diag(p) Aᵀ, p the curvature of the loss.

        The curvature p is the second derivative in the mean of f; losses other than the ELBO's
        count as log loss. N·P⁻¹ is the inverse curvature of the objective in u_mean, and nearly
        so in each column of u_chol. Returns None where the curvature is not finite.
        """
        if any(name not in self.parameters for name in Q_PARAMETERS):
            return None
        features = self.features(self.data.X)
        with torch.no_grad():
            marginals = self.posterior.marginals_at(features)
        gibbs = self.objective.point_loss.gibbs
        try:
            curvature = mean_curvature(self.likelihood, self.data.y, marginals, gibbs)
        except NumericalError:
            return None
        if self.data.weights is not None:
            curvature = curvature * self.data.weights
        if not bool(curvature.isfinite().all()):
            return None
        wide = features.A.double()
        weights = curvature.double()
        gram = (wide * (weights if weights.dim() == 1 else weights.unsqueeze(-2))) @ wide.mT
        factor = inverse_factor(gram, float(self.objective.beta))
        return math.sqrt(len(self.data)) * factor


@final
class FreeProblem(QProblem):
    """Trains q(u) and the hyperparameters that require a gradient."""

    def __init__(self, model: Model, data: Data, objective: Objective, *others: Any) -> None:
        super().__init__(model, data, objective, trained_parameters(model), *others)
        fused = self.posterior.prior.fused
        whole = data.X if self.batches.whole else None
        self._fused = self.posterior.fused(len(data), whole) if fused else None
        clear_above_diagonal(self.posterior)

    @override
    def q(self, X: Float[Tensor, "n d"]) -> tuple[Marginals, Float[Tensor, "*batch"]]:
        cross = self.posterior.cross(X, checked=self.checked)
        self.note_jitter(cross.jitter)
        return self.posterior.marginals_from(cross), self.posterior.kl()

    @override
    def value_and_gradient(self, step: int) -> tuple[Float[Tensor, "*batch"], Float[Tensor, " p"]]:
        if self._fused is None:
            return super().value_and_gradient(step)
        fused = self._fused
        posterior = self.posterior
        with torch.no_grad():
            data, likelihood = self.batches.examples(self.likelihood)
            natural = posterior.prior.natural()
            fused.set_prior(posterior.Z, natural, checked=self.checked)
            self.note_jitter(fused.jitter)
            fused.set_q(posterior.u_mean, posterior.u_chol)
            # Compute the KL here: a GPU still factorises K_uu.
            kl = posterior.total(fused.kl())
            mean, variance = fused.marginals(data.X)
            marginals = Marginals(natural.plus_constant(mean), variance)
            value, loss = self._point_losses(data, likelihood, marginals, kl, step)
            gradient = fused.gradient(loss.mean, loss.variance, self._kl_weight)
            gradients = self.prior_gradients(gradient, loss.mean)
            gradients |= {
                id(posterior.u_mean): gradient.u_mean,
                id(posterior.u_chol): gradient.u_chol,
            }
            gradients |= dict(zip(map(id, likelihood.learned()), loss.parameters, strict=True))
            return value, self.joined(gradients)


@final
class UnwhitenedProblem(QProblem):
    """Trains m = L·u_mean, V = C Cᵀ with C = L·u_chol, and the hyperparameters; K_uu = L Lᵀ.

    Adam takes other steps than on `FreeProblem`; the optimum is the same.
    """

    def __init__(self, model: Model, data: Data, objective: Objective, *others: Any) -> None:
        posterior = model.posterior
        clear_above_diagonal(posterior)
        with torch.no_grad():
            L = posterior.factor().L
            self._m = nn.Parameter(L @ posterior.u_mean)
            self._C = nn.Parameter(L @ posterior.u_chol)
        named = trained_parameters(model)
        free = {name: p for name, p in named.items() if name not in Q_PARAMETERS}
        parameters = {**free, "m": self._m, "C": self._C}
        super().__init__(model, data, objective, parameters, *others)

    @override
    def q(self, X: Float[Tensor, "n d"]) -> tuple[Marginals, Float[Tensor, "*batch"]]:
        cross = self.posterior.cross(X, checked=self.checked)
        self.note_jitter(cross.jitter)
        q = self._whitened(cross.L)
        projected = project(*cross[:3], *q)
        return Marginals(cross.mean + projected.mean, projected.variance), kl_from_standard(*q)

    def _whitened(self, L: Float[Tensor, "m m"]) -> Whitened:
        both = torch.cat([self._m[:, None], self._C.tril()], 1)
        solved: Tensor = torch.linalg.solve_triangular(L, both, upper=False)
        return Whitened(solved[:, 0], solved[:, 1:])

    @override
    def write_q(self) -> None:
        with torch.no_grad():
            self.posterior.set_q(*self._whitened(self.posterior.factor().L))


@final
class HeldProblem(QProblem):
    """Trains q(u) with fixed hyperparameters; computes the features of the examples once."""

    def __init__(self, model: Model, data: Data, objective: Objective, *others: Any) -> None:
        held = Model(model.posterior, model.likelihood.frozen())
        parameters = {name: getattr(model.posterior, name) for name in Q_PARAMETERS}
        super().__init__(held, data, objective, parameters, *others)
        with torch.no_grad():
            self._factor = self.posterior.factor()
        clear_above_diagonal(self.posterior)
        self._features: Features | None = None
        if self.batches.whole:
            X = self.batches.examples(self.likelihood)[0].X
            q = self.posterior.u_mean
            self._features = self.features(X)
            self._projection = Projection(self._features.A.numel(), X, tuple(q.shape[:-1]))
            self._projection.set_features(self._features.A, self._features.residual)

    @override
    def q(self, X: Float[Tensor, "n d"]) -> tuple[Marginals, Float[Tensor, "*batch"]]:
        features = self._features or self.features(X)
        return self.posterior.marginals_at(features), self.posterior.kl()

    @override
    def threads(self) -> AbstractContextManager[None]:
        return nullcontext() if self._features is None else self._projection.threads()

    @override
    def value_and_gradient(self, step: int) -> tuple[Float[Tensor, "*batch"], Float[Tensor, " p"]]:
        if self._features is None:
            return super().value_and_gradient(step)
        projection = self._projection
        (u_mean, u_chol) = self.parameters.values()
        with torch.no_grad():
            data, likelihood = self.batches.examples(self.likelihood)
            projection.set_q(u_mean, u_chol)
            mean, variance = projection.project()
            marginals = Marginals(self._features.mean + mean, variance)
            kl = self.posterior.total(projection.kl())
            value, loss = self._point_losses(data, likelihood, marginals, kl, step)
            gradient = projection.gradient_in_q(loss.mean, loss.variance, self._kl_weight)
            return value, torch.cat([gradient.u_mean.reshape(-1), gradient.u_chol.reshape(-1)])


def clear_above_diagonal(posterior: SparsePosterior) -> None:
    """Set the unused entries of u_chol, above the diagonal, to 0."""
    with torch.no_grad():
        posterior.u_chol.copy_(posterior.u_chol.tril())
