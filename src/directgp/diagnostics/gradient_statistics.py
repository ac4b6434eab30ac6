"""Bias, variance and the convergence conditions of gradient draws around the exact gradient."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Measurement:
    """A number from repeated draws, and its standard error."""

    value: float
    standard_error: float

    def over(self, scale: float) -> "Measurement":
        """Divide the number and its standard error by a positive constant."""
        return Measurement(self.value / scale, self.standard_error / scale)


@dataclass(frozen=True)
class GradientStatistics:
    """How draws g of one block's gradient lie around the exact gradient g*."""

    alignment: Measurement
    """Condition (i): ⟨g, g*⟩/‖g*‖²."""

    squared_norm_ratio: Measurement
    """Condition (ii): ‖g‖²/‖g*‖²."""

    squared_error: Measurement
    """E‖g − g*‖² of one draw: variance + squared bias."""

    variance: Measurement
    """E‖g − E g‖² of one draw."""

    squared_bias: Measurement
    """‖E g − g*‖², the Monte Carlo floor removed; may come out below 0."""

    exact_squared_norm: float
    """‖g*‖²."""

    repeats: int
    """How many draws."""

    def relative(self) -> "GradientStatistics":
        """Measure squared error, variance and squared bias in units of ‖g*‖²."""
        return replace(
            self,
            squared_error=self.squared_error.over(self.exact_squared_norm),
            variance=self.variance.over(self.exact_squared_norm),
            squared_bias=self.squared_bias.over(self.exact_squared_norm),
            exact_squared_norm=1.0,
        )


@dataclass(frozen=True)
class EachDraw:
    """What single draws g of one block's gradient say, in units of ‖g*‖²."""

    alignment: Float[Tensor, " r"]
    """Condition (i): ⟨g, g*⟩/‖g*‖²."""

    squared_norm: Float[Tensor, " r"]
    """Condition (ii): ‖g‖²/‖g*‖²."""

    squared_error: Float[Tensor, " r"]
    """‖g − g*‖²/‖g*‖²."""

    @classmethod
    def of(cls, draws: Float[Tensor, "r p"], exact: Float[Tensor, " p"]) -> "EachDraw":
        """Of these draws around the exact gradient."""
        norm = exact.square().sum()
        error = (draws - exact).square().sum(dim=1)
        return cls(draws @ exact / norm, draws.square().sum(dim=1) / norm, error / norm)


def block_statistics(draws: Float[Tensor, "r p"], exact: Float[Tensor, " p"]) -> GradientStatistics:
    """Summarise draws of one block's gradient; standard errors of the last two by jackknife."""
    norm = exact.square().sum()
    each = EachDraw.of(draws, exact)
    variance, squared_bias = _variance_and_squared_bias(draws - exact)
    return GradientStatistics(
        _mean(each.alignment),
        _mean(each.squared_norm),
        _mean(norm * each.squared_error),
        variance,
        squared_bias,
        float(norm),
        len(draws),
    )


def _mean(values: Float[Tensor, " r"]) -> Measurement:
    """Average independent values."""
    return Measurement(float(values.mean()), float(values.std() / len(values) ** 0.5))


def _variance_and_squared_bias(errors: Float[Tensor, "r p"]) -> tuple[Measurement, Measurement]:
    """Σ‖e_r − ē‖²/(R−1) and ‖ē‖² − variance/R: the two add up to the mean squared error.

    Without draw r, ē becomes ē − d_r/(R−1), d_r = e_r − ē, and the sum of squares around it falls
    by ‖d_r‖² R/(R−1). Where the bias is 0 the jackknife overstates the standard error of its
    square by about √2.
    """
    R = len(errors)
    mean = errors.mean(dim=0)
    deviations = errors - mean
    squares = deviations.square().sum(dim=1)
    variance = squares.sum() / (R - 1)
    variance_without = (squares.sum() - squares * R / (R - 1)) / (R - 2)
    mean_square = mean.square().sum()
    shift = squares / (R - 1) ** 2 - 2 * (deviations @ mean) / (R - 1)
    return (
        _jackknife(variance, variance_without),
        _jackknife(mean_square - variance / R, mean_square + shift - variance_without / (R - 1)),
    )


def _jackknife(value: Float[Tensor, ""], without: Float[Tensor, " r"]) -> Measurement:
    """Find the standard error from the values without each draw: √((R−1)/R · Σ(θ_r − θ̄)²)."""
    spread = without.var(correction=0) * (len(without) - 1)
    return Measurement(float(value), float(torch.sqrt(spread)))
