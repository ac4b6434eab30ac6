"""`directgp.train`: its arguments, modes and result."""

import copy
import math
from functools import cache
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

import directgp
from directgp.errors import InvalidInputError, UnsupportedError
from directgp.likelihoods import Gaussian, Likelihood, Poisson, Probit, StudentT
from directgp.log_expectations import BiasedMonteCarlo
from directgp.objectives import LogLoss, Objective, PointLoss
from directgp.posteriors import Prior, SparsePosterior
from directgp.training import HoldOut, RelativeDecrease, Status, StepBudget, TrainingResult
from directgp.training.callbacks import History
from tests.unit.training.models import (
    M,
    N,
    StopAt,
    counts,
    named,
    normal,
    regression,
    seeded,
    start,
    tensors,
)
from tests.unit.training.test_objectives import task
from tests.unit.training.toys import same

X, Y = regression()
TIGHT = RelativeDecrease(window=20, tolerance=1e-13)

# Half of the time goes into the checks, and what runs here runs checked in test_objectives.py.
pytestmark = pytest.mark.usefixtures("without_shape_checks")


def train(objective: str | PointLoss = "log_loss", **settings: Any) -> TrainingResult:
    """On the regression data, unless told otherwise."""
    given: dict[str, Any] = {"posterior": start(X, Y), "likelihood": Gaussian(0.1), "X": X, "y": Y}
    given |= {"generator": seeded(7)} | settings
    return directgp.train(objective=objective, **given)


def exact_value(
    result: TrainingResult, X: Tensor, y: Tensor, loss: PointLoss, beta: float
) -> float:
    """The objective of a trained model, from its public parts."""
    marginals = result.posterior.predict(X)
    with torch.no_grad():
        losses = loss(result.likelihood, y, marginals)
        kl = result.posterior.kl()
    return float(losses.mean() + beta / len(y) * kl)


# What is given is left as it is.


@pytest.mark.parametrize("mode", ["joint", "fixed", "auto"])
@pytest.mark.parametrize("objective", ["log_loss", "square_loss", "elbo"])
def test_posterior_likelihood_and_data_are_not_changed(objective: str, mode: str) -> None:
    posterior, likelihood, weights = start(X, Y), Gaussian(0.1), torch.ones(N)
    before = {**named("posterior", posterior), **named("likelihood", likelihood)}
    data = X.clone(), Y.clone(), weights.clone()
    validation = HoldOut(0.2) if mode == "auto" else None
    result = train(
        objective,
        posterior=posterior,
        likelihood=likelihood,
        X=data[0],
        y=data[1],
        weights=data[2],
        hyperparameters=mode,
        validation=validation,
        max_steps=5,
    )
    assert same({**named("posterior", posterior), **named("likelihood", likelihood)}, before)
    for now, then in zip(data, (X, Y, weights), strict=True):
        assert torch.equal(now, then)
    assert all(p.grad is None for p in (*posterior.parameters(), *likelihood.parameters()))
    assert all(p.requires_grad for p in (*posterior.parameters(), *likelihood.parameters()))
    assert all(p.requires_grad for p in result.posterior.parameters())
    assert not same(tensors(result), before)


# Modes.


def test_fixed_holds_hyperparameters_at_those_of_the_elbo() -> None:
    elbo = train("elbo", max_steps=20)
    fixed = train(hyperparameters="fixed", beta=0.1, max_steps=20)
    assert fixed.hyperparameters == "fixed"
    assert [stage.stage for stage in fixed.stages] == ["elbo", "log_loss"]
    assert fixed.stages[0].loss == elbo.loss
    for name, value in tensors(fixed).items():
        moved = not torch.equal(value, tensors(elbo)[name])
        assert moved == (name in ("posterior.u_mean", "posterior.u_chol")), name


def test_fixed_learns_q_from_scratch() -> None:
    """With nothing to learn in, q(u) is the prior and not that of the ELBO."""
    fixed = train(hyperparameters="fixed", optimizer="adam", max_steps=1, learning_rate=1e-9)
    torch.testing.assert_close(
        fixed.posterior.u_mean.detach(), torch.zeros(M).double(), rtol=0, atol=1e-8
    )
    torch.testing.assert_close(
        fixed.posterior.u_chol.detach(), torch.eye(M).double(), rtol=0, atol=1e-8
    )


