"""Batches of a stream of rows, where the model is."""

from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from directgp.datasets.streams import Batch, RowStream
from directgp.likelihoods.base import Likelihood
from directgp.training.data import Data
from directgp.training.feeds import Feed


@final
class StreamFeed(Feed):
    """A batch of a stream at each step; before the first step, one that was read beforehand.

    Each of several processes has a stream of its own share of the rows.

    Parameters
    ----------
    stream : RowStream
        Closed with the feed.
    first : Data
        As many rows as the batches of the stream have.
    likelihood : Likelihood
        Refuses targets that it cannot have.
    """

    shared = True

    def __init__(self, stream: RowStream, first: Data, likelihood: Likelihood) -> None:
        self._stream, self._likelihood = stream, likelihood
        self._data = first
        self._held = False

    @override
    def advance(self) -> bool:
        found = as_data(self._stream.next())
        self._likelihood.check_targets(found.y)
        if self._held:
            for here, there in zip(_tensors(self._data), _tensors(found), strict=True):
                here.copy_(there)
        else:
            self._data = found.to(self._data.X.device)
        return True

    @override
    def hold(self) -> None:
        self._held = True
        self._data = self._data.clone()

    @override
    def examples(self, likelihood: Likelihood) -> tuple[Data, Likelihood]:
        return self._data, likelihood

    @override
    def tensors(self) -> dict[str, Tensor]:
        return {name: torch.tensor(value) for name, value in self._stream.state().items()}

    @override
    def load(self, tensors: dict[str, Tensor]) -> None:
        # The file is of the first process; all have taken as many rows, each of its own share.
        told = {name: int(value) for name, value in tensors.items()}
        here = self._stream.state()
        self._stream.restore({**told, "share": here["share"], "rows": here["rows"]})

    @override
    def close(self) -> None:
        self._stream.close()


def as_data(batch: Batch) -> Data:
    """Rows as tensors that share their memory."""
    weights = None if batch.weights is None else torch.from_numpy(batch.weights)
    return Data(torch.from_numpy(batch.X), torch.from_numpy(batch.y), weights)


def _tensors(data: Data) -> list[Tensor]:
    return [data.X, data.y] if data.weights is None else [data.X, data.y, data.weights]
