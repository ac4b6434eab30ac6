"""Base class of the libraries, with time and memory measurement."""

import math
import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from benchmarks.peers.cases import NUGGET, Arrays, read_parameters
from benchmarks.peers.libraries.memory import peak_bytes, reset_peak, resident_bytes
from benchmarks.peers.protocol import Message

LEARNING_RATE = 1e-4
"""So small that a thousand steps leave the model much as it was, and every step costs the same."""

BLOCK_VALUES = 2**24
"""Entries of K_uf that one block of predictions holds."""


class Library(ABC):
    """One library, controlled by messages."""

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
        """Return the loss, or the mean of several draws with its standard error."""
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
            # Compile both block sizes before the clock starts.
            self.predict(X[: block + rows % block], block)
            self._warm_for = rows
        since = self.now()
        self.predict(X, block)
        return {"seconds": self.now() - since}

    def do_memory(self, number: int) -> Message:
        """Return the peak memory of some steps in bytes, minus that of the bare process."""
        self.steps(1)
        reset_peak()
        self.steps(number)
        return {"bytes": peak_bytes() - self._at_start}

    def do_about(self) -> Message:
        return {"version": self.version()}

    def begin(self) -> None:  # noqa: B027
        """Prepare; called before a model is built."""

    def new_rows(self, rows: int) -> Any:
        """Return rows for prediction, repeated from the data."""
        X = self.arrays["X"]
        return X[np.arange(rows) % len(X)]

    def now(self) -> float:
        """Return processor time, which other programs affect least."""
        return time.process_time()

    def stochastic(self) -> bool:
        return self.likelihood == "poisson" and self.objective == "log_loss"

    def departures(self) -> dict[str, float]:
        """Return the library's changes to the loss: fields of `reference.Departures`."""
        return {}

    @abstractmethod
    def version(self) -> str:
        """Return name and version of the library."""

    @abstractmethod
    def set_up(self, arrays: Arrays) -> None:
        """Build model, objective and optimiser."""

    @abstractmethod
    def loss(self) -> float:
        """Return the mean loss of an example plus KL/n at the current parameters."""

    @abstractmethod
    def steps(self, number: int) -> None:
        """Take a number of Adam steps and wait for the last."""

    @abstractmethod
    def predict(self, X: Any, block: int) -> None:
        """Return mean and variance of f at the rows of X, in blocks."""