def test_joint_is_below_fixed_on_its_own_objective() -> None:
    fixed = train(hyperparameters="fixed", beta=0.1, max_steps=20)
    joint = train(hyperparameters="joint", beta=0.1, max_steps=20)
    assert fixed.status is Status.CONVERGED
    assert [stage.stage for stage in joint.stages] == ["elbo", "log_loss"]
    assert joint.loss < fixed.loss - 1e-3
    assert not torch.equal(joint.posterior.Z, fixed.posterior.Z)


@cache
def converged() -> tuple[TrainingResult, History]:
    """A run that ends by its stopping rule, and the record of it."""
    history = History()
    return train(beta=5.0, monitors=[history]), history


def test_from_scratch_there_is_no_elbo_stage() -> None:
    result = train(start="scratch", beta=5.0)
    assert [stage.stage for stage in result.stages] == ["log_loss"]
    # The two starts agree on where the minimum is, to the stopping rule's tolerance.
    assert result.loss == pytest.approx(converged()[0].loss, abs=1e-3)


@pytest.mark.parametrize("objective", ["elbo", "vfe", "fitc"])
def test_the_elbo_itself_has_one_stage(objective: str) -> None:
    assert [stage.stage for stage in train(objective, max_steps=3).stages] == [objective]


def test_auto_is_one_of_the_candidates() -> None:
    result = train(hyperparameters="auto", beta=0.1, validation=HoldOut(0.25), max_steps=10)
    assert result.hyperparameters in ("elbo", "fixed", "joint")
    path = directgp.beta_path(
        start(X, Y),
        Gaussian(0.1),
        X,
        Y,
        betas=[0.1],
        hyperparameters="auto",
        validation=HoldOut(0.25),
        max_steps=10,
        generator=seeded(7),
    )
    assert same(tensors(result), tensors(path.best))


# The result.


def test_the_result_is_consistent() -> None:
    result, history = converged()
    assert result.status is Status.CONVERGED is result.stages[-1].status
    assert result.reason == result.stages[-1].reason and "The last 20 steps" in result.reason
    assert result.objective == "log_loss" and result.beta == 5.0
    assert result.steps == sum(len(stage.losses) for stage in result.stages) == len(history.records)
    assert history.losses == [loss for stage in result.stages for loss in stage.losses]
    assert result.history == result.stages[-1].losses
    assert result.evaluations >= result.steps
    assert history.records[-1].evaluations == result.stages[-1].evaluations
    assert result.loss == pytest.approx(result.history[-1], abs=1e-12)
    assert result.loss == pytest.approx(exact_value(result, X, Y, LogLoss(), 5.0), abs=1e-10)
    assert result.seconds > 0 and result.jitter == 0.0
    assert result.at_floor == result.stages[-1].at_floor


@pytest.mark.parametrize(
    ("objective", "optimizer"),
    [("elbo", "lbfgs"), ("elbo", "adam"), ("log_loss", "adam"), ("log_loss", "lbfgs")],
)
def test_the_loss_is_the_objective_of_what_is_returned(objective: str, optimizer: str) -> None:
    """Also with q(u) eliminated, and with weights."""
    weights = 0.5 + normal(N, seed=5).abs()
    settings: dict[str, Any] = {"start": "scratch", "max_steps": 30, "weights": weights}
    result = train(objective, optimizer=optimizer, beta=0.3, **settings)
    loss = directgp.objectives.resolve_point_loss(objective)
    with torch.no_grad():
        losses = weights * loss(result.likelihood, Y, result.posterior.predict(X))
        expected = losses.mean() + 0.3 / N * result.posterior.kl()
    assert result.loss == pytest.approx(float(expected), abs=1e-10)


def test_max_steps_is_a_budget_of_one_stage() -> None:
    result = train(max_steps=4)
    assert result.status is Status.BUDGET and len(result.history) == 4
    assert not result.stages[-1].ends_training


@pytest.mark.parametrize("mode", ["joint", "fixed"])
def test_a_cancelled_run_has_no_further_stage(mode: str) -> None:
    cancel = StopAt(3)
    result = train(hyperparameters=mode, monitors=[cancel])
    assert result.status is Status.CANCELLED and result.reason == "Enough."
    assert [stage.stage for stage in result.stages] == ["elbo"]
    assert (result.hyperparameters, cancel.seen, cancel.closed) == ("elbo", 3, 1)
    assert result.stages[-1].ends_training


def test_monitors_are_closed_after_an_error() -> None:
    class Undefined(PointLoss):
        name = "undefined"

        def check(self, likelihood: Likelihood) -> None:
            pass

        def __call__(self, *arguments: Any, **settings: Any) -> Tensor:
            losses: Tensor = torch.nan * arguments[2].mean
            return losses

    monitor = StopAt(10**9)
    monitor.reset()
    with pytest.raises(directgp.errors.NumericalError):
        train(Undefined(), start="scratch", monitors=[monitor])
    assert monitor.closed == 1


