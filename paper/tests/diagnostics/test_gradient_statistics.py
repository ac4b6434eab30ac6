"""Bias, variance and convergence conditions of gradients, on rules with known errors."""

import math

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from directgp.errors import InvalidInputError
from directgp.integration.evaluate import Rows
from directgp.likelihoods import Gaussian, Likelihood, Probit
from directgp.likelihoods.counts import PoissonExp
from directgp.log_expectations import BiasedMonteCarlo, ClosedForm, ProductSampling, Rule
from directgp.log_expectations.rule import Context
from directgp.shapes import Marginals, Values
from directgp_paper.diagnostics import (
    EachDraw,
    Measurement,
    block_statistics,
    compare_gradients,
    gradient_draws,
)

N = 20
SCALE, NOISE = 1.1, 0.3


class Faulty(Rule):
    """The exact gradient times 1.1, plus noise of deviation 0.3."""

    deterministic = False
    unbiased_gradient = False

    @override
    def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
        y, mean, variance = rows
        value = ClosedForm()(likelihood, y, mean, variance)
        slopes = torch.autograd.grad(value.sum(), (mean, variance))
        out = value.detach()
        for argument, slope in zip((mean, variance), slopes, strict=True):
            noise = torch.randn(argument.shape, generator=context.generator, dtype=torch.float64)
            out = out + (SCALE * slope + NOISE * noise) * (argument - argument.detach())
        return out


def _state() -> tuple[Tensor, Marginals]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(N, generator=generator, dtype=torch.float64)
    mean = torch.randn(N, generator=generator, dtype=torch.float64)
    return y, Marginals(mean, 0.1 + torch.rand(N, generator=generator, dtype=torch.float64))


def _assert_near(estimate: Measurement, truth: float) -> None:
    assert abs(estimate.value - truth) < 4 * estimate.standard_error
    assert estimate.standard_error > 0


def test_exact_rule_has_no_bias_and_no_variance() -> None:
    y, marginals = _state()
    blocks = compare_gradients(ClosedForm(), Gaussian(), y, marginals, repeats=5)
    assert list(blocks) == ["mean", "variance"]
    for block in blocks.values():
        assert block.alignment.value == pytest.approx(1.0, abs=1e-12)
        assert block.squared_norm_ratio.value == pytest.approx(1.0, abs=1e-12)
        for estimate in (block.squared_error, block.variance, block.squared_bias):
            assert estimate == Measurement(0.0, 0.0)


def test_known_bias_and_variance_are_measured() -> None:
    y, marginals = _state()
    generator = torch.Generator().manual_seed(1)
    blocks = compare_gradients(Faulty(), Gaussian(), y, marginals, repeats=400, generator=generator)
    for block in blocks.values():
        norm = block.exact_squared_norm
        spread, bias = N * NOISE**2, (SCALE - 1) ** 2 * norm
        _assert_near(block.alignment, SCALE)
        _assert_near(block.squared_norm_ratio, SCALE**2 + spread / norm)
        _assert_near(block.squared_error, spread + bias)
        _assert_near(block.variance, spread)
        _assert_near(block.squared_bias, bias)
        assert block.repeats == 400
    mean = blocks["mean"]
    assert mean.squared_bias.value > 2 * mean.squared_bias.standard_error
    assert mean.squared_error.value == pytest.approx(
        mean.variance.value + mean.squared_bias.value, rel=1e-10
    )


def test_relative_units() -> None:
    y, marginals = _state()
    block = compare_gradients(Faulty(), Gaussian(), y, marginals, repeats=5)["mean"]
    relative = block.relative()
    norm = block.exact_squared_norm
    assert relative.variance.value == pytest.approx(block.variance.value / norm)
    assert relative.squared_bias.standard_error == pytest.approx(
        block.squared_bias.standard_error / norm
    )
    assert relative.alignment == block.alignment
    assert relative.relative() == relative


def test_squared_bias_is_unbiased_with_a_correct_standard_error() -> None:
    generator = torch.Generator().manual_seed(2)
    exact, bias = torch.ones(4).double(), torch.tensor([0.5, 0.0, -0.2, 0.0]).double()
    truth = float(bias.square().sum())
    estimates = []
    for _ in range(300):
        noise = torch.randn(25, 4, generator=generator, dtype=torch.float64)
        estimates.append(block_statistics(exact + bias + noise, exact).squared_bias)
    values = torch.tensor([estimate.value for estimate in estimates])
    errors = torch.tensor([estimate.standard_error for estimate in estimates])
    assert abs(float(values.mean()) - truth) < 4 * float(values.std()) / math.sqrt(300)
    assert 0.9 < float(errors.square().mean().sqrt() / values.std()) < 1.6


def test_jackknife_is_the_jackknife() -> None:
    generator = torch.Generator().manual_seed(3)
    draws = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    exact = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    whole = block_statistics(draws, exact)
    without = [block_statistics(torch.cat([draws[:r], draws[r + 1 :]]), exact) for r in range(6)]
    for name in ("variance", "squared_bias"):
        values = torch.tensor([getattr(part, name).value for part in without]).double()
        spread = (5 / 6 * (values - values.mean()).square().sum()).sqrt()
        assert getattr(whole, name).standard_error == pytest.approx(float(spread), rel=1e-6)


