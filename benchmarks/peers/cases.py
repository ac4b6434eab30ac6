"""Problem sizes, and the parameters that every library starts from."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A likelihood, n rows of d features and M inducing inputs; the batch is all n rows."""

    likelihood: str
    n: int
    d: int
    m: int

    def label(self) -> str:
        return f"{self.likelihood}, n {self.n}, d {self.d}, M {self.m}"


CASES = {
    "S1": Case("probit", 2000, 20, 74),
    "S2": Case("gaussian", 6000, 26, 100),
    "S3": Case("probit", 1000, 8, 200),
    "S4": Case("poisson", 2000, 9, 41),
    "S5": Case("gaussian", 4096, 21, 1000),
    "S6": Case("gaussian", 16384, 21, 1000),
    "S7": Case("gaussian", 16384, 21, 2000),
    "S8": Case("probit", 65536, 8, 200),
}

OBJECTIVES = ("log_loss", "elbo")

NUM_SAMPLES = 10
"""Draws of an example where a loss is estimated (bMC)."""

NUGGET = {"float64": 1e-6, "float32": 1e-5}
"""Added to the diagonal of K_uu by everyone, relative to the output scale."""


def growth_cases(around: Case) -> dict[str, list[tuple[int, Case]]]:
    """Return growing sizes of a case, one dimension at a time."""
    return {
        "n": [(k, replace(around, n=k)) for k in _doubled(around.n)],
        "M": [(k, replace(around, m=k)) for k in _doubled(around.m)],
        "d": [(k, replace(around, d=k)) for k in _doubled(around.d)],
    }


def _doubled(first: int) -> list[int]:
    return [first * 2**k for k in range(4)]


def latent(X: Any) -> Any:
    """Return the f from which targets are drawn."""
    return np.sin(X[:, 0]) + 0.5 * X[:, 1]


def parameters(case: Case, seed: int = 0) -> Arrays:
    """Return data and a partly trained model in float64: q(u) is neither p(u) nor narrow."""
    random = np.random.default_rng(seed)
    X = random.standard_normal((case.n, case.d))
    f = latent(X)
    targets = {
        "gaussian": f + 0.3 * random.standard_normal(case.n),
        "probit": (f + random.standard_normal(case.n) > 0).astype(float),
        "poisson": random.poisson(np.exp(f)).astype(float),
    }
    lower = np.tril(random.standard_normal((case.m, case.m)), -1)
    return {
        "X": X,
        "y": targets[case.likelihood],
        "Z": X[: case.m] + 0.1 * random.standard_normal((case.m, case.d)),
        "lengthscale": np.sqrt(case.d) * random.uniform(0.7, 1.4, case.d),
        "output_scale": np.array(1.3),
        "noise": np.array(0.2),
        "u_mean": 0.5 * random.standard_normal(case.m),
        "u_chol": 0.7 * np.eye(case.m) + 0.1 / np.sqrt(case.m) * lower,
    }


def write_parameters(path: Path, case: Case) -> None:
    np.savez(path, **parameters(case))


def read_parameters(path: str, dtype: str) -> Arrays:
    """Return the parameters of a file in the requested precision."""
    with np.load(path) as stored:
        return {name: stored[name].astype(dtype) for name in stored.files}
