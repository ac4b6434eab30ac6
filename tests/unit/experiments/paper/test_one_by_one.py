"""The paper's sampler in a loop over the examples, and the authors' hybrid."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import integrate, stats
from torch import Tensor

from directgp.experiments.paper import studies
from directgp.experiments.paper.studies import SampledExamples
from directgp.likelihoods import Gaussian, Poisson, Probit
from directgp.likelihoods.base import UnimodalInF
from directgp.log_expectations.rule import FlatExamples
from directgp.log_expectations.samplers import choose_width

pytestmark = pytest.mark.usefixtures("without_shape_checks")

Values = NDArray[np.float64]

DRAWS = 800
WAYS = {"one by one": SampledExamples.one_by_one, "hybrid": SampledExamples.by_hybrid}


def a_row(value: float) -> Tensor:
    return torch.full((DRAWS,), value, dtype=torch.float64)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("likelihood", "density", "target", "mean", "variance"),
    [
        (Poisson(), lambda f: stats.poisson.pmf(6, np.exp(f)), 6.0, 0.5, 0.8),
        (Probit(), stats.norm.cdf, 1.0, -0.7, 2.0),
    ],
    ids=["poisson", "probit"],
)
def test_draws_have_the_right_distribution(
    likelihood: UnimodalInF,
    density: Callable[[Values], Values],
    target: float,
    mean: float,
    variance: float,
    way: str,
) -> None:
    """Against an integral of q·p by scipy."""
    batch = SampledExamples.of(likelihood, a_row(target), a_row(mean), a_row(variance))
    delta = WAYS[way](batch, torch.Generator().manual_seed(0)).numpy()
    f = mean + np.linspace(-9, 9, 4001)
    cumulative = integrate.cumulative_simpson(
        density(f) * stats.norm.pdf(f, mean, variance**0.5), x=f, initial=0.0
    )
    found = stats.kstest(mean + delta, lambda x: np.interp(x, f, cumulative / cumulative[-1]))
    assert found.pvalue > 1e-3


@pytest.mark.parametrize("likelihood", [Poisson(), Probit(), Gaussian(0.1)])
def test_widths_are_the_paper_s(likelihood: UnimodalInF) -> None:
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(0, 2, (60,), generator=generator).double()
    y = y if isinstance(likelihood, Probit) else 5 * y
    mean = 2 * torch.randn(60, generator=generator, dtype=torch.float64)
    variance = 0.05 + 2 * torch.rand(60, generator=generator, dtype=torch.float64)
    batch = SampledExamples.of(likelihood, y, mean, variance)
    with torch.no_grad():
        widths = torch.cat([batch._example(i)._width() for i in range(60)])
        expected = choose_width(FlatExamples(likelihood, y, mean, variance))
    assert torch.equal(widths, expected)
    assert len(widths.unique()) > 2


def test_the_hybrid_loops_only_where_both_proposals_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    propose = SampledExamples._propose

    def counted(
        self: SampledExamples, width: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        sizes.append(len(self.y))
        return propose(self, width, generator)

    monkeypatch.setattr(SampledExamples, "_propose", counted)
    # q on the label's side: about 1 in 16 proposals is refused.
    batch = SampledExamples.of(Probit(), a_row(1.0), a_row(1.6), a_row(0.1))
    batch.by_hybrid(torch.Generator().manual_seed(2))
    assert sizes[:2] == [DRAWS, DRAWS]
    assert len(sizes) - 2 < 0.05 * DRAWS and set(sizes[2:]) <= {1}
    sizes.clear()
    batch.one_by_one(torch.Generator().manual_seed(2))
    assert len(sizes) > DRAWS and set(sizes) == {1}


def test_hopeless_examples_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "MAX_PROPOSALS", 20)
    rows = (torch.tensor([value], dtype=torch.float64) for value in (300.0, -3.0, 0.1))
    batch = SampledExamples.of(Poisson(), *rows)
    for way in WAYS.values():
        assert way(batch, torch.Generator().manual_seed(3)).isnan().all()