def test_bias_of_bmc_falls_with_samples() -> None:
    generator = torch.Generator().manual_seed(4)
    y = torch.randint(0, 2, (N,), generator=generator).double()
    marginals = Marginals(torch.zeros(N).double(), torch.ones(N).double())
    biases = [
        compare_gradients(
            BiasedMonteCarlo(num_samples), Probit(), y, marginals, repeats=800, generator=generator
        )["mean"].relative()
        for num_samples in (1, 4, 16)
    ]
    values = [block.squared_bias.value for block in biases]
    # The bias is O(1/L): its square falls by 16 when L grows by 4, less while L is small.
    assert values[0] > 4 * values[1] > 16 * values[2] > 0
    assert all(block.squared_error.value > block.squared_bias.value for block in biases)


def test_product_sampling_has_no_bias() -> None:
    generator = torch.Generator().manual_seed(8)
    y = torch.randint(0, 6, (N,), generator=generator).double()
    marginals = Marginals(torch.zeros(N).double(), torch.ones(N).double())
    blocks = compare_gradients(
        ProductSampling(1), PoissonExp(), y, marginals, repeats=200, generator=generator
    )
    for block in blocks.values():
        _assert_near(block.alignment, 1.0)
        _assert_near(block.squared_bias, 0.0)
        assert block.variance.value > 0


def test_one_sample_of_bmc_is_the_elbo() -> None:
    """bMC-1 has E g = E_q[ℓ′], for a Gaussian (y − μ)/σ²: alignment by hand."""
    y, marginals = _state()
    noise = 0.5
    generator = torch.Generator().manual_seed(5)
    block = compare_gradients(
        BiasedMonteCarlo(1), Gaussian(noise), y, marginals, repeats=2000, generator=generator
    )["mean"]
    gibbs = (y - marginals.mean) / noise
    exact = (y - marginals.mean) / (noise + marginals.variance)
    _assert_near(block.alignment, float((gibbs * exact).sum() / exact.square().sum()))
    _assert_near(block.squared_bias, float((gibbs - exact).square().sum()))


def test_pullback_to_parameter_blocks() -> None:
    y, marginals = _state()
    A = torch.randn(3, N, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    shapes: list[torch.Size] = []

    def pullback(by_mean: Tensor, by_variance: Tensor) -> dict[str, Tensor]:
        shapes.append(by_mean.shape)
        outer = torch.einsum("mn,rn,kn->rmk", A, by_variance, A)
        return {"u_mean": by_mean @ A.T, "u_chol": torch.tril(outer)}

    generator = torch.Generator().manual_seed(7)
    blocks = compare_gradients(
        Faulty(), Gaussian(), y, marginals, repeats=300, generator=generator, pullback=pullback
    )
    assert set(blocks) == {"u_mean", "u_chol"}
    assert shapes == [(1, N), (300, N)]
    _assert_near(blocks["u_mean"].alignment, SCALE)
    _assert_near(blocks["u_mean"].variance, NOISE**2 * float(A.square().sum()))
    _assert_near(blocks["u_chol"].alignment, SCALE)


def test_draws_are_those_that_are_compared() -> None:
    y, marginals = _state()
    given = BiasedMonteCarlo(2), Gaussian(), y, marginals
    whole = compare_gradients(*given, repeats=6, generator=torch.Generator().manual_seed(9))
    by_mean, by_variance = gradient_draws(*given, 6, torch.Generator().manual_seed(9))
    exact = gradient_draws(ClosedForm(), Gaussian(), y, marginals)
    assert by_mean.shape == (6, N) and exact[1].shape == (1, N)
    assert block_statistics(by_mean, exact[0][0]) == whole["mean"]
    assert block_statistics(by_variance, exact[1][0]) == whole["variance"]


def test_each_draw_by_hand() -> None:
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    each = EachDraw.of(torch.stack([2 * exact, torch.tensor([-4.0, 3.0]).double()]), exact)
    assert each.alignment.tolist() == [2.0, 0.0]
    assert each.squared_norm.tolist() == [4.0, 1.0]
    assert each.squared_error.tolist() == [1.0, 2.0]


def test_repeats_beyond_memory_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []

    class Counting(Faulty):
        @override
        def _evaluate(self, likelihood: Likelihood, rows: Rows, context: Context) -> Values:
            calls.append(tuple(rows[1].shape))
            return super()._evaluate(likelihood, rows, context)

    monkeypatch.setattr("directgp_paper.diagnostics.gradients._ELEMENTS_AT_ONCE", 4 * N + 1)
    y, marginals = _state()
    block = compare_gradients(Counting(), Gaussian(), y, marginals, repeats=10)["mean"]
    assert calls == [(4, N), (4, N), (2, N)]
    assert block.repeats == 10
    assert block.variance.value > 0


def test_arguments_are_not_modified() -> None:
    y, marginals = _state()
    mean = marginals.mean.float().requires_grad_()
    likelihood = Gaussian()
    state = Marginals(mean, marginals.variance.float())
    with torch.no_grad():
        compare_gradients(BiasedMonteCarlo(2), likelihood, y, state, repeats=3)
    assert mean.grad is None
    assert all(parameter.grad is None for parameter in likelihood.parameters())


def test_too_few_repeats_are_refused() -> None:
    y, marginals = _state()
    with pytest.raises(InvalidInputError, match="at least 3"):
        compare_gradients(ClosedForm(), Gaussian(), y, marginals, repeats=2)
