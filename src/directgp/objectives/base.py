"""Define `PointLoss` and `Objective`: (N/n)·Σ point loss + β·KL."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import torch
from jaxtyping import Float, Num
from torch import Tensor
from typing_extensions import override

from directgp.errors import UnsupportedError, require
from directgp.likelihoods.base import Likelihood
from directgp.shapes import BatchedRow, Marginals, require_all


class PointLoss(ABC):
    """The loss of one example given q(f_i) = N(μ_i, v_i), to be minimised.

    It depends on marginals and target alone, not on the posterior, β or the number of data.
    """

    name: ClassVar[str]
    """The name that users type."""

    gibbs: ClassVar[bool] = False
    """Whether it is the mean of a log density over q, as in the ELBO."""

    eliminates: ClassVar[Literal["vfe", "square_loss"] | None] = None
    """The closed form of the optimal q(u) under Gaussian noise, where there is one."""

    unit_power: ClassVar[int] = 0
    """The power of the unit of y by which the loss grows."""

    @property
    def deterministic(self) -> bool:
        """Whether the same arguments give the same numbers."""
        return True

    @property
    def smooth(self) -> bool:
        """Whether the gradient is that of the value, with the random numbers held."""
        return True

    @property
    def threshold(self) -> float:
        """The probability of label 1 above which predicting 1 costs less."""
        return 0.5

    def validation_loss(self) -> "PointLoss":
        """Return the loss to compare trained models by, computed without draws."""
        return self

    def uses_variance(self, likelihood: Likelihood) -> bool:
        """Return whether the loss depends on the variance of f or on the noise.

        If not, they cannot be learnt from it.
        """
        return True

    def fixed_work(self, likelihood: Likelihood) -> bool:
        """Return whether the operations do not depend on the values, as a CUDA graph needs."""
        return True

    @abstractmethod
    def check(self, likelihood: Likelihood) -> None:
        """Raise `UnsupportedError` if the likelihood lacks what the loss needs."""

    @abstractmethod
    def __call__(
        self,
        likelihood: Likelihood,
        y: Num[Tensor, "*#batch n"],
        marginals: Marginals,
        *,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> BatchedRow:
        """Return the loss of each example, differentiable in the marginals and the likelihood.

        Targets are not checked.
        """


class DeterministicLoss(PointLoss):
    """A point loss without draws: computed in float64, returned in the dtype of the mean."""

    _capability: ClassVar[type]
    """The protocol of `directgp.likelihoods.base` that a likelihood must have."""

    _needs: ClassVar[str]
    """The capability in words, for the error message."""

    _remedy: ClassVar[str] = "Use Gaussian, or log_loss."
    """What to do instead, for the error message."""

    @override
    def check(self, likelihood: Likelihood) -> None:
        if not isinstance(likelihood, self._capability):
            name = type(likelihood).__name__
            raise UnsupportedError(
                f"{type(self).__name__} needs {self._needs}. Got {name}. {self._remedy}"
            )

    @final
    @override
    def __call__(
        self,
        likelihood: Likelihood,
        y: Num[Tensor, "*#batch n"],
        marginals: Marginals,
        *,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> BatchedRow:
        self.check(likelihood)
        mean, variance = marginals.mean, marginals.variance
        wide = torch.broadcast_tensors(y.double(), mean.double(), variance.double())
        return self._evaluate(likelihood, *wide).to(mean.dtype)

    @abstractmethod
    def _evaluate(
        self, likelihood: Any, y: BatchedRow, mean: BatchedRow, variance: BatchedRow
    ) -> BatchedRow:
        """Implement `__call__` for float64 tensors of one shape and a checked likelihood."""


@final
@dataclass(frozen=True)
class Objective:
    """The function that training minimises: point loss + β·KL.

    Parameters
    ----------
    point_loss : PointLoss
        The loss of one example.
    num_data : int
        N, the number of training examples, whatever the size of a batch.
    beta : float or tensor
        β ≥ 0, or a grid of values, one for each member of a batch of models.

    Examples
    --------
    >>> import torch
    >>> from directgp import Marginals
    >>> from directgp.likelihoods import Gaussian
    >>> from directgp.objectives import LogLoss, Objective
    >>> y, q = torch.ones(2), Marginals(torch.zeros(2), torch.ones(2))
    >>> objective = Objective(LogLoss(), num_data=2, beta=0.5)
    >>> float(objective(Gaussian(1.0), y, q, kl=torch.tensor(4.0)).detach())
    2.5155...
    """

    point_loss: PointLoss
    num_data: int
    beta: float | Tensor = 1.0

    def __post_init__(self) -> None:
        """Raise `InvalidInputError` for values out of range."""
        require(self.num_data >= 1, "num_data of Objective", "at least 1", self.num_data)
        beta = torch.as_tensor(self.beta).reshape(-1)
        allowed = torch.isfinite(beta) & (beta >= 0)
        require_all(allowed, beta, "beta of Objective", "finite and at least 0")

    def __call__(
        self,
        likelihood: Likelihood,
        y: Num[Tensor, "*#batch n"],
        marginals: Marginals,
        kl: Float[Tensor, "*batch"],
        *,
        weights: Num[Tensor, "*#batch n"] | None = None,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> Float[Tensor, "*batch"]:
        """Return (1/n) Σ_i weight_i·loss_i + (β/N)·KL: the objective over N, from a batch of n."""
        losses = self.point_loss(likelihood, y, marginals, generator=generator, step=step)
        return self.combine(losses, kl, weights)

    def combine(
        self,
        losses: BatchedRow,
        kl: Float[Tensor, "*batch"],
        weights: Num[Tensor, "*#batch n"] | None = None,
    ) -> Float[Tensor, "*batch"]:
        """Return the objective from losses already computed."""
        mean = (losses if weights is None else weights * losses).mean(-1)
        if isinstance(self.beta, Tensor):
            beta = self.beta.to(kl)
            # 0·KL is 0 even where q(u) has collapsed and the KL is infinite.
            share = torch.where(beta > 0, beta * torch.where(beta > 0, kl, 0.0), 0.0)
            return mean + share / self.num_data
        return torch.add(mean, kl, alpha=self.beta / self.num_data) if self.beta > 0 else mean
