"""What every rule is: a way to get log E_q[p(y given f)] and its gradient."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor

from directgp.errors import require
from directgp.likelihoods.base import Likelihood
from directgp.numerics.noise import fresh_generator

Values = Float[Tensor, "*batch n"]

Schedule = int | float | Callable[[int], int | float]
"""A number, or a function of the training step."""


@dataclass(frozen=True)
class Moment:
    """When a rule is asked: at which training step, with which source of randomness."""

    step: int = 0
    """Training step, read by schedules."""

    generator: torch.Generator | None = None
    """Source of every random number of the rule; never None for a rule that draws."""


class Rule(ABC):
    """A way to get log E_q[p(y given f)] for q(f) = N(mean, variance), and its gradient.

    The returned tensor's value estimates the log expectation; its backward is the rule's gradient
    estimate with respect to mean, variance and the likelihood's parameters. Whatever the dtype of
    the arguments, the integral is computed in float64 and handed back in the dtype of the mean.
    """

    deterministic: ClassVar[bool]
    """The same arguments give the same numbers, right to the rule's tolerance."""

    unbiased_gradient: ClassVar[bool]
    """The expected gradient is the gradient of log E_q[p(y given f)]."""

    @final
    def __call__(
        self,
        likelihood: Likelihood,
        y: Num[Tensor, "..."] | Bool[Tensor, "..."],
        mean: Float[Tensor, "..."],
        variance: Float[Tensor, "..."],
        *,
        generator: torch.Generator | None = None,
        step: int = 0,
    ) -> Float[Tensor, "..."]:
        """log E_q[p(y given f)] for each example; shapes broadcast, targets are not checked."""
        if generator is None and not self.deterministic:
            generator = fresh_generator(mean.device)
        moment = Moment(step, generator)
        return self._evaluate(likelihood, *of_one_shape(y, mean, variance), moment).to(mean.dtype)

    @abstractmethod
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values, moment: Moment
    ) -> Values:
        """`__call__` on floating tensors of one shape; the rule sees to float64."""


def of_one_shape(
    y: Num[Tensor, "..."] | Bool[Tensor, "..."],
    mean: Float[Tensor, "..."],
    variance: Float[Tensor, "..."],
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Floating targets and marginals, broadcast to one shape; themselves where they are that.

    What is not done here is not part of a graph either.
    """
    target = y if y.is_floating_point() else y.double()
    if target.shape == mean.shape == variance.shape:
        return target, mean, variance
    target, mean, variance = torch.broadcast_tensors(target, mean, variance)
    return target, mean, variance


def at_step(schedule: Schedule, step: int) -> int | float:
    """The value of a schedule at a training step."""
    return schedule(step) if callable(schedule) else schedule


def check_num_samples(num_samples: int | float) -> int:
    """A number of samples, refused below 1."""
    require(num_samples >= 1, "num_samples", "at least 1", num_samples)
    return int(num_samples)
