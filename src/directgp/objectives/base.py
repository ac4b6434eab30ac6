"""What every point loss is: the loss of one example, given its marginals."""

from abc import ABC, abstractmethod
from typing import ClassVar, final

import torch
from jaxtyping import Float, Num
from torch import Tensor
from typing_extensions import override

from directgp.likelihoods.base import Likelihood
from directgp.shapes import Marginals

Values = Float[Tensor, "*batch n"]


class PointLoss(ABC):
    """The loss of one example given q(f_i) = N(μ_i, v_i); minimised.

    It sees marginals and target alone: nothing of the posterior, of β or of the number of data.
    """

    name: ClassVar[str]
    """What users call it."""

    @property
    def deterministic(self) -> bool:
        """The same arguments give the same numbers."""
        return True

    def uses_variance(self, likelihood: Likelihood) -> bool:
        """Whether the variance of f or the noise enters the loss under this likelihood.

        If neither does, they cannot be learnt from it.
        """
        return True

    def fixed_work(self, likelihood: Likelihood) -> bool:
        """Whether it does the same operations whatever the numbers, as a CUDA graph needs."""
        return True

    @abstractmethod
    def check(self, likelihood: Likelihood) -> None:
        """Refuse a likelihood that lacks what the loss needs, and say what would do."""

    @abstractmethod
    def __call__(
        self,
        likelihood: Likelihood,
        y: Num[Tensor, "*#batch n"],
        marginals: Marginals,
        *,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> Float[Tensor, "*batch n"]:
        """The loss of each example, differentiable in the marginals and the likelihood.

        Targets are not checked.
        """


class DeterministicLoss(PointLoss):
    """A point loss that draws nothing: computed in float64, returned in the dtype of the mean."""

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
    ) -> Float[Tensor, "*batch n"]:
        mean, variance = marginals.mean, marginals.variance
        wide = torch.broadcast_tensors(y.double(), mean.double(), variance.double())
        return self._evaluate(likelihood, *wide).to(mean.dtype)

    @abstractmethod
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values
    ) -> Values:
        """`__call__` on float64 tensors of one shape; refuses what `check` refuses."""
