"""Labels of K classes, y ∈ {0, …, K−1}, with one latent function for each class."""

import math
from abc import abstractmethod
from typing import TypeVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from directgp.errors import require, require_all
from directgp.integration.contract import Derivatives
from directgp.integration.latents import ReducedIntegrals
from directgp.likelihoods.base import Likelihood
from directgp.likelihoods.numeric import Draws
from directgp.numerics.autograd import Slopes
from directgp.numerics.softmax import (
    expected_log_softmax,
    largest_probability,
    log_expected_softmax,
)
from directgp.shapes import Latents, Row, Targets, Values

SomeCategorical = TypeVar("SomeCategorical", bound="Categorical")


class Categorical(Likelihood):
    """Base of the likelihoods of K classes; f has shape (..., K, n)."""

    task = "classification"

    def __init__(self, num_classes: int | float) -> None:
        super().__init__()
        who = f"num_classes of {type(self).__name__}"
        require(num_classes >= 2, who, "at least 2", num_classes)
        self.num_latent = self.num_classes = int(num_classes)

    @classmethod
    def from_targets(
        cls: type[SomeCategorical], y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> SomeCategorical:
        """Return the likelihood of as many classes as the labels have."""
        return cls(max(2, int(y.max()) + 1))

    @classmethod
    def from_labels(
        cls: type[SomeCategorical], y: Float[Tensor, " n"], num_classes: int
    ) -> SomeCategorical:
        """Return the likelihood that training on labels of this many classes starts from."""
        return cls(num_classes)

    @override
    def settings(self) -> dict[str, float]:
        return {"num_classes": float(self.num_classes)}

    @override
    def check_targets(self, y: Targets) -> None:
        labels = torch.isfinite(y) & (y >= 0) & (y < self.num_classes) & (y == torch.floor(y))
        allowed = f"a label, 0, 1, … or {self.num_classes - 1}"
        require_all(labels, y, f"y of {type(self).__name__}", allowed, "Encode the classes so.")

    @abstractmethod
    def class_probabilities(self, f: Values) -> Values:
        """Return p(k given f) of each class, in the shape of f."""

    def log_class_probabilities(self, mean: Latents, variance: Latents) -> Latents:
        """Return log E_q[p(k given f)] of each class, accurate also where it is tiny."""
        labels = torch.arange(self.num_classes, dtype=mean.dtype, device=mean.device)
        rows = [self.integrate_density(k.expand(mean.shape[-1]), mean, variance)[0] for k in labels]
        return torch.stack(rows)

    @abstractmethod
    def integrate_density(self, y: Row, mean: Latents, variance: Latents) -> Slopes:
        """log E_q[p(y given f)], and its slopes."""

    @override
    def conditional_mean(self, f: Values) -> Values:
        classes = torch.arange(self.num_classes, dtype=f.dtype, device=f.device)[:, None]
        return (self.class_probabilities(f) * classes).sum(-2)

    @override
    def conditional_variance(self, f: Values) -> Values:
        classes = torch.arange(self.num_classes, dtype=f.dtype, device=f.device)[:, None]
        away = classes - self.conditional_mean(f).unsqueeze(-2)
        return (self.class_probabilities(f) * away**2).sum(-2)

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        """Return draws of y given f, with numpy."""
        chances = self.class_probabilities(torch.from_numpy(f)).numpy().cumsum(-2)
        place = random.random_sample(mean.shape)[..., None, :] * chances[..., -1:, :]
        return np.asarray((chances < place).sum(-2), dtype=np.float64)


@final
class Softmax(Categorical):
    """p(y given f) = e^{f_y} / Σ_k e^{f_k}.

    log E_q[p] and E_q[log p] are exact, as integrals over one variable for any number of classes.

    Parameters
    ----------
    num_classes : int
        K ≥ 2.

    Examples
    --------
    >>> import torch, directgp
    >>> mean, variance = torch.zeros(3, 1), torch.ones(3, 1)
    >>> directgp.log_expectation(Softmax(3), torch.tensor([2]), mean, variance)
    tensor([-1.0986])
    """

    integration = ReducedIntegrals(log_concave=True, fixed_work=True)

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        return _label_of(f, y) - torch.logsumexp(f, -2)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        chance = torch.softmax(f, -2)
        first = -chance
        index = _index(f, y)
        first.scatter_add_(-2, index, torch.ones_like(index, dtype=f.dtype))
        return Derivatives(self.log_kernel(y, f), first, chance * (chance - 1))

    @override
    def class_probabilities(self, f: Values) -> Values:
        return torch.softmax(self.logits(f), -2)

    def logits(self, f: Values) -> Values:
        """Return f."""
        return f

    @override
    def integrate_density(self, y: Row, mean: Latents, variance: Latents) -> Slopes:
        """log E_q[p(y given f)], and its slopes."""
        return log_expected_softmax(y, mean, variance)

    def integrate_log_density(self, y: Row, mean: Latents, variance: Latents) -> Slopes:
        """E_q[log p(y given f)], and its slopes."""
        return expected_log_softmax(y, mean, variance)


def _index(f: Values, y: Values) -> Tensor:
    shape = *f.shape[:-2], 1, f.shape[-1]
    return y.long().unsqueeze(-2).expand(shape)


def _label_of(f: Values, y: Values) -> Values:
    """Return f_y."""
    return f.gather(-2, _index(f, y)).squeeze(-2)


@final
class RobustMax(Categorical):
    """p(y given f) = 1 − ε if f_y is the largest f_k, else ε/(K−1): a share ε of labels is wrong.

    log E_q[p] and E_q[log p] follow from P(f_y is the largest), an integral over one variable. p
    is not smooth in f, so that Monte Carlo rules have no gradient.

    Parameters
    ----------
    num_classes : int
        K ≥ 2.
    epsilon : float
        ε between 0 and 1 − 1/K.
    """

    integration = ReducedIntegrals(smooth=False)

    def __init__(self, num_classes: int | float, epsilon: float = 1e-3) -> None:
        super().__init__(num_classes)
        allowed = "between 0 and 1 − 1/K, ends excluded"
        inside = 0 < epsilon < 1 - 1 / num_classes
        require(inside, "epsilon of RobustMax", allowed, epsilon)
        self.epsilon = float(epsilon)

    @override
    def settings(self) -> dict[str, float]:
        return super().settings() | {"epsilon": self.epsilon}

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        high, low = self._logs()
        return torch.where(f.argmax(-2) == y, high, low).to(f.dtype)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        flat = torch.zeros_like(f)
        return Derivatives(self.log_kernel(y, f), flat, flat)

    @override
    def class_probabilities(self, f: Values) -> Values:
        high, low = self._logs()
        largest = f.argmax(-2, keepdim=True)
        rest = torch.full_like(f, math.exp(low))
        return rest.scatter_(-2, largest, math.exp(high))

    def _logs(self) -> tuple[float, float]:
        """log(1 − ε) and log(ε/(K−1))."""
        return math.log1p(-self.epsilon), math.log(self.epsilon / (self.num_classes - 1))

    @override
    def integrate_density(self, y: Row, mean: Latents, variance: Latents) -> Slopes:
        """log(low + (high − low)·P), P = P(f_y is the largest), and its slopes."""
        chance, *slopes = largest_probability(y, mean, variance)
        high, low = map(math.exp, self._logs())
        total = low + (high - low) * chance
        return torch.log(total), *((high - low) / total * slope for slope in slopes)

    def integrate_log_density(self, y: Row, mean: Latents, variance: Latents) -> Slopes:
        """log low + (log high − log low)·P, and its slopes."""
        chance, *slopes = largest_probability(y, mean, variance)
        high, low = self._logs()
        return low + (high - low) * chance, *((high - low) * slope for slope in slopes)
