"""`directgp fit`: the model, the output and the files."""

import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from directgp import SparseGPCountRegressor, SparseGPRegressor, load
from directgp.cli.model_folder import load_folder
from directgp.errors import NumericalError
from tests.cli.running import (
    NUMBERS,
    QUICK,
    as_two_files,
    count_table,
    matrix,
    regression_table,
    run,
    write_csv,
)

POISSON = (*QUICK, "--likelihood", "poisson")

SETTINGS: dict[str, Any] = {
    "beta": 1.0,
    "hyperparameters": "joint",
    "max_iter": 3,
    "num_inducing": 5,
    "kernel": "rbf",
    "ard": True,
    "random_state": 0,
}
"""Those of `QUICK`."""


@pytest.mark.slow
def test_the_model_is_that_of_the_estimator(trained: Path) -> None:
    table = regression_table()
    kind = table.column("kind").to_numpy()
    base, *others = sorted("abc", key=lambda level: (-(kind == level).sum(), level))
    X = np.column_stack(
        [table.column("x").to_numpy(), *(kind == level for level in sorted(others))]
    )
    own = SparseGPRegressor(**SETTINGS, likelihood="gaussian")
    with pytest.warns(UserWarning, match="not converged"):
        own.fit(X, table.column("y").to_numpy())
    found = load(trained / "reg" / "model.safetensors")
    assert list(found.feature_names_in_) == ["x", *(f"kind={level}" for level in sorted(others))]
    named = pa.table(list(X.T), names=list(found.feature_names_in_))
    assert np.array_equal(found.predict(named), own.predict(X))
    assert base not in [name.removeprefix("kind=") for name in found.feature_names_in_]


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_exposure_and_weights_reach_the_estimator(trained: Path) -> None:
    table = count_table()
    own = SparseGPCountRegressor(**SETTINGS, likelihood="poisson")
    X, (k, hours, w) = matrix(table, "x"), matrix(table, "k", "hours", "w").T
    own.fit(X, k, sample_weight=w, exposure=hours)
    found = load(trained / "cnt" / "model.safetensors")
    assert np.array_equal(found.predict(table.select(["x"])), own.predict(X))


def test_rows_stay_beside_their_exposures_when_some_are_left_out(here: Path) -> None:
    table = count_table()
    gaps = {"x": [5], "hours": [7, 8], "k": [], "w": [3, 20]}
    holed = pa.table(
        {
            name: pa.array(table.column(name).to_pylist(), mask=np.isin(np.arange(40), rows))
            for name, rows in gaps.items()
        }
    )
    left = table.take(pa.array([i for i in range(40) if i not in (3, 5, 7, 8, 20)]))
    options = ("--target", "k", "--exposure", "hours", "--weights", "w", *POISSON, "--quiet")
    write_csv(holed, here / "holed.csv")
    write_csv(left, here / "left.csv")
    assert run("fit", "holed.csv", *options, "--drop-missing", "--out", "one").code == 0
    assert run("fit", "left.csv", *options, "--out", "two").code == 0
    one, two = (load(here / name / "model.safetensors") for name in ("one", "two"))
    assert np.array_equal(one.predict(left.select(["x"])), two.predict(left.select(["x"])))
    assert one.num_rows_ == 35


@pytest.mark.parametrize(
    ("option", "allowed"),
    [
        ("--exposure", "positive, from 1e-150 to 1e+150"),
        ("--trials", "whole numbers from 1 to 9,007,199,254,740,992"),
        ("--weights", "from 0 to 1e+150"),
    ],
)
def test_values_of_rows_are_named_by_the_rows_of_the_file(
    here: Path, option: str, allowed: str
) -> None:
    x = [None if row == 1 else row / 40 for row in range(40)]
    own = [-1 if row in (5, 9) else 50 for row in range(40)]
    write_csv(pa.table({"x": x, "k": [row % 4 for row in range(40)], "own": own}), here / "t.csv")
    words = ("fit", "t.csv", "--target", "k", "--task", "count", "--drop-missing", *QUICK)
    answer = run(*words, option, "own", "--out", "m")
    assert answer.code == 1 and answer.err.endswith(
        f"Error: Column 'own' of {option} must be {allowed}. Got -1 in row 6 and others in 1 row."
        " Correct or remove such rows.\n"
    )


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        ("1,1,-1", ("--weights", "w"), "to 1e+150. Got -1 in row 21."),
        ("1,-1,1", ("--task", "count"), "as counts are. Got -1 in row 21."),
        ("1,1,word", ("--weights", "w"), "must be of numbers. Got 'word' in row 21."),
    ],
)
def test_rows_that_are_too_long_are_counted(
    here: Path, cells: str, options: tuple[str, ...], message: str
) -> None:
    lines = [f"{row},{row % 7},1" for row in range(40)]
    lines[4] += ",1"
    lines[20] = cells
    Path("long.csv").write_text("\n".join(["x,y,w", *lines]))
    words = ("fit", "long.csv", "--target", "y", "--missing", "drop", *NUMBERS, "--out", "m")
    answer = run(*words, *options)
    assert message in answer.err


