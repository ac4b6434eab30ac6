from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from benchmarks.optimum.jobs import Given, Goal, Kind, Parameters
from benchmarks.optimum.reference import claim_at, nll_at, objective_at
from tests.benchmarks.optimum.problem import moved, small

KINDS = ("regression", "classification", "counts")


def kernel(A: NDArray[np.float64], B: NDArray[np.float64], given: Given) -> NDArray[np.float64]:
    square = ((A[:, None] - B[None]) ** 2).sum(-1)
    return np.asarray(given.output_scale * np.exp(-0.5 * square / given.lengthscale**2))


def marginals(given: Given, at: Parameters) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """q(f) by dense matrices, with the jitter in K_uu."""
    Kuu = kernel(given.Z, given.Z, given) + float(at["jitter"]) * np.eye(len(given.Z))
    A = np.linalg.solve(np.linalg.cholesky(Kuu), kernel(given.Z, given.X, given))
    S = at["u_chol"] @ at["u_chol"].T - np.eye(len(given.Z))
    mean = (given.mean or 0.0) + A.T @ at["u_mean"]
    return mean, given.output_scale + np.einsum("mi,mk,ki->i", A, S, A)


def density(given: Given, y: float, f: float) -> float:
    if given.kind == "regression":
        return float(stats.norm.pdf(y, f, np.sqrt(given.noise)))
    if given.kind == "counts":
        return float(stats.poisson.pmf(y, np.exp(f)))
    return float(stats.norm.cdf((2 * y - 1) * f))


def expected_objective(given: Given, at: Parameters) -> float:
    """By adaptive integration, one example at a time."""
    losses = []
    for y, m, v in zip(given.y, *marginals(given, at), strict=True):
        q = stats.norm(m, np.sqrt(v))

        def integrand(f: float, y: float = y, q: Any = q) -> float:
            p = density(given, y, f)
            value = np.log(p) if given.objective == "elbo" else p
            return float(value * q.pdf(f))

        value = integrate.quad(integrand, m - 8 * np.sqrt(v), m + 8 * np.sqrt(v))[0]
        losses.append(-value if given.objective == "elbo" else -np.log(value))
    u_mean, u_chol = at["u_mean"], at["u_chol"]
    trace = (u_chol**2).sum() + u_mean @ u_mean - len(u_mean)
    kl = 0.5 * trace - np.log(np.diag(u_chol)).sum()
    return float(np.mean(losses) + given.beta * kl / len(given.y))


@pytest.mark.parametrize(("kind", "objective"), list(product(KINDS, ("elbo", "log_loss"))))
def test_the_objective_is_that_of_dense_matrices_and_integrals(kind: Kind, objective: Goal) -> None:
    given = small(kind, objective)
    at = moved(given)
    expected = expected_objective(given, at)
    assert objective_at(given, at) == pytest.approx(expected, rel=1e-7)
    assert claim_at(given, at, floor=0.0, extra=0.0) == pytest.approx(expected, rel=1e-4)


def test_the_jitter_of_a_library_counts() -> None:
    given = small("regression", "log_loss")
    at = moved(given)
    without = objective_at(given, at | {"jitter": np.array(0.0)})
    assert abs(objective_at(given, at) - without) > 1e-6


def test_a_claim_has_the_floor_and_the_variance_of_its_library() -> None:
    given = small("classification", "log_loss", beta=0.0)
    at = moved(given)
    m, v = marginals(given, at)
    sure = stats.norm.cdf((2 * given.y - 1) * m / np.sqrt(1 + v + 0.1))
    expected = -np.log(0.98 * sure + 0.01).mean()
    assert claim_at(given, at, floor=0.01, extra=0.1) == pytest.approx(expected, rel=1e-9)


def test_no_objective_is_infinite() -> None:
    given = small("regression", "log_loss")
    at = moved(given) | {"u_mean": np.full(3, np.nan)}
    assert objective_at(given, at) == np.inf


def test_nll_is_the_loss_of_each_row() -> None:
    given = replace(small("counts", "log_loss"), beta=0.0)
    at = moved(given)
    losses = nll_at(given, at, given.X, given.y)
    assert losses.shape == (12,)
    assert losses.mean() == pytest.approx(objective_at(given, at), rel=1e-9)
