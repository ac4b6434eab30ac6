"""Base class of the libraries written in PyTorch."""

import time

import torch
from torch import Tensor

from benchmarks.peers.cases import Arrays
from benchmarks.peers.libraries.base import Library
from benchmarks.peers.protocol import Message


class TorchLibrary(Library):
    """Runs on a CPU with one thread, or on a GPU."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        super().__init__()

    def begin(self) -> None:
        if self.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
            self._held = torch.cuda.memory_allocated()

    def do_memory(self, number: int) -> Message:
        if self.device == "cpu":
            return super().do_memory(number)
        # Replayed steps allocated their memory during recording.
        self.steps(number)
        return {"bytes": torch.cuda.max_memory_allocated() - self._held}

    def now(self) -> float:
        if self.device == "cpu":
            return super().now()
        torch.cuda.synchronize()
        return time.perf_counter()

    def new_rows(self, rows: int) -> Tensor:
        """Return rows that are already on the device, so that no transfer is timed."""
        return torch.as_tensor(super().new_rows(rows)).to(self.device)

    def tensors(self, arrays: Arrays) -> dict[str, Tensor]:
        return {name: torch.as_tensor(value).to(self.device) for name, value in arrays.items()}
