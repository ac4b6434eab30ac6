"""Likelihoods of the user's own, which have a density and a `cdf` or draws, and nothing else."""

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import Tensor
from typing_extensions import override

import directgp
from directgp import Marginals, SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.diagnostics import check_likelihood
from directgp.errors import InvalidInputError, ModelFileError, NumericalError, UnsupportedError
from directgp.experiments.comparison import compare
from directgp.experiments.plan import make_plan
from directgp.integration import Adaptive, LatentGrid, TrapezoidSums
from directgp.likelihoods import (
    Derivatives,
    Gamma,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
)
from directgp.likelihoods.base import unconstrained
from directgp.likelihoods.numeric import NUM_DRAWS, moments_given
from directgp.log_expectations.api import check_own
from directgp.posteriors import SparsePosterior
from directgp.predictive import (
    predictive_cdf,
    predictive_crps,
    predictive_log_density,
    predictive_mean,
    predictive_quantiles,
    predictive_variance,
)
from directgp.predictive.api import point_prediction
from directgp.registry import LIKELIHOODS
from directgp.training import update
from tests.unit.experiments.small import problem

FLOAT64 = torch.float64


class PlainNormal(Likelihood):
    """N(y; f, ½²), known by its density alone."""

    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return -2 * (y - f) ** 2

    def log_base(self, y: Tensor) -> Tensor:
        return torch.full_like(y, 0.5 * math.log(2 / math.pi))


class OwnNormal(PlainNormal):
    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        found: Tensor = torch.special.ndtr(2 * (y - f))
        return found


class DrawnNormal(PlainNormal):
    def sample(self, f: Tensor, random: np.random.RandomState) -> Any:
        return f.numpy() + 0.5 * random.standard_normal(f.shape)


class OwnPoisson(Likelihood):
    task = "count"

    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return y * f - torch.exp(f)

    def log_base(self, y: Tensor) -> Tensor:
        return -torch.lgamma(y + 1)

    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        y, f = torch.broadcast_tensors(y, f)
        found: Tensor = torch.special.gammaincc(torch.floor(y) + 1, torch.exp(f))
        return found


class OwnGamma(Likelihood):
    """The gamma distribution of shape 2 and mean e^f: a support with an end."""

    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return -2 * f - 2 * y * torch.exp(-f)

    def log_base(self, y: Tensor) -> Tensor:
        return torch.log(4 * y)

    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        x = 2 * y.clamp(min=0.0) * torch.exp(-f)
        return -torch.expm1(-x) - x * torch.exp(-x)


class OwnLogistic(Likelihood):
    task = "classification"

    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid((2 * y - 1) * f)


class Laplace(Likelihood):
    """exp(−|y − f|/b)/(2b), with a kink at f = y."""

    additive = True

    def __init__(self, width: float = 0.3) -> None:
        super().__init__()
        self.raw_width = unconstrained(width, "width of Laplace")

    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return -(y - f).abs() / self._positive(self.raw_width)

    def log_base(self, y: Tensor) -> Tensor:
        return -torch.log(2 * self._positive(self.raw_width)).expand(y.shape)

    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        z = (y - f) / self._positive(self.raw_width)
        tail = 0.5 * torch.exp(-z.abs())
        return torch.where(z < 0, tail, 1 - tail)


class SmoothLaplace(Laplace):
    """The same, with the false claim of no kink."""

    integration = Adaptive(log_concave=True)


def row(*values: float) -> Tensor:
    return torch.tensor(values, dtype=FLOAT64)


Q = Marginals(row(-3.0, 0.4, 2.0), row(1e-4, 1.0, 0.3))
REAL, POSITIVE, COUNTS = row(-3.0, 0.5, 4.0), row(0.1, 1.0, 20.0), row(0, 1, 20)


