"""What a contender does, and how its time and memory are read."""

import math
import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from benchmarks.peers.cases import NUGGET, Arrays, read_parameters
from benchmarks.peers.contenders.memory import peak_bytes, reset_peak, resident_bytes
from benchmarks.peers.protocol import Message

LEARNING_RATE = 1e-4
"""So small that a thousand steps leave the model much as it was, and every step costs the same."""

BLOCK_VALUES = 2**24
"""Entries of K_uf that one block of predictions holds."""


class Contender(ABC):
    """One library, told by messages what to do."""

    device = "cpu"

    def __init__(self) -> None:
        self._at_start = resident_bytes()

    def __call__(self, message: Message) -> Message:
        arguments = {key: value for key, value in message.items() if key != "do"}
        reply: Message = getattr(self, f"do_{message['do']}")(**arguments)
        return reply

    def do_set_up(
        self, file: str, likelihood: str, objective: str, dtype: str, device: str
    ) -> Message:
        self.device = device
        self.likelihood, self.objective, self.dtype = likelihood, objective, dtype
        self.arrays = read_parameters(file, dtype)
        self.nugget = NUGGET[dtype] * float(self.arrays["output_scale"])
        self._warm_for = 0
        self.begin()
        self.set_up(self.arrays)
        return {"departures": self.departures()}

    def do_loss(self, draws: int) -> Message:
        """The loss, or the mean of so many draws of it with the standard error."""
        first = self.loss()
        values = [first] + [self.loss() for _ in range(draws - 1 if self.stochastic() else 0)]
        mean = sum(values) / len(values)
        squares = sum((value - mean) ** 2 for value in values)
        error = math.sqrt(squares / max(len(values) - 1, 1) / len(values))
        return {"loss": mean, "error": error}

    def do_steps(self, number: int) -> Message:
        since = self.now()
        self.steps(number)
        return {"seconds": self.now() - since}

    def do_predict(self, rows: int) -> Message:
        X = self.new_rows(rows)
        block = max(1, BLOCK_VALUES // len(self.arrays["Z"]))
        if rows != self._warm_for:
            # Both sizes of block that occur are compiled before the clock runs.
            self.predict(X[: block + rows % block], block)
            self._warm_for = rows
        since = self.now()
        self.predict(X, block)
        return {"seconds": self.now() - since}

    def do_memory(self, number: int) -> Message:
        """The most bytes held during some steps, beyond those of the bare process."""
        self.steps(1)
        reset_peak()
        self.steps(number)
        return {"bytes": peak_bytes() - self._at_start}

    def do_about(self) -> Message:
        return {"version": self.version()}

    def begin(self) -> None:  # noqa: B027
        """Called before a model is built."""

    def new_rows(self, rows: int) -> Any:
        """Rows to predict for, taken from the data again and again."""
        X = self.arrays["X"]
        return X[np.arange(rows) % len(X)]

    def now(self) -> float:
        """Processor time, which other programs disturb least."""
        return time.process_time()

    def stochastic(self) -> bool:
        return self.likelihood == "poisson" and self.objective == "log_loss"

    def departures(self) -> dict[str, float]:
        """What the library changes in the loss: fields of `reference.Departures`."""
        return {}

    @abstractmethod
    def version(self) -> str:
        """Name and number of the library."""

    @abstractmethod
    def set_up(self, arrays: Arrays) -> None:
        """Build model, objective and optimiser."""

    @abstractmethod
    def loss(self) -> float:
        """Mean loss of an example plus KL/n at the present parameters."""

    @abstractmethod
    def steps(self, number: int) -> None:
        """Take so many steps of Adam and wait for the last."""

    @abstractmethod
    def predict(self, X: Any, block: int) -> None:
        """Mean and variance of f at the rows of X, in blocks."""