def test_an_interrupt_before_the_first_noisy_loss() -> None:
    class Interrupting(PointLoss):
        name = "interrupting"
        deterministic = False

        def check(self, likelihood: Likelihood) -> None:
            pass

        def __call__(self, *arguments: object, **settings: object) -> Tensor:
            raise KeyboardInterrupt

    result = train(Interrupting(), optimizer="adam", start="scratch")
    assert result.status is Status.INTERRUPTED and result.steps == 0
    assert math.isnan(result.loss)


def test_noise_free_data_meet_the_floor_of_the_noise() -> None:
    """The floor is 1e-6 of the spread of the targets, and the result says that it was met."""
    smooth = torch.sin(X[:, 0])
    result = train(y=smooth, posterior=start(X, smooth, m=20), beta=0.01, max_steps=50)
    assert result.at_floor == ("likelihood.raw_noise",)
    assert isinstance(result.likelihood, Gaussian)
    noise = float(result.likelihood.noise.detach())
    assert 1e-7 < noise / float(smooth.var()) < 1e-5


def test_constant_targets_meet_the_floor_of_the_scale_of_a_kernel() -> None:
    """Below it the variance of f would underflow."""
    X_line = torch.linspace(-3, 3, 60).reshape(-1, 1)
    posterior = SparsePosterior(Prior(ScaleKernel(RBFKernel()), dtype=torch.float32), X_line[::10])
    result = directgp.train(
        posterior, Gaussian(0.1), X_line, torch.zeros(60), objective="elbo", start="scratch"
    )
    assert "prior.kernel.raw_outputscale" in result.at_floor
    assert float(result.posterior.prior.scale.detach()) > 0


@pytest.mark.parametrize("hyperparameters", ["joint", "fixed"])
def test_beta_0_with_more_inducing_inputs_than_examples(hyperparameters: Any) -> None:
    """Directions without curvature make joint runs slow; fixed runs need the small curvatures."""
    line = torch.linspace(-3, 3, N, dtype=torch.float64).reshape(-1, 1)
    y = torch.sin(2 * line[:, 0]) + 0.2 * normal(N, seed=1)
    result = directgp.train(
        *(start(line, y, m=60), Gaussian(0.1), line, y),
        objective="elbo",
        hyperparameters=hyperparameters,
        beta=0.0,
        max_steps=60,
    )
    # Interpolation lowers the loss until the noise meets its lower bound.
    assert result.loss < 0
    assert hyperparameters == "joint" or result.status == Status.CONVERGED


# Precision.


@pytest.mark.parametrize(
    ("objective", "optimizer"),
    [*((name, "lbfgs") for name in ("log_loss", "elbo", "square_loss", "fitc")), ("elbo", "adam")],
)
@pytest.mark.slow_for("elbo-lbfgs")
def test_float32_finds_nearly_what_float64_does(objective: str, optimizer: str) -> None:
    """Not the same: the nugget is 1e-5 and values carry seven digits."""
    settings: dict[str, Any] = {"optimizer": optimizer, "max_steps": 25, "start": "scratch"}
    wide = train(objective, **settings)
    posterior = SparsePosterior.from_data(X.float(), Y.float(), num_inducing=M, generator=seeded(3))
    narrow = train(objective, posterior=posterior, X=X.float(), y=Y.float(), **settings)
    assert all(p.dtype == torch.float32 for p in narrow.posterior.parameters())
    assert narrow.loss == pytest.approx(wide.loss, abs=0.02)
    assert bool(narrow.posterior.predict(X.float()).mean.isfinite().all())


def test_targets_may_be_of_another_dtype() -> None:
    posterior = start(X.float())
    result = train(posterior=posterior, X=X.float(), y=Y, max_steps=3)
    assert math.isfinite(result.loss)
    result = train(y=(10 * Y).round().long(), max_steps=3)
    assert math.isfinite(result.loss)


# Weights, exposures, batches.


def test_integer_weights_are_repeated_rows() -> None:
    """The objective is over N in the first and over Σ weights in the second."""
    weights = torch.arange(N) % 3 + 1
    rows = torch.repeat_interleave(torch.arange(N), weights)
    one = train("elbo", weights=weights, stopping=TIGHT, max_steps=2000)
    other = train("elbo", X=X[rows], y=Y[rows], stopping=TIGHT, max_steps=2000)
    assert one.status is other.status is Status.CONVERGED
    # Second order in the distance to the minimum, where the rule stops both.
    assert N * one.loss == pytest.approx(len(rows) * other.loss, rel=1e-8)


