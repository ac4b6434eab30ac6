"""Define the functions that training minimises, of a model, its data and an objective."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast, final

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.integration.parameters import parameter_gradient
from directgp.likelihoods.base import ConjugateLikelihood, Likelihood
from directgp.likelihoods.starts import parameter_floors
from directgp.numerics.arrays import tensor_of
from directgp.numerics.gaussian import kl_from_standard
from directgp.numerics.linalg import Cholesky
from directgp.numerics.special import softplus_inverse
from directgp.objectives.base import LossGradient, Objective, mean_curvature
from directgp.posteriors.blocks import Projection
from directgp.posteriors.collapsed import (
    Whitened,
    collapsed_losses,
    example_noise,
    inverse_factor,
    optimal_q,
    optimal_q_of,
    relative_features,
)
from directgp.posteriors.projection import project, project_whitened, residual_variance, whiten
from directgp.posteriors.sparse import Features, SparsePosterior
from directgp.posteriors.stationary import Gradient, KnownSums, StationaryMarginals
from directgp.shapes import BatchedRow, Marginals, Row
from directgp.training.batches import Batches, Randomness
from directgp.training.data import Data, Model
from directgp.training.distributed import ProcessGroup
from directgp.training.run import Eliminated


class TrainingProblem(ABC):
    """A function of named parameters, which the optimiser changes, some with lower bounds."""

    deterministic: bool = True
    """Whether the same parameters give the same value."""

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        floors: dict[str, float],
        randomness: Randomness,
        batches: Batches,
        group: ProcessGroup | None = None,
    ) -> None:
        self.parameters = parameters
        self.floors = {name: floor for name, floor in floors.items() if name in parameters}
        self.randomness, self.batches, self._group = randomness, batches, group
        self.checked = True
        """Whether factorisations are checked at once; not while a CUDA graph is recorded."""
        self.jitter = 0.0
        """Largest jitter that a factorisation has needed."""

    def prepare(self) -> bool:
        """Choose batch and noise of the next `value`; return whether static buffers hold it."""
        self.randomness.begin()
        return self.batches.advance()

    def recordable(self) -> bool:
        """Whether a CUDA graph can replay `value`: the same work whatever the numbers."""
        return False

    @abstractmethod
    def value(self, step: int) -> Float[Tensor, "*batch"]:
        """Return the value of each model of a batch; schedules of samples read the step."""

    def value_and_gradient(self, step: int) -> tuple[Float[Tensor, "*batch"], Float[Tensor, " p"]]:
        """Return the value of each model, and the gradient of their sum.

        The gradient is one vector, in the order of the parameters.
        """
        # Before the value: its tensors take the memory of the last gradient.
        for parameter in self.parameters.values():
            parameter.grad = None
        value = self.value(step)
        value.sum().backward()
        found = {id(p): p.grad for p in self.parameters.values() if p.grad is not None}
        return value.detach(), self.joined(found)

    @final
    def joined(self, gradients: Mapping[int, Tensor]) -> Float[Tensor, " p"]:
        """Return gradients as one vector, given by the id of their parameter; 0 if not given."""
        parts = (gradients.get(id(p)) for p in self.parameters.values())
        named = zip(self.parameters.values(), parts, strict=True)
        wanted = [torch.zeros_like(p) if g is None else g for p, g in named]
        return torch.cat([gradient.reshape(-1) for gradient in wanted])

    def threads(self) -> AbstractContextManager[None]:
        """Return a context with the number of threads for this problem."""
        return nullcontext()

    def average(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the means of losses and gradients over the processes."""
        return tensors if self._group is None else self._group.mean(tensors)

    def frame(self) -> Float[Tensor, "*latent m m"] | None:
        """Return a lower triangular C that makes the curvature in C⁻¹·u_mean and C⁻¹·u_chol ≈ 1.

        None where q(u) is not among the parameters.
        """
        return None

    def at_floor(self) -> tuple[str, ...]:
        """Return the names of parameters at their lower bound."""
        named = self.parameters
        return tuple(n for n, low in self.floors.items() if bool((named[n].detach() <= low).any()))

    def write_q(self) -> None:
        """Set q(u) of the posterior, where a formula gives it."""
        return None

    def note_jitter(self, jitter: Float[Tensor, "*batch"]) -> None:
        """Keep the largest jitter of checked factorisations."""
        if self.checked:
            self.jitter = max(self.jitter, float(jitter.detach().max()))


