"""Hold training data: checks, batches, streams and validation splits."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor
from typing_extensions import override

from directgp.datasets.streams import Batch, RowStream
from directgp.errors import require
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.shapes import require_all


@dataclass(frozen=True)
class Data:
    """Inputs, targets and weights of some examples."""

    X: Float[Tensor, "n d"]
    y: Num[Tensor, " n"]
    weights: Num[Tensor, " n"] | None = None

    def __len__(self) -> int:
        return len(self.X)

    def weighted_targets(self) -> Num[Tensor, " r"]:
        """The targets that have a weight."""
        return self.y if self.weights is None else self.y[self.weights > 0]

    def to(self, device: torch.device) -> "Data":
        """The same examples elsewhere."""
        weights = None if self.weights is None else self.weights.to(device)
        return Data(self.X.to(device), self.y.to(device), weights)

    def clone(self) -> "Data":
        """A copy."""
        weights = None if self.weights is None else self.weights.clone()
        return Data(self.X.clone(), self.y.clone(), weights)

    def take(self, index: Int[Tensor, " r"]) -> "Data":
        """Some of the examples."""
        weights = None if self.weights is None else self.weights[index]
        return Data(self.X[index], self.y[index], weights)


def check_data(who: str, data: Data, posterior: SparsePosterior, likelihood: Likelihood) -> None:
    """Refuse data that cannot be meant, before any work is done."""
    n = len(data.X)
    require(n >= 1, f"X of {who}", "at least one row", f"shape {tuple(data.X.shape)}")
    require(
        data.y.device == data.X.device == posterior.Z.device,
        f"X, y and posterior of {who}",
        "on one device",
        f"{data.X.device}, {data.y.device} and {posterior.Z.device}",
    )
    posterior.check_inputs(data.X, f"X of {who}")
    require(
        data.y.shape == (n,),
        f"y of {who}",
        f"of shape ({n},), one target for each row of X",
        f"shape {tuple(data.y.shape)}",
        "Flatten a column with y.reshape(-1)." if data.y.numel() == n else "",
    )
    likelihood.check_targets(data.y)
    likelihood.check_shape(data.y.shape)
    for name, parameter in likelihood.named_parameters():
        require(
            parameter.numel() == 1,
            f"{name} of {type(likelihood).__name__} in {who}",
            "a single number",
            f"shape {tuple(parameter.shape)}",
        )
    if data.weights is not None:
        weights = data.weights
        require(weights.shape == (n,), f"weights of {who}", f"of shape ({n},)", weights.shape)
        allowed = torch.isfinite(weights) & (weights >= 0)
        require_all(allowed, weights, f"weights of {who}", "finite and at least 0")
        require(bool((weights > 0).any()), f"weights of {who}", "positive somewhere", "zeros")


@final
class Batches:
    """Indices of the examples of each step.

    Parameters
    ----------
    num_data : int
        N.
    batch_size : int
        Examples a step; the last step of an epoch takes what is left.
    generator : torch.Generator
        Permutes each epoch, on its own device.
    """

    def __init__(self, num_data: int, batch_size: int, generator: torch.Generator) -> None:
        require(batch_size >= 1, "batch_size", "at least 1", batch_size)
        self._num_data = num_data
        self.size = min(batch_size, num_data)
        """Examples of each step but the last of an epoch."""
        self._generator = generator
        self._epoch = torch.empty(0, dtype=torch.int64, device=generator.device)
        self._taken = 0

    def next(self) -> Int[Tensor, " n"]:
        """The examples of the next step."""
        if self._taken >= len(self._epoch):
            self._epoch = torch.randperm(
                self._num_data, generator=self._generator, device=self._generator.device
            )
            self._taken = 0
        batch = self._epoch[self._taken : self._taken + self.size]
        self._taken += len(batch)
        return batch

    def tensors(self) -> dict[str, Tensor]:
        """Where in which epoch the batches are; the generator's state is its owner's to keep."""
        return {"epoch": self._epoch, "taken": torch.tensor(self._taken)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go to a place that `tensors` has told."""
        self._epoch = tensors["epoch"].to(self._generator.device)
        self._taken = int(tensors["taken"])


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