@pytest.mark.parametrize(
    ("own", "known", "y"),
    [
        (OwnNormal(), Gaussian(0.25), REAL),
        (OwnGamma(), Gamma(2.0), POSITIVE),
        (OwnPoisson(), Poisson(), COUNTS),
        (OwnLogistic(), Logistic(), row(0, 1, 0)),
    ],
    ids=["normal", "gamma", "poisson", "logistic"],
)
@pytest.mark.slow_for("normal", "gamma", "poisson")
@torch.no_grad()
def test_density_and_cdf_give_everything(own: Likelihood, known: Likelihood, y: Tensor) -> None:
    torch.testing.assert_close(
        predictive_log_density(own, y, Q), predictive_log_density(known, y, Q)
    )
    for moment in (predictive_mean, predictive_variance):
        torch.testing.assert_close(moment(own, Q), moment(known, Q), rtol=1e-8, atol=1e-8)
    for score in (predictive_cdf, predictive_crps):
        torch.testing.assert_close(score(own, y, Q), score(known, y, Q), rtol=1e-7, atol=1e-9)
    levels = [1e-4, 0.05, 0.5, 0.999]
    torch.testing.assert_close(
        predictive_quantiles(own, Q, levels),
        predictive_quantiles(known, Q, levels),
        rtol=1e-8,
        atol=1e-10,
    )
    f = torch.linspace(-2, 2, 5, dtype=FLOAT64)
    ones = torch.ones_like(f)
    for found, wanted in zip(own.derivatives(ones, f), known.derivatives(ones, f), strict=True):
        # ℓ itself is the same up to a constant of y.
        torch.testing.assert_close(found.diff(), wanted.expand(5).diff(), rtol=1e-9, atol=1e-12)
    drawn, random = torch.full((4000,), 0.5, dtype=FLOAT64), np.random.RandomState(0)
    assert abs(own.sample(drawn, random).mean() - known.conditional_mean(drawn[:1]).item()) < 0.06


class FoldedLaplace(Likelihood):
    """Laplace's density around abs(f), whose moments have a kink in f."""

    @override
    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return -(y - f.abs()).abs()

    @override
    def log_base(self, y: Tensor) -> Tensor:
        return torch.full_like(y, -math.log(2))

    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        distance = y - f.abs()
        tail = 0.5 * torch.exp(-distance.abs())
        return torch.where(distance < 0, tail, 1 - tail)


@pytest.mark.parametrize(("mean", "variance"), [(0.3, 1.0), (0.3, 25.0), (-0.1, 0.01)])
def test_moments_with_a_kink_in_f(mean: float, variance: float) -> None:
    q = Marginals(row(mean), row(variance))
    deviation = math.sqrt(variance)
    density = math.exp(-0.5 * mean**2 / variance) * math.sqrt(2 / math.pi)
    # E|f| and Var|f| of a normal f; Laplace's variance is 2.
    truth = deviation * density + mean * math.erf(mean / deviation / math.sqrt(2))
    assert predictive_mean(FoldedLaplace(), q).item() == pytest.approx(truth, rel=1e-4)
    spread = 2 + variance + mean**2 - truth**2
    assert predictive_variance(FoldedLaplace(), q).item() == pytest.approx(spread, rel=1e-4)


@torch.no_grad()
def test_draws_give_everything_with_a_random_error() -> None:
    own, known = DrawnNormal(), Gaussian(0.25)
    error = 0.5 / math.sqrt(NUM_DRAWS)
    assert (predictive_cdf(own, REAL, Q) - predictive_cdf(known, REAL, Q)).abs().max() < 4 * error
    for level in (0.05, 0.5, 0.95):
        (found,) = predictive_quantiles(own, Q, [level])
        assert (predictive_cdf(known, found, Q) - level).abs().max() < 4 * error
    deviation = predictive_variance(known, Q).sqrt()
    assert ((predictive_mean(own, Q) - Q.mean).abs() < 4 * deviation * 0.01).all()
    ratio = predictive_variance(own, Q).sqrt() / deviation
    assert (ratio - 1).abs().max() < 0.04
    crps = predictive_crps(own, REAL, Q)
    torch.testing.assert_close(crps, predictive_crps(known, REAL, Q), rtol=0.05, atol=0.0)
    assert predictive_cdf(own, REAL, Q).dtype == FLOAT64
    # A row does not depend on the others.
    last = Marginals(Q.mean[-1:], Q.variance[-1:])
    assert predictive_cdf(own, REAL, Q)[-1] == predictive_cdf(own, REAL[-1:], last)


