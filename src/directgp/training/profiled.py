"""Objectives of conjugate likelihoods, with the optimal q(u) in closed form."""

import math
from typing import Any, NamedTuple, cast, final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.integration.evaluate import parameter_gradient
from directgp.likelihoods.base import ConjugateLikelihood
from directgp.numerics.arrays import tensor_of
from directgp.numerics.gaussian import kl_from_standard
from directgp.objectives.base import Objective
from directgp.posteriors.collapsed import (
    Whitened,
    collapsed_losses,
    example_noise,
    optimal_q,
    optimal_q_of,
)
from directgp.posteriors.marginals import Gradient, KernelMarginals, KnownSums
from directgp.posteriors.projection import project, project_whitened, residual_variance, whiten
from directgp.shapes import Row
from directgp.training.data import Data, Model, Randomness
from directgp.training.problems import Q_PARAMETERS, ModelProblem, trained_parameters
from directgp.training.run import Eliminated


@final
class ProfiledProblem(ModelProblem):
    """Trains the hyperparameters, unless held, with the closed form of the optimal q(u).

    The value is min over q(u) of the objective. By the envelope theorem its gradient is the
    gradient of the objective with q(u) fixed at the minimum (`directgp.posteriors.collapsed`).
    With `before` nothing is trained: Σ loss + β·KL[q ‖ q_before] has its minimum at `optimal_q`
    of A′ = S_beforeᵀA.
    """

    def __init__(
        self,
        model: Model,
        data: Data,
        objective: Objective,
        randomness: Randomness,
        kind: Eliminated,
        held: bool,
        before: Whitened | None = None,
    ) -> None:
        skipped = (*Q_PARAMETERS, "likelihood.raw_noise") if kind == "square_loss" else Q_PARAMETERS
        named = {} if held else trained_parameters(model)
        free = {name: p for name, p in named.items() if name not in skipped}
        super().__init__(model, data, objective, free, randomness, before=before)
        # `Recipe.eliminated` gives a kind for these likelihoods alone.
        self._conjugate = cast(ConjugateLikelihood, model.likelihood)
        self._kind = kind
        # In float32 the closed form of q(u) needs A in float64.
        wide = data.X.dtype == torch.float64
        fused = model.posterior.prior.fused and before is None and wide
        self._fused = model.posterior.fused(len(data), data.X) if fused else None

    @override
    def recordable(self) -> bool:
        return self.data.X.is_cuda and self._fused is not None

    @override
    def value(self, step: int) -> Float[Tensor, ""]:
        if self._before is None:
            cross = self.posterior.cross(self.data.X)
            self.note_jitter(cross.jitter)
            with torch.no_grad():
                A = whiten(cross.L, cross.Kuf)
                q = self._optimal_q(A, residual_variance(cross.k_diag, A), cross.mean)
            projected = project(*cross[:3], q.u_mean, q.u_chol, A)
            mean = cross.mean
        else:
            A, residual, mean = self.features(self.data.X)
            q = self._optimal_q(A, residual, mean)
            projected = project_whitened(A, residual, *q)
        target = self.data.y - mean
        if self._kind == "square_loss":
            losses = 0.5 * (target - projected.mean) ** 2
            kl = 0.5 * q.u_mean.square().sum(-1)
        else:
            losses = collapsed_losses(self._kind, target, projected, self._conjugate.noise)
            kl = kl_from_standard(q.u_mean, q.u_chol)
        return self.objective.combine(losses, kl, self.data.weights)

    @override
    def value_and_gradient(self, step: int) -> tuple[Float[Tensor, ""], Float[Tensor, " p"]]:
        if self._fused is None:
            return super().value_and_gradient(step)
        fused = self._fused
        likelihood = self._conjugate
        beta = float(self.objective.beta)
        data = self.data
        with torch.no_grad():
            natural = self.posterior.prior.natural()
            fused.set_prior(self.posterior.Z, natural, checked=self.checked)
            self.note_jitter(fused.jitter)
            residual = fused.whiten(data.X)
            target = data.y - natural.plus_constant(torch.zeros_like(residual))
            precision = self._precision(residual)
            gram, b = fused.weighted_gram(precision, precision * target)
            q = optimal_q_of(gram, b, beta, checked=self.checked)
            fused.set_q(*q)
            if self._kind == "square_loss":
                collapsed = self._square_loss(fused, target, precision)
            elif self._kind == "fitc":
                collapsed = self._fitc(fused, target, residual, precision)
            else:
                collapsed = self._vfe(fused, target, residual, precision, gram)
            value, by_mean, by_noise, gradient = collapsed
            kl = 0.5 * q.u_mean.square().sum() if by_noise is None else kl_from_standard(*q)
            gradients = self.prior_gradients(gradient, by_mean)
            if by_noise is not None:
                learned = parameter_gradient(likelihood, (by_noise,), 1.0)
                gradients |= dict(zip(map(id, likelihood.learned()), learned, strict=True))
            value = value + beta / len(data) * kl if beta > 0 else value
            return value, self.joined(gradients)

    def _vfe(
        self,
        fused: KernelMarginals[Any, Any],
        target: Row,
        residual: Row,
        precision: Row,
        gram: Tensor,
    ) -> "_Collapsed":
        """Compute Σ p_i·variance_i from A diag(p) Aᵀ, without the single variances."""
        n = len(target)
        noise = self._conjugate.noise
        S = tensor_of(fused.S)
        error = target - fused.project_mean()
        variances = torch.dot(precision, residual) + (S * (gram @ S)).sum()
        squares = torch.dot(precision, error * error) + variances
        number = precision.sum() * noise
        value = 0.5 / n * (number * torch.log(2 * math.pi * noise) + squares)
        by_mean = precision * error / -n
        by_variance = 0.5 / n * precision
        sums = KnownSums(1 / n, 0.5 / n * variances)
        gradient = fused.gradient(by_mean, by_variance, 0.0, known=sums)
        return _Collapsed(value, by_mean, 0.5 / n * (number - squares) / noise, gradient)

    def _square_loss(
        self, fused: KernelMarginals[Any, Any], target: Row, precision: Row
    ) -> "_Collapsed":
        error = target - fused.project_mean()
        by_mean = precision * error / -len(target)
        sums = KnownSums(0.0, torch.zeros_like(by_mean[0]))
        gradient = fused.gradient(by_mean, torch.zeros_like(by_mean), 0.0, known=sums)
        return _Collapsed(-0.5 * torch.dot(by_mean, error), by_mean, None, gradient)

    def _fitc(
        self, fused: KernelMarginals[Any, Any], target: Row, residual: Row, precision: Row
    ) -> "_Collapsed":
        n = len(target)
        (mean, variance) = fused.project()
        error = target - mean
        share = precision / n
        by_mean = -share * error
        by_variance = 0.5 * share
        spread = self._conjugate.noise + residual
        ratio = (error * error + (variance - residual)) / spread
        by_spread = by_variance * (1 - ratio)
        losses = torch.log(2 * math.pi * spread) + ratio
        sums = KnownSums(1 / n, torch.dot(by_variance, variance))
        gradient = fused.gradient(by_mean, by_variance, 0.0, by_spread - by_variance, known=sums)
        return _Collapsed(0.5 * torch.dot(share * spread, losses), by_mean, by_spread, gradient)

    def _precision(self, residual: Row) -> Row:
        """Return the weight of each example over its variance around a_iᵀw."""
        weights = 1 if self.data.weights is None else self.data.weights
        if self._kind == "square_loss":
            return weights * torch.ones_like(residual)
        return weights / example_noise(self._kind, self._conjugate.noise, residual)

    @override
    def write_q(self) -> None:
        features = self.features(self.data.X)
        with torch.no_grad():
            self.posterior.set_q(*self._optimal_q(*features))

    def _optimal_q(self, A: Tensor, residual: Tensor, mean: Tensor) -> Whitened:
        """Return the optimal q(u) for the current hyperparameters."""
        beta = float(self.objective.beta)
        return optimal_q(A, self.data.y - mean, self._precision(residual), beta)


class _Collapsed(NamedTuple):
    """A collapsed objective without its KL, and its gradient with q(u) held."""

    value: Float[Tensor, ""]
    """The mean loss."""

    by_mean: Row
    """Gradient in the mean of each f_i."""

    by_noise: Tensor | None
    """Gradient in σ², summed or by rows; None for a loss without noise."""

    gradient: Gradient
    """Gradient in Z and the prior's hyperparameters."""
