"""Constructor arguments: their effect, and combinations that raise an error."""

import copy
from dataclasses import FrozenInstanceError
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import PeriodicKernel, RBFKernel, ScaleKernel

from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor
from directgp.errors import DirectGPError, DirectGPWarning, InvalidInputError, UnsupportedError
from directgp.estimators.fitting import Continuation, Fit
from directgp.estimators.settings import FitSettings, plain_parameters
from directgp.estimators.starting_models import check_kernel
from directgp.likelihoods import Gaussian, Likelihood, Logistic, NegativeBinomial, StudentT
from directgp.log_expectations.monte_carlo import BiasedMonteCarlo
from directgp.log_expectations.product_sampling import ProductSampling
from directgp.objectives import PinballLoss, ZeroOneCost
from tests.estimators.fitted_models import COUNTS, LABELS, LIGHT, THERE, X, Y

pytestmark = [
    pytest.mark.usefixtures("without_shape_checks"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::directgp.errors.DirectGPWarning"),
]

QUICK = {**LIGHT, "num_inducing": 6, "max_iter": 8}
MAKERS: dict[str, tuple[Any, Any, str]] = {
    "numbers": (SparseGPRegressor, Y, "gaussian"),
    "labels": (SparseGPClassifier, LABELS, "probit"),
    "counts": (SparseGPCountRegressor, COUNTS, "poisson"),
}


def fitted(kind: str, **settings: Any) -> Any:
    make, y, likelihood = MAKERS[kind]
    return make(**{"likelihood": likelihood, **QUICK, **settings}).fit(X, y)


def assert_finite(model: Any) -> None:
    assert np.isfinite(model.predict_latent(THERE)).all()
    y = model.predict(THERE)
    assert np.isfinite(model.log_density(THERE, np.round(y) if y.dtype == float else y)).all()


ALLOWED: dict[str, list[Any]] = {
    "numbers": [
        *("absolute_loss", "crps", "elbo", "fitc", "log_loss", "pinball_loss", "square_loss"),
        *("vfe", PinballLoss(0.9)),
    ],
    "labels": ["elbo", "log_loss", "square_loss", "zero_one_cost", ZeroOneCost(1.0, 3.0)],
    "counts": ["elbo", "log_loss", "square_loss"],
}


@pytest.mark.parametrize(
    ("kind", "objective"), [(kind, each) for kind, some in ALLOWED.items() for each in some]
)
@pytest.mark.slow_for("absolute_loss")
def test_every_objective_trains(kind: str, objective: Any) -> None:
    model = fitted(kind, objective=objective)
    name = objective if isinstance(objective, str) else objective.name
    assert model.training_result_.objective == name
    assert_finite(model)


NAMES = (
    *("absolute_loss", "crps", "elbo", "fitc", "log_loss", "pinball_loss", "square_loss", "vfe"),
    "zero_one_cost",
)


@pytest.mark.parametrize(
    ("kind", "objective"),
    [(kind, name) for kind, some in ALLOWED.items() for name in NAMES if name not in some],
)
def test_an_objective_of_other_targets_is_refused(kind: str, objective: str) -> None:
    with pytest.raises(UnsupportedError, match=r"Use .*log_loss"):
        fitted(kind, objective=objective)


def test_with_no_likelihood_named_those_that_cannot_serve_are_left_out() -> None:
    model = fitted("numbers", likelihood="auto", objective="crps")
    assert isinstance(model.likelihood_, Gaussian) and model.beta_path_ is None


# Rules and optimisers


@pytest.mark.parametrize(
    ("kind", "rule"), [("labels", "bmc"), ("counts", "smooth_bmc"), ("counts", "ups")]
)
def test_rules_that_draw_depend_on_the_seed_and_the_number_of_samples(kind: str, rule: str) -> None:
    few, again, many = (fitted(kind, rule=rule, num_samples=each) for each in (2, 2, 20))
    assert_finite(few)
    found = [model.predict_latent(THERE)[0] for model in (few, again, many)]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 1e-6


def test_the_number_of_samples_is_that_of_the_rule() -> None:
    rule = rule_of("bmc")
    assert isinstance(rule, BiasedMonteCarlo) and rule.num_samples == 7
    rule = rule_of("ups")
    assert isinstance(rule, ProductSampling) and rule.num_samples == 7
    own = ProductSampling(num_samples=3)
    assert rule_of(own) is own


def rule_of(rule: Any) -> Any:
    """The rule of a recipe, for 7 samples."""
    parameters = SparseGPClassifier(rule=rule, num_samples=7).get_params()
    settings = FitSettings(
        **plain_parameters(parameters),
        task="classification",
        num_classes=2,
        candidates=("probit",),
        default_mean="constant",
    )
    return settings.recipe(num_rows=90, num_inducing=10).rule


def test_settings_are_plain_numbers_and_cannot_change() -> None:
    model = SparseGPRegressor(
        beta=1, num_inducing=np.int64(7), ard=np.bool_(True), max_iter=np.int32(5), mean="zero"
    )
    settings = FitSettings(
        **plain_parameters(model.get_params()),
        task="regression",
        num_classes=2,
        candidates=(),
        default_mean="zero",
    )
    assert (type(settings.beta), type(settings.num_inducing)) == (float, int)
    assert settings.ard is True and type(settings.max_iter) is int
    assert settings.mean_for("log") == "zero" and not settings.grows
    with pytest.raises(FrozenInstanceError):
        settings.beta = 2.0  # type: ignore[misc]  # the assignment is what is tested


def test_adam_takes_as_many_steps_as_allowed() -> None:
    model = fitted("numbers", optimizer="adam", max_iter=12)
    assert model.training_result_.stages[-1].steps == 12
    assert_finite(model)


def test_batches_change_the_run_unless_they_hold_every_row() -> None:
    one = fitted("labels", batch_size=20, max_iter=15)
    whole = fitted("labels", optimizer="adam", max_iter=15)
    assert_finite(one)
    assert np.abs(one.predict_latent(THERE)[0] - whole.predict_latent(THERE)[0]).max() > 1e-4
    other = fitted("labels", batch_size=1000, optimizer="adam", max_iter=15)
    np.testing.assert_array_equal(other.predict_proba(THERE), whole.predict_proba(THERE))


@pytest.mark.parametrize("settings", [{"optimizer": "lbfgs"}, {"objective": "vfe"}])
def test_batches_where_all_rows_are_needed_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"batch_size with .* Use .* for batches"):
        fitted("numbers", batch_size=20, **settings)


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_tolerance_ends_a_run(optimizer: str) -> None:
    settings: dict[str, Any] = {"optimizer": optimizer, "max_iter": 60}
    rough = fitted("numbers", tol=0.5, **settings).training_result_
    fine = fitted("numbers", tol=1e-9, **settings).training_result_
    assert rough.status == "converged"
    assert rough.stages[-1].steps < fine.stages[-1].steps


