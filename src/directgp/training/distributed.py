"""Train one model with several processes of torchrun."""

import json
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any, final

import torch
import torch.distributed as dist
from jaxtyping import Num
from safetensors.torch import load, save
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from typing_extensions import override

from directgp.errors import CheckpointError, InvalidInputError, LostProcessError, require
from directgp.io import Contents, on_cpu
from directgp.likelihoods.base import Likelihood
from directgp.training.data import Data, Feed
from directgp.training.result import Status, Stop

_LOOKS_EVERY = 0.02


def fresh_store(store: Store, rank: int, size: int, timeout: float) -> Store:
    """A part of a store that no earlier attempt has written to.

    torchrun keeps one store through its restarts, with the addresses of processes that are gone.
    So the first process names a room, each other one leaves a word of its own there, and believes
    the room once the first has repeated that word: an attempt before this one cannot know it.

    Parameters
    ----------
    store : Store
        Common to the processes of all attempts.
    rank, size : int
        Which process this is, of how many.
    timeout : float
        Seconds to wait for the others.

    Raises
    ------
    RuntimeError
        Not all came in time.
    """
    word = secrets.token_hex(8)
    room = _open_room(store, word, size) if rank == 0 else _find_room(store, word, rank, timeout)
    return PrefixStore(room, store)


def _open_room(store: Store, room: str, size: int) -> str:
    store.set("room", room)
    words = [store.get(f"{room}/{rank}").decode() for rank in range(1, size)]
    store.set(f"{room}/words", " ".join(words))
    return room


