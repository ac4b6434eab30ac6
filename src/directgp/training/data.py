"""Hold training data and models; give each step its batch of examples."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor
from typing_extensions import override

from directgp.datasets.streams import Batch, RowStream
from directgp.errors import require
from directgp.likelihoods.base import Likelihood
from directgp.posteriors.sparse import SparsePosterior
from directgp.shapes import require_all
from directgp.training.result import TrainingResult


@dataclass(frozen=True)
class Data:
    """Inputs, targets and weights of some examples."""

    X: Float[Tensor, "n d"]
    y: Num[Tensor, " n"]
    weights: Num[Tensor, " n"] | None = None

    def __len__(self) -> int:
        return len(self.X)

    def weighted_targets(self) -> Num[Tensor, " r"]:
        """Return the targets with a positive weight."""
        return self.y if self.weights is None else self.y[self.weights > 0]

    def to(self, device: torch.device) -> "Data":
        """Return the examples on a device."""
        return self._map(lambda tensor: tensor.to(device))

    def clone(self) -> "Data":
        """Return a copy."""
        return self._map(torch.clone)

    def take(self, index: Int[Tensor, " r"]) -> "Data":
        """Return some of the examples."""
        return self._map(lambda tensor: tensor[index])

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Data":
        weights = None if self.weights is None else change(self.weights)
        return Data(change(self.X), change(self.y), weights)


class Model(NamedTuple):
    """A posterior and a likelihood, to start from or trained."""

    posterior: SparsePosterior
    likelihood: Likelihood
    name: str = ""
    """Kernel and likelihood, where a search compares several."""

    @classmethod
    def of(cls, result: TrainingResult) -> "Model":
        """Return the model that a run has trained."""
        return cls(result.posterior, result.likelihood)


def check_data(who: str, data: Data, posterior: SparsePosterior, likelihood: Likelihood) -> None:
    """Raise `InvalidInputError` if shapes, devices, targets or weights do not fit the model."""
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


class Batches(ABC):
    """The examples of one step after another."""

    whole: bool = False
    """Whether every step uses all examples."""

    distributed: bool = False
    """Whether these are the examples of this process alone."""

    @abstractmethod
    def advance(self) -> bool:
        """Go to the next step; return whether it has the size of the static buffers."""

    @abstractmethod
    def examples(self, likelihood: Likelihood) -> tuple[Data, Likelihood]:
        """Return the examples of the current step, with the likelihood for them."""

    def use_static_buffers(self) -> None:
        """Keep the examples of all steps in the same memory, as a CUDA graph needs."""
        return None

    def state(self) -> dict[str, Tensor]:
        """Return the position, for a checkpoint; without the state of the generator."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go to a position that `state` returned."""
        return None

    def close(self) -> None:
        """Release files and threads."""
        return None


@final
class FullBatch(Batches):
    """All examples at each step."""

    whole = True

    def __init__(self, data: Data) -> None:
        self._data = data

    @override
    def advance(self) -> bool:
        return True

    @override
    def examples(self, likelihood: Likelihood) -> tuple[Data, Likelihood]:
        return self._data, likelihood


@final
class RandomBatches(Batches):
    """Batches of examples in memory, in a random order that changes each epoch.

    The last batch of an epoch has the remaining examples. The generator draws on its own device.
    """

    def __init__(self, data: Data, batch_size: int, generator: torch.Generator) -> None:
        self._data, self._generator = data, generator
        self._size = min(batch_size, len(data))
        self._epoch = torch.empty(0, dtype=torch.int64, device=generator.device)
        self._taken = 0
        self.index: Int[Tensor, " n"] = torch.arange(self._size, device=data.X.device)
        """Rows of the current step; before the first step, the first rows."""
        self._buffer: Int[Tensor, " n"] | None = None

    @override
    def advance(self) -> bool:
        if self._taken >= len(self._epoch):
            generator = self._generator
            number = len(self._data)
            self._epoch = torch.randperm(number, generator=generator, device=generator.device)
            self._taken = 0
        index = self._epoch[self._taken : self._taken + self._size].to(self._data.X.device)
        self._taken += len(index)
        full = len(index) == self._size
        self.index = self._buffer.copy_(index) if full and self._buffer is not None else index
        return full

    @override
    def examples(self, likelihood: Likelihood) -> tuple[Data, Likelihood]:
        return self._data.take(self.index), likelihood.for_rows(self.index)

    @override
    def use_static_buffers(self) -> None:
        self._buffer = self.index = torch.arange(self._size, device=self._data.X.device)

    @override
    def state(self) -> dict[str, Tensor]:
        return {"epoch": self._epoch, "taken": torch.tensor(self._taken)}

    @override
    def load_state(self, state: dict[str, Tensor]) -> None:
        self._epoch = state["epoch"].to(self._generator.device)
        self._taken = int(state["taken"])


@final
class StreamBatches(Batches):
    """Batches of a stream; before the first step, one that was read beforehand.

    Each process has a stream of its own rows. Targets are checked against the likelihood.
    """

    distributed = True

    def __init__(self, stream: RowStream, first: Data, likelihood: Likelihood) -> None:
        self._stream, self._likelihood = stream, likelihood
        self._data = first
        self._static = False

    @override
    def advance(self) -> bool:
        found = as_data(self._stream.next())
        self._likelihood.check_targets(found.y)
        if not self._static:
            self._data = found.to(self._data.X.device)
            return True
        self._data.X.copy_(found.X)
        self._data.y.copy_(found.y)
        if self._data.weights is not None and found.weights is not None:
            self._data.weights.copy_(found.weights)
        return True

    @override
    def examples(self, likelihood: Likelihood) -> tuple[Data, Likelihood]:
        return self._data, likelihood

    @override
    def use_static_buffers(self) -> None:
        self._static = True
        self._data = self._data.clone()

    @override
    def state(self) -> dict[str, Tensor]:
        return {name: torch.tensor(value) for name, value in self._stream.state().items()}

    @override
    def load_state(self, state: dict[str, Tensor]) -> None:
        # The checkpoint is of the first process; every process has read as many rows of its own.
        saved = {name: int(value) for name, value in state.items()}
        here = self._stream.state()
        self._stream.restore({**saved, "share": here["share"], "rows": here["rows"]})

    @override
    def close(self) -> None:
        self._stream.close()


def as_data(batch: Batch) -> Data:
    """Return rows of a stream as tensors that share their memory."""
    weights = None if batch.weights is None else torch.from_numpy(batch.weights)
    return Data(torch.from_numpy(batch.X), torch.from_numpy(batch.y), weights)