def test_a_weight_of_zero_is_no_example() -> None:
    weights = (torch.arange(N) % 2).double()
    with_garbage = torch.where(weights > 0, Y, 1e3)
    one = train("elbo", y=with_garbage, weights=weights, stopping=TIGHT, max_steps=2000)
    kept = weights > 0
    other = train("elbo", X=X[kept], y=Y[kept], stopping=TIGHT, max_steps=2000)
    assert N * one.loss == pytest.approx(int(kept.sum()) * other.loss, rel=1e-7)


@pytest.mark.parametrize("mode", ["joint", "fixed"])
def test_exposures_go_with_their_rows_in_batches(mode: str) -> None:
    inputs, y, exposure = counts()
    likelihood = Poisson().with_exposure(exposure)
    settings: dict[str, Any] = {"likelihood": likelihood, "X": inputs, "y": y}
    settings |= {"posterior": start(inputs), "hyperparameters": mode, "beta": 3.0}
    whole = train(max_steps=20, **settings)
    if mode == "joint":
        settings |= {"start": "scratch"}
    parts = train(batch_size=16, learning_rate=0.1, max_steps=50, **settings)
    value = exact_value(parts, inputs, y, LogLoss(), 3.0)
    prior = float(LogLoss()(likelihood, y, start(inputs).predict(inputs)).mean())
    # Most of the way; rows out of step with their exposures do not get there.
    assert value < whole.loss + 0.2 * (prior - whole.loss)


def test_large_batches_are_all_examples() -> None:
    """A deterministic problem again: the best state is kept, and its exact value told."""
    result = train(optimizer="adam", batch_size=N, max_steps=20, start="scratch")
    same_run = train(optimizer="adam", max_steps=20, start="scratch")
    assert same(tensors(result), tensors(same_run))


# Parameters that are held.


@pytest.mark.parametrize("objective", ["log_loss", "elbo", "fitc", "square_loss"])
@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_parameters_that_ask_for_no_gradient_are_held(objective: str, optimizer: str) -> None:
    posterior = start(X, Y)
    posterior.Z.requires_grad_(False)
    posterior.prior.kernel.raw_lengthscale.requires_grad_(False)
    for mode in ("joint", "fixed"):
        result = train(
            objective,
            posterior=posterior,
            optimizer=optimizer,
            hyperparameters=mode,
            max_steps=5,
        )
        assert torch.equal(result.posterior.Z, posterior.Z)
        lengthscale = result.posterior.prior.kernel.raw_lengthscale
        assert torch.equal(lengthscale, posterior.prior.kernel.raw_lengthscale)
        free = {name for name, p in result.posterior.named_parameters() if p.requires_grad}
        assert free == {"u_mean", "u_chol", "prior.raw_output_scale"}, mode


def test_a_noise_that_asks_for_no_gradient_is_held() -> None:
    likelihood = Gaussian(0.37)
    likelihood.raw_noise.requires_grad_(False)
    result = train(likelihood=likelihood)
    assert torch.equal(tensors(result)["likelihood.raw_noise"], likelihood.raw_noise)


def test_with_everything_held_the_elbo_is_a_formula() -> None:
    posterior, likelihood = start(X, Y), Gaussian(0.2)
    for p in (*posterior.prior.parameters(), posterior.Z, *likelihood.parameters()):
        p.requires_grad_(False)
    result = train("elbo", posterior=posterior, likelihood=likelihood)
    assert (result.status, result.steps) == (Status.CONVERGED, 0)
    assert result.reason == "The optimum is a formula."
    slope = torch.autograd.grad(
        Objective(directgp.objectives.GibbsLoss(), N)(
            result.likelihood, Y, result.posterior.marginals(X), result.posterior.kl()
        ),
        [result.posterior.u_mean, result.posterior.u_chol],
    )
    assert all(float(s.abs().max()) < 1e-10 for s in slope)


# Randomness.


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "bmc"},
        {"rule": "ups"},
        {"batch_size": 16, "start": "scratch"},
        {"rule": "bmc", "optimizer": "lbfgs"},
        {"hyperparameters": "auto", "validation": HoldOut(0.2)},
    ],
    ids=str,
)
def test_one_seed_has_one_result_and_another_seed_another(settings: dict[str, Any]) -> None:
    one, again, other = (
        tensors(train(max_steps=4, generator=seeded(seed), **settings)) for seed in (7, 7, 8)
    )
    assert same(one, again)
    assert not same(one, other)


