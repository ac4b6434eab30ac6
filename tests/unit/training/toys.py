"""Small functions to minimise that record every evaluation."""

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from directgp.training.data import Batches, Data, Randomness
from directgp.training.problems import TrainingProblem
from directgp.training.run import LossRange, Monitor, Run

Function = Callable[[dict[str, nn.Parameter]], Tensor]


class Toy(TrainingProblem):
    """A function of named parameters; `seen` has each point and value, in order."""

    def __init__(
        self,
        function: Function,
        start: Mapping[str, Sequence[float] | Tensor],
        floors: dict[str, float] | None = None,
        deterministic: bool = True,
        frame: Tensor | None = None,
    ) -> None:
        parameters = {
            name: nn.Parameter(torch.as_tensor(value, dtype=torch.float64).clone())
            for name, value in start.items()
        }
        nothing = Data(torch.zeros(1, 1), torch.zeros(1))
        randomness = Randomness(torch.Generator(), frozen=False)
        super().__init__(parameters, floors or {}, randomness, Batches(nothing))
        self.deterministic = deterministic
        self.function = function
        self.seen: list[tuple[dict[str, Tensor], Tensor]] = []
        self.steps: list[int] = []
        self._frame = frame
        self.frames = 0

    def value(self, step: int) -> Tensor:
        self.steps.append(step)
        value = self.function(self.parameters)
        self.seen.append((self.state(), value.detach().clone()))
        return value

    def frame(self) -> Tensor | None:
        self.frames += 1
        return self._frame

    def state(self) -> dict[str, Tensor]:
        """A copy of the parameters."""
        return {name: p.detach().clone() for name, p in self.parameters.items()}


def run_of(max_steps: int = 1000, *monitors: Monitor) -> Run:
    return Run("toy", max_steps, monitors, time.perf_counter())


def never() -> Monitor:
    """A rule that is not satisfied while anything moves at all."""
    return LossRange(window=1000, tolerance=0.0)


def bowl(p: dict[str, nn.Parameter]) -> Tensor:
    """½ Σ c_i (x_i − i)² with curvatures from 1 to 1e4; 0 at x = (0, 1, 2, …)."""
    x = p["x"]
    curvature = torch.logspace(0, 4, len(x), dtype=torch.float64)
    return 0.5 * (curvature * (x - torch.arange(len(x))) ** 2).sum()


def rosenbrock(p: dict[str, nn.Parameter]) -> Tensor:
    x, y = p["x"].unbind()
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
