"""A logarithmic axis of β with a place for β = 0."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TICK = 36.0
"""Least distance of two ticks, in points."""


@dataclass(frozen=True)
class BetaAxis:
    """Where each β lies, and which have a tick."""

    low: float
    """The smallest β above 0."""

    high: float

    has_zero: bool

    @classmethod
    def of(cls, betas: Sequence[float]) -> "BetaAxis":
        """The axis on which all of these have a place."""
        positive = [beta for beta in betas if beta > 0] or [1.0]
        return cls(min(positive), max(positive), any(beta == 0 for beta in betas))

    def place(self, beta: float) -> float:
        """β itself; and for 0, a place left of all others."""
        return beta if beta > 0 else self.low / 10**self._gap

    def across(self, beta: float) -> float:
        """The place as a share of the axis."""
        low, high = self._limits
        return math.log(self.place(beta) / low) / math.log(high / low)

    def draw(self, ax: "Axes") -> None:
        """Set scale, limits and ticks, and break the axis where 0 stands apart."""
        width = ax.bbox.width * 72 / ax.figure.dpi
        places = {tick: _text(tick) for tick in self._ticks(max(2, int(width / _TICK)))}
        if self.has_zero:
            places = {self.place(0.0): "0", **places}
        ax.set_xscale("log")
        ax.set_xticks(list(places), list(places.values()))
        ax.minorticks_off()
        ax.set(xlim=self._limits, xlabel="β")
        if self.has_zero:
            self._draw_break(ax)

    def _draw_break(self, ax: "Axes") -> None:
        ax.text(
            self.low / 10 ** (0.5 * self._gap),
            0,
            "//",
            transform=ax.get_xaxis_transform(),
            ha="center",
            va="center",
            fontsize="small",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )

    @property
    def _gap(self) -> float:
        """Decades between 0 and the smallest other β."""
        return max(0.3, 0.12 * math.log10(self.high / self.low))

    @property
    def _limits(self) -> tuple[float, float]:
        first = self.place(0.0) if self.has_zero else self.low
        margin = 10 ** (0.35 * self._gap)
        return first / margin, self.high * margin

    def _ticks(self, most: int) -> list[float]:
        """Decades, or finer where there are few."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for steps in ((1,), (1, 2, 5)):
            every = [step * 10.0**k for k in range(first, last + 1) for step in steps]
            ticks = [t for t in every if self.low * 0.999 <= t <= self.high * 1.001]
            if len(ticks) >= 3:
                stride = math.ceil(len(ticks) / most)
                return ticks[stride - 1 :: stride]
        return sorted({self.low, self.high})


def _text(beta: float) -> str:
    exponent = round(math.log10(beta))
    if -3 <= exponent <= 4:
        return f"{beta:.3g}" if beta < 1000 else f"{beta:.0f}"
    return f"$10^{{{exponent}}}$" if math.isclose(beta, 10.0**exponent) else f"{beta:.1e}"
