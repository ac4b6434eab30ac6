"""Define the examples and the model of a training, and the batch and random numbers of a step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from jaxtyping import Float, Int, Num
from numpy.random import SeedSequence
from torch import Tensor
from typing_extensions import override

from directgp.errors import require, require_all
from directgp.likelihoods.base import Likelihood, check_shape
from directgp.log_expectations.api import check_device, check_magnitude
from directgp.posteriors.sparse import SparsePosterior
from directgp.training.result import TrainingResult

if TYPE_CHECKING:
    from directgp.datasets.streams import Batch, RowStream


@dataclass(frozen=True)
class Data:
    """Inputs, targets and weights of examples."""

    X: Float[Tensor, "n d"]
    """Inputs."""

    y: Num[Tensor, " n"]
    """Targets."""

    weights: Num[Tensor, " n"] | None = None
    """Weight of each example; None for 1."""

    def __len__(self) -> int:
        return len(self.X)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Data":
        """Return the examples with each tensor changed by a function."""
        weights = None if self.weights is None else change(self.weights)
        return Data(change(self.X), change(self.y), weights)

    def take(self, index: Int[Tensor, " r"]) -> "Data":
        """Return the examples at an index."""
        return self.map(lambda tensor: tensor[index])


class Model(NamedTuple):
    """A posterior and a likelihood."""

    posterior: SparsePosterior
    """q(u), with prior and inducing inputs."""

    likelihood: Likelihood
    """p(y | f), with its parameters."""

    @classmethod
    def of(cls, result: TrainingResult) -> "Model":
        """Return the model that a run has trained."""
        return cls(result.posterior, result.likelihood)


def check_data(who: str, data: Data, posterior: SparsePosterior, likelihood: Likelihood) -> None:
    """Raise `InvalidInputError` if shapes, devices, targets or weights do not fit the model."""
    X = data.X
    y = data.y
    weights = data.weights
    n = len(data)
    require(n >= 1, f"X of {who}", "at least one row", f"shape {tuple(X.shape)}")
    tensors = [X, y, posterior.Z] if weights is None else [X, y, posterior.Z, weights]
    devices = sorted({str(tensor.device) for tensor in tensors})
    parts = f"X, y, weights and posterior of {who}"
    require(len(devices) == 1, parts, "on one device", " and ".join(devices))
    check_device(f"device of {who}", X.device)
    posterior.check_inputs(X, f"X of {who}")
    wanted = likelihood.num_latent
    latents = posterior.num_latent
    needed = f"of {wanted} latent functions, as {type(likelihood).__name__} needs"
    remedy = f"Make them with posterior.with_latents({wanted})."
    require(latents == wanted, f"posterior of {who}", needed, latents, remedy)
    allowed = f"of shape ({n},), one target for each row of X"
    remedy = "Flatten a column with y.reshape(-1)." if y.numel() == n else ""
    require(y.shape == (n,), f"y of {who}", allowed, f"shape {tuple(y.shape)}", remedy)
    likelihood.check_targets(y)
    check_shape(likelihood, y.shape)
    check_magnitude(f"X of {who}", X)
    check_magnitude(f"y of {who}", y)
    for name, value in likelihood.named_parameters():
        parameter = f"{name} of {type(likelihood).__name__} in {who}"
        require(value.numel() == 1, parameter, "a single number", f"shape {tuple(value.shape)}")
    if weights is not None:
        require(weights.shape == (n,), f"weights of {who}", f"of shape ({n},)", weights.shape)
        valid = torch.isfinite(weights) & (weights >= 0)
        require_all(valid, weights, f"weights of {who}", "finite and at least 0")
        require(bool((weights > 0).any()), f"weights of {who}", "positive somewhere", "zeros")
        check_magnitude(f"weights of {who}", weights)


class Batches:
    """The examples of each step: all examples; subclasses choose a batch."""

    whole: bool = True
    """Whether every step uses all examples."""

    def __init__(self, data: Data) -> None:
        self._data = data

    def advance(self) -> bool:
        """Go to the next step; return whether its batch has the size of the static buffers."""
        return True

    def examples(self, likelihood: Likelihood) -> tuple[Data, Likelihood]:
        """Return the examples of the current step, with the likelihood for them."""
        return self._data, likelihood

    def use_static_buffers(self) -> None:
        """Copy the examples of each step to the same memory, as a CUDA graph needs."""

    def state(self) -> dict[str, Tensor]:
        """Return the position, for a checkpoint, without the state of the generator."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go to a position that `state` returned."""

    def close(self) -> None:
        """Release files and threads."""