def test_what_it_says(here: Path) -> None:
    write_csv(regression_table(), here / "reg.csv")
    answer = run("fit", "reg.csv", "--target", "y", "--drop", "code", "--out", "my model", *NUMBERS)
    assert answer.code == 0
    assert "'y' suggests the task regression: it has numbers with fractions." in answer.err
    assert "Column 'kind' is encoded as 2 columns of 0 and 1" in answer.err
    assert answer.err.count("Warning: Training has not converged.") == 1
    lines = answer.out.splitlines()
    assert lines[0].startswith("Trained a model of 'y' in ")
    assert lines[1:] == [
        "  data          40 rows, 3 features",
        "  task          regression",
        "  objective     log_loss, joint",
        "  β             1",
        "  model         my model",
        "Next: directgp predict 'my model' DATA --out predictions.csv",
    ]


CHOICE = ("--target", "y", "--drop", "code", *QUICK)


def test_a_mixture_is_told_with_its_members_and_its_validation_loss(here: Path) -> None:
    write_csv(regression_table(), here / "reg.csv")
    answer = run("fit", "reg.csv", *CHOICE, "--out", "model", "--json")
    facts = json.loads(answer.out)
    model = load(here / "model" / "model.safetensors")
    mean, error = model.beta_path_.validated
    assert facts["validation"] == {"loss": "log_loss", "mean": mean, "error": error}
    assert [member["weight"] for member in facts["members"]] == model.weights_.tolist()
    assert [member["label"] for member in facts["members"]] == [m.label for m in model.members_]
    assert len(facts["members"]) > 1 and mean == model.beta_path_.mixture_loss
    inspected = json.loads(run("inspect", "model", "--json").out)["fit"]
    assert [each["weight"] for each in inspected["members"]] == model.weights_.tolist()
    assert "Members\n      weight   validation loss   model\n" in run("inspect", "model").out


def test_the_best_candidate_alone(here: Path) -> None:
    write_csv(regression_table(), here / "reg.csv")
    answer = run("fit", "reg.csv", *CHOICE, "--combine", "best", "--out", "model", "--json")
    facts = json.loads(answer.out)
    path = load(here / "model" / "model.safetensors").beta_path_
    (member,) = facts["members"]
    assert member["weight"] == 1.0
    assert facts["validation"]["mean"] == min(point.validation_loss for point in path.points)


def test_trees_are_features_on_request(here: Path) -> None:
    write_csv(regression_table(), here / "reg.csv")
    words = ("fit", "reg.csv", "--target", "y", "--drop", "code", *NUMBERS)
    answer = run(*words, "--stack", "trees", "--out", "model", "--json")
    assert [member["stacked"] for member in json.loads(answer.out)["members"]] == [True]
    assert "the out-of-fold predictions of trees are a feature, too" in run("inspect", "model").out
    predicted = run("predict", "model", "reg.csv", "--out", "own.csv", "--quiet")
    assert predicted.code == 0
    plain = run(*words, "--stack", "none", "--out", "plain", "--json")
    assert [member["stacked"] for member in json.loads(plain.out)["members"]] == [False]


def test_json_is_one_document_and_nothing_else(here: Path) -> None:
    write_csv(regression_table(), here / "reg.csv")
    answer = run(
        "fit", "reg.csv", "--target", "y", "--drop", "code", "--out", "m", *NUMBERS, "--json"
    )
    facts = json.loads(answer.out)
    assert answer.err == ""
    assert (facts["rows"], facts["task"], facts["beta"], facts["model"]) == (
        40,
        "regression",
        1.0,
        "m",
    )
    assert facts["validation"] is None
    assert len(facts["notes"]) == 2 and len(facts["warnings"]) == 1


