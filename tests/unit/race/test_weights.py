"""Weights of a mixture: they minimise its loss, equal weights count as rows, rows left out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from torch import Tensor

from directgp.likelihoods import Gaussian
from directgp.objectives import AbsoluteLoss, CRPSLoss, LogLoss, PinballLoss, PointLoss, SquareLoss
from directgp.race import weights as weights_module
from directgp.race.weights import EntrantForecasts, largest
from directgp.shapes import Marginals
from tests.unit.training.models import normal

MOST = 6
PRIOR = 5.0
"""Rows that equal weights count as."""


def densities(losses: Tensor, share: Tensor | None = None) -> EntrantForecasts:
    """Predictions compared by their log loss."""
    return EntrantForecasts(LogLoss(), losses, None, torch.zeros(losses.shape[1]).double(), share)


def predictions(
    loss: PointLoss, y: Tensor, means: Tensor, share: Tensor | None = None, noise: float = 0.1
) -> EntrantForecasts:
    """Gaussian predictions of each candidate, compared by a loss."""
    losses, forecasts = [], []
    for mean in means:
        q = Marginals(mean, torch.full_like(mean, 0.05))
        losses.append(loss(Gaussian(noise), y, q).detach())
        forecasts.append(loss.forecast(Gaussian(noise), q))
    known = [each.detach() for each in forecasts if each is not None]
    return EntrantForecasts(
        loss, torch.stack(losses), torch.stack(known) if known else None, y, share
    )


def gaussians(candidates: int, rows: int, seed: int = 0) -> Tensor:
    """Log losses of candidates with errors of their own."""
    errors = normal(candidates, rows, seed=seed) * torch.linspace(0.7, 1.3, candidates)[:, None]
    return -torch.as_tensor(stats.norm.logpdf(errors.numpy()))


def penalised(p: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The minimum of −Σ_i s_i log Σ_k w_k p_k − (5/K) Σ_k log w_k over the simplex."""

    def value(z: np.ndarray) -> float:
        w = np.exp(z - np.logaddexp.reduce(z))
        return float(-share @ np.log(w @ p) - PRIOR / len(p) * np.log(w).sum())

    z = optimize.minimize(value, np.zeros(len(p)), tol=1e-12).x
    return np.asarray(np.exp(z - np.logaddexp.reduce(z)))


@pytest.mark.parametrize("candidates", [2, 3, 5])
@pytest.mark.parametrize("rows", [8, 400])
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_minimise_the_log_loss(candidates: int, rows: int, weighted: bool) -> None:
    losses = gaussians(candidates, rows)
    share = normal(rows, seed=9).abs() if weighted else None
    share = None if share is None else share / share.mean()
    expected = penalised(np.exp(-losses.numpy()), np.ones(rows) if share is None else share.numpy())
    found = densities(losses, share).weights(MOST)
    np.testing.assert_allclose(found, largest(torch.tensor(expected), MOST), atol=3e-3)


def grid(parts: int, candidates: int) -> list[Tensor]:
    """All weights that are multiples of 1/parts."""
    counts = np.stack(np.meshgrid(*[range(parts + 1)] * candidates), -1).reshape(-1, candidates)
    return [torch.tensor(row / parts) for row in counts if row.sum() == parts]


@pytest.mark.parametrize("candidates", [2, 3])
@pytest.mark.parametrize(
    "loss",
    [SquareLoss(), AbsoluteLoss(), PinballLoss(level=0.9), CRPSLoss()],
    ids=lambda loss: str(loss.name),
)
def test_other_losses_are_as_low_as_the_best_weights_of_a_grid(
    loss: PointLoss, candidates: int
) -> None:
    rows = 60
    y = normal(rows, seed=1)
    errors = torch.linspace(0.4, 0.6, candidates)[:, None] * normal(candidates, rows, seed=2)
    means = y + errors
    pool = predictions(loss, y, means)
    found = pool.weights(MOST)
    # Undo the part of equal weights.
    bare = ((rows + PRIOR) * found - PRIOR / candidates) / rows
    lowest = min(pool.mean(weights) for weights in grid(10, candidates))
    start = pool.mean(torch.full((candidates,), 1 / candidates).double())
    best = pool.mean(pool.best())
    assert lowest < min(start, best), "a mixture is better"
    assert pool.mean(bare.clamp(min=0)) <= 1.005 * lowest


