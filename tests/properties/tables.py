"""The tables of the property tests: likelihoods, rules, and regimes of q.

Every mean, variance and target is a float32 number, so that both precisions meet the same points.
Targets and means are chosen so that no truth is stationary: where a gradient crosses zero, as in
Poisson y = 1, μ = 0, v → 0, no relative error can be asked of it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from directgp.integration import Adaptive
from directgp.interop.gpytorch.translation import (
    Adapted,
    GivenGaussian,
    GivenStudentT,
    MixedSoftmax,
)
from directgp.likelihoods import (
    Beta,
    Binomial,
    ConwayMaxwellPoisson,
    Gamma,
    Gaussian,
    GaussianKnownNoise,
    Likelihood,
    Logistic,
    LogNormal,
    NegativeBinomial,
    OrderedProbit,
    Poisson,
    Probit,
    StudentT,
    Tobit,
    Weibull,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from directgp.likelihoods.capabilities import ClosedFormLogPredictive
from directgp.log_expectations import (
    BiasedMonteCarlo,
    ClosedForm,
    ProductSampling,
    Quadrature,
    Rule,
)
from tests.reference import log_expectation as reference
from tests.reference.log_expectation import Truth


@dataclass(frozen=True)
class LikelihoodRow:
    """One likelihood with parameters, and targets from plausible to absurd."""

    name: str
    """Its name in `tests.reference.log_expectation`."""

    family: Callable[..., Likelihood]
    targets: tuple[float, ...]
    theta: Mapping[str, float] = field(default_factory=dict)
    """Its parameters, by their names in the likelihood and in the reference."""

    discrete: bool = True
    kind: str = ""
    """The kind of its targets; by default real, label or count."""

    absolute: float = 0.0
    """Error that quadrature may have: it sums p itself where that is nearly 1."""

    slow: bool = False
    """Whether most of its tests are slow ones; of another like it the tests are always run."""

    @property
    def target_kind(self) -> str:
        default = "label" if self.targets == (0.0, 1.0) else "count" if self.discrete else "real"
        return self.kind or default

    def make(self, factor: Tensor | None = None) -> Likelihood:
        """The likelihood; with a factor, its parameters are multiplied by it and take its shape."""
        by = torch.ones((), dtype=torch.float64) if factor is None else factor
        return self.family(**{name: by * at for name, at in self.theta.items()})

    def truth(self, point: "Point") -> Truth:
        """log E_q[p] and its slopes."""
        return reference.log_expectation(self.name, *point, **self.theta)

    def gibbs_truth(self, point: "Point") -> Truth:
        """E_q[log p] and its slopes."""
        return reference.expected_log_prob(self.name, *point, **self.theta)


class Regime(NamedTuple):
    """A place and a width of q."""

    name: str
    mean: float
    variance: float


class Point(NamedTuple):
    """One target under one q."""

    y: float
    mean: float
    variance: float


@dataclass(frozen=True)
class RuleRow:
    """One rule, and what it claims."""

    name: str
    rule: Rule
    deterministic: bool
    unbiased_gradient: bool
    max_variance: float = np.inf
    """Up to where a rule with a fixed number of nodes is asked for `tolerance`."""

    tolerance: float = 1e-9
    """Relative error allowed of a deterministic rule in float64."""

    def serves(self, likelihood: Likelihood) -> bool:
        """Whether the rule is meant for the likelihood."""
        if isinstance(self.rule, ClosedForm):
            return isinstance(likelihood, ClosedFormLogPredictive)
        chosen_nodes = isinstance(self.rule, Quadrature) and self.rule != Quadrature()
        return not (chosen_nodes and isinstance(likelihood.integration, Adaptive))


def single(*values: float) -> tuple[float, ...]:
    """The values rounded to float32."""
    return tuple(float(np.float32(value)) for value in values)


def known_noise(extra: float | Tensor) -> GaussianKnownNoise:
    """The likelihood with a known variance of 0.2, besides the extra one."""
    return GaussianKnownNoise(extra).with_row_values(torch.tensor(0.2, dtype=torch.float64))


def ordered(first: Tensor, gap_1: Tensor, gap_2: Tensor) -> OrderedProbit:
    """Four ordered classes."""
    return OrderedProbit(thresholds=[first, first + gap_1, first + gap_1 + gap_2])


def censored_times(shape: float | Tensor) -> Weibull:
    """Times that are censored to the right."""
    return Weibull(shape).with_row_values(torch.tensor(torch.inf, dtype=torch.float64))


def _sixty_trials() -> Likelihood:
    return Binomial().with_row_values(torch.tensor(60.0))


REAL = single(0.7, -25.0, 4e3)
POSITIVE = single(0.2, 3.0, 5e3)
PROPORTION = single(0.03, 0.6, 0.999)
LIKELIHOODS = [
    LikelihoodRow("gaussian", Gaussian, REAL, {"noise": 0.25}, discrete=False),
    LikelihoodRow("probit", Probit, (0.0, 1.0)),
    LikelihoodRow("logistic", Logistic, (0.0, 1.0)),
    LikelihoodRow("poisson_exp", partial(Poisson, link="exp"), (0.0, 1.0, 7.0, 5000.0)),
    LikelihoodRow("poisson_softplus", partial(Poisson, link="softplus"), (0.0, 3.0, 5000.0)),
    LikelihoodRow("negative_binomial", NegativeBinomial, (0.0, 3.0, 5000.0), {"dispersion": 2.5}),
    LikelihoodRow("student_t", StudentT, REAL, {"df": 4.0, "scale": 0.6}, discrete=False),
    LikelihoodRow(
        "gaussian_known_noise", known_noise, REAL, {"extra": 0.05}, discrete=False, slow=True
    ),
    LikelihoodRow("gamma", Gamma, POSITIVE, {"shape": 1.75}, False, "positive"),
    LikelihoodRow("log_normal", LogNormal, POSITIVE, {"noise": 0.25}, False, "positive", slow=True),
    LikelihoodRow("beta", Beta, PROPORTION, {"precision": 6.0}, False, "proportion", slow=True),
    LikelihoodRow(
        "tobit",
        partial(Tobit, lower=-1.0, upper=2.25),
        REAL,
        {"noise": 0.25},
        discrete=False,
        kind="censored",
        absolute=1e-12,
        slow=True,
    ),
    LikelihoodRow("weibull", Weibull, POSITIVE, {"shape": 0.75}, False, "positive"),
    LikelihoodRow(
        "weibull_censored",
        censored_times,
        POSITIVE,
        {"shape": 0.75},
        discrete=False,
        kind="positive",
        absolute=1e-12,
        slow=True,
    ),
    LikelihoodRow(
        "ordinal",
        ordered,
        (0.0, 1.0, 2.0, 3.0),
        {"first": -0.75, "gap_1": 0.5, "gap_2": 1.75},
        kind="class",
        absolute=1e-12,
        slow=True,
    ),
    LikelihoodRow(
        "com_poisson", ConwayMaxwellPoisson, (0.0, 3.0, 5000.0), {"dispersion": 1 / 1.9}, slow=True
    ),
    LikelihoodRow("binomial", _sixty_trials, (0.0, 7.0, 60.0), kind="share"),
    LikelihoodRow(
        "zero_inflated_poisson", ZeroInflatedPoisson, (0.0, 3.0, 5000.0), {"zero_odds": 0.4}
    ),
    LikelihoodRow(
        "zero_inflated_negative_binomial",
        ZeroInflatedNegativeBinomial,
        (0.0, 3.0, 5000.0),
        {"zero_odds": 0.4, "dispersion": 2.5},
        slow=True,
    ),
]

INTERNAL_LIKELIHOODS = {Adapted, GivenGaussian, GivenStudentT, MixedSoftmax}
"""Likelihoods of GPyTorch; each has tests of its own."""

RULES = [
    RuleRow("closed_form", ClosedForm(), True, True),
    RuleRow("quadrature", Quadrature(), True, True),
    RuleRow("trapezoid_64", Quadrature(num_nodes=64), True, True, 1.0, 1e-9),
    RuleRow("hermite_32", Quadrature(nodes="gauss_hermite"), True, True, 0.01, 1e-9),
    RuleRow("bmc", BiasedMonteCarlo(num_samples=10), False, False),
    RuleRow("bmc_bend", BiasedMonteCarlo(gradient="second_derivative"), False, False),
    RuleRow("smooth_bmc", BiasedMonteCarlo(num_samples=10, nu=1e-2), False, False),
    RuleRow("ups", ProductSampling(), False, True),
    RuleRow("ups_score", ProductSampling(gradient="score"), False, True),
    RuleRow("ups_pathwise", ProductSampling(gradient="pathwise"), False, True),
    RuleRow("ups_paper", ProductSampling(sampler="paper"), False, True),
    RuleRow("ups_paper_score", ProductSampling(sampler="paper", gradient="score"), False, True),
    RuleRow(
        "ups_paper_pathwise", ProductSampling(sampler="paper", gradient="pathwise"), False, True
    ),
]
DETERMINISTIC = [row for row in RULES if row.deterministic]
STOCHASTIC = [row for row in RULES if not row.deterministic]
ONE_OF_EACH = [
    row for row in RULES if row.name in {"closed_form", "quadrature", "bmc", "ups", "ups_paper"}
]
UNBIASED = [row for row in STOCHASTIC if row.unbiased_gradient]

REGIMES = [
    Regime(name, *single(mean, variance))
    for name, mean, variance in [
        ("certain", 0.3, 1e-8),
        ("certain and low", -20.0, 1e-8),
        ("tight", 1.7, 1e-4),
        ("tight and high", 30.0, 1e-4),
        ("narrow", -4.0, 1e-2),
        ("narrow and high", 12.0, 1e-2),
        ("plain", 0.5, 1.0),
        ("plain and low", -30.0, 1.0),
        ("wide", 2.0, 10.0),
        ("wide and low", -18.0, 10.0),
        ("very wide", -5.0, 100.0),
        ("very wide and high", 30.0, 100.0),
    ]
]


_ORDINARY: Mapping[str, list[tuple[float, float, float]]] = {
    "real": [(0.7, 0.5, 1.0), (-2, 1.0, 0.1), (3, 0.0, 10.0), (5, 0.2, 1.0)],
    "label": [(1, 0.5, 1.0), (0, 0.5, 1.0), (1, -2.0, 3.0), (0, -0.5, 0.05)],
    "count": [(0, 0.5, 1.0), (3, 0.5, 0.5), (2, -1.0, 3.0), (40, 3.0, 0.3)],
    "positive": [(0.75, 0.5, 1.0), (3, 1.5, 0.1), (0.25, 0.0, 3.0), (5, 0.25, 1.0)],
    "proportion": [(0.25, 0.5, 1.0), (0.75, 1.5, 0.1), (0.125, 0.0, 3.0), (0.9375, 0.25, 1.0)],
    "censored": [(0.75, 0.5, 1.0), (-1, -0.25, 0.125), (3, 0.0, 3.0), (5, 0.25, 1.0)],
    "class": [(0, 0.5, 1.0), (1, 0.75, 0.125), (2, -1.0, 3.0), (3, -0.5, 0.5)],
    "share": [(20, -0.5, 1.0), (45, 0.5, 0.5), (3, -2.0, 3.0), (50, 1.0, 0.3)],
}


def ordinary(row: LikelihoodRow) -> list[Point]:
    """Points at which the mean of a few thousand gradients is as good as normal."""
    return [Point(float(y), mean, v) for y, mean, v in _ORDINARY[row.target_kind]]


def points(row: LikelihoodRow, max_variance: float = np.inf) -> list[Point]:
    """Every target in every regime."""
    return [
        Point(y, regime.mean, regime.variance)
        for regime in REGIMES
        if regime.variance <= max_variance
        for y in row.targets
    ]


def pairs(rules: list[RuleRow]) -> list[tuple[LikelihoodRow, RuleRow]]:
    """Every likelihood with every rule that serves it."""
    return [(row, rule) for row in LIKELIHOODS for rule in rules if rule.serves(row.make())]


def crossed(rules: list[RuleRow]) -> list[tuple[LikelihoodRow, RuleRow]]:
    """One rule of each kind with every likelihood; the others with one log-concave and one not."""
    both = {"negative_binomial", "student_t"}
    return [(row, rule) for row, rule in pairs(rules) if rule in ONE_OF_EACH or row.name in both]


def marked(cases: Iterable[Any]) -> list[Any]:
    """The cases of a parametrised test; those of a slow likelihood have the mark."""
    found: list[Any] = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        slow = any(isinstance(each, LikelihoodRow) and each.slow for each in values)
        found.append(pytest.param(*values, marks=pytest.mark.slow) if slow else case)
    return found


def columns(some: list[Point], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """y, mean and variance as tensors of shape (n,)."""
    y, mean, variance = torch.tensor(some, dtype=torch.float64).T.contiguous().to(dtype)
    return y, mean, variance