class DrawnNoise(Likelihood):
    """N(y; f₁, e^{f₂})."""

    num_latent = 2
    integration = LatentGrid(strip=math.pi / 2)

    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        mean, log_noise = f.unbind(-2)
        return -0.5 * ((y - mean) ** 2 * torch.exp(-log_noise) + log_noise)

    def sample(self, f: Tensor, random: np.random.RandomState) -> Any:
        mean, log_noise = f.unbind(-2)
        return (
            mean + torch.exp(0.5 * log_noise) * torch.as_tensor(random.randn(*mean.shape))
        ).numpy()


def test_draws_serve_several_latents() -> None:
    q = Marginals(
        torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).double(), torch.full((2, 2), 0.3).double()
    )
    known = HeteroscedasticGaussian()
    found = predictive_quantiles(DrawnNoise(), q, [0.05, 0.95])
    torch.testing.assert_close(
        found, predictive_quantiles(known, q, [0.05, 0.95]), rtol=0.03, atol=0
    )
    with pytest.raises(UnsupportedError, match=r"predictive_mean\(mean, variance\).*Give it both"):
        predictive_mean(DrawnNoise(), q)
    y, f = row(0.5, 2.0), torch.tensor([[0.3, 0.1], [-1.0, 0.2]]).double()
    for one, other in zip(DrawnNoise().derivatives(y, f), known.derivatives(y, f), strict=True):
        torch.testing.assert_close(one, other)


def test_a_density_alone_has_no_quantiles() -> None:
    message = r"need.* cdf\(y, f\).*Give it one of them"
    with pytest.raises(UnsupportedError, match=message):
        predictive_quantiles(PlainNormal(), Q, [0.5])
    with pytest.raises(UnsupportedError, match=message):
        predictive_mean(PlainNormal(), Q)
    with pytest.raises(UnsupportedError, match=r"cannot draw y\. Give it cdf"):
        Likelihood.sample(AdditiveNormal(), Q.mean, np.random.RandomState(0))
    torch.testing.assert_close(predictive_mean(AdditiveNormal(), Q), Q.mean)


class AdditiveNormal(PlainNormal):
    additive = True


class HeavyTails(Likelihood):
    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return -torch.log1p((y - f) ** 2)

    def log_base(self, y: Tensor) -> Tensor:
        return torch.full_like(y, -math.log(math.pi))

    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        return 0.5 + torch.atan(y - f) / math.pi


class WrongCDF(OwnNormal):
    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        return 2 * super().cdf(y, f)


def test_moments_that_do_not_exist_are_not_made_up() -> None:
    mean, variance = moments_given(HeavyTails(), row(0.0, 1.0), by_cdf=True)
    assert torch.isnan(mean).all() and torch.isinf(variance).all()
    # The median takes the place of the mean.
    torch.testing.assert_close(point_prediction(HeavyTails(), Q), Q.mean, rtol=1e-9, atol=1e-9)
    with pytest.raises(NumericalError, match=r"cdf\(y, f\) of WrongCDF must be between 0 and 1"):
        predictive_quantiles(WrongCDF(), Q, [0.5])


# Checks


class Waiting(Likelihood):
    """Exponential waiting times of rate e^f."""

    integration = TrapezoidSums(strip=math.pi / 2, growth=1.0)

    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        return f - y * torch.exp(f)

    def cdf(self, y: Tensor, f: Tensor) -> Tensor:
        return -torch.expm1(-y.clamp(min=0.0) * torch.exp(f))


class TooWide(Waiting):
    integration = TrapezoidSums(strip=30.0, growth=1.0)


class NotConcave(HeavyTails):
    integration = Adaptive(log_concave=True)