def test_the_weight_of_a_row_counts_as_rows() -> None:
    losses = gaussians(3, 30)
    counts = torch.arange(30) % 3
    repeated = losses.repeat_interleave(counts, dim=1)
    weighted = densities(losses, counts / counts.double().mean())
    # The rows of mean weight 1 are 30 in both cases.
    torch.testing.assert_close(weighted.weights(MOST), densities(repeated).weights(MOST))


def test_few_rows_leave_weights_near_equal() -> None:
    """Candidate 0 is right, 1 is wrong: more rows, less weight for the wrong one."""
    shares = []
    for rows in (1, 5, 50):
        y = torch.zeros(rows).double()
        means = torch.tensor([[0.0], [3.0]]).double().expand(2, rows)
        shares.append(float(predictions(LogLoss(), y, means).weights(MOST)[1]))
    assert 0.5 > shares[0] > shares[1] > shares[2]
    # With n rows that all speak for the other, 5/2 of n + 5 remain.
    expected = [PRIOR / 2 / (rows + PRIOR) for rows in (1, 5, 50)]
    np.testing.assert_allclose(shares, expected, rtol=0.02)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.99])
def test_a_quantile_far_out_is_judged_where_it_is(level: float) -> None:
    """Few points would put it nearer to the middle, and prefer wide predictions."""
    loss = PinballLoss(level=level)
    y = normal(4000)
    q = Marginals(torch.zeros(4000).double(), torch.zeros(4000).double() + 1e-9)
    means, both = [], []
    for deviation in (1.0, 1.2):
        noise = Gaussian(deviation**2)
        forecast = loss.forecast(noise, q)
        assert forecast is not None
        own = loss(noise, y, q).detach()
        pool = EntrantForecasts(loss, own[None], forecast[None], y, None)
        means.append(pool.mean(torch.ones(1).double()))
        assert means[-1] == pytest.approx(float(own.mean()), rel=1e-12)
        twice = EntrantForecasts(loss, own.repeat(2, 1), torch.stack([forecast] * 2), y, None)
        both.append(twice.mean(torch.full((2,), 0.5).double()))
    assert both == pytest.approx(means, rel=0.02)


@pytest.mark.parametrize(("rows", "wrong"), [(1, PRIOR / 2 / (1 + PRIOR)), (5, 0.0)])
def test_a_mean_that_is_clearly_wrong_is_left_out(rows: int, wrong: float) -> None:
    y = torch.zeros(rows).double()
    means = torch.tensor([[0.0], [3.0]]).double().expand(2, rows) + 0.1 * normal(rows)
    weights = predictions(SquareLoss(), y, means).weights(MOST)
    torch.testing.assert_close(float(weights[1]), wrong)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_loss_that_is_not_finite_has_no_weight(bad: float, place: int) -> None:
    losses = gaussians(3, 40)
    losses[place, 7] = bad
    found = densities(losses).weights(MOST)
    assert found[place] == 0
    others = [k for k in range(3) if k != place]
    torch.testing.assert_close(found[others], densities(losses[others]).weights(MOST))


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_the_only_finite_candidate_has_all_the_weight(bad: float) -> None:
    losses = gaussians(3, 40)
    losses[[0, 2], 7] = bad
    for found in (densities(losses).weights(MOST), densities(losses).best()):
        assert found.tolist() == [0, 1, 0]


def test_without_a_finite_candidate_there_is_a_weight() -> None:
    losses = torch.full((2, 5), math.inf).double()
    assert densities(losses).weights(MOST).tolist() == [1, 0]


