"""Likelihoods by the names that users type, with starting values that suit the targets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
)
from directgp.likelihoods.bernoulli import Bernoulli
from directgp.likelihoods.counts import CountLikelihood

Targets = Float[Tensor, " n"]

_QUARTILE = 0.6745
"""Upper quartile of a standard normal."""


@dataclass(frozen=True)
class Family:
    """The likelihoods of one kind of target."""

    makers: dict[str, Callable[[Targets], Likelihood]]
    """By name; each takes the targets to start from."""

    base: type[Any]
    """What a likelihood of the user's own has to be."""

    auto: tuple[str, ...]
    """Those that are compared when none is named, the simplest first."""

    def named(self, name: str, y: Targets) -> Likelihood:
        """The likelihood of that name, with starting values for these targets."""
        return self.makers[name](y).to(y)


def _noise(y: Targets) -> float:
    """A tenth of the variance of the bulk of the targets."""
    spread = float((y - y.median()).abs().median()) / _QUARTILE
    return 0.1 * spread**2 if spread > 0 else 0.1 * max(float(y.var(correction=0)), 1e-6)


def _dispersion(y: Targets) -> float:
    """r by moments, variance = mean + mean²/r, as if the rate were constant."""
    mean, variance = float(y.mean()), float(y.var(correction=0))
    excess = max(variance - mean, 1e-2 * mean, 1e-6)
    return min(max(mean**2 / excess, 0.1), 100.0)


REAL_VALUED = Family(
    {
        "gaussian": lambda y: Gaussian(0.1),
        "student_t": lambda y: StudentT(df=4.0, scale=_noise(y) ** 0.5),
    },
    base=Likelihood,
    auto=("gaussian", "student_t"),
)

LABELS = Family(
    {"probit": lambda y: Probit(), "logistic": lambda y: Logistic()},
    base=Bernoulli,
    auto=("probit",),
)

COUNTS = Family(
    {
        "poisson": lambda y: Poisson(),
        "poisson_softplus": lambda y: Poisson(link="softplus"),
        "negative_binomial": lambda y: NegativeBinomial(_dispersion(y)),
    },
    base=CountLikelihood,
    auto=("poisson", "negative_binomial"),
)