class Bent(AdditiveNormal):
    """Huber's density: its slope has no jump, the second derivative has."""

    integration = Adaptive(log_concave=True)

    def log_kernel(self, y: Tensor, f: Tensor) -> Tensor:
        r = (y - f).abs()
        return torch.where(r < 0.5, -(r**2), 0.25 - r)


class WrongSlope(OwnNormal):
    def derivatives(self, y: Tensor, f: Tensor) -> Derivatives:
        return Derivatives(self.log_kernel(y, f), 4 * (y - f), torch.full_like(y - f, -3.0))


class WrongDraws(OwnNormal):
    def sample(self, f: Tensor, random: np.random.RandomState) -> Any:
        return f.numpy() + 0.4 * random.standard_normal(f.shape)


class WrongBase(OwnNormal):
    def log_base(self, y: Tensor) -> Tensor:
        return torch.zeros_like(y)


TARGETS = row(0.1, 2.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (SmoothLaplace(), r"kink: for y = 0\.1 its slope is 3\.333 left of f = 0\.1 and -3\.333"),
        (Bent(), r"Bent has a kink: for y = 0\.1 its second derivative is"),
        (NotConcave(), r"is not concave: .* Set log_concave=False"),
        (TooWide(), r"strip and growth of TooWide must be right"),
        (WrongSlope(), r"Methods of WrongSlope must agree .*derivatives by"),
        (WrongDraws(), r"Methods of WrongDraws must agree .*draws by \d+\.\d standard errors"),
        (WrongBase(), r"Methods of WrongBase must agree .*density by"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Likelihood) else "",
)
def test_what_is_wrong_is_found(wrong: Likelihood, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        check_likelihood(wrong, TARGETS)


def test_an_update_finds_what_is_wrong() -> None:
    inputs = torch.linspace(0, 1, 2, dtype=torch.float64)[:, None]
    posterior = SparsePosterior.from_data(inputs, num_inducing=2)
    with pytest.raises(InvalidInputError, match="strip and growth of TooWide must be right"):
        update(posterior, TooWide(), inputs, TARGETS)


def test_what_is_right_is_accepted() -> None:
    for own in (OwnNormal(), Waiting(), Laplace(), OwnGamma()):
        found = check_likelihood(own, TARGETS)
        assert found.keys() == {"derivatives", "density", "mean", "variance", "draws"}
        assert found.pop("draws") < 5 and max(found.values()) < 1e-8
    check_likelihood(OwnPoisson(), row(0.0, 7.0))
    # Moments of wide counts are interpolated sums.
    check_likelihood(NegativeBinomial(0.1), row(0.0, 7.0), row(-1.0, 7.0, 12.0))
    check_likelihood(Poisson(), row(0.0, 7.0), row(15.0))
    assert check_likelihood(OwnLogistic(), row(0.0, 1.0)).keys() == {"derivatives", "density"}
    # Large targets, near which e^f is beyond float64.
    check_own(Waiting(), row(1e-3, 800.0))
    # The kink is known, so that quadrature looks for it.
    check_own(Laplace(), TARGETS)


# In estimators

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-2, 2, (40, 1))
Y = np.sin(2 * X[:, 0]) + RANDOM.laplace(scale=0.2, size=40)
SETTINGS: dict[str, Any] = {
    **{"objective": "elbo", "beta": 1.0, "kernel": "rbf", "ard": False},
    **{"num_inducing": 10, "max_iter": 4, "random_state": 0},
}
QUIET = pytest.mark.filterwarnings(
    "ignore::directgp.errors.DirectGPWarning", "ignore::sklearn.exceptions.ConvergenceWarning"
)


@pytest.fixture
def registered() -> Iterator[None]:
    directgp.register_likelihood("own_laplace", Laplace)
    yield
    LIKELIHOODS.pop("own_laplace", None)


def test_a_kink_is_refused_before_training() -> None:
    with pytest.raises(InvalidInputError, match="SmoothLaplace has a kink"):
        SparseGPRegressor(likelihood=SmoothLaplace(), **SETTINGS).fit(X, Y)


