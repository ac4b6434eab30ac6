"""One cell of a comparison: all that decides the result of one method on one split."""

import hashlib
from typing import Literal, final

from pydantic import BaseModel, ConfigDict

from directgp.datasets.problem import Task
from directgp.experiments.versions import versions


class Frozen(BaseModel):
    """Plain facts, checked when they are read, never changed."""

    # Losses may be infinite, and come back so.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants"
    )


@final
class Settings(Frozen):
    """How every method is trained."""

    likelihood: str
    kernel: str
    ard: bool = True
    num_inducing: int | None = None
    """None: a quarter of the training rows, from 50 to 100."""

    betas: tuple[float, ...] | None = None
    """None: every second of n, n/2, n/4, …, 0.01, and 1."""

    max_steps: int | None = None
    """Steps of one run; None leaves it to the optimiser."""

    dtype: Literal["float64", "float32"] = "float64"
    device: str = "cpu"


@final
class Cell(Frozen):
    """One method, trained and judged on one split."""

    data: str
    """Fingerprint of the problem."""

    task: Task
    method: str
    repeat: int
    size: int
    """Rows that are trained on."""

    seed: int
    settings: Settings

    @property
    def key(self) -> str:
        """The same for cells that must have the same result; other versions may have another."""
        text = f"{versions()} {self.model_dump_json()}"
        return hashlib.sha256(text.encode()).hexdigest()
