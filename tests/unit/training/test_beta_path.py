"""`directgp.beta_path`: the grid, its order, the training and the choice."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

import directgp
from directgp.errors import InvalidInputError
from directgp.likelihoods import Gaussian, HeteroscedasticGaussian, NegativeBinomial, Poisson
from directgp.objectives import LogLoss, SquareLoss
from directgp.training import (
    BetaPath,
    Checkpoints,
    Folds,
    Given,
    HoldOut,
    LossRange,
    RelativeDecrease,
    Status,
)
from directgp.training.beta_path import beta_grid
from tests.unit.training.models import (
    N,
    StopAt,
    counts,
    inputs,
    named,
    regression,
    seeded,
    start,
    tensors,
)
from tests.unit.training.toys import same

X, Y = regression()
X_NEW, Y_NEW = regression(60, seed=50)
NEW = Given(X_NEW, Y_NEW)
BETAS = (20.0, 4.0, 1.0, 0.2)
NEVER = LossRange(window=10**6, tolerance=0.0)

# Half of the time goes into the checks, and what runs here runs checked in test_objectives.py.
pytestmark = pytest.mark.usefixtures("without_shape_checks")


def path(**settings: Any) -> BetaPath:
    given: dict[str, Any] = {"posterior": start(X, Y), "likelihood": Gaussian(0.1), "X": X, "y": Y}
    given |= {"betas": BETAS, "validation": NEW, "generator": seeded(7), "max_steps": 20}
    return directgp.beta_path(**given | settings)


@pytest.mark.parametrize("n", [1, 2, 40, 1000, 10**6])
def test_the_grid_of_the_paper(n: int) -> None:
    grid = beta_grid(n)
    assert grid[0] == n and grid[-1] == 0.01
    assert all(after == before / 2 for before, after in pairwise(grid[:-1]))
    assert grid[-2] / 2 < 0.01 < grid[-2]


def test_a_grid_of_another_factor() -> None:
    assert beta_grid(8, 4) == [8.0, 2.0, 0.5, 0.125, 0.03125, 0.01]


def test_the_grid_is_the_default() -> None:
    found = path(betas=None, objective="elbo", max_steps=1, X=X[:4], y=Y[:4])
    assert [point.beta for point in found.points] == beta_grid(4)


def test_betas_are_sorted_and_repetitions_left_out() -> None:
    settings: dict[str, Any] = {"objective": "elbo", "max_steps": 5}
    found = path(betas=[0.2, 20.0, 1.0, 4.0, 1.0], **settings)
    assert [point.beta for point in found.points] == list(BETAS)
    assert same(tensors(found.best), tensors(path(**settings).best))


@pytest.mark.parametrize("objective", ["log_loss", "square_loss", "elbo", "fitc"])
def test_points_hold_their_results(objective: str) -> None:
    found = path(objective=objective, max_steps=10)
    assert [point.beta for point in found.points] == [r.trained.beta for r in found.points]
    assert found.loss == ("square_loss" if objective == "square_loss" else "log_loss")
    assert found.best is found.points[found.chosen].trained
    assert found.beta == found.points[found.chosen].beta and found.seconds > 0
    loss = SquareLoss() if objective == "square_loss" else LogLoss()
    for point in found.points:
        assert point.hyperparameters == point.trained.hyperparameters == "joint"
        marginals = point.trained.posterior.predict(X_NEW)
        expected = loss(point.trained.likelihood, Y_NEW, marginals).detach()
        assert point.validation_loss == pytest.approx(float(expected.mean()), rel=1e-12)
        error = float(expected.std()) / math.sqrt(60)
        assert point.validation_error == pytest.approx(error, rel=1e-9)
    lowest = min(found.points, key=lambda point: point.validation_loss)
    assert (lowest.difference, lowest.difference_error) == (0.0, 0.0)
    chosen = found.points[found.chosen]
    assert chosen.difference <= chosen.difference_error
    for point in found.points[: found.chosen]:
        assert point.difference > point.difference_error


def test_posteriors_of_a_path_share_nothing() -> None:
    found = path(max_steps=3)
    before = [tensors(point.trained) for point in found.points]
    with torch.no_grad():
        for p in (*found.best.posterior.parameters(), *found.best.likelihood.parameters()):
            p.fill_(7.0)
    for i, point in enumerate(found.points):
        assert same(tensors(point.trained), before[i]) == (i != found.chosen)


def test_posterior_and_likelihood_are_not_changed() -> None:
    posterior, likelihood = start(X, Y), Gaussian(0.1)
    before = {**named("p", posterior), **named("l", likelihood)}
    for settings in ({}, {"hyperparameters": "auto"}, {"optimizer": "adam"}):
        path(posterior=posterior, likelihood=likelihood, objective="elbo", max_steps=5, **settings)
        assert same({**named("p", posterior), **named("l", likelihood)}, before)


@pytest.mark.parametrize(
    ("objective", "mode"), [("log_loss", "joint"), ("log_loss", "fixed"), ("elbo", "joint")]
)
@pytest.mark.slow
def test_warm_starts_end_where_cold_starts_do(objective: str, mode: str) -> None:
    """From neighbour to neighbour to the last, against that β on its own from the start.

    Values of β at which the objective has no second valley to fall into.
    """
    settings: dict[str, Any] = {"objective": objective, "hyperparameters": mode, "max_steps": 500}
    warm = path(betas=(20.0, 8.0, 3.0), **settings).points[0].trained
    cold = directgp.train(
        start(X, Y), Gaussian(0.1), X, Y, beta=20.0, generator=seeded(7), **settings
    )
    assert warm.loss == pytest.approx(cold.loss, abs=1e-3)


@pytest.mark.slow
def test_neighbours_start_near_their_optimum() -> None:
    """The first β nearest 1 has all default steps, the others a tenth; given steps are of each."""
    found = path(max_steps=None, stopping=NEVER)
    steps = [point.trained.stages[-1].steps for point in found.points]
    assert steps[2] > 50 and steps[:2] + steps[3:] == [50] * 3
    given = path(max_steps=20, stopping=NEVER)
    assert [point.trained.stages[-1].steps for point in given.points] == [20] * 4
    first = found.points[2].trained.stages
    assert [stage.stage for stage in first] == ["elbo", "log_loss"]
    assert all(len(point.trained.stages) == 1 for point in found.points if point.beta != 1.0)


@pytest.mark.parametrize("family", ["gaussian", "negative_binomial"])
def test_a_batch_of_models_is_each_on_its_own(family: str) -> None:
    """Adam, all examples: each β alone takes the same steps, and keeps its own best state."""
    data: dict[str, Any] = {}
    if family == "negative_binomial":
        X_counts, y, exposure = counts()
        likelihood = NegativeBinomial(2.0).with_exposure(exposure)
        data = {"likelihood": likelihood, "X": X_counts, "y": y, "validation": HoldOut(0.2)}
    settings: dict[str, Any] = {
        **data,
        "hyperparameters": "auto",
        "optimizer": "adam",
        "max_steps": 10,
        "learning_rate": 0.3,
        "stopping": NEVER,
    }
    together = path(betas=(9.0, 1.0, 0.1), **settings).points
    assert [point.hyperparameters for point in together] == ["elbo"] + 3 * ["fixed"] + 3 * ["joint"]
    for i, beta in enumerate((9.0, 1.0, 0.1)):
        _, *alone = path(betas=(beta,), **settings).points
        for one, other in zip((together[1 + i], together[4 + i]), alone, strict=True):
            assert one.trained.stages[-1].steps == 10
            assert (one.beta, one.hyperparameters) == (other.beta, other.hyperparameters)
            expected = tensors(other.trained)
            for name, value in tensors(one.trained).items():
                # Sums over a batch of matrices round otherwise, and the steps carry that on.
                torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-6, msg=name)
            assert one.validation_loss == pytest.approx(other.validation_loss, rel=1e-6)


def test_a_held_batch_leaves_hyperparameters_where_the_elbo_has_them() -> None:
    found = path(hyperparameters="fixed", optimizer="adam", max_steps=5)
    for point in found.points:
        elbo = tensors(found.points[0].trained)
        for name, value in tensors(point.trained).items():
            if not name.startswith("posterior.u_"):
                assert torch.equal(value, elbo[name]), name
    assert len({float(p.trained.posterior.u_mean[0].detach()) for p in found.points}) == len(BETAS)


@pytest.mark.parametrize("objective", ["vfe", "fitc", "square_loss", "absolute_loss"])
def test_adam_trains_one_by_one_what_has_no_batch(objective: str) -> None:
    found = path(objective=objective, optimizer="adam", hyperparameters="fixed", max_steps=3)
    assert [point.beta for point in found.points] == list(BETAS)
    assert all(math.isfinite(point.validation_loss) for point in found.points)


def test_batches_of_examples_may_train_batches_of_models() -> None:
    X_counts, y, exposure = counts()
    found = path(
        likelihood=Poisson().with_exposure(exposure),
        posterior=start(X_counts),
        X=X_counts,
        y=y,
        validation=Folds(2),
        betas=(10.0, 1.0),
        hyperparameters="fixed",
        batch_size=8,
        max_steps=3,
    )
    assert all(math.isfinite(point.validation_loss) for point in found.points)


def test_auto_has_the_elbo_first() -> None:
    found = path(betas=(4.0, 0.2), hyperparameters="auto")
    kinds = [(point.hyperparameters, point.beta) for point in found.points]
    assert kinds == [
        ("elbo", 1.0),
        ("fixed", 4.0),
        ("fixed", 0.2),
        ("joint", 4.0),
        ("joint", 0.2),
    ]
    elbo = tensors(found.points[0].trained)
    for point in found.points[1:3]:
        found_there = tensors(point.trained)
        assert all(
            torch.equal(found_there[name], value)
            for name, value in elbo.items()
            if not name.startswith("posterior.u_")
        )
    alone = directgp.train(
        start(X, Y), Gaussian(0.1), X, Y, objective="elbo", max_steps=20, generator=seeded(7)
    )
    assert same(elbo, tensors(alone))


# Validation.


def test_folds_train_on_all_examples() -> None:
    """The posteriors are those of all data; the losses those of models without the fold."""
    settings: dict[str, Any] = {"objective": "elbo", "max_steps": 10}
    folded, given = path(validation=Folds(2), **settings), path(**settings)
    for one, other in zip(folded.points, given.points, strict=True):
        assert same(tensors(one.trained), tensors(other.trained))
        assert one.validation_loss != other.validation_loss


def test_losses_of_folds_by_hand() -> None:
    """Without the rows of a fold, as if they had never been; L-BFGS draws nothing."""
    settings: dict[str, Any] = {"objective": "elbo", "betas": (4.0, 1.0), "max_steps": 10}
    found = path(validation=Folds(2), **settings)
    order = torch.randperm(N, generator=seeded(7))
    sums = {4.0: 0.0, 1.0: 0.0}
    for held in order.tensor_split(2):
        rest = torch.tensor([i for i in range(N) if i not in held.tolist()])
        part = path(
            X=X[rest],
            y=Y[rest],
            validation=Given(X[held], Y[held]),
            **settings,
        )
        for point in part.points:
            sums[point.beta] += len(held) * point.validation_loss
    for point in found.points:
        assert point.validation_loss == pytest.approx(sums[point.beta] / N, rel=1e-9)


def test_held_out_examples_do_not_train() -> None:
    """Whatever their targets are, as long as the spread of the others is the same."""
    order = torch.randperm(N, generator=seeded(7))
    held = order[:8]
    other = Y.index_fill(0, held, 1000.0)
    settings: dict[str, Any] = {"objective": "elbo", "validation": HoldOut(0.2), "max_steps": 10}
    one, two = (path(y=y, **settings) for y in (Y, other))
    for a, b in zip(one.points, two.points, strict=True):
        assert same(tensors(a.trained), tensors(b.trained))
        assert b.validation_loss > a.validation_loss + 100


def test_noisy_rules_are_validated_exactly() -> None:
    found = path(rule="bmc", betas=(4.0, 1.0), max_steps=3)
    point = found.points[0]
    marginals = point.trained.posterior.predict(X_NEW)
    exact = LogLoss()(point.trained.likelihood, Y_NEW, marginals).detach().mean()
    assert point.validation_loss == pytest.approx(float(exact), rel=1e-12)


def test_exposures_go_with_their_rows() -> None:
    """By hand again: those of the fold validate, and those of the others train."""
    X_counts, y, exposure = counts()
    settings: dict[str, Any] = {"objective": "elbo", "betas": (4.0,), "max_steps": 10}
    settings |= {"posterior": start(X_counts)}
    likelihood = Poisson().with_exposure(exposure)
    found = path(likelihood=likelihood, X=X_counts, y=y, validation=Folds(2), **settings)
    total = 0.0
    for held in torch.randperm(N, generator=seeded(7)).tensor_split(2):
        rest = torch.tensor([i for i in range(N) if i not in held.tolist()])
        theirs = Poisson().with_exposure(exposure[held])
        part = path(
            likelihood=Poisson().with_exposure(exposure[rest]),
            X=X_counts[rest],
            y=y[rest],
            validation=Given(X_counts[held], y[held], theirs),
            **settings,
        )
        total += len(held) * part.points[0].validation_loss
    assert found.points[0].validation_loss == pytest.approx(total / N, rel=1e-9)


# Ends before the end.


@pytest.mark.parametrize(
    ("mode", "steps", "optimizer", "status", "validation"),
    [
        ("joint", 1, "lbfgs", Status.CANCELLED, "given"),
        ("joint", 20, "lbfgs", Status.BUDGET, "given"),
        ("fixed", 5, "lbfgs", Status.BUDGET, "given"),
        ("fixed", 21, "lbfgs", Status.CANCELLED, "given"),
        ("fixed", 15, "adam", Status.CANCELLED, "given"),
        ("auto", 5, "adam", Status.CANCELLED, "given"),
        ("auto", 15, "lbfgs", Status.CANCELLED, "given"),
        ("auto", 23, "lbfgs", Status.CANCELLED, "given"),
        ("auto", 25, "adam", Status.BUDGET, "given"),
        # Where the search itself differs: the examples left for training, and runs of folds.
        ("joint", 20, "lbfgs", Status.BUDGET, "hold out"),
        ("auto", 15, "lbfgs", Status.CANCELLED, "hold out"),
        ("joint", 1, "lbfgs", Status.CANCELLED, "folds"),
        ("fixed", 21, "lbfgs", Status.CANCELLED, "folds"),
        ("auto", 25, "adam", Status.BUDGET, "folds"),
    ],
)
def test_a_path_that_was_ended_returns_what_it_has(
    mode: str, steps: int, optimizer: str, status: Status, validation: str
) -> None:
    """And nothing is trained after the step that was to be the last."""
    how = {"given": NEW, "hold out": HoldOut(0.2), "folds": Folds(2)}[validation]
    monitor = StopAt(steps, status)
    found = path(
        betas=(4.0, 1.0, 0.2),
        hyperparameters=mode,
        validation=how,
        optimizer=optimizer,
        stopping=NEVER,
        monitors=[monitor],
        max_steps=10,
    )
    assert monitor.seen == steps and monitor.closed == 1
    ended = [point for point in found.points if point.trained.stages[-1].ends_training]
    assert ended and all(point.trained.status is status for point in ended)
    assert 0 <= found.chosen < len(found.points)
    if validation == "folds":
        assert all(math.isnan(point.validation_loss) for point in found.points)
        assert found.beta == 1.0
    else:
        assert all(math.isfinite(point.validation_loss) for point in found.points)


class StopInStage(StopAt):
    """Ends a run at the first step of its k-th stage."""

    def __init__(self, stage: int) -> None:
        super().__init__(10**9)
        self.stages_left = stage

    def reset(self) -> None:
        self.stages_left -= 1
        if self.stages_left == 0:
            self.left = self.seen + 1


@pytest.mark.parametrize(
    ("stage", "points"),
    [
        (1, ["elbo 1"]),
        (2, ["elbo 1", "fixed 1"]),
        (3, ["elbo 1", "fixed 4", "fixed 1"]),
        (4, ["elbo 1", "fixed 4", "fixed 1", "fixed 0.2"]),
        (5, ["elbo 1", "fixed 4", "fixed 1", "fixed 0.2", "joint 1"]),
        (6, ["elbo 1", "fixed 4", "fixed 1", "fixed 0.2", "joint 4", "joint 1"]),
    ],
)
def test_an_end_in_any_stage_is_the_end(stage: int, points: list[str]) -> None:
    """Outwards from 1, first to the larger and then to the smaller; then joint."""
    monitor = StopInStage(stage)
    found = path(betas=(4.0, 1.0, 0.2), hyperparameters="auto", monitors=[monitor], max_steps=5)
    assert [f"{point.hyperparameters} {point.beta:g}" for point in found.points] == points
    assert monitor.seen == monitor.left


def test_folds_that_were_finished_count() -> None:
    """Grid, first fold, and an end in the second: half of the examples are compared."""
    whole = StopAt(10**9)
    settings: dict[str, Any] = {"betas": (4.0, 1.0), "validation": Folds(2), "stopping": NEVER}
    settings |= {"objective": "elbo", "max_steps": 10}
    complete = path(monitors=[whole], **settings)
    monitor = StopAt(whole.seen - 3)
    found = path(monitors=[monitor], **settings)
    assert monitor.seen == whole.seen - 3
    for one, other in zip(found.points, complete.points, strict=True):
        assert same(tensors(one.trained), tensors(other.trained))
        assert math.isfinite(one.validation_loss) and one.validation_loss != other.validation_loss


def test_train_with_auto_that_was_ended_returns_what_it_has() -> None:
    result = directgp.train(
        start(X, Y), Gaussian(0.1), X, Y, hyperparameters="auto", monitors=[StopAt(3)]
    )
    assert result.status is Status.CANCELLED and result.hyperparameters == "elbo"


# Checkpoints.


@pytest.mark.parametrize(
    "settings",
    [
        {"validation": Folds(2), "hyperparameters": "fixed"},
        {"hyperparameters": "auto", "validation": HoldOut(0.2)},
        {"optimizer": "adam", "batch_size": 16, "hyperparameters": "fixed"},
    ],
    ids=str,
)
@pytest.mark.slow
def test_a_path_that_was_ended_goes_on_to_the_same_end(
    tmp_path: Any, settings: dict[str, Any]
) -> None:
    settings = {"betas": (4.0, 1.0), "max_steps": 8, "stopping": NEVER, **settings}
    whole = StopAt(10**9)
    once = Checkpoints(tmp_path / "once", every=5)
    expected = path(checkpoints=once, monitors=[whole], **settings)
    parts = Checkpoints(tmp_path / "parts", every=5)
    for share in (0.3, 0.6, 0.9):
        # Finished stages are not run again, so that few steps are left each time.
        path(checkpoints=parts, monitors=[StopAt(max(3, int(share * 20)))], **settings)
    found = path(checkpoints=parts, **settings)
    assert [point.validation_loss for point in found.points] == [
        point.validation_loss for point in expected.points
    ]
    assert found.chosen == expected.chosen
    for one, other in zip(found.points, expected.points, strict=True):
        assert same(tensors(one.trained), tensors(other.trained))
        assert one.trained.history == other.trained.history


def test_without_a_generator_a_path_goes_on_with_its_own_folds(tmp_path: Any) -> None:
    """A fold drawn anew would be validated by models that have seen it."""
    settings: dict[str, Any] = {
        "betas": (4.0, 1.0),
        "validation": Folds(2),
        "objective": "elbo",
        "generator": None,
        "stopping": NEVER,
        "checkpoints": Checkpoints(tmp_path / "path", every=5),
    }
    path(monitors=[StopAt(40)], **settings)
    one = path(**settings)
    # Everything is known now, and folds are drawn a third time.
    two = path(**settings)
    assert [p.validation_loss for p in one.points] == [p.validation_loss for p in two.points]


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
@pytest.mark.parametrize("shared", [True, False])
def test_each_latent_has_the_beta_of_its_point(optimizer: str, shared: bool) -> None:
    """With as many β as latents, they could be confused: β nearest 1 is trained as if alone."""
    settings: dict[str, Any] = {
        "posterior": start(X, Y).with_latents(2, shared=shared),
        "likelihood": HeteroscedasticGaussian(),
        "hyperparameters": "fixed",
        "optimizer": optimizer,
    }
    found = path(**settings, betas=(10.0, 1.0))
    alone = path(**settings, betas=(1.0,))
    assert same(tensors(found.points[1].trained), tensors(alone.best))
    assert not same(tensors(found.points[0].trained), tensors(alone.best))


# Refusals.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"betas": []}, "betas must be at least one value. Got none."),
        ({"betas": [1.0, -0.5]}, "each of betas must be finite and at least 0. Got -0.5."),
        ({"betas": [math.nan]}, "each of betas must be finite and at least 0. Got nan."),
        ({"betas": [math.inf]}, "each of betas must be finite and at least 0. Got inf."),
        ({"hyperparameters": "held"}, "hyperparameters must be one of"),
        ({"validation": Given(X_NEW[:, :1], Y_NEW)}, "X of validation must be of shape (n, 2)."),
        ({"y": Y[:3]}, "y of beta_path must be of shape (40,)"),
        ({"X": X[:1], "y": Y[:1], "validation": Folds()}, "at least two rows"),
        ({"objective": "nothing"}, "objective must be one of"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_arguments_of_beta_path_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        path(**settings)
    assert message in str(caught.value)


@pytest.mark.slow
def test_the_least_regularised_wins_where_data_are_plenty_and_clean() -> None:
    """And the most regularised where there is nothing to learn."""
    X_many = inputs(150)
    clean = torch.sin(2 * X_many[:, 0])
    settings: dict[str, Any] = {"betas": (300.0, 3.0, 0.1), "validation": HoldOut(0.3)}
    found = path(X=X_many, y=clean, posterior=start(X_many, clean, m=20), **settings)
    assert found.beta < 100
    void = regression(150, noise=30.0)[1] / 30
    found = path(X=X_many, y=void, posterior=start(X_many, void), **settings)
    assert found.beta == 300.0


def test_stopping_rules_are_reset_between_candidates() -> None:
    """One object serves all; a window that ran on would stop the second β at once."""
    found = path(stopping=RelativeDecrease(3, 0.5), betas=(4.0, 1.0), max_steps=60)
    assert all(point.trained.stages[-1].steps >= 4 for point in found.points)


@pytest.mark.parametrize("mode", ["joint", "fixed"])
def test_a_finished_elbo_run_may_be_given(mode: str) -> None:
    """The first run of the path is what `train` makes of it, and no ELBO run comes before."""
    base = directgp.train(start(X, Y), Gaussian(0.1), X, Y, objective="elbo", max_steps=20)
    settings: dict[str, Any] = {"posterior": base.posterior, "likelihood": base.likelihood}
    found = path(**settings, betas=[1.0], hyperparameters=mode, start="given")
    stages = found.best.stages
    if mode == "joint":
        again = directgp.train(
            **settings, X=X, y=Y, start="scratch", max_steps=20, generator=seeded(7)
        )
        assert same(tensors(found.best), tensors(again)) and len(stages) == 1
    else:
        assert [stage.steps for stage in stages[:-1]] == [0]
        held = ("Z", "prior", "raw_noise")
        before = {k: v for k, v in tensors(base).items() if any(name in k for name in held)}
        after = tensors(found.best)
        assert before and same(before, {name: after[name] for name in before})


def test_a_finished_run_can_only_be_validated_on_new_rows() -> None:
    for seen in (Folds(3), HoldOut(0.2)):
        with pytest.raises(
            InvalidInputError, match=r"validation with start='given' must be Given\(X, y\)"
        ):
            path(start="given", validation=seen)
    with pytest.raises(InvalidInputError, match=r"start must be 'elbo' or 'given'\. Got 'cold'"):
        path(start="cold")


@pytest.mark.parametrize(("n", "name"), [(999, "Folds"), (1000, "HoldOut")])
def test_few_examples_are_validated_in_folds_and_many_by_a_part_held_out(n: int, name: str) -> None:
    X, y = regression(n)
    with pytest.raises(InvalidInputError, match=rf"was not trained on\. Got {name}"):
        path(X=X, y=y, posterior=start(X, y), start="given", validation=None)