def test_one_candidate_has_all_the_weight() -> None:
    pool = densities(gaussians(1, 4))
    assert pool.weights(MOST).tolist() == [1.0] == pool.best().tolist()
    torch.testing.assert_close(pool.cross_fitted(MOST), pool.losses[0])


def test_the_best_has_the_lowest_weighted_mean() -> None:
    losses = torch.tensor([[0.0, 2.0], [0.9, 0.9]]).double()
    assert densities(losses).best().tolist() == [0, 1]
    assert densities(losses, torch.tensor([1.5, 0.5]).double()).best().tolist() == [1, 0]


@pytest.mark.parametrize(
    ("weights", "most", "kept"),
    [
        ([0.5, 0.3, 0.2], 6, [0.5, 0.3, 0.2]),
        ([0.5, 0.3, 0.2], 2, [0.625, 0.375, 0]),
        ([0.5, 0.3, 0.2], 1, [1, 0, 0]),
        # Tiny weights are dropped, the others share them.
        ([0.01, 0.495, 0.495], 6, [0, 0.5, 0.5]),
        ([0.02, 0.98, 0.0], 6, [0.02, 0.98, 0]),
        # Of equal ones the first stay.
        ([0.25, 0.25, 0.25, 0.25], 3, [1 / 3, 1 / 3, 1 / 3, 0]),
        # Where all are tiny, the largest stay.
        ([0.01] * 100, 6, [1 / 6] * 6 + [0] * 94),
    ],
)
def test_the_largest_weights_stay(weights: list[float], most: int, kept: list[float]) -> None:
    found = largest(torch.tensor(weights, dtype=torch.float64), most)
    np.testing.assert_allclose(found, kept, rtol=1e-12)


finite = st.floats(-20, 20)


@given(
    st.integers(1, 5).flatmap(
        lambda c: st.integers(1, 7).flatmap(
            lambda v: st.lists(
                st.lists(finite | st.just(math.inf), min_size=v, max_size=v),
                min_size=c,
                max_size=c,
            )
        )
    ),
    st.integers(1, 6),
)
def test_weights_are_a_distribution_of_few_members(losses: list[list[float]], most: int) -> None:
    pool = densities(torch.tensor(losses).double())
    for weights in (pool.weights(most), pool.best()):
        assert float(weights.sum()) == pytest.approx(1, abs=1e-12)
        assert bool((weights >= 0).all()) and int((weights > 0).sum()) <= most
        members = weights[weights > 0]
        assert len(members) == 1 or float(members.min()) >= 0.02 * 0.999
    # A single candidate is no better by more than the rows that equal weights count as.
    if math.isfinite(pool.mean(pool.best())) and most >= len(losses):
        rows, number = len(losses[0]), len(losses)
        slack = PRIOR / rows * (math.log(number) + 1) + 0.05
        assert pool.mean(pool.weights(most)) <= pool.mean(pool.best()) + slack


@settings(max_examples=30)
@given(st.integers(2, 4), st.integers(2, 12), st.integers(0, 5))
def test_the_loss_of_a_mixture_is_below_the_mean_of_its_members(
    candidates: int, rows: int, seed: int
) -> None:
    """Jensen: −log is convex, and so are the square loss and the CRPS in the distribution."""
    y, means = normal(rows, seed=seed), normal(candidates, rows, seed=seed + 10)
    weights = torch.softmax(normal(candidates, seed=seed + 20), 0)
    for loss in (LogLoss(), SquareLoss(), CRPSLoss()):
        pool = predictions(loss, y, means)
        assert bool((pool.mixed(weights) <= weights @ pool.losses + 1e-9).all())


# Rows left out


