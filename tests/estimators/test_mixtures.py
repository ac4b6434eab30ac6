"""Predictions of models with several members: means over members, made here one by one."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from directgp import SparseGPClassifier, SparseGPRegressor
from directgp.errors import InvalidInputError
from directgp.estimators import neg_coverage_error, neg_nll, partial_dependence
from directgp.estimators.explanations import lengthscale_shares, numbers_by_weight, split_shares
from directgp.estimators.members import set_members
from tests.estimators.fitted_models import (
    COUNTS,
    HOURS,
    LABELS,
    SPENT,
    THERE,
    X,
    Y,
    classifier,
    counter,
    regressor,
)
from tests.estimators.mixtures import SINGLE, mixed, mixture_of, with_stacked

Array = NDArray[np.float64]

WEIGHTS = (0.5, 0.3, 0.2)
REAL = ("gaussian", "student_t", "heteroscedastic")
FAMILIES_OF_COUNTS = ("poisson", "negative_binomial")


def alone(model: Any, k: int) -> Any:
    """A model of member k alone."""
    one = copy.deepcopy(model)
    set_members(one, [model.members_[k]], [1.0])
    one.stack_ = model.stack_ if model.members_[k].stacked else None
    return one


def of_members(model: Any, method: str, *args: Any, **kwargs: Any) -> Array:
    """The results of a method for each member alone."""
    results = [
        getattr(alone(model, k), method)(*args, **kwargs) for k in range(len(model.members_))
    ]
    return np.array(results)


def expected(model: Any, method: str, *args: Any, **kwargs: Any) -> Array:
    """The weighted mean of the results of a method for each member alone."""
    weighted: Array = np.tensordot(model.weights_, of_members(model, method, *args, **kwargs), 1)
    return weighted


def real() -> Any:
    return mixed(regressor, REAL, WEIGHTS)


def counts() -> Any:
    return mixed(counter, FAMILIES_OF_COUNTS, (0.6, 0.4))


@pytest.fixture(scope="module")
def stacked() -> Any:
    """A Gaussian, a Student's t, and a member with the column of trees."""
    two = mixed(regressor, REAL[:2], (0.6, 0.4))
    return with_stacked(two, X, Y, 0.4)


@pytest.fixture(scope="module")
def stacked_counts() -> Any:
    return with_stacked(counts(), X, COUNTS, 0.4, exposure=HOURS)


@pytest.fixture(scope="module")
def stacked_labels() -> Any:
    two = mixture_of(
        [classifier(**SINGLE), classifier(**SINGLE, likelihood="logistic")], (0.7, 0.3)
    )
    return with_stacked(two, X, LABELS, 0.4)


MAKE = pytest.mark.parametrize("name", ["several", "stacked"])


def chosen(name: str, stacked: Any) -> Any:
    return stacked if name == "stacked" else real()


@MAKE
def test_mean_and_densities_are_weighted_means(name: str, stacked: Any) -> None:
    model = chosen(name, stacked)
    np.testing.assert_allclose(model.predict(THERE), expected(model, "predict", THERE), rtol=1e-12)
    y = np.linspace(0, 20, len(THERE))
    logs = of_members(model, "log_density", THERE, y)
    mixed_logs = np.log(np.tensordot(model.weights_, np.exp(logs), 1))
    np.testing.assert_allclose(model.log_density(THERE, y), mixed_logs, rtol=1e-10)
    assert model.nll(THERE, y) == pytest.approx(-mixed_logs.mean(), rel=1e-10)
    assert neg_nll(model, THERE, y) == pytest.approx(mixed_logs.mean(), rel=1e-10)


@MAKE
def test_quantiles_and_intervals_have_their_probability(name: str, stacked: Any) -> None:
    model = chosen(name, stacked)
    levels = [0.001, 0.1, 0.5, 0.9, 0.999]
    quantiles = model.predict_quantiles(THERE, levels)
    for level, y in zip(levels, quantiles.T, strict=True):
        below = model._probabilities_below(THERE, y, "test")[1]
        np.testing.assert_allclose(below, level, rtol=1e-8)
        np.testing.assert_allclose(
            below,
            np.tensordot(
                model.weights_,
                [
                    alone(model, k)._probabilities_below(THERE, y, "test")[1]
                    for k in range(len(model.members_))
                ],
                1,
            ),
            rtol=1e-12,
        )
    lower, upper = model.predict_interval(THERE, 0.8)
    # Quadrature rounds differently with other levels in the same call.
    np.testing.assert_allclose(np.stack([lower, upper], 1), quantiles[:, [1, 3]], rtol=1e-10)


