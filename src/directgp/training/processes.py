"""The processes of one job, started by torchrun, and what they tell each other."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from directgp.errors import InvalidInputError, LostProcessError, require
from directgp.training.meeting import fresh_store

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
