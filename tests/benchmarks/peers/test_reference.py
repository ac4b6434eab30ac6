"""The reference loss against directgp's own, and the tolerance of agreement."""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.peers.agreement import compare
from benchmarks.peers.cases import CASES, NUGGET, Case, growth_cases, parameters, write_parameters
from benchmarks.peers.ours import DirectGP
from benchmarks.peers.process import MODULES, Process
from benchmarks.peers.reference import Departures, Expected, expected_loss, marginals
from benchmarks.peers.work import work

SMALL = {key: replace(CASES[key], n=60, d=3, m=7) for key in ("S1", "S2", "S4")}
EXACT = [
    ("S1", "log_loss"),
    ("S1", "elbo"),
    ("S2", "log_loss"),
    ("S2", "elbo"),
    ("S4", "elbo"),
]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def set_up_request(case: Case, objective: str, file: Path, dtype: str) -> dict[str, object]:
    write_parameters(file, case)
    words = {"likelihood": case.likelihood, "objective": objective, "dtype": dtype}
    return {"do": "set_up", "file": str(file), "device": "cpu", **words}


def reference(case: Case, objective: str, departures: Departures | None = None) -> Expected:
    given = Departures() if departures is None else departures
    arrays = parameters(case)
    return expected_loss(case, objective, arrays, marginals(arrays, NUGGET["float64"]), given)


@pytest.mark.parametrize(("key", "objective"), EXACT)
def test_ours_computes_the_reference(key: str, objective: str, tmp_path: Path) -> None:
    case, library = SMALL[key], DirectGP()
    library(set_up_request(case, objective, tmp_path / "p.npz", "float64"))
    found = library({"do": "loss", "draws": 3})
    assert found["loss"] == pytest.approx(reference(case, objective).loss, rel=1e-8)
    assert found["error"] == 0


def test_a_loss_that_is_drawn_agrees_within_its_errors(tmp_path: Path) -> None:
    case, library = SMALL["S4"], DirectGP()
    library(set_up_request(case, "log_loss", tmp_path / "p.npz", "float64"))
    found = library({"do": "loss", "draws": 200})
    expected = reference(case, "log_loss")
    assert 0 < found["error"] < 0.01
    close = compare(found["loss"], found["error"], expected, expected, 1e-6)
    assert abs(close.difference) <= close.allowed < 0.05


def test_steps_lower_the_loss_and_are_timed(tmp_path: Path) -> None:
    library = DirectGP()
    library(set_up_request(SMALL["S2"], "log_loss", tmp_path / "p.npz", "float32"))
    before = library.loss()
    assert library({"do": "steps", "number": 30})["seconds"] > 0
    assert library.loss() < before
    assert library({"do": "predict", "rows": 100})["seconds"] > 0


def test_memory_of_a_step_counts_what_it_holds(tmp_path: Path) -> None:
    case = replace(CASES["S2"], n=100_000, m=64)
    # A process that freed memory before would take the arrays from that.
    with Process("floor", sys.executable, MODULES["floor"]) as process:
        request = set_up_request(case, "log_loss", tmp_path / "p.npz", "float32")
        process.ask(str(request.pop("do")), **request)
        held = process.ask("memory", number=1)["bytes"]
    one_array = 4 * case.n * case.m
    assert 2 * one_array < held < 20 * one_array


def test_marginals_by_direct_inversion() -> None:
    arrays = parameters(SMALL["S2"])
    Z, X = arrays["Z"] / arrays["lengthscale"], arrays["X"] / arrays["lengthscale"]
    K = 1.3 * np.exp(-0.5 * ((Z[:, None] - Z) ** 2).sum(-1)) + 1.3e-6 * np.eye(7)
    k = 1.3 * np.exp(-0.5 * ((Z[:, None] - X) ** 2).sum(-1))
    L, S = np.linalg.cholesky(K), arrays["u_chol"]
    weights = np.linalg.inv(K) @ k
    covariance = L @ S @ S.T @ L.T
    mean, variance = marginals(arrays, 1e-6)
    assert mean == pytest.approx(weights.T @ L @ arrays["u_mean"], rel=1e-7)
    expected = 1.3 - (k * weights).sum(0) + (weights * (covariance @ weights)).sum(0)
    assert variance == pytest.approx(expected, rel=1e-6)


def test_departures_move_the_loss() -> None:
    plain = reference(SMALL["S1"], "log_loss").loss
    floor = reference(SMALL["S1"], "log_loss", Departures(probit_floor=1e-3)).loss
    jitter = reference(SMALL["S1"], "log_loss", Departures(variance_jitter=1e-3)).loss
    assert 1e-6 < abs(floor - plain) < 1e-2
    assert 1e-7 < abs(jitter - plain) < 1e-3


def test_agreement_allows_rounding_and_five_errors() -> None:
    exact = Expected(2.0)
    assert compare(2.0 + 1e-6, 0.0, exact, exact, 1e-6).allowed == pytest.approx(2e-6)
    drawn = compare(2.1, 0.03, Expected(2.0, 0.04), exact, 0.0)
    assert drawn.allowed == pytest.approx(0.25)
    assert drawn.difference == pytest.approx(0.1)
    assert not abs(compare(math.nan, 0.0, exact, exact, 1e-6).difference) <= 1


def test_growth_and_work() -> None:
    sizes = growth_cases(CASES["S2"])
    assert [size for size, _ in sizes["M"]] == [100, 200, 400, 800]
    assert [case.m for _, case in sizes["M"]] == [100, 200, 400, 800]
    assert {case.n for _, case in sizes["d"]} == {6000}
    big = work(CASES["S7"])
    assert 0.55 < big.least / big.products < 0.75
    assert big.products == pytest.approx(4 * 2000**2 * 16384, rel=0.3)