_Q = ("u_mean", "u_chol")


def _trained_parameters(model: Model) -> dict[str, nn.Parameter]:
    """Return every parameter that requires a gradient, by name."""
    named = [*model.posterior.named_parameters()]
    named += [(f"likelihood.{name}", p) for name, p in model.likelihood.named_parameters()]
    return {name: p for name, p in named if p.requires_grad}


class ModelProblem(TrainingProblem):
    """An objective of a model and data; `group` has the means over several processes.

    With `before`, an earlier q(u) that takes the place of the prior, the posterior holds q(u)
    relative to it (`directgp.posteriors.collapsed`).
    """

    def __init__(
        self,
        model: Model,
        data: Data,
        objective: Objective,
        parameters: dict[str, nn.Parameter],
        randomness: Randomness,
        batches: Batches | None = None,
        group: ProcessGroup | None = None,
        before: Whitened | None = None,
    ) -> None:
        y = data.y if data.weights is None else data.y[data.weights > 0]
        bounds = floors(model.posterior, model.likelihood, y)
        super().__init__(parameters, bounds, randomness, batches or Batches(data), group)
        self.posterior, self.likelihood, _ = model
        self.data, self.objective, self._before = data, objective, before
        exact = objective.point_loss.deterministic or randomness.frozen
        self.deterministic = exact and self.batches.whole
        self._factor: Cholesky | None = None
        self._fused: StationaryMarginals | None = None

    @override
    def threads(self) -> AbstractContextManager[None]:
        return nullcontext() if self._fused is None else self._fused.threads()

    def prior_gradients(self, found: Gradient, by_mean: BatchedRow) -> dict[int, Tensor]:
        """Return the gradients in Z and the prior's parameters, by the id of the parameter."""
        Z, prior = self.posterior.Z, self.posterior.prior
        in_Z, *natural = found.Z, found.lengthscale, found.log_scale, by_mean.sum(-1)
        if self.posterior.num_latent > 1:
            # Latents may share Z and the kernel.
            in_Z, natural = in_Z.sum_to_size(Z.shape), prior.summed(*natural)
        return {id(Z): in_Z} | {id(p): gradient for p, gradient in prior.raw_gradients(*natural)}

    def features(self, X: Float[Tensor, "n d"]) -> Features:
        """Return the features of the inputs to which q(u) is applied."""
        features = self.posterior.features(X, self._factor)
        return features if self._before is None else relative_features(self._before, features)


class QProblem(ModelProblem):
    """An objective with q(u) among its parameters."""

    @override
    def recordable(self) -> bool:
        if not (self.data.X.is_cuda and self._group is None and self.posterior.prior.fused):
            return False
        # The likelihood of a user may read values, which a graph cannot.
        fixed = self.likelihood.integration.fixed_work
        return fixed and self.objective.point_loss.fixed_work(self.likelihood)

    @final
    @override
    def value(self, step: int) -> Float[Tensor, "*batch"]:
        data, likelihood = self.batches.examples(self.likelihood)
        marginals, kl = self.q(data.X)
        random, loss = self.randomness.generator, self.objective.point_loss
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
        random, objective = self.randomness.generator, self.objective
        found = objective.point_loss.gradient(
            likelihood, data.y, marginals, share, generator=random, step=step
        )
        return objective.combine(found.losses, kl, data.weights), found

    @property
    def _kl_weight(self) -> float | Tensor:
        beta, number = self.objective.beta, self.objective.num_data
        return beta.to(self.data.X) / number if isinstance(beta, Tensor) else float(beta / number)

    @override
    def frame(self) -> Float[Tensor, "*latent m m"] | None:
        """C with C Cᵀ = N·P⁻¹, P = β I + A diag(p) Aᵀ, p the curvature of the loss in the mean.

        N·P⁻¹ is then the inverse curvature of the objective in u_mean, and about that in each
        column of u_chol. Losses other than the ELBO's count as log loss here. None where the
        curvature is not finite.
        """
        if any(name not in self.parameters for name in _Q):
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
        super().__init__(model, data, objective, _trained_parameters(model), *others)
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
        fused, posterior = self._fused, self.posterior
        with torch.no_grad():
            data, likelihood = self.batches.examples(self.likelihood)
            natural = posterior.prior.natural()
            fused.set_prior(posterior.Z, natural, checked=self.checked)
            self.note_jitter(fused.jitter)
            fused.set_q(posterior.u_mean, posterior.u_chol)
            # On a GPU, while K_uu is factorised.
            kl = posterior.total(fused.kl())
            mean, variance = fused.marginals(data.X)
            marginals = Marginals(natural.plus_constant(mean), variance)
            value, loss = self._point_losses(data, likelihood, marginals, kl, step)
            found = fused.gradient(loss.mean, loss.variance, self._kl_weight)
            gradients = self.prior_gradients(found, loss.mean)
            gradients |= {id(posterior.u_mean): found.u_mean, id(posterior.u_chol): found.u_chol}
            gradients |= dict(zip(map(id, likelihood.learned()), loss.parameters, strict=True))
            return value, self.joined(gradients)


