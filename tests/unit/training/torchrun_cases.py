"""The training runs of several processes in the tests."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from pyarrow.parquet import write_table
from torch import Tensor

import directgp
from directgp.datasets.streams import ParquetRows
from directgp.errors import DirectGPError
from directgp.likelihoods import Gaussian, Poisson, Probit
from directgp.likelihoods.base import Likelihood
from directgp.objectives import PointLoss
from directgp.posteriors import SparsePosterior
from directgp.training import Checkpoints, Monitor, Processes, Progress, Stop, TrainingResult
from directgp.training.result import Status
from directgp.training.run import LossRange
from tests.unit.training.models import M, counts, labels, normal, regression, seeded, tensors

N, STEPS, EVERY = 41, 12, 5
Settings = dict[str, Any]


def gaussian(**settings: Any) -> Settings:
    X, y = regression(N)
    posterior = SparsePosterior.from_data(X, y, num_inducing=M, generator=seeded(3))
    return {"posterior": posterior, "likelihood": Gaussian(0.1), "X": X, "y": y} | settings


def probit(**settings: Any) -> Settings:
    _, y = labels(N)
    return gaussian(likelihood=Probit(), y=y) | settings


def poisson(**settings: Any) -> Settings:
    X, y, exposure = counts(N)
    posterior = SparsePosterior.from_data(
        X, num_inducing=M, kernel="matern52", mean="constant", generator=seeded(3)
    )
    likelihood = Poisson().with_exposure(exposure)
    return {"posterior": posterior, "likelihood": likelihood, "X": X, "y": y} | settings


CASES: dict[str, Callable[[], Settings]] = {
    "whole": lambda: gaussian(start="scratch"),
    "after ELBO": lambda: gaussian(beta=0.3),
    "batches": lambda: gaussian(batch_size=7),
    "a last batch of one row": lambda: gaussian(batch_size=8, objective="elbo"),
    "weights": lambda: gaussian(batch_size=9, weights=0.5 + normal(N, seed=9).abs()),
    "whole numbers as weights": lambda: probit(weights=torch.arange(N) % 3),
    "fixed": lambda: probit(hyperparameters="fixed"),
    "fixed, batches": lambda: probit(hyperparameters="fixed", batch_size=10, beta=0.0),
    "exposures": lambda: poisson(objective="elbo"),
    "exposures, batches": lambda: poisson(batch_size=7, start="scratch"),
}
"""Those that come to the same with one process, but for rounding."""


def trained(settings: Settings, processes: Processes | None = None) -> TrainingResult:
    """Runs to its last step, whatever the losses."""
    given: Settings = {
        "optimizer": "adam",
        "learning_rate": 0.05,
        "max_steps": STEPS,
        "stopping": LossRange(window=10**6, tolerance=0.0),
        "generator": seeded(5),
        "processes": processes,
    }
    given |= settings
    model = [given.pop(name) for name in ("posterior", "likelihood", "X", "y")]
    return directgp.train(*model, **given)


class At(Monitor):
    """Does something at a step of the last stage, and may stop there."""

    def __init__(self, step: int, act: Callable[[], Stop | None]) -> None:
        self.step, self.act = step, act

    def __call__(self, progress: Progress) -> Stop | None:
        here = progress.stage == "log_loss" and progress.step == self.step
        return self.act() if here else None

    def reset(self) -> None:
        pass


def raising(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def told(result: TrainingResult) -> dict[str, Tensor]:
    """The losses of all stages, and every parameter."""
    losses = [loss for stage in result.stages for loss in (*stage.losses, stage.loss)]
    return tensors(result) | {"losses": torch.tensor(losses, dtype=torch.float64)}


# What a process does, for `member`.


def every_case(processes: Processes, folder: Path) -> object:
    return {name: told(trained(case(), processes)) for name, case in CASES.items()}


def another_start(processes: Processes, folder: Path) -> object:
    """The first process's model and order are the common ones."""
    seed = 3 + processes.rank
    X, y = regression(N)
    posterior = SparsePosterior.from_data(X, y, num_inducing=M, generator=seeded(seed))
    again = gaussian(posterior=posterior, batch_size=7, generator=seeded(seed), start="scratch")
    return told(trained(again, processes))


def streamed(processes: Processes, folder: Path) -> object:
    """Every process reads its half of the rows at each step."""
    own = folder / str(processes.rank)
    own.mkdir()
    X, y = regression(40)
    table = pa.table({"a": X[:, 0].numpy(), "b": X[:, 1].numpy(), "y": y.numpy()})
    write_table(table, own / "rows.parquet", row_group_size=7)
    posterior = SparsePosterior.from_data(X, y, num_inducing=M, generator=seeded(3))
    result = directgp.train_stream(
        posterior,
        Gaussian(0.1),
        ParquetRows(own, target="y"),
        batch_size=40,
        epochs=float(STEPS),
        learning_rate=0.05,
        start="scratch",
        generator=seeded(5),
        processes=processes,
    )
    return told(result)


