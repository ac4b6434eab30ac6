"""Weight the members of a mixture by validation rows, and judge it by rows left out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from directgp.objectives.base import PointLoss

Losses = Float[Tensor, "c v"]
"""Losses of candidates, a row each, of the validation examples."""

Forecasts = Float[Tensor, "c s v"]
"""What the loss of a mixture needs to know of each candidate's predictions."""

Weights = Float[Tensor, " c"]

_STEPS = 200
"""Steps of the weights' fixed-point iteration."""

_ROUNDS = 20
"""Equal parts of a greedy mixture."""

_PRIOR = 5.0
"""Validation rows that equal weights count as."""

_SMALLEST = 0.02
"""Members of less weight are dropped."""

_PARTS = 5
"""Parts of the validation rows; the loss of each is that with the weights of the others."""


@final
@dataclass(frozen=True)
class EntrantForecasts:
    """Predictions of candidates for the validation examples, to be mixed."""

    loss: PointLoss
    """The validation loss."""

    losses: Losses
    """Its values."""

    forecasts: Forecasts | None
    """Those of `PointLoss.forecast`; None where the losses are enough."""

    y: Num[Tensor, " v"]
    """Targets."""

    share: Float[Tensor, " v"] | None
    """Weights of the examples, of mean 1; None without weights."""

    def at(self, rows: Int[Tensor, " r"] | Bool[Tensor, " v"]) -> "EntrantForecasts":
        """Return the predictions for some of the examples."""
        forecasts = None if self.forecasts is None else self.forecasts[..., rows]
        share = None if self.share is None else self.share[rows]
        return EntrantForecasts(self.loss, self.losses[:, rows], forecasts, self.y[rows], share)

    def of(self, candidates: Sequence[int]) -> "EntrantForecasts":
        """Return the predictions of some of the candidates."""
        chosen = list(candidates)
        forecasts = None if self.forecasts is None else self.forecasts[chosen]
        return replace(self, losses=self.losses[chosen], forecasts=forecasts)

    def mixed(self, weights: Weights) -> Float[Tensor, " v"]:
        """Return the loss of each example in a mixture, times the weight of the example."""
        members = self.of(weights.nonzero()[:, 0].tolist())
        used = weights[weights > 0].to(self.losses)
        if len(used) == 1:
            rows = members.losses[0]
        else:
            rows = self.loss.of_mixture(members.losses, members.forecasts, used, self.y)
        return rows if self.share is None else self.share * rows

    def mean(self, weights: Weights) -> float:
        """Return the mean loss of a mixture."""
        return float(self.mixed(weights).double().mean())

    def best(self) -> Weights:
        """Return the weight 1 for the candidate of lowest mean loss."""
        rows = self.losses if self.share is None else self.share * self.losses
        means = rows.mean(-1)
        means = torch.where(torch.isfinite(means), means, torch.inf)
        weights = torch.zeros(len(means), dtype=torch.float64)
        return weights.index_fill_(0, means.argmin().cpu(), 1.0)

    def weights(self, most: int) -> Weights:
        """Return weights that minimise the loss, of at most that many members, none tiny.

        Equal weights count as a few rows, so that few rows do not decide alone. A candidate with an
        infinite loss has the weight 0.
        """
        number = len(self.losses)
        usable = torch.isfinite(self.losses).all(-1)
        if int(usable.sum()) <= 1:
            return self.best()
        places = usable.nonzero()[:, 0].tolist()
        members = self.of(places)
        found = members._of_densities() if self.loss.log_density else members._greedy()
        weights = torch.zeros(number, dtype=torch.float64)
        weights[places] = found
        return largest(weights, most)

    def cross_fitted(self, most: int) -> Float[Tensor, " v"]:
        """Return the loss of each row in a mixture whose weights have not seen the row.

        Losses are multiplied by the weights of the rows.
        """
        number = len(self.y)
        part = torch.arange(number, device=self.y.device) % min(_PARTS, number)
        found = torch.empty_like(self.losses[0])
        for k in range(int(part.max()) + 1):
            inside = part == k
            rest = ~inside if number > 1 else inside
            found[inside] = self.at(inside).mixed(self.at(rest).weights(most))
        return found

    def _of_densities(self) -> Weights:
        """Minimise −Σ_i log Σ_k w_k p_k(y_i), a convex function, by the EM algorithm."""
        log_p = -self.losses.double().cpu()
        p = torch.exp(log_p - log_p.max(0).values)
        rows = torch.ones(p.shape[1]).double() if self.share is None else self.share.double().cpu()
        w = torch.full((len(p),), 1 / len(p), dtype=torch.float64)
        for _ in range(_STEPS):
            joint = w[:, None] * p
            w = (joint / joint.sum(0)) @ rows + _PRIOR / len(p)
            w = w / w.sum()
        return w

    def _greedy(self) -> Weights:
        """Add equal parts to a mixture, each to the candidate that lowers its loss most.

        Equal weights are those of candidates with a part or not clearly beaten: unlike a log
        density, a mixture of means is not safe from a bad one.
        """
        number = len(self.losses)
        parts = torch.zeros(number, dtype=torch.float64)
        best, lowest = parts, torch.inf
        for _ in range(_ROUNDS):
            tries = [parts + each for each in torch.eye(number, dtype=torch.float64)]
            means = [self.mean(each / each.sum()) for each in tries]
            place = min(range(number), key=means.__getitem__)
            parts = tries[place]
            if means[place] < lowest:
                best, lowest = parts / parts.sum(), means[place]
        rows, likely = len(self.y), ((best > 0) | ~self._beaten()).double()
        return (rows * best + _PRIOR * likely / likely.sum()) / (rows + _PRIOR)

    def _beaten(self) -> Bool[Tensor, " c"]:
        """Return which candidates are worse than the best one by two standard errors."""
        rows = (self.losses if self.share is None else self.share * self.losses).double().cpu()
        gap = rows - rows[rows.mean(-1).argmin()]
        error = gap.std(-1) / gap.shape[-1] ** 0.5 if gap.shape[-1] > 1 else torch.inf
        return gap.mean(-1) > 2 * error


def largest(weights: Weights, most: int) -> Weights:
    """Return the weights of at most that many members, none of them tiny; the others are 0."""
    kept = weights >= min(_SMALLEST, float(weights.max()))
    order = weights.argsort(descending=True, stable=True)
    kept[order[most:]] = False
    chosen = torch.where(kept, weights, 0.0)
    return chosen / chosen.sum()