def _find_room(store: Store, word: str, rank: int, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        room = store.get("room").decode()
        store.set(f"{room}/{rank}", word)
        words = f"{room}/words"
        if store.check([words]) and word in store.get(words).decode().split():
            return room
        time.sleep(_LOOKS_EVERY)
    raise RuntimeError(f"the first process did not answer within {timeout:g} seconds")


_ASSIGNED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@final
class Processes:
    """The processes that train one model together, as one of them sees them.

    Made by `from_torchrun`, used in a ``with`` block and given to `directgp.train`. What they send
    each other is the same in all of them, bit for bit, once it has arrived.

    Parameters
    ----------
    rank : int
        The number of this process, from 0.
    size : int
        How many there are.
    device : torch.device
        Where this one computes.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._open, self._lost = True, False

    @classmethod
    def from_torchrun(
        cls, device: str | torch.device = "auto", timeout: float = 600.0
    ) -> "Processes":
        """Meet the other processes that torchrun has started.

        Every process has to call this, on each of the machines. On the CPU they talk by gloo; on
        CUDA by nccl, or by gloo where several processes share one GPU.

        Parameters
        ----------
        device : str or torch.device
            "cpu", "cuda" (the GPU of this process by LOCAL_RANK), or "auto" for CUDA where there
            is a GPU.
        timeout : float
            Seconds after which a process that does not answer counts as lost. It has to be longer
            than what one process may do alone between two steps.

        Raises
        ------
        InvalidInputError
            This process was not started by torchrun.
        LostProcessError
            Not all processes came.
        """
        require(0 < timeout < float("inf"), "timeout of Processes", "positive", timeout)
        _require_torchrun()
        again = dist.is_initialized()
        require(not again, "Processes.from_torchrun", "called once at a time", "a group is there")
        chosen = _device(device)
        # A collective of nccl then ends with an error where it would end the process.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        limit = timedelta(seconds=timeout)
        with _contact(f"Process {rank} of {size} could not meet the others"):
            common, _, _ = next(rendezvous("env://", rank, size, timeout=limit))
            common.set_timeout(limit)
            store = fresh_store(common, rank, size, timeout)
            dist.init_process_group(
                _backend(chosen), store=store, rank=rank, world_size=size, timeout=limit
            )
        return cls(rank, size, chosen)

    def mean(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The mean of each tensor over the processes, in the dtype of the last one."""
        flat = torch.cat([tensor.detach().reshape(-1).to(tensors[-1]) for tensor in tensors])
        with self._contact():
            dist.all_reduce(flat)
        parts = flat.div_(self.size).split([tensor.numel() for tensor in tensors])
        return tuple(p.reshape(t.shape) for p, t in zip(parts, tensors, strict=True))

    def smallest(self, number: int) -> int:
        """The smallest number that any process gives."""
        found = torch.tensor([number])
        with self._contact():
            dist.all_reduce(found, dist.ReduceOp.MIN)
        return int(found)

    def told(self, message: bytes, by: int = 0) -> bytes:
        """The message of one of the processes."""
        length = torch.tensor([len(message)])
        with self._contact():
            dist.broadcast(length, by)
            data = torch.zeros(int(length), dtype=torch.uint8)
            if self.rank == by:
                data = torch.frombuffer(bytearray(message or b"\0"), dtype=torch.uint8)
            if int(length) > 0:
                dist.broadcast(data, by)
        return message if self.rank == by else data.numpy().tobytes()

    def close(self) -> None:
        """Part from the other processes."""
        if self._open and not self._lost:
            dist.destroy_process_group()
        self._open = False

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _contact(self) -> Iterator[None]:
        require(self._open, "Processes", "open", "closed ones", "Train within the with block.")
        self._lost = True
        with _contact(f"Process {self.rank} of {self.size} has lost contact with another one"):
            yield
        self._lost = False


@contextmanager
def _contact(what: str) -> Iterator[None]:
    """What a backend says of lost processes, in our words."""
    try:
        yield
    except LostProcessError:
        raise
    except RuntimeError as error:
        raise LostProcessError(f"{what} ({_gist(error)}).") from error


def _gist(error: RuntimeError) -> str:
    """The first sentence, without the place in the source of the backend."""
    text = re.sub(r"\[\S*\.cc:\d+\]\s*", "", str(error))
    return re.split(r"\.\s|\.?$", text, maxsplit=1, flags=re.MULTILINE)[0] or type(error).__name__


def _require_torchrun() -> None:
    missing = [name for name in _ASSIGNED if name not in os.environ]
    if missing:
        raise InvalidInputError(
            "Processes.from_torchrun must be called in a process that torchrun has started. Got "
            f"an environment without {', '.join(missing)}. Start the script with: "
            "torchrun --nproc-per-node 2 script.py"
        )


def _device(device: str | torch.device) -> torch.device:
    """Where this process computes; a GPU becomes the current one."""
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    asked = str(auto if device == "auto" else device)
    usable = asked == "cpu" or (asked.split(":")[0] == "cuda" and torch.cuda.is_available())
    allowed = "'auto', 'cpu', or a GPU of this machine"
    require(usable, "device of Processes.from_torchrun", allowed, repr(asked))
    found = torch.device(asked)
    if found.type != "cuda":
        return found
    if found.index is None:
        local = int(os.environ.get("LOCAL_RANK", "0"))
        found = torch.device("cuda", local % torch.cuda.device_count())
    torch.cuda.set_device(found)
    return found


def _backend(device: torch.device) -> str:
    if device.type != "cuda":
        return "gloo"
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # nccl refuses two processes on one GPU. Messages go by gloo, which hears at once of a loss.
    return "cpu:gloo,cuda:nccl" if here <= torch.cuda.device_count() else "gloo"


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


@final
class Together:
    """The steps at which processes wait for each other; for one process alone, none.

    Parameters
    ----------
    processes : Processes
        All of them, or None for this one alone.
    """

    def __init__(self, processes: Processes | None = None) -> None:
        several = processes is not None and processes.size > 1
        self._processes = processes if several else None
        self._interrupted = False

    @property
    def alone(self) -> bool:
        """Whether there is but one process."""
        return self._processes is None

    @property
    def rank(self) -> int | None:
        """The number of this process among several; None alone."""
        return None if self._processes is None else self._processes.rank

    @property
    def size(self) -> int:
        """How many processes there are."""
        return 1 if self._processes is None else self._processes.size

    @property
    def writes(self) -> bool:
        """Whether this process is the one that keeps files and shows progress."""
        return not self.rank

    def share(self, feed: Feed) -> Feed:
        """This process's share of the examples."""
        if self._processes is None or feed.shared:
            return feed
        return SharedFeed(feed, self._processes.rank, self._processes.size)

    def mean(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The mean of each tensor over the processes."""
        return tensors if self._processes is None else self._processes.mean(tensors)

    def agree(self, stop: Stop | None) -> Stop | None:
        """The reason to stop of the first process that has one, in all of them."""
        if self._processes is None:
            return stop
        if stop is None and self._interrupted:
            stop = Stop(Status.INTERRUPTED, "Interrupted; the best state so far is kept.")
        rank, size = self._processes.rank, self._processes.size
        speaker = self._processes.smallest(size if stop is None else rank)
        if speaker == size:
            return None
        self._interrupted = False
        said = None if stop is None else [stop.status.value, stop.reason]
        status, reason = self._told(said, speaker)
        return Stop(Status(status), reason)

    def require_same(self, fingerprint: str) -> None:
        """Refuse processes that were given something else than the first one."""
        if self._processes is None:
            return
        rank, size = self._processes.rank, self._processes.size
        other = self._processes.smallest(size if self._told(fingerprint) == fingerprint else rank)
        require(
            other == size,
            "Data, model and settings of train",
            "the same in every process",
            f"others in process {other} than in process 0",
            "Read the same rows in the same order, and build the same model.",
        )

    def first(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the first process, on the CPU."""
        if self._processes is None:
            return tensors
        mine = {name: on_cpu(name, tensor).clone() for name, tensor in tensors.items()}
        return load(self._processes.told(save(mine) if self.writes else b""))

    def read(self, read: Callable[[], Contents | None]) -> Contents | None:
        """What the first process reads, or why it cannot."""
        if self._processes is None:
            return read()
        found, trouble = None, ""
        try:
            found = read() if self.writes else None
        except CheckpointError as error:
            trouble = str(error)
        if trouble := self._told(trouble):
            raise CheckpointError(trouble)
        manifest = self._told(None if found is None else found.manifest)
        tensors = self.first({} if found is None else found.tensors)
        return None if manifest is None else Contents(tensors, manifest)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C waits for the end of the step, so that all processes stop at the same one.

        The SIGTERM by which torchrun ends a job that has lost a process becomes an error that says
        so.
        """
        if self._processes is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        mine = {signal.SIGINT: self._interrupt, signal.SIGTERM: _terminate}
        before = {number: signal.signal(number, handler) for number, handler in mine.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._interrupted:
            signal.raise_signal(signal.SIGINT)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True

    def _told(self, value: Any, by: int = 0) -> Any:
        """A value of one of several processes, of what JSON knows."""
        if self._processes is None:
            return value
        mine = json.dumps(value) if self._processes.rank == by else ""
        return json.loads(self._processes.told(mine.encode(), by))


def _terminate(number: int, frame: FrameType | None) -> None:
    raise LostProcessError(
        "This process was told to end (SIGTERM), as torchrun does when another one is lost."
    )
