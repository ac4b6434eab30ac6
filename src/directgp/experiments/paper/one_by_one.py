"""The paper's sampler as its authors ran it: one example after another, and their hybrid.

Both choose the width of the proposals example by example and stop at the first that is valid, and
both loops work on tensors of one row. The hybrid makes two proposals for all examples at once and
uses the first success of each; those without one are served one by one.
`directgp.log_expectations.samplers.paper` does the same without any loop over the examples.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from directgp.likelihoods.unimodal import UnimodalInF

Row = Float[Tensor, " n"]

MOST_PROPOSALS = 5_000
"""For one draw. An example that would need more takes less time here than it ought to."""

_WIDEST = 10
_TOGETHER = 2
"""Proposals that the hybrid makes for all examples at once."""


@final
@dataclass(frozen=True)
class Batch:
    """Examples to draw for, as differences from the means."""

    likelihood: UnimodalInF
    y: Row
    mean: Row
    variance: Row
    log_max: Row
    """Of the likelihood."""

    @classmethod
    def of(cls, likelihood: UnimodalInF, y: Row, mean: Row, variance: Row) -> "Batch":
        """With the peaks of the likelihood found beforehand."""
        return cls(likelihood, y, mean, variance, likelihood.log_max(y))

    def one_by_one(self, generator: torch.Generator) -> Row:
        """A draw from q̃ for each; NaN where all proposals were refused."""
        examples = map(self._example, range(len(self.y)))
        return torch.cat([one._draw(one._width(), generator) for one in examples])

    def by_hybrid(self, generator: torch.Generator) -> Row:
        """The same, with two proposals for all of them at once before."""
        width = torch.cat([self._example(i)._width() for i in range(len(self.y))])
        draws, missing = torch.zeros_like(self.mean), torch.ones_like(self.mean).bool()
        for _ in range(_TOGETHER):
            delta, hits = self._propose(width, generator)
            draws = torch.where(missing & hits, delta, draws)
            missing = missing & ~hits
        for i in torch.nonzero(missing).flatten().tolist():
            draws[i] = self._example(i)._draw(width[i : i + 1], generator)
        return draws

    def _example(self, i: int) -> "Batch":
        """One of them."""
        rows = (row[i : i + 1] for row in (self.y, self.mean, self.variance, self.log_max))
        return Batch(self.likelihood.take(torch.tensor([i])), *rows)

    def _width(self) -> Row:
        """`choose_width` for a single example: the widest valid n."""
        deviation, log_max = torch.sqrt(self.variance), float(self.log_max)
        near = torch.cat([self.mean - deviation, self.mean + deviation])
        n = 1
        if float(self.likelihood.log_prob(self.y, near).max()) <= log_max - math.log(2):
            n = next(filter(lambda n: self._valid(n, deviation, log_max), range(_WIDEST, 1, -1)), 1)
        return torch.full_like(self.mean, n)

    def _valid(self, n: int, deviation: Row, log_max: float) -> bool:
        r = deviation * math.sqrt(math.log(n) / (1 - 1 / n))
        inside = self.likelihood.log_max_between(self.y, self.mean - r, self.mean + r)
        return float(inside) <= log_max - 0.5 * math.log(n)

    def _draw(self, width: Row, generator: torch.Generator) -> Row:
        """The first proposal for a single example that is accepted."""
        for _ in range(MOST_PROPOSALS):
            delta, hit = self._propose(width, generator)
            if bool(hit):
                return delta
        return torch.full_like(self.mean, math.nan)

    def _propose(self, width: Row, generator: torch.Generator) -> tuple[Row, Bool[Tensor, " n"]]:
        """From N(μ, n·v) for each, and whether p_max·N(μ, n·v) accepts it."""
        z = torch.randn(len(self.y), generator=generator, dtype=self.mean.dtype)
        uniform = torch.rand(len(self.y), generator=generator, dtype=self.mean.dtype)
        delta = torch.sqrt(width * self.variance) * z
        log_ratio = 0.5 * (torch.log(width) - (width - 1) * z**2)
        log_share = self.likelihood.log_prob(self.y, self.mean + delta) + log_ratio
        return delta, torch.log(uniform) <= log_share - self.log_max