def test_a_row_is_judged_by_weights_that_have_not_seen_it() -> None:
    """A row that alone speaks for a candidate does not do so for itself."""
    losses = torch.stack([torch.zeros(50), torch.full((50,), 9.0)]).double()
    losses[:, 17] = torch.tensor([40.0, 0.0])
    pool = densities(losses)
    honest = pool.cross_fitted(MOST)
    inside = pool.mixed(pool.weights(MOST))
    others = [i for i in range(50) if i % 5 != 17 % 5]
    expected = pool.at(torch.tensor([17])).mixed(pool.at(torch.tensor(others)).weights(MOST))
    assert float(honest[17]) == pytest.approx(float(expected), rel=1e-12)
    assert honest[17] > inside[17] + 0.1


def test_the_targets_of_a_row_do_not_change_its_own_weights() -> None:
    """Every row's weights stay where its own losses change, and those of other rows change."""
    losses = gaussians(3, 11)
    before = densities(losses).cross_fitted(MOST)
    for row in range(11):
        changed = losses.clone()
        changed[:, row] += 5.0
        after = densities(changed).cross_fitted(MOST)
        torch.testing.assert_close(after[row], before[row] + 5.0)
    changed = losses.clone()
    changed[0, 0] += 5.0
    after = densities(changed).cross_fitted(MOST)
    assert bool((after[1:5] != before[1:5]).all())


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_few_rows_are_judged_too(rows: int) -> None:
    found = densities(gaussians(3, rows)).cross_fitted(MOST)
    assert found.shape == (rows,) and bool(found.isfinite().all())


def test_noise_is_not_taken_for_a_gain() -> None:
    """Candidates that are equal but for noise: the loss of rows left out is not below theirs."""
    gains_inside, gains = [], []
    for seed in range(12):
        shared = normal(1, 60, seed=100 + seed)
        # A loss that is linear in the weights, so that a mixture of equals gains nothing.
        pool = EntrantForecasts(
            _Linear(), shared + normal(4, 60, seed=seed), None, torch.zeros(60).double(), None
        )
        single = float(pool.losses.mean())
        gains_inside.append(single - pool.mean(pool.weights(MOST)))
        gains.append(single - float(pool.cross_fitted(MOST).mean()))
    error = np.std(gains) / len(gains) ** 0.5
    assert np.mean(gains_inside) > 0.1
    assert abs(np.mean(gains)) < 3 * error


def test_weights_of_rows_multiply_the_losses_of_rows_left_out() -> None:
    losses = gaussians(2, 20)
    share = torch.linspace(0, 2, 20).double()
    pool = densities(losses, share)
    found = pool.cross_fitted(MOST)
    assert float(found[0]) == 0 and float(found[-1]) != 0
    rest = torch.tensor([i for i in range(20) if i % 5 != 19 % 5])
    weights = pool.at(rest).weights(MOST)
    row = -torch.logsumexp(weights.log() - losses[:, 19], 0)
    assert float(found[-1]) == pytest.approx(2 * float(row), rel=1e-12)


def test_float32_losses_are_mixed_in_float32_with_weights_in_float64() -> None:
    pool = densities(gaussians(3, 40).float())
    weights = pool.weights(MOST)
    assert weights.dtype == torch.float64 and pool.mixed(weights).dtype == torch.float32
    torch.testing.assert_close(
        weights, densities(gaussians(3, 40)).weights(MOST), atol=1e-5, rtol=0
    )


def test_extreme_losses_keep_their_digits() -> None:
    """Densities of e^{-2000} and of e^{900}."""
    losses = gaussians(2, 40) + torch.linspace(-900, 2000, 40)
    expected = densities(gaussians(2, 40)).weights(MOST)
    torch.testing.assert_close(densities(losses).weights(MOST), expected, atol=1e-9, rtol=0)


class _Linear(PointLoss):
    """A loss whose value for a mixture is the mean of the members' losses."""

    name = "linear"

    def __call__(self, *args: object, **kwargs: object) -> Tensor:
        raise NotImplementedError


def test_the_prior_is_the_one_of_the_module() -> None:
    assert weights_module._PRIOR == PRIOR