@pytest.mark.slow
def test_seeds_decide(here: Path) -> None:
    write_csv(regression_table(), here / "reg.csv")
    options = ("--target", "y", "--drop", "code", *NUMBERS, "--quiet")
    for seed, out in ((1, "one"), (1, "again"), (2, "two")):
        assert run("fit", "reg.csv", *options, "--seed", seed, "--out", out).code == 0
    Z = [load(here / out / "model.safetensors").posterior_.Z for out in ("one", "again", "two")]
    assert (Z[0] == Z[1]).all() and not (Z[0] == Z[2]).all()


def test_a_model_is_replaced_by_force_alone(trained: Path, here: Path) -> None:
    write_csv(regression_table(), here / "reg.csv")
    shutil.copytree(trained / "reg", here / "m")
    options = ("fit", "reg.csv", "--target", "y", "--drop", "code", *NUMBERS, "--out", "m")
    before = (here / "m" / "model.safetensors").read_bytes()
    answer = run(*options, "--seed", "3")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        "Error: --out must be a new folder. Got 'm', which holds a model."
        " Name another, or replace it with --force.\n"
    )
    assert (here / "m" / "model.safetensors").read_bytes() == before
    assert run(*options, "--seed", "3", "--force").code == 0
    assert (here / "m" / "model.safetensors").read_bytes() != before
    assert sorted(each.name for each in here.iterdir()) == ["m", "reg.csv"]


