"""The paper's models, timing and result files of the training benchmarks."""

import json
import platform
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.datasets import Part, Task
from directgp.likelihoods import Gaussian, Likelihood, Poisson, Probit
from directgp.posteriors import SparsePosterior
from directgp.training import TrainingResult


def starting_model(task: Task, training: Part, seed: int) -> tuple[SparsePosterior, Likelihood]:
    """Return the untrained model: isotropic RBF kernel, zero mean (constant for labels)."""
    X, y = training.to("cpu", training.X.dtype)
    latent = {"regression": y, "classification": None, "counts": torch.log(y + 0.5)}
    posterior = SparsePosterior.from_data(
        X,
        latent[task.kind],
        num_inducing=task.num_inducing,
        mean="constant" if task.kind == "classification" else "zero",
        generator=torch.Generator().manual_seed(seed),
    )
    likelihoods: dict[str, Likelihood] = {
        "regression": Gaussian(noise=0.1),
        "classification": Probit(),
        "counts": Poisson(),
    }
    device = training.X.device
    return posterior.to(device), likelihoods[task.kind].to(device, X.dtype)


def now(device: str) -> float:
    """Return processor time on a CPU, which other programs affect least, else wall time."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def evaluations(results: Iterable[TrainingResult], without: TrainingResult | None = None) -> int:
    """Count the evaluations of all stages, without those of an earlier run.

    A stage that several results share counts once.
    """
    stages = {id(stage): stage for result in results for stage in result.stages}
    for stage in () if without is None else without.stages:
        stages.pop(id(stage), None)
    return sum(stage.evaluations for stage in stages.values())


def facts(device: str) -> dict[str, object]:
    """Return the machine and the versions of the libraries."""
    threads = f"{torch.get_num_threads()} thread(s)"
    where = torch.cuda.get_device_name() if device != "cpu" else f"{platform.machine()}, {threads}"
    return {"device": where, "torch": torch.__version__}


def write(path: Path, content: object) -> None:
    """Write the file atomically, so that an interrupted run leaves the last complete one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)