@final
class UnwhitenedProblem(QProblem):
    """Trains m = L·u_mean, V = C Cᵀ with C = L·u_chol, and the hyperparameters; K_uu = L Lᵀ.

    A step of Adam differs from one of `FreeProblem`, the optimum does not.
    """

    def __init__(self, model: Model, data: Data, objective: Objective, *others: Any) -> None:
        posterior = model.posterior
        clear_above_diagonal(posterior)
        with torch.no_grad():
            L = posterior.factor().L
            self._m = nn.Parameter(L @ posterior.u_mean)
            self._C = nn.Parameter(L @ posterior.u_chol)
        named = _trained_parameters(model)
        free = {name: p for name, p in named.items() if name not in _Q}
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
    """Trains q(u) alone; the features of the examples are computed once."""

    def __init__(self, model: Model, data: Data, objective: Objective, *others: Any) -> None:
        held = Model(model.posterior, model.likelihood.frozen())
        parameters = {name: getattr(model.posterior, name) for name in _Q}
        super().__init__(held, data, objective, parameters, *others)
        with torch.no_grad():
            self._factor = self.posterior.factor()
        clear_above_diagonal(self.posterior)
        self._features: Features | None = None
        if self.batches.whole:
            X, q = self.batches.examples(self.likelihood)[0].X, self.posterior.u_mean
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
        projection, (u_mean, u_chol) = self._projection, self.parameters.values()
        with torch.no_grad():
            data, likelihood = self.batches.examples(self.likelihood)
            projection.set_q(u_mean, u_chol)
            mean, variance = projection.project()
            marginals = Marginals(self._features.mean + mean, variance)
            kl = self.posterior.total(projection.kl())
            value, loss = self._point_losses(data, likelihood, marginals, kl, step)
            found = projection.gradient_in_q(loss.mean, loss.variance, self._kl_weight)
            return value, torch.cat([found.u_mean.reshape(-1), found.u_chol.reshape(-1)])


