"""Scores against closed forms and sums, splits, resumption, and tables from known results."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import nbinom, norm, poisson

from benchmarks.defaults import ours, peers
from benchmarks.defaults.__main__ import cells, parsed, run_all
from benchmarks.defaults.fit import measure
from benchmarks.defaults.methods import METHODS, REPORTED
from benchmarks.defaults.report import (
    change_table,
    figure_table,
    is_near,
    near_nll,
    rank,
    summary_table,
    values,
    write_tables,
)
from benchmarks.defaults.scores import (
    central_share,
    count_scores,
    interval_scores,
    label_scores,
    normal_scores,
    poisson_or_wider,
)
from benchmarks.defaults.store import Cell, Record, Store
from benchmarks.defaults.tables import CLASSIC, KINDS, table
from benchmarks.problems import Kind, Table, problem
from directgp import SparseGPClassifier, SparseGPCountRegressor, SparseGPRegressor, metrics

QUICK = {
    "objective": "elbo",
    "beta": 1.0,
    "ard": False,
    "num_inducing": 8,
    "max_iter": 60,
    "random_state": 0,
}
NAMES = {"nll", "crps", "error", "coverage", "tenths", "width"}


def data_of(kind: Kind, y_test: list[float], y: list[float] | None = None) -> Table:
    train = np.array([1.0, 5.0] if y is None else y)
    return Table(kind, np.zeros((len(train), 1)), train, np.zeros((len(y_test), 1)), np.r_[y_test])


def few(data: Table, rows: int) -> Table:
    return data._replace(X_test=data.X_test[:rows], y_test=data.y_test[:rows])


def of_kind(kind: Kind, data: Table) -> Table:
    if kind != "classification":
        return data._replace(kind=kind)
    y, y_test = ((y > 3).astype(np.float64) for y in (data.y, data.y_test))
    return data._replace(kind=kind, y=y, y_test=y_test)


def test_normal_scores_are_those_of_the_standardised_target() -> None:
    data, mean, std = data_of("regression", [3.0, -1.0]), np.array([2.0, 2.0]), np.array([1.0, 3.0])
    scores = normal_scores(data, mean, std)
    # The standard deviation of 1 and 5 is 2.
    scaled = norm(mean / 2, std / 2)
    assert scores["nll"] == pytest.approx(-scaled.logpdf(data.y_test / 2).mean())
    integrals = [
        quad(lambda t, m=m, s=s, y=y: (norm.cdf(t, m, s) - (t >= y)) ** 2, -40, 40, points=[y])[0]
        for m, s, y in zip(mean, std, data.y_test, strict=True)
    ]
    assert scores["crps"] == pytest.approx(np.mean(integrals) / 2, rel=1e-5)
    assert scores["error"] == pytest.approx(np.sqrt(5) / 2)
    assert scores["coverage"] == 1.0
    assert scores["width"] == pytest.approx(2 * norm.ppf(0.95))


def test_both_ends_belong_to_an_interval() -> None:
    data = data_of("regression", [1.0, 2.0, 3.5])
    scores = interval_scores(data, data.y_test, np.full(3, 1.0), np.full(3, 2.0))
    assert scores["coverage"] == pytest.approx(2 / 3)
    assert (scores["error"], scores["width"]) == (0.0, 0.5)


def test_label_scores() -> None:
    scores = label_scores(data_of("classification", [1.0, 0.0]), np.array([0.8, 0.6]))
    assert scores["nll"] == pytest.approx(-(np.log(0.8) + np.log(0.4)) / 2)
    assert scores["crps"] == pytest.approx((0.04 + 0.36) / 2)
    assert scores["error"] == 0.5
    assert label_scores(data_of("classification", [1.0]), np.array([0.0]))["nll"] == np.inf


def test_tenths_are_parts_by_predicted_mean() -> None:
    """Of 200 rows with rising means, those of the first tenth are all outside."""
    y = np.where(np.arange(200) < 20, 9.0, np.arange(200) % 10 == 0)
    mean = np.arange(200.0)
    scores = interval_scores(
        data_of("regression", y.tolist()), mean, np.full(200, -0.5), np.full(200, 0.5)
    )
    assert scores["coverage"] == pytest.approx(0.9 * 0.9)
    assert scores["tenths"] == pytest.approx(0.9)


def test_the_coverage_of_counts_is_that_of_the_metrics() -> None:
    ends = np.random.default_rng(0).uniform(size=(2, 50)).astype(np.float64)
    below, up_to = ends.min(0), ends.max(0)
    below[:3] = up_to[:3] = [0.01, 0.5, 0.99]
    expected = metrics.central_share(torch.as_tensor(below), torch.as_tensor(up_to))
    np.testing.assert_allclose(central_share(below, up_to), expected, rtol=1e-12)


@pytest.mark.parametrize("dispersion", [0.0, 0.7])
def test_count_scores_are_sums_over_counts(dispersion: float) -> None:
    mean, data = np.array([2.0, 9.0]), data_of("counts", [0.0, 30.0])
    scores = count_scores(data, poisson_or_wider(mean, dispersion))
    k = np.arange(400)[:, None]
    p = nbinom.pmf(k, 1 / 0.7, 1 / (1 + 0.7 * mean)) if dispersion else poisson.pmf(k, mean)
    assert (k * p).sum(0) == pytest.approx(mean)
    assert scores["nll"] == pytest.approx(-np.log([p[0, 0], p[30, 1]]).mean())
    squares = (p.cumsum(0) - (data.y_test <= k)) ** 2
    assert scores["crps"] == pytest.approx(squares.sum(0).mean() / 2)
    assert set(scores) == NAMES
    ends = p.cumsum(0)[[0, 30], [0, 1]] - p[[0, 30], [0, 1]], p.cumsum(0)[[0, 30], [0, 1]]
    assert scores["coverage"] == pytest.approx(central_share(*ends).mean())


def test_scores_of_our_regressor_are_those_of_its_normal_predictions() -> None:
    data = few(problem("changing noise", 60, 0), 50)
    model = SparseGPRegressor(likelihood="gaussian", kernel="rbf", stack=None, **QUICK).fit(
        data.X, data.y
    )
    expected = normal_scores(data, *model.predict(data.X_test, return_std=True))
    assert ours._scores(model, data) == pytest.approx(expected, rel=1e-6)
    assert {"mode", "beta", "likelihood", "num_inducing", "reason"} <= set(ours._choices(model))


@pytest.mark.slow
def test_scores_of_our_counts_and_classes() -> None:
    data = few(problem("overdispersed", 60, 0), 20)
    counts = SparseGPCountRegressor(likelihood="poisson", **QUICK).fit(data.X, data.y)
    scores = ours._scores(counts, data)
    steps = counts.predict_pmf(data.X_test, max_count=1000).cumsum(1)
    crps = ((steps - (data.y_test[:, None] <= np.arange(1001))) ** 2).sum(1).mean()
    assert scores["crps"] == pytest.approx(crps / data.y.std(), rel=1e-6)
    labels = of_kind("classification", data)
    classes = SparseGPClassifier(**QUICK).fit(labels.X, labels.y)
    assert set(ours._scores(classes, labels)) == {"nll", "crps", "error"}


@pytest.mark.parametrize("method", ["linear", "HistGradientBoosting", "GPyTorch SVGP"])
@pytest.mark.parametrize("kind", ["regression", "classification", "counts"])
def test_peers_of_our_environment(kind: Kind, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind not in METHODS[method].kinds:
        pytest.skip("The method has no such task.")
    monkeypatch.setattr(peers, "_GP_EPOCHS", 2)
    data = of_kind(kind, few(problem("overdispersed", 80, 0), 40))
    found = measure(method, data, "cpu")
    assert np.isfinite(found["nll"]) and found["cpu_seconds"] > 0
    assert NAMES - {"coverage", "tenths", "width"} <= set(found)


def test_a_dispersion_is_found_again() -> None:
    random, mean = np.random.default_rng(0), np.full(4000, 6.0)
    wide = random.poisson(random.gamma(2.0, mean / 2)).astype(np.float64)
    assert peers.fitted_dispersion(wide, mean) == pytest.approx(0.5, rel=0.1)
    assert peers.fitted_dispersion(mean.round(), mean) == 0.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "uci").mkdir()
    row = np.arange(40.0)
    np.savez(tmp_path / "uci/yacht.npz", X=row[:, None], y=row, test=np.arange(40) % 8)
    np.savez(tmp_path / "banana.npz", X=row[:, None], y=row % 2)
    return tmp_path


@pytest.mark.parametrize("split", [0, 2])
def test_public_splits_are_those_of_the_bits(folder: Path, split: int) -> None:
    data = table(folder, "yacht", split, None)
    is_test = (np.arange(40) % 8) & 2**split > 0
    assert sorted(data.y_test) == np.arange(40)[is_test].tolist()
    assert sorted(data.y) == np.arange(40)[~is_test].tolist()
    assert data.X.shape == (20, 1) and np.array_equal(data.X[:, 0], data.y)
    capped = table(folder, "yacht", split, 7)
    assert np.array_equal(capped.y, data.y[:7]) and np.array_equal(capped.y_test, data.y_test)


def test_other_tables_are_permuted(folder: Path) -> None:
    every, capped = (table(folder, "banana", 1, rows) for rows in (None, 10))
    assert [len(every.y), len(every.y_test), len(capped.y), len(capped.y_test)] == [30, 10, 10, 30]
    for data in (every, capped):
        assert sorted([*data.X[:, 0], *data.X_test[:, 0]]) == list(range(40))
    assert set(every.X_test[:, 0]) < set(capped.X_test[:, 0])
    assert not np.array_equal(capped.X, table(folder, "banana", 2, 10).X)
    assert len(table(folder, "heavy tails", 0, 30).y) == 30


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path / "results.jsonl")
    ran: list[int] = []
    wanted = [Cell("yacht", split, 2000, "directgp", 1) for split in range(3)]

    def fit(cell: Cell) -> Record:
        if cell.split == 1 and not ran:
            raise KeyboardInterrupt
        ran.append(cell.split)
        return {"nll": float(cell.split)}

    store.append(wanted[0], {"nll": 5.0})
    with pytest.raises(KeyboardInterrupt):
        run_all(wanted[:2], store, 1, fit, {})
    with store.path.open("a") as file:
        file.write('{"cell": {"table": "ya')
    ran.append(-1)
    run_all(wanted, store, 1, fit, {"source": "abc"})
    assert ran == [-1, 1, 2]
    found = store.read()
    assert [found[cell]["nll"] for cell in wanted] == [5.0, 1.0, 2.0]
    assert found[wanted[2]]["source"] == "abc" and "source" not in found[wanted[0]]
    store.remove(wanted[1:])
    assert list(store.read()) == wanted[:1]


def test_cells_have_a_method_for_the_task() -> None:
    arguments = parsed(["--data", "x", "--tables", "abalone", "--rows", "all", "50"])
    found = cells(arguments)
    assert {cell.rows for cell in found} == {None, 50}
    assert {cell.method for cell in found} == {
        name for name in REPORTED if "counts" in METHODS[name].kinds
    }
    assert len(found) == 2 * 3 * len({cell.method for cell in found})


def results_of(rows: dict[tuple[str, str], dict[int, dict[str, Any]]]) -> dict[Cell, Record]:
    return {
        Cell(name, split, 2000, method, METHODS[method].settings): {"num_train": 9, **record}
        for (name, method), splits in rows.items()
        for split, record in splits.items()
    }


def record(nll: float, error: float, coverage: float = 0.9, seconds: float = 1.0) -> Record:
    found = {"nll": nll, "crps": 0.1, "error": error, "coverage": coverage, "width": 2.0}
    return {**found, "cpu_seconds": seconds}


RESULTS = results_of(
    {
        ("yacht", "directgp"): {0: record(0.5, 0.20), 1: record(0.1, 0.2, seconds=3.0)},
        ("yacht", "linear"): {0: record(0.495, 0.19), 1: record(0.305, 0.3, coverage=1.0)},
        # Worse than the mean of directgp, but better on the split that both have.
        ("yacht", "scikit-learn GP"): {0: record(0.45, 0.25)},
        ("yacht", "MAPIE"): {0: {"error": 0.4, "coverage": 0.91, "cpu_seconds": 0.5}},
        ("wine", "directgp"): {0: {"failure": "It failed."}},
        ("wine", "linear"): {0: record(-1.0, 0.5)},
    }
)


def test_methods_are_compared_on_the_splits_that_both_have() -> None:
    nll = values(RESULTS, 2000, "yacht", "nll")
    assert [rank(nll, each) for each in ("directgp", "linear", "scikit-learn GP")] == [2, 3, 1]
    assert is_near(nll, "scikit-learn GP", near_nll) and not is_near(nll, "directgp", near_nll)
    assert near_nll(np.inf, np.inf) and not near_nll(np.inf, 1.0)


def test_tables_of_a_small_file(tmp_path: Path) -> None:
    lines = summary_table(RESULTS, 2000).splitlines()
    assert lines[2] == "| regression | scikit-learn GP | 1 | 1.0 | 1 of 1 | 0 of 1 | 1 of 1 | 1.0 |"
    assert lines[3] == "| regression | directgp | 1 | 2.0 | 0 of 1 | 1 of 1 | 1 of 1 | 2.0 |"
    assert lines[4] == "| regression | linear | 2 | 2.0 | 1 of 2 | 1 of 2 | 1 of 2 | 1.0 |"
    assert lines[5] == "| regression | MAPIE | 1 | – | – | 0 of 1 | 1 of 1 | 0.5 |"
    nll = figure_table(RESULTS, 2000, "nll").splitlines()
    assert nll[0] == "| table, training rows | directgp | scikit-learn GP | linear |"
    assert nll[2] == "| wine, 9 | – | – | **−1.000** |"
    assert nll[3] == "| yacht, 9 | 0.300 | **0.450** | 0.400 |"
    write_tables(RESULTS, tmp_path)
    assert (tmp_path / "defaults.md").read_text(encoding="utf-8").splitlines() == lines
    assert (tmp_path / "defaults_coverage.md").exists()


def test_changes_between_two_files() -> None:
    later = results_of({("yacht", "directgp"): {1: record(0.05, 0.1, seconds=6.0)}})
    line = change_table(RESULTS, later, "directgp").splitlines()[-1]
    cells = ["yacht, 2000 rows", "1", "0.1 → 0.05", "-0.0500", "0.2 → 0.1", "0.9 → 0.9", "3 → 6"]
    assert line == f"| {' | '.join(cells)} |"


def test_stored_results_are_complete() -> None:
    """Every record of the repository is of a known table and method."""
    path = Path(__file__).parents[2] / "benchmarks/results/defaults.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines():
        cell = json.loads(line)["cell"]
        known = [*KINDS, *(f"classic/{name}" for name in CLASSIC)]
        assert cell["table"] in known and cell["method"] in METHODS