# Models


class Own(gpytorch.kernels.Kernel):
    """A kernel that no table knows."""

    has_lengthscale = True

    def forward(self, x1: Any, x2: Any, diag: bool = False, **params: Any) -> Any:
        distance = self.covar_dist(x1 / self.lengthscale, x2 / self.lengthscale, diag=diag)
        return (-distance).exp()


KERNELS = [
    ScaleKernel(PeriodicKernel()),
    PeriodicKernel() + ScaleKernel(RBFKernel()),
    ScaleKernel(RBFKernel(active_dims=[0])) * RBFKernel(),
    Own(),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda each: type(each).__name__)
def test_a_given_kernel_is_left_unchanged(kernel: gpytorch.kernels.Kernel) -> None:
    kept = copy.deepcopy(kernel.state_dict())
    model = fitted("numbers", kernel=kernel, ard="auto", objective="elbo")
    assert model.kernel is kernel and model.posterior_.prior.kernel is not kernel
    ours, learnt = kernel.state_dict(), model.posterior_.prior.kernel.state_dict()
    assert all(torch.equal(kept[name], ours[name]) for name in kept)
    assert any(not torch.equal(kept[name].to(learnt[name]), learnt[name]) for name in kept)
    assert_finite(model)


@pytest.mark.parametrize(
    "kernel",
    [
        ScaleKernel(RBFKernel(ard_num_dims=2), active_dims=[0, 1]),
        ScaleKernel(RBFKernel(ard_num_dims=2, active_dims=[1, 2])),
        ScaleKernel(RBFKernel(ard_num_dims=1, active_dims=[2]) + RBFKernel(ard_num_dims=3)),
        ScaleKernel(RBFKernel(active_dims=[1]) * RBFKernel(ard_num_dims=2), active_dims=[0, 2]),
    ],
)
def test_a_part_of_a_kernel_sees_what_the_whole_selects(kernel: gpytorch.kernels.Kernel) -> None:
    assert kernel(torch.ones(2, 3)).to_dense().shape == (2, 2)
    check_kernel(kernel, 3)
    with pytest.raises(InvalidInputError):
        check_kernel(kernel, 1)