@final
class ProfiledProblem(ModelProblem):
    """Trains the hyperparameters, unless held, with the closed form of the optimal q(u).

    The value is the minimum over q(u) of the objective, its gradient that of the objective with
    q(u) fixed at the minimum (`directgp.posteriors.collapsed`). With `before`, nothing is trained:
    Σ loss + β·KL[q ‖ q_before] has its minimum at `optimal_q` of A′ = S_beforeᵀA.
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
        skipped = (*_Q, "likelihood.raw_noise") if kind == "square_loss" else _Q
        named = {} if held else _trained_parameters(model)
        free = {name: p for name, p in named.items() if name not in skipped}
        super().__init__(model, data, objective, free, randomness, before=before)
        # `Recipe.eliminated` gives a kind for these likelihoods alone.
        self._conjugate, self._kind = cast(ConjugateLikelihood, model.likelihood), kind
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
            projected, mean = project(*cross[:3], q.u_mean, q.u_chol, A), cross.mean
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
        fused, likelihood = self._fused, self._conjugate
        beta, data = float(self.objective.beta), self.data
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
            value, by_mean, by_noise, found = collapsed
            kl = 0.5 * q.u_mean.square().sum() if by_noise is None else kl_from_standard(*q)
            gradients = self.prior_gradients(found, by_mean)
            if by_noise is not None:
                learned = parameter_gradient(likelihood, (by_noise,), 1.0)
                gradients |= dict(zip(map(id, likelihood.learned()), learned, strict=True))
            value = value + beta / len(data) * kl if beta > 0 else value
            return value, self.joined(gradients)

    def _vfe(
        self, fused: StationaryMarginals, target: Row, residual: Row, precision: Row, gram: Tensor
    ) -> "_Collapsed":
        """Σ p_i·variance_i comes from A diag(p) Aᵀ: the variances themselves are not needed."""
        n, noise, S = len(target), self._conjugate.noise, tensor_of(fused.S)
        error = target - fused.project_mean()
        variances = torch.dot(precision, residual) + (S * (gram @ S)).sum()
        squares = torch.dot(precision, error * error) + variances
        number = precision.sum() * noise
        value = 0.5 / n * (number * torch.log(2 * math.pi * noise) + squares)
        by_mean, by_variance = precision * error / -n, 0.5 / n * precision
        known = KnownSums(1 / n, 0.5 / n * variances)
        found = fused.gradient(by_mean, by_variance, 0.0, known=known)
        return _Collapsed(value, by_mean, 0.5 / n * (number - squares) / noise, found)

    def _square_loss(self, fused: StationaryMarginals, target: Row, precision: Row) -> "_Collapsed":
        error = target - fused.project_mean()
        by_mean = precision * error / -len(target)
        known = KnownSums(0.0, torch.zeros_like(by_mean[0]))
        found = fused.gradient(by_mean, torch.zeros_like(by_mean), 0.0, known=known)
        return _Collapsed(-0.5 * torch.dot(by_mean, error), by_mean, None, found)

    def _fitc(
        self, fused: StationaryMarginals, target: Row, residual: Row, precision: Row
    ) -> "_Collapsed":
        n, (mean, variance) = len(target), fused.project()
        error, share = target - mean, precision / n
        by_mean, by_variance = -share * error, 0.5 * share
        spread = self._conjugate.noise + residual
        ratio = (error * error + (variance - residual)) / spread
        by_spread = by_variance * (1 - ratio)
        losses = torch.log(2 * math.pi * spread) + ratio
        known = KnownSums(1 / n, torch.dot(by_variance, variance))
        found = fused.gradient(by_mean, by_variance, 0.0, by_spread - by_variance, known=known)
        return _Collapsed(0.5 * torch.dot(share * spread, losses), by_mean, by_spread, found)

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
    by_mean: Row
    by_noise: Tensor | None
    found: Gradient
    """`by_noise` is in σ², summed or by rows; None for a loss without noise."""


def clear_above_diagonal(posterior: SparsePosterior) -> None:
    """Set the entries of u_chol that are not used to 0."""
    with torch.no_grad():
        posterior.u_chol.copy_(posterior.u_chol.tril())


_RELATIVE_DEVIATION = 1e-3
"""Lower bound of the noise's standard deviation, relative to the spread of the targets."""


def floors(
    posterior: SparsePosterior, likelihood: Likelihood, y: Num[Tensor, " n"]
) -> dict[str, float]:
    """Return the lower bound of each raw parameter that has one, by name.

    Joint log-loss training may drive the noise towards 0, and let the variance of f explain the
    targets. Targets that do not vary may drive the output scale of the kernel towards 0: its bound
    is where the variance of f would soon underflow.
    """
    found = {"prior.raw_output_scale": torch.finfo(posterior.Z.dtype).tiny ** 0.5}
    own = parameter_floors(likelihood, _RELATIVE_DEVIATION * _spread(y))
    found |= {f"likelihood.{name}": floor for name, floor in own.items()}
    values = torch.tensor([*found.values()], dtype=torch.float64)
    return dict(zip(found, softplus_inverse(values).tolist(), strict=True))


def _spread(y: Num[Tensor, " n"]) -> float:
    """Return the interquartile range over that of a standard normal, robust to outliers."""
    if len(y) == 0:
        return 1.0
    wide, quarter = y.double(), len(y) // 4
    lower, upper = wide.sort().values[[quarter, len(y) - 1 - quarter]]
    for spread in ((upper - lower) / 1.349, wide.std(correction=0), wide.abs().max()):
        if float(spread) > 0:
            return float(spread)
    return 1.0