@QUIET
@pytest.mark.usefixtures("registered")
def test_an_own_likelihood_is_fitted_asked_saved_and_loaded(tmp_path: Path) -> None:
    model = SparseGPRegressor(likelihood="own_laplace", **SETTINGS).fit(X, Y)
    assert isinstance(model.likelihood_, Laplace)
    assert math.isfinite(model.nll(X, Y)) and model.score(X, Y) > 0
    lower, upper = model.predict_interval(X[:5], 0.9)
    mean, std = model.predict(X[:5], return_std=True)
    assert (lower < mean).all() and (mean < upper).all() and (std > 0).all()
    assert model.sample_y(X[:5], 3).shape == (5, 3)
    model.plot_predictions(X, Y)
    model.plot_calibration(X, Y)
    model.plot_partial_dependence(X)
    path = tmp_path / "model"
    model.save(path)
    assert np.array_equal(directgp.load(path).predict(X), model.predict(X))
    assert clone(model).likelihood == "own_laplace"
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    before = path.read_bytes()
    del LIKELIHOODS["own_laplace"]
    with pytest.raises(ModelFileError, match=r"call directgp\.register_likelihood\('own_laplace'"):
        directgp.load(path)
    with pytest.raises(UnsupportedError, match=r"Laplace cannot be saved, because a file holds no"):
        model.save(path)
    assert path.read_bytes() == before
    directgp.register_likelihood("own_laplace", Laplace)
    assert np.array_equal(directgp.load(path).predict(X), model.predict(X))


@QUIET
def test_own_counts_and_labels_are_fitted() -> None:
    counts = RANDOM.poisson(np.exp(np.sin(2 * X[:, 0])))
    model = SparseGPCountRegressor(likelihood=OwnPoisson(), **SETTINGS).fit(X, counts)
    assert model.predict_quantiles(X[:3], [0.1, 0.9]).shape == (3, 2)
    assert model.predict_pmf(X[:2], 60).sum(1) == pytest.approx(1.0)
    labels = (Y > 0).astype(int)
    classifier = SparseGPClassifier(likelihood=OwnLogistic(), **SETTINGS).fit(X, labels)
    assert classifier.predict_proba(X).sum(1) == pytest.approx(1.0)
    assert classifier.score(X, labels) > 0.6


@pytest.mark.usefixtures("registered")
def test_a_comparison_with_a_registered_likelihood_runs_in_this_process(tmp_path: Path) -> None:
    data = problem("regression")
    plan = make_plan(data, methods=["elbo"], likelihood="own_laplace", repeats=1)
    with pytest.raises(InvalidInputError, match=r"workers must be 0\. Got 2 with .*'own_laplace'"):
        compare(data, plan, tmp_path / "store", workers=2)


class NeedsWidth(Laplace):
    def __init__(self, width: float) -> None:
        super().__init__(width)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("name", "cls", "message"),
    [
        ("gaussian", OwnNormal, r"a name that directgp does not use\. Got 'gaussian'"),
        ("Gaussian", OwnNormal, r"a name that directgp does not use\. Got 'Gaussian'"),
        ("auto", OwnNormal, "a name that directgp does not use"),
        ("own laplace", OwnNormal, "letters, digits and _"),
        ("own_laplace", OwnNormal, "one that no other class has"),
        ("another", Laplace, "Laplace is already registered as 'own_laplace'"),
        ("another", NeedsWidth, "made without arguments. Got NeedsWidth: missing"),
        ("another", Likelihood, "complete. Got Likelihood without log_kernel"),
        ("another", dict, "a subclass of directgp.likelihoods.Likelihood. Got dict"),
    ],
)
def test_names_that_clash_are_refused(name: str, cls: Any, message: str) -> None:
    before = dict(LIKELIHOODS)
    with pytest.raises(InvalidInputError, match=message):
        directgp.register_likelihood(name, cls)
    assert dict(LIKELIHOODS) == before
    # The same class again, as when a cell of a notebook is run twice.
    assert directgp.register_likelihood("own_laplace")(Laplace) is Laplace