def test_deviation_of_members_with_variances() -> None:
    model = mixed(regressor, ("gaussian", "heteroscedastic"), (0.7, 0.3))
    mean, std = model.predict(THERE, return_std=True)
    pairs = of_members(model, "predict", THERE, return_std=True)
    second = np.tensordot(model.weights_, pairs[:, 1] ** 2 + (pairs[:, 0] - mean) ** 2, 1)
    np.testing.assert_allclose(std, np.sqrt(second), rtol=1e-10)
    with_t = real()
    ends = with_t.predict_interval(THERE, 0.6826894921370859)
    np.testing.assert_allclose(
        with_t.predict(THERE, return_std=True)[1], 0.5 * (ends[1] - ends[0]), rtol=1e-12
    )


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_a_frame_has_the_columns_of_the_mixture(stacked: Any) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(THERE, columns=["x"], index=range(5, 5 + len(THERE)))
    frame = stacked.predict_frame(table, intervals=(0.8,), quantiles=(0.3,))
    mean, std = stacked.predict(THERE, return_std=True)
    lower, upper = stacked.predict_interval(THERE, 0.8)
    columns = [mean, std, lower, upper, stacked.predict_quantiles(THERE, [0.3])[:, 0]]
    np.testing.assert_allclose(frame.to_numpy(), np.stack(columns, 1), rtol=1e-10)
    assert list(frame.index) == list(table.index)


# Counts and labels


@pytest.mark.parametrize("name", ["several", "stacked"])
def test_counts_with_exposure(name: str, stacked_counts: Any) -> None:
    model = stacked_counts if name == "stacked" else counts()
    given = {"exposure": SPENT}
    for method, args in (("predict", ()), ("predict_pmf", (40,))):
        found = getattr(model, method)(THERE, *args, **given)
        np.testing.assert_allclose(
            found, expected(model, method, THERE, *args, **given), rtol=1e-12
        )
    below = model.predict_pmf(THERE, 2000, **given).cumsum(1)
    for level in (0.05, 0.5, 0.95):
        found = model.predict_quantiles(THERE, [level], **given)[:, 0]
        np.testing.assert_array_equal(found, (below >= level).argmax(1))
    y = np.arange(len(THERE)) % 5
    shares = model._pit(THERE, y, None)
    assert ((shares >= 0) & (shares <= 1)).all()
    assert -0.9 <= neg_coverage_error(model, X, COUNTS, exposure=HOURS) <= 0


def test_probabilities_are_weighted_means(stacked_labels: Any) -> None:
    model = stacked_labels
    found = model.predict_proba(THERE)
    np.testing.assert_allclose(found, expected(model, "predict_proba", THERE), rtol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-14)
    np.testing.assert_array_equal(
        model.predict(THERE), model.classes_[(found[:, 1] > 0.5).astype(int)]
    )
    y = np.array(["no", "yes"] * 9)[: len(THERE)]
    logs = model.predict_log_proba(THERE)
    np.testing.assert_allclose(
        model.log_density(THERE, y), logs[np.arange(len(y)), (y == "yes").astype(int)], rtol=1e-9
    )


@pytest.mark.filterwarnings("ignore:Training has not converged")
def test_three_classes() -> None:
    labels = np.digitize(Y, [7.0, 12.0])
    settings = {**SINGLE, "num_inducing": 6, "max_iter": 5}
    models = [SparseGPClassifier(**{**settings, "beta": b}).fit(X, labels) for b in (1.0, 0.1)]
    model = mixture_of(models, (0.6, 0.4))
    np.testing.assert_allclose(
        model.predict_proba(THERE), expected(model, "predict_proba", THERE), rtol=1e-12
    )
    (curve,) = partial_dependence(model, X, 0)
    parts = [partial_dependence(alone(model, k), X, 0)[0].mean for k in (0, 1)]
    np.testing.assert_allclose(curve.mean, 0.6 * parts[0] + 0.4 * parts[1], rtol=1e-10)


# Draws


