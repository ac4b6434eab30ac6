"""The update of q(u) by new examples in closed form, for VFE and FITC."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.likelihoods.gaussian import Gaussian
from directgp.numerics.gaussian import kl_from_standard
from directgp.objectives.objective import Objective
from directgp.posteriors.collapsed import (
    Correction,
    Whitened,
    collapsed_losses,
    example_noise,
    optimal_q,
)
from directgp.posteriors.projection import project_whitened
from directgp.posteriors.relative import seen_from
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.data import Data
from directgp.training.problems import ModelProblem, Randomness


@final
class CollapsedUpdate(ModelProblem):
    """Nothing is free: the best q(u), as seen from the one before, is a formula.

    Σ loss + β·KL[q ‖ q_before] has its minimum at `optimal_q` of A′ = S_beforeᵀA.
    """

    def __init__(
        self,
        posterior: SparsePosterior,
        likelihood: Gaussian,
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
        """Give the posterior the best q(u), as seen from the one before."""
        self.posterior.set_q(*self._q)
