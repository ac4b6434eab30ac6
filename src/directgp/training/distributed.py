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
from types import FrameType
from typing import Any, final

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from directgp.errors import CheckpointError, InvalidInputError, LostProcessError, require
from directgp.io import Contents, on_cpu
from directgp.training.result import INTERRUPTED, Status, Stop

_POLL_EVERY = 0.02
"""Seconds between two reads of the store."""


def fresh_store(store: Store, rank: int, size: int, timeout: float) -> Store:
    """Return a part of a store that no earlier attempt has written to.

    torchrun keeps one store through its restarts, with the addresses of processes that have ended.
    So the first process publishes a random prefix, and each of the others writes a random token
    under this prefix. It uses the prefix once the first process has repeated the token, which an
    earlier attempt cannot know. Raises `RuntimeError` if the first process does not answer in time.
    """
    token = secrets.token_hex(8)
    if rank == 0:
        store.set("prefix", token)
        tokens = [store.get(f"{token}/{worker}").decode() for worker in range(1, size)]
        store.set(f"{token}/tokens", " ".join(tokens))
        return PrefixStore(token, store)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        prefix = store.get("prefix").decode()
        store.set(f"{prefix}/{rank}", token)
        repeated = f"{prefix}/tokens"
        if store.check([repeated]) and token in store.get(repeated).decode().split():
            return PrefixStore(prefix, store)
        time.sleep(_POLL_EVERY)
    raise RuntimeError(f"the first process did not answer within {timeout:g} seconds")