def test_draws_of_a_single_member_are_those_of_its_posterior() -> None:
    """By hand: the seed of f, and then the noise, come from one source of random numbers."""
    model = regressor(**SINGLE)
    state = np.random.RandomState(5)
    generator = torch.Generator().manual_seed(int(state.randint(2**31 - 1)))
    scaled = torch.as_tensor(model.scalings_.scaled_inputs(THERE))
    f = model.posterior_.sample(scaled, 3, generator)
    y = model.likelihood_.sample(f, state)
    by_hand = model.scalings_.targets_in_units(y.T)
    np.testing.assert_array_equal(model.sample_y(THERE, 3, random_state=5), by_hand)


def test_draws_have_the_distribution_of_the_mixture(stacked: Any) -> None:
    number = 20_000
    draws = stacked.sample_y(THERE[::4], number, random_state=1)
    np.testing.assert_array_equal(draws, stacked.sample_y(THERE[::4], number, random_state=1))
    for level in (0.1, 0.5, 0.9):
        y = stacked.predict_quantiles(THERE[::4], [level])
        error = 5 * np.sqrt(level * (1 - level) / number)
        np.testing.assert_allclose((draws <= y).mean(1), level, rtol=0, atol=error)


def test_a_draw_is_of_one_member_at_all_rows() -> None:
    """Members with means 0 and 100 times the unit: no draw has both."""
    low = regressor(**SINGLE)
    high = copy.deepcopy(low)
    with torch.no_grad():
        member = high.members_[0]
        member.posterior.u_mean.add_(1000.0)
    model = mixture_of([low, high], (0.5, 0.5))
    near = X[:5]
    halves = of_members(model, "predict", near)
    draws = model.sample_y(near, 400, random_state=0)
    is_high = draws > 0.5 * (halves[0] + halves[1])[:, None]
    assert (is_high.all(0) | ~is_high.any(0)).all()
    assert 150 < is_high[0].sum() < 250


# Latents and explanations


def test_latents_are_those_of_the_heaviest(stacked: Any) -> None:
    np.testing.assert_array_equal(
        stacked.predict_latent(THERE), alone(stacked, 0).predict_latent(THERE)
    )
    assert stacked.posterior_ is stacked.members_[0].posterior


def test_numbers_by_weight() -> None:
    assert numbers_by_weight([0.5, 0.3, 0.2], 10) == [5, 3, 2]
    assert numbers_by_weight([0.6, 0.39, 0.01], 5) == [3, 2, 0]
    assert sum(numbers_by_weight([1 / 3] * 3, 500)) == 500


@pytest.fixture(scope="module")
def several_features() -> Any:
    """Two features, the second without effect; a member without ARD, one with it, and trees."""
    random = np.random.default_rng(0)
    Z = random.normal(size=(120, 2))
    y = np.sin(2 * Z[:, 0]) + 0.2 * random.normal(size=120)
    settings = {**SINGLE, "likelihood": "gaussian", "num_inducing": 15, "max_iter": 25}
    models = [SparseGPRegressor(**{**settings, "ard": ard}).fit(Z, y) for ard in (False, True)]
    return with_stacked(mixture_of(models, (0.5, 0.5)), Z, y, 0.5), Z, y


def test_importances_are_those_of_members_with_lengthscales(several_features: Any) -> None:
    model, _, _ = several_features
    assert [member.stacked for member in model.members_] == [False, False, True]
    assert lengthscale_shares(model.members_[0].posterior) is None
    own = lengthscale_shares(model.members_[1].posterior)
    wide = lengthscale_shares(model.members_[2].posterior)
    splits = split_shares(model.stack_)
    assert own is not None and wide is not None
    assert splits.shape == (1, 2)
    assert splits.sum() == pytest.approx(1)
    assert splits[0, 0] > 0.5
    by_hand = 0.25 * own + 0.5 * (wide[:2] + wide[2] * splits[0])
    np.testing.assert_allclose(model.feature_importances_, by_hand / 0.75, rtol=1e-12)
    assert model.feature_importances_.shape == (2,)


def test_no_lengthscales_no_importances(several_features: Any) -> None:
    with pytest.raises(AttributeError, match="feature_importances_"):
        _ = alone(several_features[0], 0).feature_importances_


def test_permutation_goes_through_the_trees(several_features: Any) -> None:
    model, Z, y = several_features
    found = model.feature_relevance(Z, y, n_repeats=2)
    assert found.importance[0] > 10 * abs(found.importance[1])
    only_trees = copy.deepcopy(model)
    member = model.members_[2]
    set_members(only_trees, [member], [1.0])
    only_trees.stack_ = model.stack_
    shuffled = Z.copy()
    shuffled[:, 0] = shuffled[::-1, 0]
    kept = model._member_inputs(Z, [member])[0][:, :2]
    changed = model._member_inputs(shuffled, [member])[0]
    # The column of trees follows the shuffled feature.
    assert not torch.equal(model._member_inputs(Z, [member])[0][:, 2], changed[:, 2])
    assert torch.equal(kept[:, 1], changed[:, 1])