@final
class RandomBatches(Batches):
    """Batches of examples in memory, in a random order that changes each epoch.

    The last batch of an epoch has the remaining examples. The generator draws on its own device.
    """

    whole = False

    def __init__(self, data: Data, batch_size: int, generator: torch.Generator) -> None:
        super().__init__(data)
        self._generator = generator
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
        self._buffer = torch.arange(self._size, device=self._data.X.device)
        self.index = self._buffer

    @override
    def state(self) -> dict[str, Tensor]:
        return {"epoch": self._epoch, "taken": torch.tensor(self._taken)}

    @override
    def load_state(self, state: dict[str, Tensor]) -> None:
        epoch = state["epoch"]
        taken = int(state["taken"])
        rows = torch.arange(len(epoch))
        whole = epoch.dtype == rows.dtype and torch.equal(epoch.cpu().sort().values, rows)
        if not (whole and len(rows) in (0, len(self._data)) and 0 <= taken <= len(rows)):
            raise ValueError("its order of examples is not a permutation of the data")
        self._epoch = epoch.to(self._generator.device)
        self._taken = taken


@final
class StreamBatches(Batches):
    """Batches of a stream; `first` is the batch before the first step.

    Each process has a stream of its own rows. The likelihood checks the targets of each batch.
    """

    whole = False

    def __init__(self, stream: "RowStream", first: Data, likelihood: Likelihood) -> None:
        super().__init__(first)
        self._stream = stream
        self._likelihood = likelihood
        self._static = False

    @override
    def advance(self) -> bool:
        batch = as_data(self._stream.next())
        self._likelihood.check_targets(batch.y)
        if not self._static:
            self._data = batch.map(lambda tensor: tensor.to(self._data.X.device))
            return True
        self._data.X.copy_(batch.X)
        self._data.y.copy_(batch.y)
        if self._data.weights is not None and batch.weights is not None:
            self._data.weights.copy_(batch.weights)
        return True

    @override
    def use_static_buffers(self) -> None:
        self._static = True
        self._data = self._data.map(torch.clone)

    @override
    def state(self) -> dict[str, Tensor]:
        return {name: torch.tensor(value) for name, value in self._stream.state().items()}

    @override
    def load_state(self, state: dict[str, Tensor]) -> None:
        # Keep the share of this process: the checkpoint has the share of the first process.
        saved = {name: int(value) for name, value in state.items()}
        current = self._stream.state()
        self._stream.restore({**saved, "share": current["share"], "rows": current["rows"]})

    @override
    def close(self) -> None:
        self._stream.close()


def as_data(batch: "Batch") -> Data:
    """Return rows of a stream as tensors that share their memory."""
    weights = None if batch.weights is None else torch.from_numpy(batch.weights)
    return Data(torch.from_numpy(batch.X), torch.from_numpy(batch.y), weights)


@final
class DistributedBatches(Batches):
    """Rows r, r + s, r + 2s, … of each step, for process r of s.

    The weights of its n_r of n rows are scaled by s·n_r/n: the mean over the processes of
    (1/n_r) Σ weight·loss is then the mean over all rows. A process without a row takes the first
    row with weight 0, so that the KL has the same weight in each process.
    """

    def __init__(self, batches: Batches, rank: int, size: int) -> None:
        self.whole = batches.whole
        self._batches = batches
        self._rank = rank
        self._size = size
        self._kept: Data | None = None

    @override
    def advance(self) -> bool:
        return self._batches.advance()

    @override
    def examples(self, likelihood: Likelihood) -> tuple[Data, Likelihood]:
        data, likelihood = self._batches.examples(likelihood)
        rows = torch.arange(len(data), device=data.X.device)[self._rank :: self._size]
        factor = self._size * len(rows) / len(data)
        rows = rows if len(rows) > 0 else rows.new_zeros(1)
        if self._kept is None or not self.whole:
            self._kept = data.take(rows)
            if factor != 1:
                X = self._kept.X
                weights = self._kept.weights
                weights = torch.ones_like(X[:, 0]) if weights is None else weights
                weights = weights if weights.is_floating_point() else weights.to(X)
                self._kept = replace(self._kept, weights=factor * weights)
        return self._kept, likelihood.for_rows(rows)

    @override
    def state(self) -> dict[str, Tensor]:
        return self._batches.state()

    @override
    def load_state(self, state: dict[str, Tensor]) -> None:
        self._batches.load_state(state)

    @override
    def close(self) -> None:
        self._batches.close()


class Randomness:
    """The random numbers of a stochastic problem.

    With `frozen`, every evaluation draws the same numbers (common random numbers), so that the
    value is a smooth function of the parameters. With a rank, each of several processes draws
    numbers of its own, with a seed from the common generator and its rank.
    """

    def __init__(self, generator: torch.Generator, frozen: bool, rank: int | None = None) -> None:
        self.generator = generator
        self.frozen = frozen
        self._rank = rank
        if frozen or rank is not None:
            # Make another generator: a new seed of the given one would repeat its draws.
            where = generator.device
            self._seed = int(torch.randint(2**62, (), generator=generator, device=where))
            self.generator = torch.Generator(where)
        self.renew(0)

    def begin(self) -> None:
        """Set the seed of frozen numbers; called before each evaluation."""
        if self.frozen:
            self.generator.manual_seed(self._seed)

    def renew(self, step: int) -> None:
        """Set the seed of one of several processes, so that a run can resume at this step."""
        if self._rank is not None:
            mixed = SeedSequence([self._seed, self._rank, step]).generate_state(1, "uint64")
            self.generator.manual_seed(int(mixed[0]) >> 1)
