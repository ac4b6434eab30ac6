"""Draws from q̃ against its numeric distribution function, and their cost."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from directgp.integration.contract import FlatExamples
from directgp.integration.peaks import peak_of
from directgp.likelihoods.base import UnimodalInF
from directgp.log_expectations import Quadrature
from directgp.log_expectations.samplers import (
    build_hat,
    draw_as_paper,
    draw_from_cells,
    draw_product,
    draw_with_hat,
)
from tests.properties.checks import seeded
from tests.properties.tables import (
    LIKELIHOODS,
    LikelihoodRow,
    Point,
    columns,
    marked,
    ordinary,
    points,
)
from tests.properties.test_accuracy import named
from tests.reference.product_density import Distribution, product_distribution

Sampler = Callable[[LikelihoodRow, Point, int, torch.Generator], Tensor]
"""Row, point, number of examples like it, source of noise → one draw of f − μ for each."""


def auto(row: LikelihoodRow, point: Point, number: int, generator: torch.Generator) -> Tensor:
    rows = [column.expand(number) for column in columns([point])]
    return draw_product(FlatExamples(row.make(), *rows), None, 1, generator, "auto")[0]


def paper(row: LikelihoodRow, point: Point, number: int, generator: torch.Generator) -> Tensor:
    rows = [column.expand(number) for column in columns([point])]
    return draw_product(FlatExamples(row.make(), *rows), None, 1, generator, "paper")[0]


def hat(row: LikelihoodRow, point: Point, number: int, generator: torch.Generator) -> Tensor:
    examples = FlatExamples(row.make(), *columns([point]))
    return draw_with_hat(examples, peak_of(*examples), number, generator)[:, 0]


def cells(row: LikelihoodRow, point: Point, number: int, generator: torch.Generator) -> Tensor:
    likelihood = row.make()
    assert isinstance(likelihood, UnimodalInF)
    return draw_from_cells(FlatExamples(likelihood, *columns([point])), number, generator)[:, 0]


def shifted(row: LikelihoodRow, point: Point, number: int, generator: torch.Generator) -> Tensor:
    """A wrong sampler, to try the check on."""
    return auto(row, point, number, generator) + 0.08 * distribution(row, point).deviation


def distribution(row: LikelihoodRow, point: Point) -> Distribution:
    return product_distribution(row.name, *point, **row.theta)


LABELS = [(1, 0.5, 1e-8), (1, -3, 1), (0, -6, 1), (1, 30, 1), (1, -30, 10), (0, 2, 100)]
COUNTS = [
    *[(0, 0.5, 1), (0, -12, 1), (0, 8, 1), (3, 0.5, 1e-8), (3, 0.5, 0.5)],
    *[(2, -3, 6), (40, 2, 0.3), (5000, -2, 1), (7, 30, 100), (0, 30, 100)],
]
REALS = [
    *[(0.7, 0.5, 1e-8), (0.7, 0.5, 1), (-25, 1, 0.1), (40, 0, 1), (3, 0, 100), (5, 0.2, 10)],
    *[(25, 0, 10), (-8, 0, 2)],
]
POSITIVES = [
    *[(0.5, 0.5, 1e-8), (0.5, 0.5, 1), (1e-6, 1, 0.1), (40, 0, 1), (3, 0, 100), (5e3, -2, 1)],
]
PROPORTIONS = [
    *[(0.5, 0.5, 1e-8), (0.25, 0.5, 1), (0.999, -3, 0.1), (1e-6, 4, 1), (0.75, 0, 100)],
    *[(0.03, 12, 10)],
]
CENSORED = [(0.7, 0.5, 1), (-1, 0.5, 1e-8), (-1, 30, 10), (3, 0, 100), (3, -3, 1), (-25, -6, 1)]
CLASSES = [(0, 0.5, 1e-8), (1, -3, 1), (2, -6, 1), (3, 30, 1), (1, -30, 10), (2, 2, 100)]
PLACES: dict[str, Sequence[tuple[float, float, float]]] = {
    **{"real": REALS, "label": LABELS, "count": COUNTS, "positive": POSITIVES},
    **{"proportion": PROPORTIONS, "censored": CENSORED, "class": CLASSES},
    "share": [point for point in COUNTS if point[0] <= 60],
}


def cells_of_the_table() -> list[tuple[str, Sampler, LikelihoodRow, Point]]:
    """Sampler × likelihood × (y, μ, v): tiny and large v, certain and absurd y."""
    table: list[tuple[str, Sampler, LikelihoodRow, Point]] = []
    for row in LIKELIHOODS:
        own = PLACES[row.target_kind]
        table += [("auto", auto, row, Point(*point)) for point in own]
        table += [("paper", paper, row, point) for point in ordinary(row)[1:3]]
        if row.name in ("gaussian", "probit"):
            table += [("hat", hat, row, point) for point in ordinary(row)[1:3]]
        if row.name in ("gaussian", "poisson_exp"):
            table += [("cells", cells, row, ordinary(row)[1])]
        if row.name in ("student_t", "beta"):
            table += [("cells", cells, row, Point(*point)) for point in own]
    return table


TABLE = cells_of_the_table()
DRAWS = 8_000


def p_value(sampler: Sampler, row: LikelihoodRow, point: Point, seed: int = 3) -> float:
    """Kolmogorov and Smirnov's, for many draws at one point."""
    with torch.no_grad():
        draws = sampler(row, point, DRAWS, seeded(seed)).numpy()
    assert draws.shape == (DRAWS,) and np.isfinite(draws).all()
    return float(kstest(distribution(row, point).cdf(draws), "uniform").pvalue)


