"""The warnings of a fit: conditions and texts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from directgp.errors import DirectGPWarning
from directgp.estimators import messages
from directgp.estimators.fitting import Fitted, member_of
from directgp.estimators.preprocessing import ColumnScaling, Scalings, TrainingTable
from directgp.likelihoods import Gaussian, Likelihood, NegativeBinomial, Probit, StudentT
from directgp.posteriors.prior import Prior
from directgp.posteriors.sparse import SparsePosterior
from directgp.race.coverage import Coverage, Group
from directgp.training.beta_path import beta_grid
from directgp.training.result import (
    BetaPath,
    Failure,
    PathPoint,
    StageResult,
    Status,
    TrainingResult,
)

Array = NDArray[np.float64]


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_warning_is_a_user_warning() -> None:
    assert issubclass(DirectGPWarning, UserWarning)


def about_rows(
    X: Array,
    names: list[str] | None = None,
    *,
    num_rows: int | None = None,
    num_merged: int = 0,
    weight: float = 1.0,
    num_inducing: int | None = None,
    warm: bool = False,
    scaled: bool = True,
) -> list[str]:
    """The warnings about a table of these inputs, scaled or as given."""
    inputs, n = torch.as_tensor(X, dtype=torch.float64), len(X)
    identity = ColumnScaling.identity(X.shape[1])
    scalings = Scalings(replace(identity, rounded=scaled), ColumnScaling.identity(1))
    table = TrainingTable(
        X=inputs,
        y=torch.zeros(n, dtype=torch.float64),
        weights=torch.full((n,), weight, dtype=torch.float64),
        row_argument=None,
        row_values=None,
        scalings=scalings,
        num_rows=n if num_rows is None else num_rows,
        num_merged=num_merged,
    )
    return list(messages.row_findings(table, names, num_inducing, warm))


def test_constant_columns_are_named() -> None:
    scaled = np.array([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
    (sentence,) = about_rows(scaled)
    assert sentence.startswith("The same value in every training row: column 0, column 2.")
    (sentence,) = about_rows(scaled, ["a", "b", "c"])
    assert "'a', 'c'." in sentence
    assert not about_rows(scaled[:, 1:2])


@pytest.mark.parametrize(
    ("num_merged", "num_rows", "speaks"),
    [(5, 100, True), (4, 10, False), (5, 500, False), (6, 500, True), (0, 10, False)],
)
def test_repeated_rows_are_mentioned_when_many(
    num_merged: int, num_rows: int, speaks: bool
) -> None:
    X = random().normal(size=(num_rows, 1))
    found = about_rows(X, num_rows=num_rows, num_merged=num_merged)
    assert len(found) == speaks
    assert not speaks or f"{num_merged} of {num_rows} rows" in found[0]


def test_weights_that_look_relative_are_mentioned() -> None:
    X = random().normal(size=(200, 1))
    (sentence,) = about_rows(X, weight=1 / 200)
    assert "sum to 1 for 200 rows" in sentence and "n/Σw = 200." in sentence
    assert not about_rows(X, weight=0.5) and not about_rows(X, weight=5e3)


@pytest.mark.parametrize(
    ("column", "speaks"),
    [
        (random().normal(size=50), False),
        (random().normal(3.0, 2.0, size=50), False),
        (np.full(50, 0.3), False),
        (random().normal(6.0, 1.0, size=50), True),
        (random().normal(-9.0, 0.01, size=1), True),
        (random().normal(0.0, 30.0, size=50), True),
    ],
)
def test_rows_that_are_not_of_the_scaling_are_mentioned(column: Array, speaks: bool) -> None:
    found = about_rows(np.column_stack([0 * column, column]), ["a", "b"], warm=True)
    outside = [text for text in found if "first fit" in text]
    assert len(outside) == speaks
    assert not speaks or "of the first fit: 'b'." in outside[0]


def test_inputs_that_are_not_scaled_have_no_first_fit_to_differ_from() -> None:
    assert not about_rows(random().normal(1e3, 30.0, (50, 1)), warm=True, scaled=False)


def test_inducing_inputs_are_no_more_than_rows() -> None:
    X = random().normal(size=(30, 1))
    (sentence,) = about_rows(X, num_inducing=100)
    assert "reduced to 30" in sentence
    assert not about_rows(X, num_inducing=30)


@pytest.mark.parametrize(
    "counts",
    [
        random().poisson(0.3, 200),
        random().poisson(3.0, 200),
        random().negative_binomial(1, 0.05, 500),
        random().poisson(np.exp(random(1).normal(1, 1, 300))).astype(np.float64),
    ],
)
def test_counts_are_recognised(counts: Array) -> None:
    (sentence,) = messages.regression_target(counts)
    assert "SparseGPCountRegressor" in sentence


@pytest.mark.parametrize(
    "target",
    [
        random().normal(size=200),
        random().integers(1926, 2011, 500),
        2010 - random().poisson(10, 500),
        np.round(random().lognormal(5, 0.5, 500)),
        np.round(random().lognormal(12, 1, 500)),
        random().integers(0, 100, 500),
        random().integers(3, 10, 500),
        np.clip(np.round(random().normal(5.6, 0.8, 500)), 0, 10),
        random().poisson(3.0, 200) + 0.5,
        -random().poisson(3.0, 200),
        random().poisson(1.0, 10),
        np.arange(30) % 3,
        np.full(50, 3.0),
        np.zeros(50),
        np.append(np.zeros(50), [1e6, 2e6]),
    ],
)
def test_other_targets_are_left_alone(target: Array) -> None:
    assert not list(messages.regression_target(target))


@pytest.mark.parametrize("low", [0, -1])
def test_two_values_may_be_classes(low: int) -> None:
    (sentence,) = messages.regression_target(random().choice([low, 1], 50))
    assert f"two values, {low} and 1." in sentence
    assert "SparseGPClassifier" in sentence


def ended(
    status: Status = Status.CONVERGED,
    losses: tuple[float, ...] = (),
    *,
    at_floor: tuple[str, ...] = (),
    likelihood: Likelihood | None = None,
    scales: list[float] | None = None,
) -> TrainingResult:
    """The result of a run of 7 steps."""
    Z = torch.zeros(1, len(scales or [1.0]), dtype=torch.float64)
    reason = "7 of 7 steps are used."
    stage = StageResult("log_loss", status, reason, 7, 9, 0.5, losses, 0.0, at_floor, False)
    posterior = SparsePosterior(Prior.from_data(Z, ard=scales is not None), Z)
    if scales is not None:
        posterior.prior.kernel.lengthscale = torch.tensor(scales)
    likelihood = likelihood or Gaussian()
    return TrainingResult(posterior, likelihood, "log_loss", 1.0, "joint", (stage,), 1.0)


def about(result: TrainingResult, path: BetaPath | None = None) -> list[str]:
    return about_fit(Fitted.of(result, path=path))


def about_fit(fitted: Fitted) -> list[str]:
    return list(messages.training_findings(fitted, ["a", "b", "c"], 3))


def mixture(*results: TrainingResult, stacked: bool = False, **fields: Any) -> Fitted:
    """Members of equal weight; the last one may have the columns of a stack."""
    members = [member_of(result) for result in results]
    members[-1] = replace(members[-1], stacked=stacked)
    weights = (1 / len(members),) * len(members)
    return Fitted(tuple(members), weights, results[0], **fields)


def chosen(beta: float, grid: list[float], mode: str = "joint") -> BetaPath:
    """A path on which validation chose this β."""
    point = PathPoint(beta, mode, None, 1.0, 0.1, 0.0, 0.0, "converged")
    return BetaPath((point,), 0, "log_loss", 1.0, grid=tuple(grid))


@pytest.mark.parametrize(
    ("likelihood", "name", "words"),
    [
        (Gaussian(), "likelihood.raw_noise", "The noise variance ended at the smallest value"),
        (StudentT(), "likelihood.raw_scale", "Student-t"),
        (StudentT(), "likelihood.raw_df", "degrees of freedom"),
        (NegativeBinomial(), "likelihood.raw_dispersion", "dispersion"),
        (Probit(), "prior.raw_output_scale", "nearly constant"),
        (Probit(), "likelihood.raw_other", "likelihood.raw_other ended"),
    ],
)
def test_a_parameter_at_its_floor_is_named(likelihood: Likelihood, name: str, words: str) -> None:
    (sentence,) = about(ended(at_floor=(name,), likelihood=likelihood))
    assert words in sentence


def test_no_warning_without_a_parameter_at_its_floor() -> None:
    assert not about(ended())
    noise = ended(at_floor=("likelihood.raw_noise",))
    assert not about(noise, chosen(1.0, [1.0], "elbo"))


def test_features_without_influence_are_named() -> None:
    (sentence,) = about(ended(scales=[1.0, 500.0, 99.0]))
    assert "100 times the spread of the feature: 'b'." in sentence
    assert not about(ended(scales=[1.0, 99.0, 99.0]))


def test_a_feature_is_without_influence_if_no_member_uses_it() -> None:
    first, second = ended(scales=[1.0, 500.0, 500.0]), ended(scales=[500.0, 500.0, 1.0])
    (sentence,) = about_fit(mixture(first, second))
    assert "of the feature: 'b'." in sentence
    assert not about_fit(mixture(first, ended()))
    # Trees see every feature.
    assert not about_fit(mixture(ended(scales=[1.0, 500.0, 1.0, 500.0]), stacked=True))


def test_columns_that_are_no_features_are_not_named() -> None:
    """The lengthscales of an indicator and of a column of the stack."""
    assert not about(ended(scales=[1.0, 1.0, 1.0, 500.0, 500.0]))


def test_a_bound_of_one_of_several_members_is_not_mentioned() -> None:
    constant = ended(at_floor=("prior.raw_output_scale",), likelihood=Probit())
    assert about(constant)
    assert not about_fit(mixture(constant, ended(likelihood=Probit())))


def test_an_interrupted_race_is_mentioned() -> None:
    stage = ended(Status.INTERRUPTED).stages[-1]
    (sentence,) = about_fit(mixture(ended(), end=stage))
    assert "ended before it converged. 7 of 7 steps are used. Fit again" in sentence


def test_a_candidate_that_failed_is_named_once() -> None:
    failed = Failure(0.5, "joint", "Not finite.", "rbf, student_t, joint, β = 0.5")
    (sentence,) = about(ended(), replace(chosen(1.0, [1.0]), failed=(failed,)))
    assert sentence == (
        "A candidate could not be trained: rbf, student_t, joint, β = 0.5: Not finite."
    )


def test_the_ends_of_the_grid_are_mentioned() -> None:
    grid = beta_grid(100)
    (largest,) = about(ended(), chosen(100.0, grid))
    (smallest,) = about(ended(), chosen(0.01, grid))
    assert "β = 100, the largest" in largest and "above" in largest
    assert "β = 0.01, the smallest" in smallest and "below" in smallest
    assert not [text for beta in grid[1:-1] for text in about(ended(), chosen(beta, grid))]


def test_the_end_of_the_grid_matters_if_every_member_is_there() -> None:
    grid = (10.0, 1.0, 0.01)

    def weighted(*pairs: tuple[float, str]) -> BetaPath:
        points = tuple(
            PathPoint(beta, mode, None, 1.0, 0.1, 0.0, 0.0, label=f"{k}", weight=1 / len(pairs))
            for k, (beta, mode) in enumerate(pairs)
        )
        # One that is no member.
        other = PathPoint(1.0, "joint", None, 2.0, 0.1, 1.0, 0.1, label="other", weight=0.0)
        return BetaPath((other, *points), 1, "log_loss", 1.0, grid=grid)

    (sentence,) = about(ended(), weighted((0.01, "joint"), (0.01, "joint")))
    assert "β = 0.01, the smallest" in sentence
    assert not about(ended(), weighted((0.01, "joint"), (10.0, "joint")))
    assert not about(ended(), weighted((10.0, "joint"), (1.0, "elbo")))


def test_a_beta_that_nobody_chose_is_not_mentioned() -> None:
    assert not about(ended(), chosen(1.0, [1.0]))
    assert not about(ended(), chosen(1.0, [10.0, 0.1]))


SCALINGS = Scalings(
    ColumnScaling(np.array([0.0, 10.0]), np.array([1.0, -2.0])),
    ColumnScaling(np.array([100.0]), np.array([5.0])),
)


def test_intervals_that_are_too_narrow_are_located_in_the_units_of_the_table() -> None:
    path = chosen(1.0, [1.0])
    groups = Group(None, -1.0, 0.5, 9, 20), Group(1, 1.0, 2.0, 10, 20)
    enough = Group(1, 2.0, 3.0, 17, 20)
    fitted = Fitted.of(ended(), path=path, coverage=Coverage((*groups, enough)))
    (sentence,) = messages.narrow_intervals(fitted, SCALINGS, ["a", "b"])
    words = (
        "9 of 20 validation targets where the predicted mean is from 95 to 102.5, and too few in"
    )
    assert words in sentence and "in 1 other part of the table" in sentence
    assert not list(messages.narrow_intervals(Fitted.of(ended(), path=path), SCALINGS, None))
    # The sign of the second column was reversed.
    unchecked = Fitted.of(ended(), coverage=Coverage((groups[1], enough)))
    (sentence,) = messages.narrow_intervals(unchecked, SCALINGS, None)
    assert "10 of 20 training targets where column 1 is from 6 to 8. " in sentence


@pytest.mark.parametrize("status", Status)
def test_a_run_that_did_not_converge_is_mentioned_once(status: Status) -> None:
    result = ended(status)
    warned = list(messages.not_converged(result))
    early = list(messages.ended_early(result.status, result.reason))
    assert len(warned) == (status is Status.BUDGET)
    assert len(early) == (status in (Status.CANCELLED, Status.INTERRUPTED))
    assert all(f". {result.reason} " in sentence for sentence in warned + early)


@pytest.mark.parametrize(("fall", "warns"), [(0.1, True), (1e-4, False)])
def test_a_budget_matters_while_the_loss_falls_fast(fall: float, warns: bool) -> None:
    losses = tuple(3.0 - fall * step for step in range(30))
    assert len(list(messages.not_converged(ended(Status.BUDGET, losses)))) == warns


def test_a_share_of_the_steps_is_named() -> None:
    (alone,) = messages.not_converged(ended(Status.BUDGET))
    (compared,) = messages.not_converged(ended(Status.BUDGET), compared=True)
    assert "at most max_iter steps" in compared and "max_iter" not in alone