def test_a_kernel_starts_from_its_own_values() -> None:
    """With a period that is right, in the units of training, a wave goes on for ever."""
    kernel = PeriodicKernel()
    kernel.period_length = 2 * np.pi * 50 / X.std()
    kernel.raw_period_length.requires_grad_(False)
    model = fitted("numbers", kernel=ScaleKernel(kernel), ard="auto", max_iter=30)
    far = np.linspace(1100, 2000, 50).reshape(-1, 1)
    wave = 10 + 5 * np.sin((far[:, 0] - 700) / 50)
    assert np.sqrt(np.mean((model.predict(far) - wave) ** 2)) < 0.3 * wave.std()


@pytest.mark.parametrize(
    ("kind", "likelihood"),
    [
        ("numbers", Gaussian(0.7)),
        ("numbers", StudentT(df=7.0, scale=0.5)),
        ("labels", Logistic()),
        ("counts", NegativeBinomial(3.0)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_given_likelihood_is_left_unchanged(kind: str, likelihood: Likelihood) -> None:
    kept = copy.deepcopy(likelihood.state_dict())
    model = fitted(kind, likelihood=likelihood, dtype="float32")
    assert model.likelihood is likelihood and type(model.likelihood_) is type(likelihood)
    learnt = model.likelihood_.state_dict()
    for name, before in kept.items():
        torch.testing.assert_close(likelihood.state_dict()[name], before, rtol=0, atol=0)
        assert not torch.equal(learnt[name], before.to(learnt[name]))


@pytest.mark.parametrize(("kind", "likelihood"), [("labels", Gaussian()), ("counts", StudentT())])
def test_a_likelihood_of_other_targets_is_refused(kind: str, likelihood: Likelihood) -> None:
    with pytest.raises(ValueError, match=r"likelihood of SparseGP.* must be one for"):
        fitted(kind, likelihood=likelihood)


def start(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Any:
    """The model from which training starts, and the scalings."""
    seen: list[Any] = []

    train = Fit.train

    def watched(fit: Fit, given: Any) -> Any:
        candidate = fit.models.choices(["joint"], [1.0]).first()
        seen.append((copy.deepcopy(fit.models.model(candidate)), fit.table.scalings))
        return train(fit, given)

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "train", watched)
        fitted("numbers", max_iter=1, **settings)
    return seen[0]


def test_a_warm_start_has_the_stopping_rule_for_its_number_of_inducing_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few new rows would have 50 inducing inputs and L-BFGS; with the 100 there are, batches."""
    random = np.random.default_rng(0)
    inputs = random.uniform(0, 9, (400, 1))
    targets = np.sin(inputs[:, 0]) + 0.1 * random.normal(size=400)
    settings = {**QUICK, "num_inducing": "auto", "objective": "elbo", "warm_start": True}
    model = SparseGPRegressor(likelihood="gaussian", **settings).fit(inputs, targets)
    assert model.posterior_.num_inducing == 100
    fits: list[Continuation] = []
    train = Continuation.train

    def watched(fit: Continuation, examples: Any) -> Any:
        fits.append(fit)
        return train(fit, examples)

    monkeypatch.setattr("directgp.training.run._FULL_BATCH_ENTRIES", 200 * 75)
    monkeypatch.setattr(Continuation, "train", watched)
    model.fit(inputs[:200], targets[:200])
    assert fits[0].recipe.chosen_optimizer(200, 100) == "adam"
    assert fits[0].recipe.stopping is None


def test_inducing_inputs_are_in_the_units_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    given = np.array([[450.0], [700.0], [980.0]])
    model, scalings = start(monkeypatch, inducing=given)
    found = scalings.inputs.backward(model.posterior.Z.detach().numpy())
    np.testing.assert_allclose(found, given, rtol=1e-7)


@pytest.mark.parametrize("method", ["kmeans++", "random"])
def test_inducing_inputs_lie_among_the_rows(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, scalings = start(monkeypatch, inducing=method, num_inducing=7)
    Z = scalings.inputs.backward(model.posterior.Z.detach().numpy())
    assert Z.shape == (7, 1) and X.min() <= Z.min() < Z.max() <= X.max()
    if method == "random":
        assert np.abs(Z - X.T).min(1).max() < 1e-5


@pytest.mark.parametrize(
    ("kernel", "nu"), [("matern12", 0.5), ("matern32", 1.5), ("matern52", 2.5)]
)
def test_kernels_by_name_have_their_smoothness(kernel: str, nu: float) -> None:
    model = fitted("numbers", kernel=kernel, objective="elbo")
    assert model.posterior_.prior.kernel.nu == nu
    assert_finite(model)


@pytest.mark.parametrize("ard", [True, False])
def test_ard_gives_a_length_scale_for_each_feature(ard: bool) -> None:
    inputs = np.hstack([X, np.random.default_rng(0).normal(size=X.shape)])
    model = SparseGPRegressor(likelihood="gaussian", **{**QUICK, "ard": ard}).fit(inputs, Y)
    assert model.posterior_.prior.kernel.lengthscale.numel() == (2 if ard else 1)


def test_beta_weighs_the_kl_term() -> None:
    large, small = (fitted("numbers", beta=beta, hyperparameters="fixed") for beta in (500.0, 0.01))
    assert (large.beta_, small.beta_) == (500.0, 0.01)
    assert float(large.posterior_.kl().detach()) < float(small.posterior_.kl().detach())
    assert large.hyperparameters_ == "fixed"


def test_given_validation_rows_decide() -> None:
    """Rows with far more noise than the others: a model that is told of them is more careful."""
    settings = {**QUICK, "beta": "auto", "hyperparameters": "auto", "likelihood": "gaussian"}
    settings |= {"combine": "best", "stack": None}
    random = np.random.default_rng(0)
    noisy = (X, Y + 10 * random.normal(size=len(Y)))
    own = SparseGPRegressor(**settings).fit(X, Y, validation_data=noisy)
    path = own.beta_path_
    assert path is not None and path.validation == "90 examples given for validation"
    chosen = path.points[path.chosen]
    assert chosen.validation_loss == pytest.approx(own.nll(*noisy), rel=1e-6)
    assert (own.beta_, own.hyperparameters_) == (chosen.beta, chosen.hyperparameters)


def test_findings_are_given_as_warnings() -> None:
    with pytest.warns(DirectGPWarning, match="repeat") as told:
        model = SparseGPRegressor(likelihood="gaussian", **QUICK)
        model.fit(np.repeat(X, 2, 0), np.repeat(Y, 2))
    assert {str(each.message) for each in told} >= set(model.findings_)
    assert issubclass(UnsupportedError, DirectGPError)
