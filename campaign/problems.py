"""Hostile numbers through `train`, the estimators, `log_expectation` and the command line.

Inputs, targets and weights from denormals to 1e300, constant, repeated or with one outlier: each
problem gives finite numbers, or one sentence of `DirectGPError`.
"""

import contextlib
import io
import math
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import directgp
from campaign.trials import HELD, Trial
from directgp.errors import DirectGPError
from directgp.likelihoods import (
    Gaussian,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    StudentT,
)
from tests.properties.hostile import hostile_problem

Array = NDArray[np.float64]

_OBJECTIVES = {
    "regression": ("log_loss", "elbo", "square_loss", "vfe", "fitc", "crps", "absolute_loss"),
    "classification": ("log_loss", "elbo", "square_loss", "zero_one_cost"),
    "count": ("log_loss", "elbo", "square_loss"),
}
_MAKERS = {
    "regression": directgp.SparseGPRegressor,
    "classification": directgp.SparseGPClassifier,
    "count": directgp.SparseGPCountRegressor,
}


def attack(number: int) -> Trial:
    rng = random.Random(number)
    entry = rng.choices(list(_ENTRIES), [3, 4, 3, 1])[0]
    torch.set_num_threads(1)
    try:
        quiet = contextlib.redirect_stdout(io.StringIO())
        with warnings.catch_warnings(), np.errstate(all="ignore"), quiet:
            warnings.simplefilter("ignore")
            what = _ENTRIES[entry](rng, number)
    except DirectGPError as error:
        text = str(error)
        if text and "\n" not in text and "\x1b" not in text:
            return Trial(entry, HELD)
        return Trial(entry, "traceback", f"message: {text!r}")
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return Trial(entry, "traceback", f"{type(error).__name__}: {error} at {where}")
    return Trial(entry, "not finite" if what else HELD, what)


def _scale(rng: random.Random) -> float:
    return rng.choice([1.0, 1.0, 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-320, 300)])