_ASSIGNED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets."""


@final
class Processes:
    """A process that trains one model together with other processes.

    Made by `from_torchrun`, used in a ``with`` block and passed to `directgp.train`. Means and
    messages are the same in all processes, bit for bit.

    Parameters
    ----------
    rank : int
        Index of this process, from 0.
    size : int
        Number of processes.
    device : torch.device
        The device of this process.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self._open = True
        self._lost = False

    @classmethod
    def from_torchrun(
        cls, device: str | torch.device = "auto", timeout: float = 600.0
    ) -> "Processes":
        """Join the process group that torchrun has started.

        Every process has to call this, on each machine. The backend is gloo on the CPU, and nccl on
        CUDA, or gloo where several processes share one GPU.

        Parameters
        ----------
        device : str or torch.device
            "cpu", "cuda" (the GPU of this process by LOCAL_RANK), or "auto" for CUDA where there
            is a GPU.
        timeout : float
            Seconds after which a process that does not answer counts as lost; more than a process
            needs between two steps.

        Raises
        ------
        InvalidInputError
            This process was not started by torchrun.
        LostProcessError
            Not all processes have joined.
        """
        require(0 < timeout < float("inf"), "timeout of Processes", "positive", timeout)
        if missing := [name for name in _ASSIGNED if name not in os.environ]:
            raise InvalidInputError(
                "Processes.from_torchrun must be called in a process that torchrun has started. "
                f"Got an environment without {', '.join(missing)}. Start the script with: "
                "torchrun --nproc-per-node 2 script.py"
            )
        again = dist.is_initialized()
        require(not again, "Processes.from_torchrun", "called once at a time", "a second call")
        chosen = _device(device)
        # Wait for collectives: a failed one of nccl then raises instead of ending the process.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        rank = int(os.environ["RANK"])
        size = int(os.environ["WORLD_SIZE"])
        limit = timedelta(seconds=timeout)
        backend = "gloo"
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        # Use nccl only with one process per GPU. On the CPU gloo detects a lost process at once.
        if chosen.type == "cuda" and local_size <= torch.cuda.device_count():
            backend = "cpu:gloo,cuda:nccl"
        with _contact(f"Process {rank} of {size} could not connect to the others"):
            common, _, _ = next(rendezvous("env://", rank, size, timeout=limit))
            common.set_timeout(limit)
            store = fresh_store(common, rank, size, timeout)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        return cls(rank, size, chosen)

    def mean(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the mean of each tensor over the processes, in the dtype of the last tensor."""
        flat = torch.cat([tensor.detach().reshape(-1).to(tensors[-1]) for tensor in tensors])
        with self._contact():
            dist.all_reduce(flat)
        parts = flat.div_(self.size).split([tensor.numel() for tensor in tensors])
        return tuple(p.reshape(t.shape) for p, t in zip(parts, tensors, strict=True))

    def smallest(self, number: int) -> int:
        """Return the smallest number of any process."""
        least = torch.tensor([number])
        with self._contact():
            dist.all_reduce(least, dist.ReduceOp.MIN)
        return int(least)

    def told(self, message: bytes, by: int = 0) -> bytes:
        """Send the message of the process `by` to all processes, and return it."""
        length = torch.tensor([len(message)])
        with self._contact():
            dist.broadcast(length, by)
            if int(length) == 0:
                return b""
            data = torch.zeros(int(length), dtype=torch.uint8)
            if self.rank == by:
                data = torch.frombuffer(bytearray(message), dtype=torch.uint8)
            dist.broadcast(data, by)
        return data.numpy().tobytes()

    def close(self) -> None:
        """Leave the process group."""
        if self._open and not self._lost:
            dist.destroy_process_group()
        self._open = False

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
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
    """Raise `LostProcessError` for errors of the backend."""
    try:
        yield
    except LostProcessError:
        raise
    except RuntimeError as error:
        # Quote the first sentence, without the place in the source of the backend.
        text = re.sub(r"\[\S*\.cc:\d+\]\s*", "", str(error))
        sentence = re.split(r"\.\s|\.?$", text, maxsplit=1, flags=re.MULTILINE)[0]
        raise LostProcessError(f"{what} ({sentence or type(error).__name__}).") from error


def _device(device: str | torch.device) -> torch.device:
    """Return the device of this process, and make a GPU the current one."""
    name = str(device)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    usable = name == "cpu" or (name.split(":")[0] == "cuda" and torch.cuda.is_available())
    allowed = "'auto', 'cpu', or a GPU of this machine"
    require(usable, "device of Processes.from_torchrun", allowed, repr(name))
    if name == "cuda":
        name += f":{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    if name != "cpu":
        torch.cuda.set_device(name)
    return torch.device(name)


@final
class ProcessGroup:
    """The collective operations of a run with several processes."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.mean = processes.mean
        self.rank = processes.rank
        self.size = processes.size
        self.is_main = self.rank == 0
        """Whether this process writes files."""
        self._interrupted = False

    def agree(self, stop: Stop | None) -> Stop | None:
        """Return, in all processes, the stop of the first process that has one."""
        if stop is None and self._interrupted:
            stop = INTERRUPTED
        first = self._processes.smallest(self.size if stop is None else self.rank)
        if first == self.size:
            return None
        self._interrupted = False
        mine = None if stop is None else [stop.status.value, stop.reason]
        status, reason = self._broadcast(mine, first)
        return Stop(Status(status), reason)

    def require_same(self, fingerprint: str) -> None:
        """Raise `InvalidInputError` if the fingerprints of two processes differ."""
        same = self._broadcast(fingerprint) == fingerprint
        first_different = self._processes.smallest(self.size if same else self.rank)
        require(
            first_different == self.size,
            "Data, model and settings of train",
            "the same in every process",
            f"different ones in process {first_different} and process 0",
            "Read the same rows in the same order, and build the same model.",
        )

    def load_first(self, *modules: nn.Module) -> None:
        """Set modules to the state of the first process; raise if names or shapes differ."""
        states = [module.state_dict() for module in modules]
        shapes = [
            [(name, str(t.dtype), tuple(t.shape)) for name, t in state.items()] for state in states
        ]
        self.require_same(str(shapes))
        for module, state in zip(modules, states, strict=True):
            module.load_state_dict(self.tensors_of_first(state))

    def tensors_of_first(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of the first process, on the CPU."""
        mine = {name: on_cpu(name, tensor).clone() for name, tensor in tensors.items()}
        return load(self._processes.told(save(mine) if self.is_main else b""))

    def read(self, read: Callable[[], Contents | None]) -> Contents | None:
        """Return the contents of a file that the first process reads, or raise its error."""
        contents = None
        failure = ""
        try:
            contents = read() if self.is_main else None
        except CheckpointError as error:
            failure = str(error)
        failure, manifest = self._broadcast(
            [failure, None if contents is None else contents.manifest]
        )
        if failure:
            raise CheckpointError(failure)
        tensors = self.tensors_of_first({} if contents is None else contents.tensors)
        return None if manifest is None else Contents(tensors, manifest)

    @contextmanager
    def deferred_signals(self) -> Iterator[None]:
        """Delay Ctrl-C to the end of a step, so that all processes stop after the same step.

        SIGTERM, by which torchrun ends a job that has lost a process, raises `LostProcessError`.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(number: int, frame: FrameType | None) -> None:
            self._interrupted = True

        def terminate(number: int, frame: FrameType | None) -> None:
            raise LostProcessError(
                "This process received SIGTERM, which torchrun sends when another process is lost."
            )

        handlers = {signal.SIGINT: interrupt, signal.SIGTERM: terminate}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._interrupted:
            signal.raise_signal(signal.SIGINT)

    def _broadcast(self, value: Any, by: int = 0) -> Any:
        """Send the JSON value of the process `by` to all processes, and return it."""
        mine = json.dumps(value) if self.rank == by else ""
        return json.loads(self._processes.told(mine.encode(), by))
