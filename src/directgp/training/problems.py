"""Define what an optimiser minimises: a function of parameters, and one of a model and data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import final

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn
from typing_extensions import override

from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.starts import parameter_floors
from directgp.numerics.linalg import Cholesky
from directgp.numerics.special import softplus_inverse
from directgp.objectives.base import Objective
from directgp.posteriors.collapsed import Whitened, relative_features
from directgp.posteriors.sparse import Features, SparsePosterior
from directgp.posteriors.stationary import Gradient, StationaryMarginals
from directgp.shapes import BatchedRow
from directgp.training.batches import Batches, Randomness
from directgp.training.data import Data, Model
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
        """Whether a CUDA graph can replay `value`: the same work whatever the numbers."""
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
        """Join gradients, which are found by the id of their parameter; a missing one is 0."""
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
        self.data = data
        self.objective = objective
        self._before = before
        exact = objective.point_loss.deterministic or randomness.frozen
        self.deterministic = exact and self.batches.whole
        self._factor: Cholesky | None = None
        self._fused: StationaryMarginals | None = None

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
        natural = [gradient_in_prior.lengthscale, gradient_in_prior.log_scale, by_mean.sum(-1)]
        if self.posterior.num_latent > 1:
            # Sum over the latents: they may share Z and the kernel.
            by_Z = by_Z.sum_to_size(Z.shape)
            natural = prior.summed(*natural)
        return {id(Z): by_Z} | {id(p): gradient for p, gradient in prior.raw_gradients(*natural)}

    def features(self, X: Float[Tensor, "n d"]) -> Features:
        """Return the features of inputs that q(u) multiplies; relative to `before` if given."""
        features = self.posterior.features(X, self._factor)
        return features if self._before is None else relative_features(self._before, features)


_RELATIVE_DEVIATION = 1e-3
"""Lower bound of the noise's standard deviation, relative to the spread of the targets."""


def floors(
    posterior: SparsePosterior, likelihood: Likelihood, y: Num[Tensor, " n"]
) -> dict[str, float]:
    """Return the lower bound of each bounded raw parameter, by name.

    Joint log-loss training may drive the noise towards 0, and let the variance of f explain the
    targets. Constant targets may drive the output scale of the kernel towards 0: its bound is
    where the variance of f would soon underflow.
    """
    bounds = {"prior.raw_output_scale": torch.finfo(posterior.Z.dtype).tiny ** 0.5}
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
