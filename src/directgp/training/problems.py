"""Define the problems that an optimiser minimises: objectives as functions of parameters."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.starts import parameter_floors
from directgp.numerics.gaussian import kl_from_standard
from directgp.numerics.linalg import Cholesky
from directgp.numerics.special import softplus_inverse
from directgp.objectives.base import LossGradient, Objective, mean_curvature
from directgp.posteriors.blocks import Projection
from directgp.posteriors.collapsed import Whitened, inverse_factor, relative_features
from directgp.posteriors.marginals import Gradient, KernelMarginals
from directgp.posteriors.projection import project
from directgp.posteriors.sparse import Features, SparsePosterior
from directgp.shapes import BatchedRow, Marginals
from directgp.training.data import Batches, Data, Model, Randomness
from directgp.training.distributed import ProcessGroup


class TrainingProblem(ABC):
    """A function of named parameters; the optimiser changes them, within their lower bounds."""

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
        self.randomness = randomness
        self.batches = batches
        self._group = group
        self.checked = True
        """Whether factorisations are checked at once; not while a CUDA graph is recorded."""
        self.jitter = 0.0
        """Largest jitter that a factorisation has needed."""

    def prepare(self) -> bool:
        """Choose batch and noise of the next `value`; return whether static buffers hold it."""
        self.randomness.begin()
        return self.batches.advance()

    def recordable(self) -> bool:
        """Return whether a CUDA graph can replay `value`: its operations do not depend on data."""
        return False

    @abstractmethod
    def value(self, step: int) -> Float[Tensor, "*batch"]:
        """Return the value of each model of a batch; schedules of samples read the step."""

    def value_and_gradient(self, step: int) -> tuple[Float[Tensor, "*batch"], Float[Tensor, " p"]]:
        """Return the value of each model, and the gradient of their sum.

        The gradient is one vector, in the order of the parameters.
        """
        # Free the last gradient first: the tensors of the value take its memory.
        for parameter in self.parameters.values():
            parameter.grad = None
        value = self.value(step)
        value.sum().backward()
        gradients = {id(p): p.grad for p in self.parameters.values() if p.grad is not None}
        return value.detach(), self.joined(gradients)

    @final
    def joined(self, gradients: Mapping[int, Tensor]) -> Float[Tensor, " p"]:
        """Join gradients, given by the id of their parameter, to one vector; a missing one is 0."""
        parts = []
        for parameter in self.parameters.values():
            gradient = gradients.get(id(parameter))
            parts.append(torch.zeros_like(parameter) if gradient is None else gradient)
        return torch.cat([part.reshape(-1) for part in parts])

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
        """Write q(u) to the posterior if the problem keeps it elsewhere or in closed form."""
        return None

    def note_jitter(self, jitter: Float[Tensor, "*batch"]) -> None:
        """Update the largest jitter, from a checked factorisation."""
        if self.checked:
            self.jitter = max(self.jitter, float(jitter.detach().max()))


Q_PARAMETERS = ("u_mean", "u_chol")


def trained_parameters(model: Model) -> dict[str, nn.Parameter]:
    """Return every parameter that requires a gradient, by name."""
    named = [*model.posterior.named_parameters()]
    named += [(f"likelihood.{name}", p) for name, p in model.likelihood.named_parameters()]
    return {name: p for name, p in named if p.requires_grad}


class ModelProblem(TrainingProblem):
    """An objective of a model and data; `group` averages it over several processes.

    With `before`, an earlier q(u) that replaces the prior, the posterior holds q(u) relative to it
    (`directgp.posteriors.collapsed`).
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
        self.posterior, self.likelihood = model
        self.data = data
        self.objective = objective
        self._before = before
        exact = objective.point_loss.deterministic or randomness.frozen
        self.deterministic = exact and self.batches.whole
        self._factor: Cholesky | None = None
        self._fused: KernelMarginals[Any, Any] | None = None

    @override
    def threads(self) -> AbstractContextManager[None]:
        return nullcontext() if self._fused is None else self._fused.threads()

    def prior_gradients(
        self, gradient_in_prior: Gradient, by_mean: BatchedRow
    ) -> dict[int, Tensor]:
        """Return the gradients in Z and the prior's parameters, by the id of the parameter."""
        Z = self.posterior.Z
        prior = self.posterior.prior
        by_Z = gradient_in_prior.Z
        natural = gradient_in_prior.kernel, gradient_in_prior.log_scale, by_mean.sum(-1)
        if self.posterior.num_latent > 1:
            # Sum over the latents: they may share Z and the kernel.
            by_Z = by_Z.sum_to_size(Z.shape)
            natural = prior.summed(*natural)
        return {id(Z): by_Z} | {id(p): gradient for p, gradient in prior.raw_gradients(*natural)}

    def features(self, X: Float[Tensor, "n d"]) -> Features:
        """Return the features of inputs that q(u) multiplies; relative to `before` if given."""
        features = self.posterior.features(X, self._factor)
        return features if self._before is None else relative_features(self._before, features)


