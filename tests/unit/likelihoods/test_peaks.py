"""Where a likelihood peaks over f and how high, against a search by brute force."""

import pytest
import torch
from torch import Tensor

from directgp.likelihoods.base import UnimodalInF
from directgp.likelihoods.counts import CountLikelihood
from tests.properties.tables import LIKELIHOODS, LikelihoodRow
from tests.properties.test_accuracy import named

FLOAT64 = torch.float64
GRID = torch.linspace(-60, 60, 240_001, dtype=FLOAT64)
INTERVALS = torch.tensor([(-50, -49.5), (-3, 2), (0.4, 0.5), (1, 12), (-40, 40)], dtype=FLOAT64)


def unimodal(row: LikelihoodRow) -> UnimodalInF:
    likelihood = row.make()
    assert isinstance(likelihood, UnimodalInF)
    return likelihood


def targets(row: LikelihoodRow) -> list[float]:
    return [y for y in row.targets if abs(y) < 50]


def heights(row: LikelihoodRow, y: float) -> Tensor:
    return row.make().log_prob(torch.full_like(GRID, y), GRID).detach()


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_the_peak_is_where_brute_force_finds_it(row: LikelihoodRow) -> None:
    for y in targets(row):
        found = heights(row, y)
        target = torch.tensor(y, dtype=FLOAT64)
        peak, top = unimodal(row).argmax(target), unimodal(row).log_max(target)
        if torch.isfinite(peak):
            assert peak.item() == pytest.approx(GRID[found.argmax()].item(), abs=1e-3)
            assert top.item() >= found.max().item() - 1e-12
        else:
            end = 0 if peak < 0 else -1
            assert found[end] == found.max()
        assert top.item() == pytest.approx(found.max().item(), abs=1e-5)


@pytest.mark.parametrize("row", LIKELIHOODS, ids=named)
def test_the_maximum_over_an_interval(row: LikelihoodRow) -> None:
    lower, upper = INTERVALS.T
    for y in targets(row):
        got = unimodal(row).log_max_between(torch.full_like(lower, y), lower, upper)
        for (low, high), top in zip(INTERVALS.tolist(), got.tolist(), strict=True):
            inside = heights(row, y)[(low - 1e-9 <= GRID) & (high + 1e-9 >= GRID)]
            assert top == pytest.approx(inside.max().item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("row", LIKELIHOODS[3:6], ids=named)
def test_exposure_moves_the_peak(row: LikelihoodRow) -> None:
    counts = row.make()
    assert isinstance(counts, CountLikelihood)
    likelihood = counts.with_exposure(torch.tensor([0.5, 20.0]))
    y = torch.tensor([3.0, 3.0], dtype=FLOAT64)
    torch.testing.assert_close(likelihood.conditional_mean(likelihood.argmax(y)), y)