def other_data(processes: Processes, folder: Path) -> object:
    _, y = regression(N)
    return told(trained(gaussian(y=y + 1e-9 * processes.rank), processes))


def no_folder(processes: Processes, folder: Path) -> object:
    checkpoints = Checkpoints(folder / "missing" / "run.ckpt")
    return told(trained(gaussian(checkpoints=checkpoints), processes))


def checkpointed(processes: Processes | None, folder: Path, *monitors: Monitor) -> TrainingResult:
    settings = gaussian(
        rule="bmc",
        batch_size=7,
        start="scratch",
        monitors=monitors,
        checkpoints=Checkpoints(folder / "run.ckpt", every=EVERY),
    )
    return trained(settings, processes)


def uninterrupted(processes: Processes, folder: Path) -> object:
    return told(checkpointed(processes, folder))


def second_killed(processes: Processes, folder: Path) -> object:
    killer = At(EVERY + 2, raising(signal.SIGKILL))
    return told(checkpointed(processes, folder, *[killer] * processes.rank))


def second_frozen(processes: Processes, folder: Path) -> object:
    frozen = At(EVERY + 2, raising(signal.SIGSTOP))
    return told(checkpointed(processes, folder, *[frozen] * processes.rank))


def first_terminated(processes: Processes, folder: Path) -> object:
    killer = At(EVERY + 2, raising(signal.SIGTERM))
    return told(checkpointed(processes, folder, *[killer] * (1 - processes.rank)))


def second_interrupted(processes: Processes, folder: Path) -> object:
    """By Ctrl-C."""
    hit = At(4, raising(signal.SIGINT))
    result = checkpointed(processes, folder, *[hit] * processes.rank)
    return [result.status.value, result.steps, told(result)]


def second_stops(processes: Processes, folder: Path) -> object:
    enough = At(4, lambda: Stop(Status.BUDGET, "Enough."))
    settings = gaussian(monitors=[enough] * processes.rank)
    result = trained(settings, processes)
    return [result.reason, result.ended, result.steps, told(result)]


def troubled(processes: Processes, folder: Path) -> object:
    """The loss of the second process is not a number, at any step."""

    class Undefined(PointLoss):
        name = "undefined"

        def check(self, likelihood: Likelihood) -> None:
            pass

        def __call__(self, *arguments: Any, **settings: Any) -> Tensor:
            _, y, q, *_ = arguments
            losses: Tensor = (torch.nan if processes.rank == 1 else 1.0) * (y - q.mean).square()
            return losses

    return told(trained(gaussian(objective=Undefined(), start="scratch"), processes))


def on_gpu(processes: Processes, folder: Path) -> object:
    where = processes.device
    given = gaussian(batch_size=7, generator=torch.Generator(where).manual_seed(5))
    moved = {name: given[name].to(where) for name in ("posterior", "likelihood", "X", "y")}
    found = told(trained(given | moved, processes))
    return {name: value.cpu() for name, value in found.items()}


Action = Callable[[Processes, Path], object]
HARMLESS: tuple[Action, ...] = (
    every_case,
    another_start,
    streamed,
    other_data,
    no_folder,
    uninterrupted,
    second_stops,
    second_interrupted,
    troubled,
)
"""Those after which the processes are still together."""


def each_harmless(processes: Processes, folder: Path) -> object:
    return {action.__name__: outcome(action, processes, folder) for action in HARMLESS}


def outcome(action: Action, processes: Processes, folder: Path) -> object:
    """What the action gives, or what it says."""
    own = folder / action.__name__
    own.mkdir(exist_ok=True)
    try:
        return action(processes, own)
    except DirectGPError as error:
        return f"{type(error).__name__}: {error}"


def member(action: Action, rank: int, size: int, folder: Path, port: int) -> None:
    """One process: writes what it found, or what went wrong, and ends with 3 then."""
    torch.set_num_threads(1)
    # The server that processes are forked from may block Ctrl-C, for workers of compare.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["LOCAL_WORLD_SIZE"] = str(size)
    device, timeout = (
        "cuda" if action is on_gpu else "cpu",
        4.0 if action is second_frozen else 60.0,
    )
    try:
        with Processes.from_torchrun(device, timeout) as processes:
            torch.save(action(processes, folder), folder / f"{rank}.pt")
    except DirectGPError as error:
        (folder / f"{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        sys.exit(3)
