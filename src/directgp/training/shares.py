"""The share that one of several processes has in the examples of each step."""

from typing import final

import torch
from jaxtyping import Num
from torch import Tensor
from typing_extensions import override

from directgp.likelihoods.base import Likelihood
from directgp.training.data import Data
from directgp.training.feeds import Feed


@final
class SharedFeed(Feed):
    """Rows r, r + s, r + 2s, … of each step, for process r of s.

    The weights of its n_r of n rows are scaled by s·n_r/n: the mean over the processes of
    (1/n_r) Σ weight·loss is then the mean over all rows. A process without a row takes the first
    one with weight 0, so that its KL counts.

    Parameters
    ----------
    feed : Feed
        The examples of all processes, the same in each of them.
    rank, size : int
        Which process this is, of how many.
    """

    def __init__(self, feed: Feed, rank: int, size: int) -> None:
        self.whole = feed.whole
        self._feed, self._rank, self._size = feed, rank, size
        self._kept: Data | None = None

    @override
    def advance(self) -> bool:
        return self._feed.advance()

    @override
    def hold(self) -> None:
        self._feed.hold()

    @override
    def examples(self, likelihood: Likelihood) -> tuple[Data, Likelihood]:
        data, likelihood = self._feed.examples(likelihood)
        rows = torch.arange(len(data), device=data.X.device)[self._rank :: self._size]
        factor = self._size * len(rows) / len(data)
        rows = rows if len(rows) > 0 else rows.new_zeros(1)
        if self._kept is None or not self.whole:
            self._kept = _scaled(data.take(rows), factor)
        return self._kept, likelihood.for_rows(rows)

    @override
    def tensors(self) -> dict[str, Tensor]:
        return self._feed.tensors()

    @override
    def load(self, tensors: dict[str, Tensor]) -> None:
        self._feed.load(tensors)

    @override
    def close(self) -> None:
        self._feed.close()


def _scaled(data: Data, factor: float) -> Data:
    """The same examples with their weights times a factor."""
    if factor == 1:
        return data
    return Data(data.X, data.y, factor * _weights(data))


def _weights(data: Data) -> Num[Tensor, " n"]:
    if data.weights is None:
        return torch.ones_like(data.X[:, 0])
    return data.weights if data.weights.is_floating_point() else data.weights.to(data.X)
