"""Where the examples of each step come from."""

from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor
from typing_extensions import override

from directgp.likelihoods.base import Likelihood
from directgp.training.batches import Batches
from directgp.training.data import Data


class Feed(ABC):
    """Gives a problem the examples of one step after another."""

    whole: bool = False
    """Whether every step looks at all examples."""

    shared: bool = False
    """Whether the examples are those of one of several processes already."""

    @abstractmethod
    def advance(self) -> bool:
        """Go on to the next step; whether it has as many examples as `hold` has made room for."""

    @abstractmethod
    def hold(self) -> None:
        """Keep the examples of all steps in one place of memory, where a CUDA graph reads them."""

    @abstractmethod
    def examples(self, likelihood: Likelihood) -> tuple[Data, Likelihood]:
        """Those of the present step, with the likelihood for them."""

    def tensors(self) -> dict[str, Tensor]:
        """Where the feed is, for a checkpoint."""
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go to a place that `tensors` has told."""
        return None

    def close(self) -> None:
        """No more examples are needed."""
        return None


@final
class WholeFeed(Feed):
    """All examples at each step."""

    whole = True

    def __init__(self, data: Data) -> None:
        self._data = data

    @override
    def advance(self) -> bool:
        return True

    @override
    def hold(self) -> None:
        return None

    @override
    def examples(self, likelihood: Likelihood) -> tuple[Data, Likelihood]:
        return self._data, likelihood


@final
class BatchFeed(Feed):
    """Batches of examples that are in memory; before the first step, as many from the beginning."""

    def __init__(self, data: Data, batches: Batches) -> None:
        self._data, self._batches = data, batches
        self._index = torch.arange(batches.size, device=data.X.device)
        self._held: Int[Tensor, " n"] | None = None

    @override
    def advance(self) -> bool:
        index = self._batches.next().to(self._data.X.device)
        usual = len(index) == self._batches.size
        if usual and self._held is not None:
            index = self._held.copy_(index)
        self._index = index
        return usual

    @override
    def hold(self) -> None:
        self._held = self._index = torch.arange(self._batches.size, device=self._data.X.device)

    @override
    def examples(self, likelihood: Likelihood) -> tuple[Data, Likelihood]:
        return self._data.take(self._index), likelihood.for_rows(self._index)

    @override
    def tensors(self) -> dict[str, Tensor]:
        return self._batches.tensors()

    @override
    def load(self, tensors: dict[str, Tensor]) -> None:
        self._batches.load(tensors)
