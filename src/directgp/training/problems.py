"""Define the functions that training minimises."""

import math
from abc import ABC, abstractmethod
from typing import Any, Literal, final

import torch
from jaxtyping import Float, Num
from numpy.random import SeedSequence
from torch import Tensor, nn
from typing_extensions import override

from directgp.errors import NumericalError
from directgp.likelihoods.base import ConjugateLikelihood, Likelihood
from directgp.numerics.gaussian import kl_from_standard
from directgp.numerics.linalg import Workspace
from directgp.numerics.special import softplus_inverse
from directgp.objectives.base import Objective
from directgp.objectives.log_losses import mean_curvature
from directgp.posteriors.collapsed import (
    Correction,
    Whitened,
    collapsed_losses,
    example_noise,
    inverse_factor,
    optimal_q,
    seen_from,
)
from directgp.posteriors.projection import project, project_whitened, residual_variance, whiten
from directgp.posteriors.sparse import Features, SparsePosterior
from directgp.shapes import Marginals
from directgp.training.data import Batches, Data, FullBatch
from directgp.training.distributed import ProcessGroup


class Randomness:
    """The random numbers of a stochastic problem.

    Frozen, every evaluation draws the same numbers (common random numbers), so that the value is a
    smooth function of the parameters. With a rank, each of several processes draws
    numbers of its own, from a seed that the generator, the same in all, gives.
    """

    def __init__(self, generator: torch.Generator, frozen: bool, rank: int | None = None) -> None:
        self.generator = generator
        self.frozen = frozen
        self._rank = rank
        if frozen or rank is not None:
            # A generator of its own: setting the seed of the given one would repeat its draws.
            where = generator.device
            self._seed = int(torch.randint(2**62, (), generator=generator, device=where))
            self.generator = torch.Generator(where)
        self.renew(0)

    def begin(self) -> None:
        """Set the seed of frozen numbers; called before each evaluation."""
        if self.frozen:
            self.generator.manual_seed(self._seed)

    def renew(self, step: int) -> None:
        """Set the seed of one of several processes, so that a run can resume at this step."""
        if self._rank is not None:
            mixed = SeedSequence([self._seed, self._rank, step]).generate_state(1, "uint64")
            self.generator.manual_seed(int(mixed[0]) >> 1)


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
        self.randomness, self._group = randomness, group
        self.batches = batches if group is None else group.split(batches)
        self.checked = True
        """Whether factorisations are checked at once; not while a CUDA graph is recorded."""
        self.jitter = 0.0
        """Largest jitter that a factorisation has needed."""

    def prepare(self) -> bool:
        """Choose the batch and the noise of the next `value`.

        Returns whether the batch has the size of the static buffers.
        """
        self.randomness.begin()
        return self.batches.advance()

    def recordable(self) -> bool:
        """Whether a CUDA graph can replay `value`: the same work whatever the numbers."""
        return False

    @abstractmethod
    def value(self, step: int) -> Float[Tensor, "*batch"]:
        """Return the differentiable value, one number for each member of a batch of models.

        Schedules read the step.
        """

    def average(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the means of losses and gradients over the processes."""
        return tensors if self._group is None else self._group.mean(*tensors)

    def frame(self) -> Float[Tensor, "m m"] | None:
        """Return a lower triangular C that makes the curvature in C⁻¹·u_mean and C⁻¹·u_chol ≈ 1.

        None where q(u) is not among the parameters.
        """
        return None

    def at_floor(self) -> tuple[str, ...]:
        """Return the names of parameters at their lower bound."""
        return tuple(
            name
            for name, floor in self.floors.items()
            if bool((self.parameters[name].detach() <= floor).any())
        )

    def note_jitter(self, jitter: Float[Tensor, "*batch"]) -> None:
        """Keep the largest jitter."""
        self.jitter = max(self.jitter, float(jitter.detach().max()))


_Q = ("u_mean", "u_chol")


def trained_parameters(
    posterior: SparsePosterior, likelihood: Likelihood
) -> dict[str, nn.Parameter]:
    """Return every parameter that requires a gradient, by name."""
    named = [(name, p) for name, p in posterior.named_parameters() if p.requires_grad]
    named += [(f"likelihood.{name}", p) for name, p in likelihood.named_parameters()]
    return {name: p for name, p in named if p.requires_grad}


class ModelProblem(TrainingProblem):
    """An objective of a posterior, a likelihood and data."""

    def __init__(
        self,
        posterior: SparsePosterior,
        likelihood: Likelihood,
        data: Data,
        objective: Objective,
        parameters: dict[str, nn.Parameter],
        randomness: Randomness,
        batches: Batches | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        lowest = floors(posterior, likelihood, data.weighted_targets())
        super().__init__(parameters, lowest, randomness, batches or FullBatch(data), group)
        self.posterior, self.likelihood = posterior, likelihood
        self.data, self.objective = data, objective
        exact = objective.point_loss.deterministic or randomness.frozen
        self.deterministic = exact and self.batches.whole

    def features(self, X: Float[Tensor, "n d"]) -> Features:
        """Return the features of the inputs to which q(u) is applied."""
        return self.posterior.features(X)

    @override
    def frame(self) -> Float[Tensor, "m m"] | None:
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
        factor = inverse_factor(features.A, curvature, float(self.objective.beta))
        return math.sqrt(len(self.data)) * factor


class QProblem(ModelProblem):
    """An objective with q(u) among its parameters."""

    @override
    def recordable(self) -> bool:
        if not (self.data.X.is_cuda and self._group is None and self.posterior.prior.fused):
            return False
        return self.objective.point_loss.fixed_work(self.likelihood)

    @final
    @override
    def value(self, step: int) -> Float[Tensor, "*batch"]:
        data, likelihood = self.batches.examples(self.likelihood)
        marginals, kl = self.q(data.X)
        return self.objective(
            likelihood,
            data.y,
            marginals,
            kl,
            weights=data.weights,
            generator=self.randomness.generator,
            step=step,
        )

    @abstractmethod
    def q(self, X: Float[Tensor, "n d"]) -> tuple[Marginals, Float[Tensor, "*batch"]]:
        """Return q(f_i) at the inputs of this step, and the KL."""


@final
class FreeProblem(QProblem):
    """Trains q(u) and the hyperparameters that require a gradient."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._workspace = Workspace()

    @override
    def q(self, X: Float[Tensor, "n d"]) -> tuple[Marginals, Float[Tensor, "*batch"]]:
        fused = self.posterior.fused(X, checked=self.checked, workspace=self._workspace)
        if fused is not None:
            if self.checked:
                self.note_jitter(fused.jitter)
            prior = self.posterior.prior
            mean = fused.mean if prior.centred else prior.mean(X) + fused.mean
            return Marginals(mean, fused.variance), fused.kl
        cross = self.posterior.cross(X, checked=self.checked)
        if self.checked:
            self.note_jitter(cross.jitter)
        return self.posterior.marginals_from(cross), self.posterior.kl()


@final
class HeldProblem(QProblem):
    """Trains q(u) alone; the features of the examples are computed once.

    With `before`, an earlier q(u) that takes the place of the prior, the posterior holds q(u)
    relative to it (`directgp.posteriors.collapsed`).
    """

    def __init__(
        self,
        posterior: SparsePosterior,
        likelihood: Likelihood,
        data: Data,
        objective: Objective,
        randomness: Randomness,
        batches: Batches | None = None,
        group: ProcessGroup | None = None,
        before: Whitened | None = None,
    ) -> None:
        parameters = {name: getattr(posterior, name) for name in _Q}
        held = likelihood.frozen()
        super().__init__(posterior, held, data, objective, parameters, randomness, batches, group)
        with torch.no_grad():
            self._factor = posterior.factor()
        self._before = before
        rows = self.batches.examples(held)[0] if self.batches.whole else None
        self._features = None if rows is None else self.features(rows.X)

    @override
    def features(self, X: Float[Tensor, "n d"]) -> Features:
        features = self.posterior.features(X, self._factor)
        return features if self._before is None else seen_from(self._before, features)

    @override
    def q(self, X: Float[Tensor, "n d"]) -> tuple[Marginals, Float[Tensor, "*batch"]]:
        features = self._features or self.features(X)
        return self.posterior.marginals_at(features), self.posterior.kl()


Eliminated = Literal["vfe", "fitc", "square_loss"]


@final
class ProfiledProblem(ModelProblem):
    """Trains the hyperparameters, with the closed form of the optimal q(u).

    The value is the minimum over q(u) of the objective, its gradient that of the objective with
    q(u) fixed at the minimum (`directgp.posteriors.collapsed`).
    """

    def __init__(
        self,
        posterior: SparsePosterior,
        likelihood: ConjugateLikelihood,
        data: Data,
        objective: Objective,
        kind: Eliminated,
        parameters: dict[str, nn.Parameter],
        randomness: Randomness,
    ) -> None:
        free = {name: p for name, p in parameters.items() if name not in _Q}
        if kind == "square_loss":
            free.pop("likelihood.raw_noise", None)
        super().__init__(posterior, likelihood, data, objective, free, randomness)
        self._conjugate, self._kind = likelihood, kind

    @override
    def value(self, step: int) -> Float[Tensor, ""]:
        cross = self.posterior.cross(self.data.X)
        self.note_jitter(cross.jitter)
        with torch.no_grad():
            A = whiten(cross.L, cross.Kuf)
            q = self._optimal_q(A, residual_variance(cross.k_diag, A), cross.mean)
        projected = project(*cross[:3], q.u_mean, q.u_chol, A)
        target = self.data.y - cross.mean
        if self._kind == "square_loss":
            losses = 0.5 * (target - projected.mean) ** 2
            kl = 0.5 * q.u_mean.square().sum(-1)
        else:
            losses = collapsed_losses(self._kind, target, projected, self._conjugate.noise)
            kl = kl_from_standard(q.u_mean, q.u_chol)
        return self.objective.combine(losses, kl, self.data.weights)

    def write_q(self) -> None:
        """Set the posterior to the optimal q(u)."""
        features = self.posterior.features(self.data.X)
        with torch.no_grad():
            self.posterior.set_q(*self._optimal_q(*features))

    def _optimal_q(self, A: Tensor, residual: Tensor, mean: Tensor) -> Whitened:
        """Return the optimal q(u) for the current hyperparameters."""
        if self._kind == "square_loss":
            noise = torch.ones_like(residual)
        else:
            noise = example_noise(self._kind, self._conjugate.noise, residual)
        weights = 1 if self.data.weights is None else self.data.weights
        beta = float(self.objective.beta)
        return optimal_q(A, self.data.y - mean, weights / noise, beta)


@final
class CollapsedUpdate(ModelProblem):
    """An update with the closed form of the optimal q(u), relative to the one before.

    Σ loss + β·KL[q ‖ q_before] has its minimum at `optimal_q` of A′ = S_beforeᵀA.
    """

    def __init__(
        self,
        posterior: SparsePosterior,
        likelihood: ConjugateLikelihood,
        data: Data,
        objective: Objective,
        kind: Correction,
        before: Whitened,
        randomness: Randomness,
    ) -> None:
        super().__init__(posterior, likelihood, data, objective, {}, randomness)
        self._kind = kind
        with torch.no_grad():
            self._noise = likelihood.noise.detach()
            A, residual, mean = seen_from(before, posterior.features(data.X))
            self._target = data.y - mean
            noise = example_noise(kind, self._noise, residual)
            weights = 1 if data.weights is None else data.weights
            self._q = optimal_q(A, self._target, weights / noise, float(objective.beta))
            self._projected = project_whitened(A, residual, *self._q)

    @override
    def value(self, step: int) -> Float[Tensor, ""]:
        losses = collapsed_losses(self._kind, self._target, self._projected, self._noise)
        return self.objective.combine(losses, kl_from_standard(*self._q), self.data.weights)

    def write_q(self) -> None:
        """Set the posterior to the optimal q(u), relative to the one before."""
        self.posterior.set_q(*self._q)


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
    own = likelihood.floors(_RELATIVE_DEVIATION * _spread(y))
    found |= {f"likelihood.{name}": floor for name, floor in own.items()}
    values = torch.tensor([*found.values()], dtype=torch.float64)
    return dict(zip(found, softplus_inverse(values).tolist(), strict=True))


def _spread(y: Num[Tensor, " n"]) -> float:
    """Return the interquartile range over that of a standard normal, robust to outliers."""
    if len(y) == 0:
        return 1.0
    wide = y.double()
    ordered = wide.sort().values
    quarter = len(y) // 4
    lower, upper = ordered[quarter], ordered[len(y) - 1 - quarter]
    for spread in ((upper - lower) / 1.349, wide.std(correction=0), wide.abs().max()):
        if float(spread) > 0:
            return float(spread)
    return 1.0
