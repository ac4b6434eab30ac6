"""One likelihood of each family, and marginals in many regimes."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from directgp.likelihoods import (
    Binomial,
    ConwayMaxwellPoisson,
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from directgp.shapes import Marginals

COUNTS: dict[str, Likelihood] = {
    "poisson_exp": Poisson(link="exp"),
    "poisson_softplus": Poisson(link="softplus"),
    "negative_binomial": NegativeBinomial(dispersion=2.5),
    "com_poisson": ConwayMaxwellPoisson.with_nu(3.0),
    "com_poisson_wide": ConwayMaxwellPoisson.with_nu(0.4),
    "binomial": Binomial().with_row_values(torch.tensor(60.0)),
    "zero_inflated_poisson": ZeroInflatedPoisson(zero_odds=0.4),
    "zero_inflated_negative_binomial": ZeroInflatedNegativeBinomial(0.4, dispersion=2.5),
}
LABELS: dict[str, Likelihood] = {"probit": Probit(), "logistic": Logistic()}
REAL: dict[str, Likelihood] = {
    "gaussian": Gaussian(noise=0.25),
    "student_t": StudentT(df=4.0, scale=0.5),
}
FAMILIES: dict[str, Likelihood] = {**COUNTS, **LABELS, **REAL}

SLOW = {"com_poisson", "com_poisson_wide", "zero_inflated_negative_binomial"}
SLOW |= {"log_normal", "beta", "tobit"}
"""Names whose tests are slow ones; of another like them the tests are always run."""


def marked(names: Iterable[str]) -> list[Any]:
    """The names for a parametrised test; those that are slow have the mark."""
    mark = pytest.mark.slow
    return [pytest.param(name, marks=mark) if name in SLOW else name for name in names]


MEANS = [-12.0, -3.0, 0.0, 0.7, 4.0, 12.0]
VARIANCES = [1e-8, 1e-4, 0.01, 1.0, 9.0, 100.0]
GRID = list(itertools.product(MEANS, VARIANCES))


def marginals(*pairs: tuple[float, float], dtype: torch.dtype = torch.float64) -> Marginals:
    """One example for each mean and variance."""
    mean, variance = torch.tensor(pairs, dtype=torch.float64).T.to(dtype)
    return Marginals(mean, variance)


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
