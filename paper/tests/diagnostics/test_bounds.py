"""Published and tight bounds of φ, φ′ and φ″."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from directgp.errors import InvalidInputError, UnsupportedError
from directgp.likelihoods import Gaussian, Logistic, NegativeBinomial, Probit, StudentT
from directgp.likelihoods.base import UnimodalInF
from directgp.likelihoods.counts import PoissonExp, PoissonSoftplus
from directgp_paper.diagnostics import (
    MISPRINTS,
    BoundCheck,
    bounds_table,
    check_bounds,
    format_checks,
    paper_bounds,
    tight_bounds,
)
from directgp_paper.diagnostics.bounds import density_derivatives, searched_bounds
from paper.tests.diagnostics.closed_forms import closed_form_bounds

LABELS = torch.tensor([0.0, 1.0])
COUNTS = torch.tensor([0.0, 1.0, 2.0, 3.0, 7.0, 30.0, 100.0, 1000.0])
REALS = torch.tensor([-3.0, 0.0, 100.0])
EXPOSURES = torch.tensor([0.1, 1.0, 2.0, 30.0, 0.5, 7.0, 1.0, 3.0])

CASES: list[tuple[UnimodalInF, Tensor]] = [
    (Gaussian(noise=0.25), REALS),
    (Gaussian(noise=1e-4), REALS),
    (Probit(), LABELS),
    (Logistic(), LABELS),
    (StudentT(df=0.5, scale=2.0), REALS),
    (StudentT(df=4.0, scale=0.3), REALS),
    (StudentT(df=100.0, scale=0.3), REALS),
    (PoissonExp(), COUNTS),
    (PoissonExp().with_exposure(EXPOSURES), COUNTS),
    (PoissonSoftplus(), COUNTS),
    (PoissonSoftplus().with_exposure(EXPOSURES), COUNTS),
    (NegativeBinomial(dispersion=0.05), COUNTS),
    (NegativeBinomial(dispersion=3.0), COUNTS),
    (NegativeBinomial(dispersion=1e5), COUNTS),
    (NegativeBinomial(dispersion=3.0).with_exposure(EXPOSURES), COUNTS),
]
PUBLISHED: list[tuple[UnimodalInF, Tensor]] = [
    (likelihood, y)
    for likelihood, y in CASES
    if not isinstance(likelihood, NegativeBinomial)
    and not (isinstance(likelihood, PoissonSoftplus) and likelihood.log_exposure is not None)
]


def _by_name(checks: tuple[BoundCheck, ...]) -> dict[str, BoundCheck]:
    return {check.bound: check for check in checks}


@pytest.mark.parametrize(("likelihood", "y"), CASES)
def test_tight_bounds_are_attained(likelihood: UnimodalInF, y: Tensor) -> None:
    tight = tight_bounds(likelihood, y).stacked()
    found = searched_bounds(likelihood, y.double(), num_nodes=4001).stacked()
    torch.testing.assert_close(tight, found, rtol=1e-9, atol=1e-12)
    exact = closed_form_bounds(likelihood, y.double())
    assert (exact is None) == isinstance(likelihood, PoissonSoftplus)
    if exact is not None:
        torch.testing.assert_close(tight, exact.stacked(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("y", [0.0, 1.0, 4.0, 50.0, 1000.0])
def test_searched_bounds_match_a_plain_grid(y: float) -> None:
    likelihood, target = PoissonSoftplus(), torch.tensor([y])
    middle, reach = max(y, 1.0), 12 * math.sqrt(y + 4)
    f = torch.linspace(middle - reach, middle + reach, 400_001, dtype=torch.float64)
    _, slope, curvature = density_derivatives(likelihood, target.double(), f)
    # The ends of φ′ for y = 0 include the limit 0.
    ends = [slope.min(), slope.max().clamp(min=0.0), curvature.min(), curvature.max()]
    found = tight_bounds(likelihood, target).stacked()[1:, 0]
    torch.testing.assert_close(found, torch.stack(ends), rtol=1e-6, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(0, 1000),
    offset=st.floats(-60, 60),
    dispersion=st.floats(0.01, 1e4),
    softplus=st.floats(-60, 2000),
)
def test_tight_bounds_are_never_exceeded(
    count: int, offset: float, dispersion: float, softplus: float
) -> None:
    y, label = torch.tensor([float(count)]), torch.tensor([float(count % 2)])
    log_link = torch.tensor([math.log(count + 0.5) + offset], dtype=torch.float64)
    near = torch.tensor([offset], dtype=torch.float64)
    _assert_within(PoissonExp(), y, log_link)
    _assert_within(PoissonSoftplus(), y, torch.tensor([softplus], dtype=torch.float64))
    _assert_within(NegativeBinomial(dispersion), y, log_link)
    _assert_within(StudentT(df=dispersion), near.clone(), near / 10)
    _assert_within(Gaussian(noise=dispersion), near.clone(), near / 10)
    _assert_within(Probit(), label, near)
    _assert_within(Logistic(), label, near)


def _assert_within(likelihood: UnimodalInF, y: Tensor, f: Tensor) -> None:
    bounds = tight_bounds(likelihood, y)
    density, slope, curvature = density_derivatives(likelihood, y.double(), f)
    slack = 1e-9
    assert 0 <= density <= bounds.density_upper * (1 + slack)
    assert bounds.slope_lower * (1 + slack) <= slope <= bounds.slope_upper * (1 + slack)
    assert bounds.curvature_lower * (1 + slack) <= curvature
    assert curvature <= bounds.curvature_upper * (1 + slack)


@pytest.mark.parametrize(("likelihood", "y"), PUBLISHED)
def test_published_bounds_are_never_violated(likelihood: UnimodalInF, y: Tensor) -> None:
    assert all(check.verdict != "violated" for check in check_bounds(likelihood, y))


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (Gaussian(noise=0.3), REALS),
        (Probit(), LABELS),
        (StudentT(df=0.5, scale=2.0), REALS),
        (StudentT(df=100.0, scale=0.3), REALS),
    ],
)
def test_tight_published_bounds(likelihood: UnimodalInF, y: Tensor) -> None:
    assert {check.verdict for check in check_bounds(likelihood, y)} == {"tight"}


def test_logistic_is_loose_in_the_curvature_alone() -> None:
    checks = _by_name(check_bounds(Logistic(), LABELS))
    assert [checks[name].verdict for name in ("B", "b′", "B′")] == ["tight"] * 3
    assert [checks[name].verdict for name in ("b″", "B″")] == ["loose ×2.6"] * 2
    assert checks["B″"].extremum == pytest.approx(1 / (6 * math.sqrt(3)), rel=1e-12)


def test_one_label_has_slopes_of_one_sign() -> None:
    for likelihood in (Probit(), Logistic()):
        bounds = tight_bounds(likelihood, LABELS)
        assert bounds.slope_upper[0] == 0
        assert bounds.slope_lower[1] == 0
        published = paper_bounds(likelihood, LABELS)
        torch.testing.assert_close(2 * bounds.slope_range, published.slope_range)
    checks = _by_name(check_bounds(Probit(), torch.tensor([1.0])))
    assert checks["b′"].verdict == "loose ×∞"


def test_poisson_exp_is_loose_by_orders_of_magnitude() -> None:
    checks = _by_name(check_bounds(PoissonExp(), torch.tensor([100.0])))
    verdicts = [checks[name].verdict for name in ("B", "b′", "B′", "b″", "B″")]
    assert verdicts == ["loose ×25", "loose ×404", "loose ×428", "loose ×25", "loose ×10462"]


def test_poisson_exp_in_numbers() -> None:
    y = torch.arange(2000, dtype=torch.float64)
    bounds = tight_bounds(PoissonExp(), y)
    assert torch.maximum(bounds.slope_upper, -bounds.slope_lower).max() == pytest.approx(1 / math.e)
    growth = torch.maximum(bounds.curvature_upper, -bounds.curvature_lower)
    assert (growth / torch.sqrt(y.clamp(min=1.0))).max() < 0.43
    # φ at λ = y, for y = 0 the limit of λ → 0.
    stirling = torch.xlogy(y, y) - y - torch.lgamma(y + 1)
    torch.testing.assert_close(bounds.density_upper, torch.exp(stirling), rtol=1e-9, atol=0.0)


def test_softplus_is_loose_over_all_counts() -> None:
    checks = _by_name(check_bounds(PoissonSoftplus(), COUNTS))
    assert checks["b′"].extremum == pytest.approx(-0.25, rel=1e-9)
    assert checks["b″"].extremum == pytest.approx(-0.1482, abs=1e-4)
    verdicts = [checks[name].verdict for name in ("B", "b′", "B′", "b″", "B″")]
    assert verdicts == ["tight", "loose ×4", "loose ×7.4", "loose ×15", "loose ×23"]


def test_softplus_of_count_zero_is_the_logistic_label() -> None:
    """For y = 0, e^{−log(1+e^f)} = σ(−f)."""
    zero = torch.tensor([0.0])
    softplus, logistic = tight_bounds(PoissonSoftplus(), zero), tight_bounds(Logistic(), zero)
    torch.testing.assert_close(softplus.stacked(), logistic.stacked(), rtol=1e-10, atol=1e-12)


def test_exposure_shifts_f_and_changes_nothing_for_the_exponential_link() -> None:
    y = torch.tensor([3.0])
    shifted = PoissonExp().with_exposure(torch.tensor([7.0]))
    torch.testing.assert_close(
        tight_bounds(shifted, y).stacked(), tight_bounds(PoissonExp(), y).stacked()
    )


def test_violated_bound_is_reported() -> None:
    for published, extremum in ((0.2, 0.25), (-0.2, -0.25), (0.0, 0.1), (-0.1, 0.1)):
        assert BoundCheck("Fake", (0.0,), "B′", published, extremum).verdict == "violated"


def test_likelihood_without_published_bounds_raises() -> None:
    softplus = PoissonSoftplus().with_exposure(torch.tensor([2.0]))
    for likelihood in (NegativeBinomial(), softplus):
        with pytest.raises(UnsupportedError, match="tight_bounds"):
            paper_bounds(likelihood, torch.tensor([1.0]))


def test_targets_are_checked() -> None:
    for bounds in (paper_bounds, tight_bounds):
        with pytest.raises(InvalidInputError, match="count"):
            bounds(PoissonExp(), torch.tensor([0.5]))


def test_the_whole_table_as_text() -> None:
    checks = bounds_table()
    text = format_checks(checks)
    assert len(text.splitlines()) == len(checks) + 1
    assert len({len(check.targets) for check in checks if check.likelihood == "Probit"}) == 1
    assert "loose ×10462" in text
    assert "violated" not in text
    assert "-0 " not in text
    assert len({check.likelihood for check in checks}) == 6
    assert len(MISPRINTS) == 6
