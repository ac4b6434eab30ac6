"""Choice of β among 15 values: our path against 15 fits of GPyTorch."""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

import directgp
from benchmarks.datasets import Part, Split
from benchmarks.optimum.descent import run
from benchmarks.optimum.jobs import Array, Given, Parameters, Settings
from benchmarks.optimum.problems import Problem, given_of, parts_of
from benchmarks.optimum.reference import likelihood_of, nll_at, posterior_of
from benchmarks.optimum.with_directgp import parameters_of
from directgp.training import Given as Validation
from directgp.training.validation import compare

BETAS = (*(100 / 2**k for k in range(14)), 0.01)

_EPOCHS, _BATCH = 4, 1024
"""What GPyTorch's SVGP example trains for, with Adam at a rate of 0.01."""


@dataclass(frozen=True)
class Choice:
    """Fits of a library and the one chosen by validation."""

    library: str
    seconds: float
    """Processor time of all fits, without that of the choice."""

    finished: int
    """Fits that came to their end; the time of all is taken to be in proportion."""

    validation: list[float]
    test: list[float]
    chosen: int
    beta: float

    @property
    def nll(self) -> float:
        """Return the NLL of the test rows with the chosen β."""
        return self.test[self.chosen]


def ways(kind: str, num_data: int, seconds: float) -> dict[str, Settings]:
    """Return the settings: GPyTorch's example, and training until the loss settles."""
    steps = _EPOCHS * -(-num_data // _BATCH)
    window, most = (50, 5000) if kind == "regression" else (20, 3000)
    example = Settings(seconds, steps, 0.01, _BATCH, "float32")
    settled = Settings(seconds, most, 0.1, None, "float32", window=window)
    return {"gpytorch, 4 epochs of its example": example, "gpytorch, until settled": settled}


def ours(given: Given, parts: Split, seed: int) -> Choice:
    """Run `beta_path` with its defaults."""
    model = posterior_of(given), likelihood_of(given)
    since = time.process_time()
    path = directgp.beta_path(
        *model,
        *parts.training,
        betas=BETAS,
        validation=Validation(*parts.validation),
        hyperparameters="joint",
        generator=torch.Generator().manual_seed(seed),
    )
    seconds = time.process_time() - since
    fits = {point.beta: parameters_of(point.trained) for point in path.points}
    return _choose("directgp", given, parts, seconds, fits)


def theirs(
    name: str, python: Path, given: Given, parts: Split, settings: Settings, seconds: float
) -> Choice:
    """Fit each β from the same start, within the time limit."""
    fits: dict[float, Parameters] = {}
    spent = 0.0
    # Start in the middle, so that a few fits already cover the likely choices.
    for beta in sorted(BETAS, key=lambda beta: abs(np.log(beta))):
        if fits and spent > seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            problem = replace(given, beta=beta)
            found = run("gpytorch", python, problem, [settings], Path(folder))[0]
        fits[beta], spent = found.end, spent + found.total
    return _choose(name, given, parts, spent / len(fits) * len(BETAS), fits)


def _choose(
    name: str, given: Given, parts: Split, seconds: float, fits: dict[float, Parameters]
) -> Choice:
    """Choose as `beta_path` does: the most regularised fit not distinguishable from the best."""
    betas = sorted(fits, reverse=True)
    validation = np.stack([_nll(given, fits[beta], parts.validation) for beta in betas])
    test = [float(_nll(given, fits[beta], parts.test).mean()) for beta in betas]
    chosen = compare(torch.from_numpy(validation)).chosen
    means = validation.mean(-1).tolist()
    return Choice(name, seconds, len(betas), means, test, chosen, betas[chosen])


def _nll(given: Given, at: Parameters, part: Part) -> Array:
    return nll_at(given, at, part.X.numpy(), part.y.numpy())


def select(
    data: Path, name: str, python: Path, seed: int, patience: float, rows: int | None = None
) -> list[Choice]:
    """Return the choice of each library on one data set."""
    parts = parts_of(data, name, seed, rows)
    given = given_of(Problem(name, "log_loss"), parts.training, seed)
    mine = ours(given, parts, seed)
    limit = patience * mine.seconds
    found = ways(given.kind, len(given.y), limit)
    others = [theirs(how, python, given, parts, way, limit) for how, way in found.items()]
    return [mine, *others]