@pytest.mark.parametrize("error", [NumericalError("It broke."), KeyboardInterrupt()])
def test_a_fit_that_fails_leaves_everything_as_it_was(
    trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    write_csv(regression_table(), here / "reg.csv")
    shutil.copytree(trained / "reg", here / "m")
    options = ("fit", "reg.csv", "--target", "y", "--drop", "code", *NUMBERS, "--out")
    before = {file.name: file.read_bytes() for file in (here / "m").iterdir()}

    def failing(*_: object) -> None:
        raise error

    # The model is written to a draft.
    monkeypatch.setattr("os.replace", failing)
    for words in ([*options, "m", "--force"], [*options, "new/er"]):
        answer = run(*words)
        known = (1, "Error: It broke.") if isinstance(error, Exception) else (130, "Interrupted.")
        assert (answer.code, answer.err.splitlines()[-1]) == known
    assert {file.name: file.read_bytes() for file in (here / "m").iterdir()} == before
    assert sorted(each.name for each in here.iterdir()) == ["m", "reg.csv"]


def test_a_model_of_an_earlier_version_is_replaced_by_one_file(trained: Path, here: Path) -> None:
    write_csv(regression_table(), here / "reg.csv")
    shutil.copytree(trained / "reg", here / "m")
    as_two_files(here / "m", rows=77)
    assert load_folder(here / "m", "cpu")[1].rows == 77
    options = ("fit", "reg.csv", "--target", "y", "--drop", "code", *NUMBERS, "--out", "m")
    beside = (here / "m" / "table.json").read_bytes()
    assert run(*options, "--force").code == 0
    assert [each.name for each in (here / "m").iterdir()] == ["model.safetensors"]
    # A program that is killed before it removes the other file leaves a whole model, too.
    (here / "m" / "table.json").write_bytes(beside)
    assert load_folder(here / "m", "cpu")[1].rows == 40


@pytest.mark.slow
def test_drafts_of_a_killed_fit_are_neither_a_model_nor_in_the_way(here: Path) -> None:
    write_csv(regression_table(), here / "reg.csv")
    options = ("fit", "reg.csv", "--target", "y", "--drop", "code", *NUMBERS, "--out", "m")
    old, new = (here / "m" / f".model.safetensors.{16 * each}.tmp" for each in "ab")
    old.parent.mkdir()
    old.write_bytes(b"half a mo")
    os.utime(old, (0, 0))
    assert run(*options).code == 0
    with new.open("wb") as of_another_program:
        fcntl.flock(of_another_program, fcntl.LOCK_EX)
        assert run(*options).code == 1
        assert run(*options, "--force").code == 0
    assert sorted((here / "m").iterdir()) == [new, here / "m" / "model.safetensors"]


@pytest.mark.parametrize(
    "before", ["directgp.training.lbfgs._Descent.descend", "directgp.estimators.fitting.Fit.train"]
)
def test_an_interrupt_before_the_first_step_leaves_no_model(
    here: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write_csv(regression_table(), here / "reg.csv")
    monkeypatch.setattr(before, interrupted)
    answer = run("fit", "reg.csv", "--target", "y", "--drop", "code", *NUMBERS, "--out", "m")
    assert (answer.code, answer.out) == (130, "")
    said = "Interrupted before a model was trained; nothing is written."
    assert answer.err.splitlines()[-1] == said
    assert not (here / "m").exists()


def ready_to_be_interrupted() -> None:
    """Programs in the background of a shell are started with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_ctrl_c_writes_the_best_model_so_far(here: Path) -> None:
    """On a terminal, whose bar of progress shows when candidates are trained."""
    command = [sys.executable, "-m", "directgp", "fit", "friedman1", "--effort", "thorough"]
    command += ["--kernel", "rbf", "--likelihood", "gaussian", "--no-ard"]
    screen, stderr = pty.openpty()
    with subprocess.Popen(
        [*command, "--out", "m"],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        preexec_fn=ready_to_be_interrupted,
    ) as process:
        os.close(stderr)
        said = b""
        while b"joint, " not in said:
            said += os.read(screen, 4096)
        process.send_signal(signal.SIGINT)
        with suppress(OSError):  # Linux raises at the end of a terminal.
            while some := os.read(screen, 4096):
                said += some
        assert process.stdout is not None
        printed = process.stdout.read()
    os.close(screen)
    words = " ".join(said.decode().split())
    assert "Warning: Training was ended before it converged. Interrupted; the best state" in words
    assert process.returncode == 130
    assert printed.startswith("Trained a model of 'y'") and "Next: directgp predict m" in printed
    found = load(here / "m" / "model.safetensors")
    assert found.training_result_.status == "interrupted" and found.n_iter_ > 0
    assert run("predict", "m", "friedman1", "--out", "p.csv", "--quiet").code == 0


def test_the_answer_of_an_interrupted_fit_is_json(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def after_two(*_: object) -> None:
        steps.append(1)
        if len(steps) == 2:
            raise KeyboardInterrupt

    write_csv(regression_table(), here / "reg.csv")
    monkeypatch.setattr("directgp.training.run.RelativeDecrease.__call__", after_two)
    options = ("--target", "y", "--drop", "code", *NUMBERS, "--out", "m", "--json")
    answer = run("fit", "reg.csv", *options)
    assert answer.code == 130 and answer.err == ""
    facts = json.loads(answer.out)
    assert facts["status"] == "interrupted" and "Interrupted" in facts["warnings"][0]
    assert load(here / "m" / "model.safetensors").n_iter_ > 0


def test_embedded_sets_know_their_target(here: Path) -> None:
    answer = run("fit", "diabetes", "--out", "m", *NUMBERS, "--json")
    facts = json.loads(answer.out)
    assert (facts["target"], facts["rows"], facts["source"]) == (
        "progression",
        442,
        "embedded: diabetes",
    )


def test_one_class_against_the_rest(here: Path) -> None:
    table = regression_table()
    write_csv(table, here / "reg.csv")
    options = ("--target", "kind", "--positive", "b", "--drop", "code", *QUICK, "--json")
    facts = json.loads(run("fit", "reg.csv", *options, "--out", "m").out)
    assert (facts["task"], facts["classes"]) == ("classification", ["not b", "b"])
    answer = json.loads(run("predict", "m", "reg.csv", "--out", "p.csv", "--json").out)
    assert answer["scored_rows"] == 40


def test_trials_reach_the_estimator_and_the_predictions(here: Path) -> None:
    random = np.random.default_rng(3)
    x, trials = random.uniform(0, 3, 60), random.integers(1, 20, 60)
    hits = random.binomial(trials, 1 / (1 + np.exp(-np.sin(2 * x))))
    table = pa.table({"x": x, "tried": trials, "hits": hits})
    pq.write_table(table, "shots.parquet")
    run("fit", "shots.parquet", "--target", "hits", "--trials", "tried", *QUICK, "--out", "shots")
    model, card = load_folder(Path("shots"), "cpu")
    assert type(model.likelihood_).__name__ == "Binomial"
    assert (card.trials, card.task, card.encoding.feature_names) == ("tried", "count", ("x",))
    run("predict", "shots", "shots.parquet", "--out", "out.parquet")
    own = model.predict(pa.table({"x": x}), trials=trials)
    np.testing.assert_allclose(pq.read_table("out.parquet")["mean"].to_numpy(), own)
