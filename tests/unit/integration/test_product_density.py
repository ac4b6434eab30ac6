"""The mode and the support of q̃ in hard cases, by their definitions."""

import pytest
import torch
from torch import Tensor

from directgp.errors import NumericalError
from directgp.integration.contract import Derivatives
from directgp.integration.peaks import Peak, find_fall, find_peak, find_support, peak_of
from directgp.likelihoods import Likelihood, Poisson, StudentT
from tests.properties.tables import LIKELIHOODS, LikelihoodRow, Point, columns, marked, points
from tests.properties.test_accuracy import named

LOG_CONCAVE = [row for row in LIKELIHOODS if row.make().integration.log_concave]
HARD = [
    Point(0.0, mean, variance)
    for mean in (-300.0, -38.6, -5.0, 0.0, 5.0, 38.6, 300.0)
    for variance in (1e-12, 1e-8, 1.0, 1e2, 1e3)
]


def cases(row: LikelihoodRow) -> tuple[Tensor, Tensor, Tensor]:
    """The points of the table, and the first two targets far out on either side."""
    hard = [point._replace(y=y) for point in HARD for y in row.targets[:2]]
    # e^300 is more than a Poisson rate can be.
    rates = "poisson_exp", "com_poisson"
    likely = [p for p in hard if p.mean < 100 or row.name not in rates]
    return columns(points(row) + likely)


def fall(likelihood: Likelihood, rows: tuple[Tensor, ...], peak: Peak, delta: Tensor) -> Tensor:
    """How far h(δ) = ℓ(μ+δ) − δ²/(2v) lies below its value at the peak."""
    y, mean, variance = rows
    return peak.height - likelihood.log_kernel(y, mean + delta) + 0.5 * delta**2 / variance


@pytest.mark.parametrize("row", marked(LOG_CONCAVE), ids=named)
def test_the_peak_is_a_peak(row: LikelihoodRow) -> None:
    likelihood = row.make().requires_grad_(False)
    rows = y, mean, variance = cases(row)
    peak = peak_of(likelihood, *rows)
    for column in (peak.delta, peak.height, peak.slope, peak.curvature, peak.width):
        assert torch.isfinite(column).all()
    # Newton's next step is small beside the peak's width.
    assert bool((peak.slope.abs() * peak.width < 2e-3).all())
    _, first, second = likelihood.derivatives(y, mean + peak.delta)
    rounding = 1e-7 + 1e-15 * first.abs()
    assert bool(((peak.slope - (first - peak.delta / variance)).abs() <= 4 * rounding).all())
    torch.testing.assert_close(peak.width, torch.rsqrt(1 / variance - second))
    scale = 1e-9 * (1 + peak.height.abs())
    for side in (-0.5, 0.5):
        assert bool((fall(likelihood, rows, peak, peak.delta + side * peak.width) > -scale).all())


def test_the_search_agrees_with_the_formula() -> None:
    """`find_peak` for Poisson counts, whose mode is also a formula."""
    likelihood = Poisson()
    y, mean, variance = columns([p for p in points(LIKELIHOODS[3]) if p.mean <= 12 and p.y <= 7])
    searched = find_peak(lambda f: likelihood.derivatives(y, f), mean, variance)
    known = peak_of(likelihood, y, mean, variance)
    assert bool(((searched.delta - known.delta).abs() < 1e-3 * known.width).all())


@pytest.mark.parametrize("drop", [1.0, 32.0])
@pytest.mark.parametrize("row", marked(LOG_CONCAVE), ids=named)
def test_the_support_ends_where_the_density_has_fallen(row: LikelihoodRow, drop: float) -> None:
    likelihood = row.make().requires_grad_(False)
    rows = y, mean, variance = columns(points(row))
    peak = peak_of(likelihood, *rows)
    asked = torch.full_like(mean, drop)
    given = (lambda f: likelihood.derivatives(y, f)), mean, variance, peak, asked
    ends = find_support(*given)
    for side, end in zip((-1, 1), ends, strict=True):
        fallen = fall(likelihood, rows, peak, peak.delta + side * end)
        assert bool((fallen > 0.99 * asked).all())
    exact = find_fall(*given, 0.01).distance
    limit = 1.9 if row.name == "com_poisson" else 1.7
    assert bool((ends.sum(0) < limit * exact.sum(0)).all())


def test_a_likelihood_with_two_peaks_is_refused_in_words() -> None:
    """Newton's method may not settle where ℓ is not concave; it says so."""
    likelihood = StudentT(df=1.0, scale=1e-3).requires_grad_(False)
    y, mean, variance = columns([Point(3.0, 0.0, 1.0), Point(0.003, 0.0, 1e4)])
    try:
        peak = find_peak(lambda f: likelihood.derivatives(y, f), mean, variance)
    except NumericalError as error:
        assert "log-concave" in str(error)
    else:
        assert peak.delta.shape == mean.shape


@pytest.mark.parametrize("place", [1, 2])
def test_nan_marginals_are_refused_after_one_look(place: int) -> None:
    likelihood, looks = Poisson(), list[int]()
    rows = [torch.ones(3, dtype=torch.float64) for _ in range(3)]
    rows[place][1] = torch.nan

    def kernel(f: Tensor) -> Derivatives:
        looks.append(len(f))
        return likelihood.derivatives(rows[0], f)

    with pytest.raises(NumericalError, match="is NaN for 1 example"):
        find_peak(kernel, rows[1], rows[2])
    assert len(looks) <= 1


def test_taking_some_peaks() -> None:
    rows = columns(points(LIKELIHOODS[3]))
    peak = peak_of(Poisson(), *rows)
    index = torch.tensor([3, 0, 7])
    taken = peak.take(index)
    for name in ("delta", "height", "slope", "curvature", "width"):
        assert torch.equal(getattr(taken, name), getattr(peak, name)[index])