_MIN_FRAME_BETA = 1e-6
"""Smallest β in the frame while hyperparameters change. With few examples and β = 0, P is nearly
singular, and its null space changes with every step."""

_RELATIVE_DEVIATION = 1e-3
"""Lower bound of the noise's standard deviation, relative to the spread of the targets."""


def floors(
    posterior: SparsePosterior, likelihood: Likelihood, y: Num[Tensor, " n"]
) -> dict[str, float]:
    """Return the lower bound of each bounded raw parameter, by name.

    Joint log-loss training may drive the noise towards 0, and let the variance of f explain the
    targets. Constant targets may drive the output scale of the kernel, or the scale of a
    `ScaleKernel`, towards 0: their bound is where the variance of f would soon underflow.
    """
    smallest = torch.finfo(posterior.Z.dtype).tiny ** 0.5
    bounds = {"prior.raw_output_scale": smallest, "prior.kernel.raw_outputscale": smallest}
    noise_bounds = parameter_floors(likelihood, _RELATIVE_DEVIATION * _spread(y))
    bounds |= {f"likelihood.{name}": floor for name, floor in noise_bounds.items()}
    values = torch.tensor([*bounds.values()], dtype=torch.float64)
    return dict(zip(bounds, softplus_inverse(values).tolist(), strict=True))


def _spread(y: Num[Tensor, " n"]) -> float:
    """Return a robust standard deviation: interquartile range / 1.349, the range of N(0, 1)."""
    if len(y) == 0:
        return 1.0
    wide = y.double()
    quarter = len(y) // 4
    lower, upper = wide.sort().values[[quarter, len(y) - 1 - quarter]]
    for spread in ((upper - lower) / 1.349, wide.std(correction=0), wide.abs().max()):
        if float(spread) > 0:
            return float(spread)
    return 1.0


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
        so in each column of u_chol. Without fixed hyperparameters β has a smallest value here; the
        frame only scales the steps. Returns None where the curvature is not finite.
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
        fixed = len(self.parameters) == len(Q_PARAMETERS)
        smallest = 0.0 if fixed else _MIN_FRAME_BETA
        factor = inverse_factor(gram, max(float(self.objective.beta), smallest))
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
            self._m = nn.Parameter((L @ posterior.u_mean.unsqueeze(-1)).squeeze(-1))
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
        kl = self.posterior.total(kl_from_standard(*q))
        return Marginals(cross.mean + projected.mean, projected.variance), kl

    def _whitened(self, L: Float[Tensor, "*#latent m m"]) -> Whitened:
        both = torch.cat([self._m.unsqueeze(-1), self._C.tril()], -1)
        solved: Tensor = torch.linalg.solve_triangular(L, both, upper=False)
        return Whitened(solved[..., 0], solved[..., 1:])

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