def test_without_a_generator_torch_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other = (tensors(train(rule="bmc", max_steps=3, generator=None)) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not same(one, other)


@cache
def log_loss_settings(family: str) -> dict[str, Any]:
    inputs, y, likelihood = task(family)
    given: dict[str, Any] = {"posterior": start(inputs), "likelihood": likelihood}
    return given | {"X": inputs, "y": y, "start": "scratch", "learning_rate": 0.1}


@cache
def exact_losses(family: str) -> tuple[float, float]:
    """Log loss with exact expectations, untrained and after 50 steps."""
    settings = log_loss_settings(family)
    still = train(max_steps=1, **settings | {"learning_rate": 1e-9}, optimizer="adam")
    untrained = exact_value(still, settings["X"], settings["y"], LogLoss(), 1.0)
    return untrained, train(max_steps=50, **settings).loss


@pytest.mark.parametrize("rule", ["bmc", "ups", pytest.param("smooth_bmc", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "family", ["gaussian", "poisson", pytest.param("probit", marks=pytest.mark.slow)]
)
def test_stochastic_rules_improve_the_exact_objective(rule: str, family: str) -> None:
    settings = log_loss_settings(family)
    result = train(rule=rule, max_steps=30, **settings)
    untrained, best = exact_losses(family)
    reached = exact_value(result, settings["X"], settings["y"], LogLoss(), 1.0)
    # Most of the way, where a wrong sign or scale would go nowhere; bMC aims a little beside it.
    assert reached < untrained - 0.6 * (untrained - best)


def test_lbfgs_with_held_samples_is_at_the_minimum_of_that_sample_average() -> None:
    """The noise that the generator seeds gives the value back; Adam then finds nothing lower."""
    noise = int(torch.randint(2**62, (), generator=seeded(7)))
    rule = BiasedMonteCarlo(num_samples=5)
    result = train(
        LogLoss(rule),
        optimizer="lbfgs",
        stopping=RelativeDecrease(20, 1e-11),
        max_steps=3000,
        hyperparameters="fixed",
        beta=0.5,
        generator=seeded(7),
    )

    def frozen(posterior: SparsePosterior) -> Tensor:
        marginals = posterior.marginals(X)
        return Objective(LogLoss(rule), N, 0.5)(
            result.likelihood, Y, marginals, posterior.kl(), generator=seeded(noise)
        )

    value = frozen(result.posterior)
    assert result.loss == pytest.approx(value.item(), abs=1e-12)
    slopes = torch.autograd.grad(value, [result.posterior.u_mean, result.posterior.u_chol])
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-4
    for seed in range(20):
        moved = copy.deepcopy(result.posterior)
        with torch.no_grad():
            moved.u_mean.add_(1e-2 * normal(M, seed=seed))
            moved.u_chol.add_(1e-2 * moved.u_chol.diagonal().min() * normal(M, M, seed=seed).tril())
            assert float(frozen(moved)) > value.item()
    fresh = Objective(LogLoss(rule), N, 0.5)(
        result.likelihood,
        Y,
        result.posterior.marginals(X),
        result.posterior.kl(),
        generator=seeded(8),
    )
    assert abs(fresh.item() - value.item()) > 1e-3, "samples do not matter: this tests nothing"


# Refusals.


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"X": X[:0], "y": Y[:0]}, "X of train must be at least one row. Got shape (0, 2)."),
    ({"X": X[:, :1]}, "X of train must be of shape (n, 2). Got shape (40, 1)."),
    ({"X": X[:, 0]}, "X of train must be"),
    ({"X": X.index_fill(0, torch.tensor([3]), math.nan)}, "X of train must be finite."),
    (
        {"X": X.float()},
        "X of train must be of the posterior's dtype torch.float64. Got torch.float32.",
    ),
    ({"y": Y[:-1]}, "y of train must be of shape (40,), one target for each row of X."),
    ({"y": Y.reshape(-1, 1)}, "Flatten a column with y.reshape(-1)."),
    ({"y": Y.index_fill(0, torch.tensor([3]), math.nan)}, "nan at index 3"),
    ({"likelihood": Probit()}, "y of Probit must be"),
    ({"likelihood": Poisson()}, "y of Poisson"),
    ({"X": X.to("meta")}, "X, y, weights and posterior of train must be on one device."),
    ({"weights": Y.to("meta")}, "on one device. Got cpu and meta."),
    ({"weights": torch.ones(N - 1)}, "weights of train must be of shape (40,)."),
    ({"weights": -torch.ones(N)}, "weights of train must be finite and at least 0. Got -1.0"),
    ({"weights": torch.full((N,), math.inf)}, "weights of train must be finite and at least 0."),
    ({"weights": torch.zeros(N)}, "weights of train must be positive somewhere. Got zeros."),
    ({"beta": -0.1}, "beta must be finite and at least 0. Got -0.1."),
    ({"beta": math.inf}, "beta must be finite and at least 0. Got inf."),
    ({"beta": math.nan}, "beta must be finite and at least 0. Got nan."),
    ({"beta": -1.0, "hyperparameters": "auto"}, "beta must be finite and at least 0. Got -1.0."),
    ({"y": Y[1:], "hyperparameters": "auto"}, "y of train must be of shape (40,)"),
    ({"objective": "log-loss"}, "objective must be one of"),
    ({"rule": "monte_carlo"}, "rule must be"),
    ({"objective": "elbo", "rule": "bmc"}, "rule for GibbsLoss must be 'auto'. Got 'bmc'."),
    ({"objective": "vfe", "rule": "bmc"}, "rule for vfe must be 'auto'. Got 'bmc'."),
    ({"hyperparameters": "both"}, "hyperparameters must be one of ('joint', 'fixed', 'auto')."),
    ({"start": "zero"}, "start must be 'elbo' or 'scratch'. Got 'zero'."),
    ({"start": "scratch", "hyperparameters": "auto"}, "start with hyperparameters='auto' must be"),
    ({"optimizer": "sgd"}, "optimizer must be one of ('auto', 'lbfgs', 'adam'). Got 'sgd'."),
    ({"validation": HoldOut()}, "validation with hyperparameters='joint' must be None."),
    ({"batch_size": 0}, "batch_size must be at least 1. Got 0."),
    ({"max_steps": 0}, "max_steps must be at least 1. Got 0."),
    ({"learning_rate": 0.0}, "learning_rate must be positive. Got 0.0."),
    ({"learning_rate": math.nan}, "learning_rate must be positive. Got nan."),
    (
        {"optimizer": "lbfgs", "batch_size": 10},
        "batch_size with optimizer='lbfgs' must be None, because L-BFGS and collapsed "
        "objectives use all examples in each step. Got 10. "
        "Use optimizer='adam' for batches.",
    ),
    (
        {"objective": "fitc", "batch_size": 10},
        "batch_size with objective='fitc' must be None, because L-BFGS and collapsed "
        "objectives use all examples in each step. Got 10. "
        "Use objective='elbo' for batches.",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSALS, ids=lambda value: str(value)[:40])
def test_wrong_arguments_of_train_are_refused(settings: dict[str, Any], message: str) -> None:
    watch = History()
    with pytest.raises(InvalidInputError) as caught:
        train(**{"monitors": [watch], **settings})
    assert message in str(caught.value)
    assert watch.records == [], "work was done first"


Y_LABELS = (Y > 0).double()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "ups", "optimizer": "lbfgs"}, "Use optimizer='adam'."),
        (
            {"objective": "vfe", "likelihood": Probit(), "y": Y_LABELS},
            "vfe needs the Gaussian likelihood. Got Probit. Use 'elbo' or 'log_loss'.",
        ),
        (
            {"objective": "fitc", "likelihood": StudentT(4.0, 1.0)},
            "fitc needs the Gaussian likelihood. Got StudentT.",
        ),
        ({"objective": "crps", "likelihood": Probit(), "y": Y_LABELS}, "CRPSLoss needs"),
        ({"objective": "zero_one_cost"}, "ZeroOneCost needs a likelihood of two labels."),
        (
            {"objective": "square_loss", "likelihood": StudentT(4.0, 1.0)},
            "SquareLoss depends on neither",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_losses_and_rules_without_a_formula_for_the_likelihood_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    watch = History()
    with pytest.raises(UnsupportedError) as caught:
        train(**{"monitors": [watch], **settings})
    assert message in str(caught.value)
    assert watch.records == []


def test_a_step_budget_ends_the_training_and_not_only_a_stage() -> None:
    result = train(monitors=[StepBudget(2)])
    assert [stage.stage for stage in result.stages] == ["elbo"]
    assert result.status is Status.BUDGET and result.stages[-1].ends_training