@pytest.mark.parametrize(
    ("sampler", "row", "point"),
    [cell[1:] for cell in TABLE],
    ids=[f"{name}-{row.name}-{','.join(f'{x:g}' for x in point)}" for name, _, row, point in TABLE],
)
@pytest.mark.slow_for("paper-", "beta")
def test_draws_have_the_right_distribution(
    sampler: Sampler, row: LikelihoodRow, point: Point
) -> None:
    assert p_value(sampler, row, point) > 1e-3 / len(TABLE)


@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_control_shifted_draws_are_found(row: LikelihoodRow) -> None:
    assert p_value(shifted, row, ordinary(row)[1]) < 1e-3 / len(TABLE)


def proposals_per_draw(row: LikelihoodRow, some: list[Point]) -> Tensor:
    """Area under the hat over area under the density."""
    likelihood, (y, mean, variance) = row.make(), columns(some)
    examples = FlatExamples(likelihood, y, mean, variance)
    made = build_hat(examples, peak_of(*examples))
    under_hat = made.left_scale + made.left + made.right + made.right_scale
    log_z = Quadrature()(likelihood, y, mean, variance) - likelihood.log_base(y)
    log_under_density = log_z + 0.5 * torch.log(2 * math.pi * variance)
    return torch.exp(torch.log(under_hat) + made.cap - log_under_density).detach()


LOG_CONCAVE = [row for row in LIKELIHOODS if row.make().integration.log_concave]


@pytest.mark.parametrize("row", marked(LOG_CONCAVE), ids=named)
def test_the_hat_is_tight(row: LikelihoodRow) -> None:
    """√π/2 = 0.886 of the proposals are accepted where q̃ is Gaussian, elsewhere about as many."""
    proposals = proposals_per_draw(row, points(row))
    assert bool((proposals >= 1 - 1e-9).all())
    assert proposals.mean().item() < 1.2
    assert proposals.max().item() < 2


@pytest.mark.parametrize("row", marked(LOG_CONCAVE), ids=named)
def test_the_hat_is_tight_at_a_cliff(row: LikelihoodRow) -> None:
    """q̃ is flat for many units and then falls at once, so that tangents are hard to place."""
    some = [Point(row.targets[0], mean, 1e3) for mean in (-30.0, -10.0, 10.0, 30.0)]
    assert proposals_per_draw(row, some).max().item() < 1.3


PLAUSIBLE = [Point(0.7, 0.5, 1.0), Point(0.2, 1.0, 0.1), Point(3.0, 0.0, 10.0)]


@pytest.mark.parametrize("widen", [True, False], ids=["widened", "plain"])
@pytest.mark.parametrize("row", marked(LIKELIHOODS), ids=named)
def test_the_paper_s_sampler_needs_peak_over_mean(row: LikelihoodRow, widen: bool) -> None:
    """p_max / E_q[p] proposals for a draw, whether q is widened or not."""
    likelihood = row.make()
    assert isinstance(likelihood, UnimodalInF)
    rows = columns(PLAUSIBLE if row.target_kind == "real" else ordinary(row)[:3])
    draws = draw_as_paper(
        FlatExamples(likelihood, *rows), 20_000, seeded(), max_rounds=200, widen=widen
    )
    assert not bool(draws.unfinished.any())
    expected = torch.exp(likelihood.log_max(rows[0]) - Quadrature()(likelihood, *rows))
    torch.testing.assert_close(draws.proposals, expected.detach(), rtol=0.04, atol=0)