def test_partial_dependence_is_the_mean_over_members(several_features: Any) -> None:
    model, Z, _ = several_features
    (curve,) = partial_dependence(model, Z, 0)
    parts = [partial_dependence(alone(model, k), Z, 0)[0] for k in range(3)]
    weighted = sum(w * part.mean for w, part in zip(model.weights_, parts, strict=True))
    np.testing.assert_allclose(curve.mean, weighted, rtol=1e-10)
    assert (curve.lower < curve.mean).all() and (curve.mean < curve.upper).all()
    # The band holds draws of all members: it reaches the median of each heavy one.
    assert (curve.upper - curve.lower >= 0.8 * min_width(parts)).all()
    by_hand = []
    for value in curve.grid:
        rows = Z.copy()
        rows[:, 0] = value
        by_hand.append(model.predict(rows).mean())
    np.testing.assert_allclose(curve.mean, by_hand, rtol=1e-9)


def min_width(parts: Any) -> Array:
    return np.asarray(np.min([part.upper - part.lower for part in parts], axis=0))


def test_plots(stacked: Any, stacked_counts: Any, stacked_labels: Any) -> None:
    pytest.importorskip("matplotlib")
    for model, y, given in (
        (stacked, Y, {}),
        (stacked_counts, COUNTS, {"exposure": HOURS}),
        (stacked_labels, LABELS, {}),
    ):
        assert model.plot_predictions(X, y, **given).lines
        assert model.plot_calibration(X, y, **given) is not None
        assert len(model.plot_partial_dependence(X)) == 1


# Row values and supports


def test_row_values_go_to_every_member() -> None:
    model = counts()
    rates = model.predict(THERE, exposure=np.ones(len(THERE)))
    np.testing.assert_allclose(model.predict(THERE, exposure=SPENT), rates * SPENT, rtol=1e-12)


def test_a_member_that_has_no_use_for_row_values_is_named() -> None:
    with pytest.raises(InvalidInputError, match="noise"):
        real().predict(THERE, noise=np.ones(len(THERE)))


def test_targets_outside_of_the_support_of_one_member() -> None:
    """Positive targets: gamma noise has density 0 at −1, Gaussian noise has not."""
    positive = np.exp(0.3 * Y / Y.std())
    models = [
        SparseGPRegressor(**{**SINGLE, "likelihood": name}).fit(X, positive)
        for name in ("gamma", "gaussian")
    ]
    y = np.full(len(THERE), -0.5)
    found = mixture_of(models, (0.6, 0.4)).log_density(THERE, y)
    np.testing.assert_allclose(found, np.log(0.4) + models[1].log_density(THERE, y), rtol=1e-12)
    with pytest.raises(InvalidInputError, match="positive"):
        models[0].log_density(THERE, y)
    both = mixture_of([models[0], models[0]], (0.6, 0.4))
    with pytest.raises(InvalidInputError, match="positive"):
        both.log_density(THERE, y)


def test_blocks_of_rows_do_not_change_predictions(
    stacked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stacked.predict_quantiles(THERE, [0.1, 0.7])
    monkeypatch.setattr("directgp.estimators.predictions._BLOCK_VALUES", 40)
    np.testing.assert_allclose(stacked.predict_quantiles(THERE, [0.1, 0.7]), whole, rtol=1e-10)


def test_several_outputs() -> None:
    targets = np.column_stack([Y, Y[::-1]])
    model = SparseGPRegressor(**{**SINGLE, "likelihood": "gaussian"}).fit(X, targets)
    first = model.outputs_[0]
    shifted = replace(first.members_[0], label="copy")
    set_members(first, [first.members_[0], shifted], [0.6, 0.4])
    mean, std = model.predict(THERE, return_std=True)
    assert mean.shape == std.shape == (len(THERE), 2)
    assert model.predict_quantiles(THERE, [0.1, 0.9]).shape == (len(THERE), 2, 2)
    assert model.sample_y(THERE, 4).shape == (len(THERE), 2, 4)
    np.testing.assert_allclose(mean[:, 0], alone(first, 0).predict(THERE), rtol=1e-12)
