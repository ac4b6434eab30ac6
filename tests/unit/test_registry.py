"""A likelihood and a point loss are added by their class and one registry row."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor
from typing_extensions import override

import directgp
from directgp import SparseGPRegressor
from directgp.cli.main import app
from directgp.errors import InvalidInputError
from directgp.experiments.plan import make_plan
from directgp.integration import Adaptive
from directgp.likelihoods import Derivatives, Likelihood
from directgp.likelihoods.base import ConjugateLikelihood, check_finite, unconstrained
from directgp.likelihoods.capabilities import ParameterText
from directgp.likelihoods.numeric import Draws
from directgp.log_expectations import Rule
from directgp.objectives import PointLoss, resolve_point_loss
from directgp.objectives.pointwise import DeterministicLoss
from directgp.registry import (
    LIKELIHOODS,
    LOSSES,
    RULES,
    LikelihoodRow,
    LossRow,
    chosen_likelihood,
    likelihoods_of,
)
from tests.unit.experiments.small import problem

Values = Float[Tensor, "..."]


@final
class Laplace(Likelihood):
    """p(y given f) = exp(−|y − f|/b) / (2b)."""

    integration = Adaptive(log_concave=True)
    additive = True
    parameter_texts = (ParameterText("raw_width", "The width of the noise", "Compare.", True),)

    def __init__(self, width: float | Tensor = 0.3) -> None:
        super().__init__()
        self.raw_width = unconstrained(width, "width of Laplace")

    @property
    def width(self) -> Tensor:
        return self._positive(self.raw_width)

    @classmethod
    def from_targets(
        cls, y: Float[Tensor, " n"], unit: float = 1.0, offset: float = 0.0
    ) -> "Laplace":
        return cls(0.3 * float((y - y.median()).abs().mean()))

    def floors(self, deviation: float) -> dict[str, float]:
        return {"raw_width": deviation}

    def description(self, unit: float) -> dict[str, float]:
        return {"noise width": unit * float(self.width)}

    def draw(self, f: Draws, mean: Draws, random: np.random.RandomState) -> Draws:
        return np.asarray(f + random.laplace(scale=float(self.width), size=f.shape))

    @override
    def log_kernel(self, y: Values, f: Values) -> Values:
        return -(y - f).abs() / self.width

    @override
    def log_base(self, y: Values) -> Values:
        return -torch.log(2 * self.width).expand(y.shape)

    @override
    def derivatives(self, y: Values, f: Values) -> Derivatives:
        slope = torch.sign(y - f) / self.width
        return Derivatives(self.log_kernel(y, f), slope, torch.zeros_like(slope))

    @override
    def conditional_mean(self, f: Values) -> Values:
        return f

    @override
    def conditional_variance(self, f: Values) -> Values:
        return (2 * self.width**2).expand(f.shape)

    @override
    def check_targets(self, y: Num[Tensor, "..."] | Bool[Tensor, "..."]) -> None:
        check_finite(y, "Laplace")

    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log of the sum of two tails, each an exponential times a normal distribution function."""
        left, right = self._tails(y - mean, variance)
        return torch.logaddexp(left, right) - torch.log(2 * self.width)

    def expected_log_prob(self, y: Values, mean: Values, variance: Values) -> Values:
        """−E|y − f|/b − log 2b, by the mean of a folded normal variable."""
        r, s = y - mean, variance.sqrt()
        folded = s * math.sqrt(2 / math.pi) * torch.exp(-0.5 * (r / s) ** 2)
        folded = folded + r * torch.erf(r / (s * math.sqrt(2)))
        return -folded / self.width - torch.log(2 * self.width)

    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """Φ(r/√v), less and plus half of the tails."""
        left, right = self._tails(y - mean, variance)
        below: Values = torch.special.ndtr((y - mean) / variance.sqrt())
        return below + 0.5 * (torch.exp(right) - torch.exp(left))

    def predictive_quantile(self, level: Values, mean: Values, variance: Values) -> Values:
        """By bisection."""
        reach = 50 * (variance.sqrt() + self.width)
        low, high = mean - reach, mean + reach
        for _ in range(80):
            middle = 0.5 * (low + high)
            below = self.predictive_cdf(middle, mean, variance) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)

    def _tails(self, r: Values, variance: Values) -> tuple[Values, Values]:
        s, b = variance.sqrt(), self.width
        tilt = 0.5 * variance / b**2
        left = tilt - r / b + torch.special.log_ndtr(r / s - s / b)
        return left, tilt + r / b + torch.special.log_ndtr(-r / s - s / b)


@final
@dataclass(frozen=True)
class LogCosh(DeterministicLoss):
    """log cosh((y − μ)/s) + log s with s² = v + σ², as if s were the scale of y."""

    sharpness: float = 1.0

    name = "log_cosh"

    @override
    def check(self, likelihood: Likelihood) -> None:
        assert isinstance(likelihood, ConjugateLikelihood)

    @override
    def _evaluate(
        self, likelihood: Likelihood, y: Values, mean: Values, variance: Values
    ) -> Values:
        assert isinstance(likelihood, ConjugateLikelihood)
        scale = torch.sqrt(variance + likelihood.noise)
        x = self.sharpness * (y - mean).abs() / scale
        return x + torch.log1p(torch.exp(-2 * x)) + torch.log(scale)


@pytest.fixture
def added() -> Iterator[None]:
    LIKELIHOODS["laplace"] = LikelihoodRow("laplace", f"{__name__}:Laplace")
    LOSSES["log_cosh"] = LossRow("log_cosh", f"{__name__}:LogCosh")
    yield
    del LIKELIHOODS["laplace"]
    del LOSSES["log_cosh"]


RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-2, 2, (60, 1))
Y = np.sin(2 * X[:, 0]) + RANDOM.laplace(scale=0.2, size=60)
SETTINGS: dict[str, Any] = {
    "beta": 1.0,
    "hyperparameters": "fixed",
    "kernel": "rbf",
    "random_state": 0,
}


def round_trip(model: SparseGPRegressor, path: Path) -> SparseGPRegressor:
    model.save(path)
    again: SparseGPRegressor = directgp.load(path)
    assert np.array_equal(again.predict(X), model.predict(X))
    return again


@pytest.mark.usefixtures("added")
def test_a_likelihood_of_the_registry_is_fitted_saved_and_described(
    tmp_path: Path,
) -> None:
    model = SparseGPRegressor(likelihood="laplace", objective="elbo", **SETTINGS).fit(X, Y)
    assert isinstance(model.likelihood_, Laplace)
    assert (
        0.1 < float(model.likelihood_.width.detach()) * abs(model.scalings_.targets.scale[0]) < 0.4
    )
    again = round_trip(model, tmp_path / "model")
    assert again.nll(X, Y) == model.nll(X, Y) < 0.6
    lower, upper = again.predict_interval(X, 0.9)
    assert 0.8 < np.mean((lower < Y) & (upper > Y)) < 1.0
    assert again.sample_y(X, 3).shape == (60, 3)
    said = again.summary()
    assert "Laplace likelihood" in said and "noise width 0." in said


@pytest.fixture
def table(tmp_path: Path) -> str:
    rows = "\n".join(f"{x:.4f},{y:.4f}" for (x,), y in zip(X, Y, strict=True))
    path = tmp_path / "table.csv"
    path.write_text(f"x,y\n{rows}\n")
    return str(path)


def program(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        app([*words, "--target", "y", "--quiet"], standalone_mode=False)
    assert ended.value.code == 0


@pytest.mark.usefixtures("added")
def test_the_command_fit_knows_a_likelihood_of_the_registry(table: str, tmp_path: Path) -> None:
    out = tmp_path / "model"
    program("fit", table, "--likelihood", "laplace", "--max-iter", "3", "--out", str(out))
    assert isinstance(directgp.load(out / "model.safetensors").likelihood_, Laplace)


@pytest.mark.parametrize(
    ("given", "methods"),
    [
        (("--likelihood", "laplace"), {"elbo", "beta-elbo", "log-joint", "log-fixed"}),
        (("--methods", "elbo,log-cosh-joint,crps-fixed"), {"elbo", "log-cosh-joint", "crps-fixed"}),
    ],
)
@pytest.mark.usefixtures("added", "without_drawing")
def test_the_command_compare_knows_what_is_registered(
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, ...],
    methods: set[str],
) -> None:
    # A worker process would not have the rows that this process added.
    monkeypatch.setattr("directgp.cli.compare._workers", lambda *_: 0)
    short = ("--repeats", "1", "--inducing", "5", "--max-iter", "3", "--betas", "1")
    program("compare", table, *given, *short, "--out", str(tmp_path / "report"))
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert not report["failed"]
    others = {"auto", "mean", "linear", "boosting"} if "--methods" not in given else set()
    assert {row["method"] for row in report["standings"]} == methods | others
    assert all(math.isfinite(row["scores"]["nll"]["mean"]) for row in report["standings"])


@pytest.mark.usefixtures("added")
def test_a_loss_that_does_not_suit_the_likelihood_is_not_compared() -> None:
    with pytest.raises(InvalidInputError, match=r"methods must be.*ZeroOneCost needs"):
        make_plan(problem("regression"), methods=["zero-one-cost-joint"])
    with pytest.raises(InvalidInputError, match="log-cosh-joint"):
        make_plan(problem("regression"), methods=["cosh-joint"])


@pytest.mark.usefixtures("added")
def test_a_point_loss_of_the_registry_is_fitted_saved_and_described(
    tmp_path: Path,
) -> None:
    by_name = SparseGPRegressor(
        objective="log_cosh", likelihood="gaussian", max_iter=20, **SETTINGS
    )
    assert "objective     log_cosh" in round_trip(by_name.fit(X, Y), tmp_path / "name").summary()
    by_object = SparseGPRegressor(
        objective=LogCosh(2.0), likelihood="gaussian", max_iter=20, **SETTINGS
    )
    assert round_trip(by_object.fit(X, Y), tmp_path / "object").objective == LogCosh(2.0)


def test_removed_rows_are_unknown() -> None:
    with pytest.raises(ValueError, match="'likelihood' parameter"):
        SparseGPRegressor(likelihood="laplace").fit(X, Y)
    with pytest.raises(InvalidInputError, match="objective must be one of"):
        resolve_point_loss("log_cosh")


def test_rows_agree_with_their_classes() -> None:
    for row in LIKELIHOODS.values():
        cls = row.load()
        assert issubclass(cls, Likelihood) and cls.task == row.task
        assert issubclass(cls, ConjugateLikelihood) == row.conjugate
    for loss in LOSSES.values():
        assert issubclass(loss.load(), PointLoss)
        assert loss.collapsed or loss.make().name == loss.name
    for rule in RULES.values():
        assert isinstance(rule.make(), Rule)


def test_the_first_likelihood_of_a_task_is_its_default() -> None:
    assert chosen_likelihood("classification", None) == "probit"
    assert likelihoods_of("count", auto=True)[:2] == ("poisson", "negative_binomial")
    assert likelihoods_of("classification", auto=True) == ("probit",)
    assert likelihoods_of("classification", True, num_classes=3) == ("softmax",)
    with pytest.raises(InvalidInputError, match="for regression"):
        chosen_likelihood("regression", "probit")
