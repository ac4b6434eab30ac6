"""The default gradient of uPS varies no more than the paper's for Student's t, wherever q is.

Variances are sums over a fine grid of q̃: the estimator is asked for its slopes at every f of the
grid, in place of draws.
"""

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from directgp.integration.contract import FlatExamples, log_expectations_of
from directgp.likelihoods import StudentT
from directgp.log_expectations import ProductSampling, Quadrature
from directgp.log_expectations.product_sampling import Form, make_sketch, slopes_at
from tests.properties.checks import ask, z_scores

SCALE = 0.3
DF = [0.1, 0.3, 1.0, 2.1, 4.0, 10.0, 30.0, 300.0]
DRAWN_DF = DF[:-1]
"""From ν = 100 on the sampler gives up on outliers of q and of the noise, with an error."""

VARIANCES = (1e-6, 1e-2, 0.3, 3.0, 30.0, 1e3, 1e5)
"""In units of the squared scale."""


def examples_for(df: float) -> FlatExamples:
    """Targets near the mean, and outliers of the noise, of q and of the prediction."""
    rows = []
    for variance in VARIANCES:
        far = [k * math.sqrt(unit) for k in (2, 3, 4, 5, 6) for unit in (variance, 1 + variance)]
        rows += [(y, variance) for y in (0.0, 0.01, 1.0, 3.0, 10.0, 50.0, 300.0, *far)]
    residual, variance = torch.tensor(rows, dtype=torch.float64).T
    mean = torch.full_like(residual, 0.5)
    likelihood = StudentT(df=df, scale=SCALE).requires_grad_(False)
    return FlatExamples(likelihood, mean + SCALE * residual, mean, SCALE**2 * variance)


class Grid(NamedTuple):
    """Points of q̃ relative to μ, and their probabilities, both (points, examples)."""

    delta: Tensor
    weights: Tensor


def grid_of(examples: FlatExamples) -> Grid:
    """Points around μ, y and between, fine near each of them, summed by the trapezoid rule."""
    likelihood, y, mean, variance = examples
    residual, deviation = y - mean, variance.sqrt()
    noise = torch.full_like(y, SCALE)
    between = residual * variance / (variance + noise**2)
    narrow = (1 / variance + 1 / noise**2).rsqrt()
    linear, growing = (torch.linspace(-end, end, 2001).double()[:, None] for end in (10, 20))
    shape = torch.cat([linear, 0.5 * growing.sinh()])
    places = (0 * y, deviation), (residual, noise), (between, narrow)
    points = torch.cat([centre + width * shape for centre, width in places])
    reach = residual.abs() + 10 * deviation
    delta = points.clamp(-reach, reach).sort(0).values
    height = likelihood.log_kernel(y, mean + delta) - 0.5 * delta**2 / variance
    steps = torch.zeros_like(delta)
    steps[1:] += delta.diff(dim=0)
    steps[:-1] += delta.diff(dim=0)
    mass = torch.exp(height - height.amax(0)) * steps
    return Grid(delta, mass / mass.sum(0))


class Moments(NamedTuple):
    """Mean and variance of the gradient of one draw, in μ and in v: (2, examples)."""

    mean: Tensor
    variance: Tensor


def moments(form: Form, examples: FlatExamples, grid: Grid) -> Moments:
    sketch = make_sketch(examples, None)
    slopes = torch.stack(slopes_at(examples, grid.delta, form, sketch))
    mean = (slopes * grid.weights).sum(1)
    return Moments(mean, ((slopes - mean[:, None]) ** 2 * grid.weights).sum(1))


def ratios(form: Form, examples: FlatExamples) -> Tensor:
    """Variances relative to those of the score."""
    grid = grid_of(examples)
    return moments(form, examples, grid).variance / moments("score", examples, grid).variance


@pytest.mark.parametrize("df", DF)
def test_no_variance_exceeds_that_of_the_score(df: float) -> None:
    examples = examples_for(df)
    grid = grid_of(examples)
    mixed, score = moments("mixed", examples, grid), moments("score", examples, grid)
    assert bool((mixed.variance <= (1 + 1e-9) * score.variance).all())
    # The control variates average to 0.
    exact = log_expectations_of(examples)
    for column, truth in enumerate((exact.mean_slope, exact.variance_slope)):
        error = (mixed.mean[column] - truth).abs()
        size = torch.maximum(truth.abs(), score.variance[column].sqrt())
        assert bool((error <= 1e-5 * size).all())


@pytest.mark.parametrize("df", [1.0, 4.0, 30.0])
def test_most_variances_are_far_smaller(df: float) -> None:
    assert bool((ratios("mixed", examples_for(df)).median(1).values < 0.05).all())


def test_control_the_pathwise_form_varies_more() -> None:
    """Where q is wide, so that the test above can fail."""
    assert float(ratios("pathwise", examples_for(4.0)).max()) > 100


@pytest.mark.parametrize("df", DRAWN_DF)
@pytest.mark.slow_for("0.1", "0.3", "2.1", "4.0", "10.0", "30.0")
def test_gradients_are_unbiased(df: float) -> None:
    """Two-peaked q̃ too: 4 standard errors, in far fewer scores than a million."""
    _, *columns = examples_for(df)
    some = [each.reshape(len(VARIANCES), -1)[1:6, [1, 3, 5, 9, 13]].reshape(-1) for each in columns]
    truth = log_expectations_of(FlatExamples(StudentT(df=df, scale=SCALE), *some))
    repeats = 2000
    answer = ask(
        ProductSampling(),
        StudentT(df=df, scale=SCALE),
        *(each.repeat(repeats) for each in some),
    )
    for slopes, exact in (
        (answer.mean_slope, truth.mean_slope),
        (answer.variance_slope, truth.variance_slope),
    ):
        assert float(z_scores(slopes.reshape(repeats, -1), exact).abs().max()) < 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("df", DRAWN_DF)
def test_far_outliers_have_finite_gradients(df: float, dtype: torch.dtype) -> None:
    rows = [
        (side * SCALE * residual, SCALE**2 * variance)
        for side in (-1, 1)
        for residual in (0.0, 50.0, 1e3)
        for variance in (1e-8, 1.0, 1e4)
    ]
    y, variance = torch.tensor(rows, dtype=dtype).T
    likelihood = StudentT(df=df, scale=SCALE).requires_grad_(False)
    answer = ask(ProductSampling(10), likelihood, y, torch.zeros_like(y), variance)
    exact = ask(Quadrature(), likelihood, y, torch.zeros_like(y), variance)
    for column in answer:
        assert column.dtype == dtype
        assert bool(torch.isfinite(column).all())
    torch.testing.assert_close(answer.value, exact.value)


def test_float32_has_the_gradient_of_float64() -> None:
    """At numbers that both can hold, with the same draws."""
    rows = [(y, v) for y in (0.0, 1.5, 6.0, 40.0) for v in (2.0**-20, 0.25, 8.0)]
    likelihood = StudentT(df=4.0, scale=0.25).requires_grad_(False)
    found = []
    for dtype in (torch.float64, torch.float32):
        y, variance = torch.tensor(rows, dtype=dtype).T
        found.append(ask(ProductSampling(5), likelihood, y, torch.zeros_like(y), variance))
    wide, single = found
    for mine, other in zip(single, wide, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-6, atol=1e-6)