def _column(rng: random.Random, numbers: np.random.Generator, n: int) -> Array:
    """A column of numbers that is hostile in one way or another."""
    values: Array = numbers.standard_t(2, n) * _scale(rng) + rng.choice([0.0, 0.0, _scale(rng)])
    trait = rng.choice(["", "", "constant", "repeated", "outlier", "zeros", "denormal"])
    if trait == "constant":
        values[:] = values[0]
    elif trait == "repeated":
        values[n // 2 :] = values[: n - n // 2]
    elif trait == "outlier":
        values[rng.randrange(n)] = rng.choice([-1, 1]) * _scale(rng)
    elif trait == "zeros":
        values[:] = 0.0
    elif trait == "denormal":
        values *= 5e-324 / max(np.abs(values).max(), 5e-324)
    return values


class _Rows:
    """A random problem with rows."""

    def __init__(self, rng: random.Random, number: int) -> None:
        numbers = np.random.default_rng(number)
        self.n, d = rng.choice([2, 3, 8, 25, 40]), rng.choice([1, 2, 3])
        self.X = np.stack([_column(rng, numbers, self.n) for _ in range(d)], axis=1)
        self.task = rng.choice(list(_MAKERS))
        self.y: NDArray[Any] = _column(rng, numbers, self.n)
        if self.task == "classification":
            self.y = numbers.integers(0, rng.choice([2, 2, 3]), self.n)
            self.y[:2] = 0, 1
        elif self.task == "count":
            mean = 10 ** rng.choice([0.0, 0.5, 3.0, rng.uniform(-3, 17)])
            self.y = np.minimum(numbers.poisson(min(mean, 1e18), self.n), 2**62)
        self.weights = None if rng.random() < 0.7 else np.abs(_column(rng, numbers, self.n))


def _estimator(rng: random.Random, number: int) -> str:
    rows = _Rows(rng, number)
    model = _MAKERS[rows.task](
        objective=rng.choice(_OBJECTIVES[rows.task]),
        beta=rng.choice([0.0, 1.0, 1.0, 50.0]),
        kernel=rng.choice(["rbf", "matern12", "matern52"]),
        hyperparameters=rng.choice(["joint", "fixed"]),
        num_inducing=rng.randint(1, 5),
        dtype=rng.choice(["float64", "float64", "float32"]),
        standardize=rng.random() < 0.8,
        max_iter=2,
        random_state=0,
    )
    model.fit(rows.X, rows.y, rows.weights)
    far = np.concatenate([rows.X, np.clip(1e3 * rows.X, -1e150, 1e150)])
    return _not_finite(
        predict=model.predict(far),
        nll=model.nll(rows.X, rows.y),
        mean=model.predict_latent(far)[0],
        summary=[float(len(str(model.summary())))],
    )


def _train(rng: random.Random, number: int) -> str:
    problem = hostile_problem(number)
    result = problem.train()
    marginals = result.posterior.predict(problem.new_inputs())
    variance = marginals.variance.detach().numpy()
    fault = _not_finite(mean=marginals.mean.detach().numpy(), variance=variance)
    return fault or ("variance not positive" if (variance <= 0).any() else "")


def _log_expectation(rng: random.Random, number: int) -> str:
    def magnitude(low: float, high: float) -> float:
        return rng.choice([-1, 1]) * 10 ** rng.uniform(low, high)

    kinds: dict[str, tuple[Callable[[], Likelihood], Callable[[], float]]] = {
        "gaussian": (lambda: Gaussian(noise=10 ** rng.uniform(-6, 6)), lambda: magnitude(-5, 160)),
        "student": (lambda: StudentT(rng.uniform(1, 9), 1.0), lambda: magnitude(-5, 160)),
        "probit": (Probit, lambda: float(rng.randint(0, 1))),
        "logistic": (Logistic, lambda: float(rng.randint(0, 1))),
        "poisson": (Poisson, lambda: float(int(10 ** rng.uniform(0, 17)) - 1)),
        "negative": (NegativeBinomial, lambda: float(int(10 ** rng.uniform(0, 15)) - 1)),
    }
    make, target = kinds[rng.choice(list(kinds))]
    values = target(), magnitude(-3, rng.choice([1, 2, 160])), abs(magnitude(-30, 160))
    kind = rng.choice([torch.float64, torch.float64, torch.float32])
    y, mean, variance = (torch.tensor([entry], dtype=kind) for entry in values)
    mean.requires_grad_()
    expectation = directgp.log_expectation(make(), y, mean, variance)
    torch.autograd.backward(expectation.sum())
    slope = torch.zeros(1) if mean.grad is None else mean.grad
    return _not_finite(value=expectation.detach().numpy(), slope=slope.numpy())


def _command(rng: random.Random, number: int) -> str:
    rows = _Rows(rng, number)
    names = [f"x{j}" for j in range(rows.X.shape[1])]
    lines = [",".join([*names, "y"])]
    lines += [
        ",".join(map(repr, (*x.tolist(), y))) for x, y in zip(rows.X, rows.y.tolist(), strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder, "rows.csv"), Path(folder, "model")
        table.write_text("\n".join(lines))
        fit = ["fit", str(table), "--target", "y", "--max-iter", "1", "--out", str(out)]
        fit += ["--effort", "fast", "--device", "cpu"]
        code, said = _run(fit)
        if code == 0:
            code, said = _run(["predict", str(out), str(table), "--out", f"{folder}/p.csv"])
            if code:
                raise AssertionError(f"predict after fit: {said}")
            return "nan" if "nan" in Path(folder, "p.csv").read_text().lower() else ""
        if "unexpectedly" in said or "Traceback" in said or not said:
            raise AssertionError(f"exit {code}: {said}")
    return ""


def _run(arguments: list[str]) -> tuple[int, str]:
    from directgp.cli.main import main

    out, before = io.StringIO(), sys.argv
    sys.argv = ["directgp", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            main()
    except SystemExit as end:
        code = end.code
        return (code if isinstance(code, int) else int(code is not None)), out.getvalue()
    finally:
        sys.argv = before
    return 0, out.getvalue()


def _not_finite(**answered: Any) -> str:
    bad = [name for name, value in answered.items() if not _finite(value)]
    return f"not finite: {', '.join(bad)}" if bad else ""


def _finite(values: Any) -> bool:
    if isinstance(values, float):
        return math.isfinite(values)
    array = np.asarray(values)
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


_ENTRIES: dict[str, Callable[[random.Random, int], str]] = {
    "train": _train,
    "estimator": _estimator,
    "log_expectation": _log_expectation,
    "command": _command,
}
