"""`directgp predict`: its columns are those of the estimators, whatever the format."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from directgp import load
from directgp.cli import predict as command
from directgp.cli.model_folder import load_folder
from directgp.datasets import read_table
from directgp.errors import NumericalError
from tests.cli import messy_files
from tests.cli.running import (
    NUMBERS,
    QUICK,
    as_two_files,
    class_table,
    count_table,
    regression_table,
    run,
    write_csv,
)

SUFFIXES = ("parquet", "feather", "csv", "tsv", "csv.gz", "tsv.gz")


def features(folder: Path, name: str, table: pa.Table) -> Any:
    """The table as the model takes it."""
    encoding = load_folder(folder / name, "cpu")[1].encoding
    return pa.table(list(encoding.apply(table).T), names=list(encoding.feature_names))


def predicted(*words: object) -> pa.Table:
    """What is written to the file p.parquet here."""
    answer = run("predict", *words, "--out", "p.parquet", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    return pyarrow.parquet.read_table("p.parquet")


def test_regression(trained: Path, here: Path) -> None:
    table = predicted(trained / "reg", trained / "reg.csv", "--id", "code", "--coverage", 0.8)
    model, X = (
        load(trained / "reg" / "model.safetensors"),
        features(trained, "reg", regression_table()),
    )
    assert table.column_names == ["code", "mean", "sd", "lower", "upper", "reason"]
    assert table.column("code").to_pylist() == regression_table().column("code").to_pylist()
    mean, sd = model.predict(X, return_std=True)
    for name, own in zip(
        ("mean", "sd", "lower", "upper"), (mean, sd, *model.predict_interval(X, 0.8)), strict=True
    ):
        assert np.array_equal(table.column(name).to_numpy(), own)


def test_classification(trained: Path, here: Path) -> None:
    table = predicted(trained / "cls" / "model.safetensors", trained / "cls.parquet", "--id", "z")
    model, X = load(trained / "cls" / "model.safetensors"), features(trained, "cls", class_table())
    assert table.column_names == ["z", "p_sick", "p_well", "predicted", "reason"]
    proba = model.predict_proba(X)
    assert np.array_equal(table.column("p_sick").to_numpy(), proba[:, 0])
    assert np.array_equal(table.column("p_well").to_numpy(), proba[:, 1])
    own = np.where(proba[:, 1] > 0.5, "well", "sick")
    assert table.column("predicted").to_pylist() == own.tolist()


def test_counts(trained: Path, here: Path) -> None:
    table = predicted(trained / "cnt", trained / "cnt.parquet")
    model, X = load(trained / "cnt" / "model.safetensors"), count_table().select(["x"])
    hours = count_table().column("hours").to_numpy().copy()
    assert np.array_equal(table.column("mean").to_numpy(), model.predict(X, hours))
    lower, upper = model.predict_interval(X, 0.9, hours)
    assert np.array_equal(table.column("lower").to_numpy(), lower)
    assert np.array_equal(table.column("upper").to_numpy(), upper)
    # The deviation from the probabilities of the counts themselves.
    pmf, k = model.predict_pmf(X, 400, hours), np.arange(401.0)
    assert pmf.sum(axis=1) == pytest.approx(1, abs=1e-9)
    variance = pmf @ k**2 - (pmf @ k) ** 2
    assert table.column("sd").to_numpy() == pytest.approx(np.sqrt(variance), rel=1e-5)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_formats_say_the_same(trained: Path, here: Path, suffix: str) -> None:
    words = ("predict", trained / "cls", trained / "cls.parquet", "--id", "x", "--id", "label")
    assert run(*words, "--out", "truth.parquet").code == 0
    assert run(*words, "--out", f"p.{suffix}").code == 0
    truth = pyarrow.parquet.read_table("truth.parquet")
    found = (
        pyarrow.feather.read_table("p.feather")
        if suffix == "feather"
        else read_table(f"p.{suffix}")
    )
    assert found.cast(truth.schema).equals(truth)
    assert found.column_names[:2] == ["x", "label"]
    if suffix == "tsv.gz":
        assert gzip.decompress((here / "p.tsv.gz").read_bytes()).startswith(
            b'"x"\t"label"\t"p_sick"'
        )


def test_blocks_join(trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (trained / "reg", trained / "reg.csv", "--id", "code")
    whole = predicted(*words)
    monkeypatch.setattr(command, "_BLOCK", 7)
    parts = predicted(*words, "--force")
    assert parts.column("code").equals(whole.column("code"))
    for name in ("mean", "sd", "lower", "upper"):
        assert parts.column(name).to_numpy() == pytest.approx(
            whole.column(name).to_numpy(), rel=1e-9
        )


def test_scores_are_those_of_the_rows(trained: Path, here: Path) -> None:
    def scores(name: str, file: str) -> Any:
        answer = run("predict", trained / name, trained / file, "--out", f"{name}.csv", "--json")
        return json.loads(answer.out)["scores"]

    reg, y = regression_table(), regression_table().column("y").to_numpy()
    model, X = load(trained / "reg" / "model.safetensors"), features(trained, "reg", reg)
    lower, upper = model.predict_interval(X, 0.9)
    assert scores("reg", "reg.csv") == pytest.approx(
        {
            "nll": model.nll(X, y),
            "mse": np.mean((model.predict(X) - y) ** 2),
            "rmse": np.sqrt(np.mean((model.predict(X) - y) ** 2)),
            "coverage": np.mean((lower <= y) & (y <= upper)),
        }
    )
    label = (class_table().column("label").to_numpy() == "well").astype(float)
    model, X = load(trained / "cls" / "model.safetensors"), features(trained, "cls", class_table())
    assert scores("cls", "cls.parquet") == pytest.approx(
        {"nll": model.nll(X, label), "error": 1 - model.score(X, label)}
    )
    k, hours = count_table().column("k").to_numpy(), count_table().column("hours").to_numpy().copy()
    model, X = load(trained / "cnt" / "model.safetensors"), count_table().select(["x"])
    found = scores("cnt", "cnt.parquet")
    assert found["nll"] == pytest.approx(model.nll(X, k, exposure=hours))
    assert found["mre"] == pytest.approx(
        np.mean(abs(model.predict(X, hours) - k) / np.maximum(k, 1))
    )


def test_what_it_says(trained: Path, here: Path) -> None:
    answer = run("predict", trained / "reg", trained / "reg.csv", "--out", "p.csv")
    first, second = answer.out.splitlines()
    assert first == "Wrote 40 rows to p.csv."
    assert second.startswith("Compared with 'y' in 40 rows: NLL ")
    assert "coverage of 90 % intervals" in second
    answer = run("predict", trained / "reg", trained / "reg.csv", "--out", "q.csv", "--no-score")
    assert answer.out == "Wrote 40 rows to q.csv.\n"


def test_rows_without_target_are_predicted_and_not_judged(trained: Path, here: Path) -> None:
    table = regression_table()
    y = pa.array([None if i < 10 else v for i, v in enumerate(table.column("y").to_pylist())])
    pyarrow.parquet.write_table(table.set_column(3, "y", y), "some.parquet")
    pyarrow.parquet.write_table(table.drop_columns(["y"]), "none.parquet")
    some = json.loads(
        run("predict", trained / "reg", "some.parquet", "--out", "p.csv", "--json").out
    )
    none = json.loads(
        run("predict", trained / "reg", "none.parquet", "--out", "q.csv", "--json").out
    )
    assert (some["rows"], some["scored_rows"], none["rows"], none["scores"]) == (40, 30, 40, None)
    model, X = (
        load(trained / "reg" / "model.safetensors"),
        features(trained, "reg", table.slice(10)),
    )
    y = table.column("y").to_numpy()[10:]
    assert some["scores"]["nll"] == pytest.approx(model.nll(X, y))
    assert some["scores"]["mse"] == pytest.approx(np.mean((model.predict(X) - y) ** 2))


def test_one_row_of_output_for_each_row_of_the_data(trained: Path, here: Path) -> None:
    table = regression_table()
    x = ["" if i == 4 else "unknown" if i == 7 else v for i, v in enumerate(table["x"].to_pylist())]
    kind = ["z" if i in (7, 9) else v for i, v in enumerate(table["kind"].to_pylist())]
    lines = [f"{k},{v},{y}" for k, v, y in zip(x, kind, table["y"].to_pylist(), strict=True)]
    Path("gaps.csv").write_text("\n".join(["x,kind,y", *lines]))
    whole = predicted(trained / "reg", trained / "reg.csv")
    answer = run("predict", trained / "reg", "gaps.csv", "--out", "p.csv", "--json")
    found, facts = read_table("p.csv"), json.loads(answer.out)
    assert (facts["rows"], facts["predicted"], facts["scored_rows"]) == (40, 38, 38)
    assert found.column("row").to_pylist() == list(range(1, 41))
    reasons = dict(zip(range(40), found.column("reason").to_pylist(), strict=True))
    new = "kind is 'z', not seen in training (predicted as 'c')"
    assert {i: text for i, text in reasons.items() if text} == {
        4: "x is missing",
        7: f"x is 'unknown', which is not a number; {new}",
        9: new,
    }
    empty = [i for i, mean in enumerate(found.column("mean").to_pylist()) if mean is None]
    assert empty == [4, 7]
    same = [i for i in range(40) if i not in (4, 7, 9)]
    for name in ("mean", "sd", "lower", "upper"):
        assert found[name].take(same).to_pylist() == pytest.approx(
            whole[name].take(same).to_pylist()
        )
    base = table.set_column(2, "kind", [["c"] * 40]).slice(9, 1)
    model = load(trained / "reg" / "model.safetensors")
    assert found["mean"][9].as_py() == pytest.approx(
        model.predict(features(trained, "reg", base))[0]
    )


def test_a_thousand_rows_with_gaps_and_new_levels(trained: Path, here: Path) -> None:
    random = np.random.default_rng(3)
    x, kind = random.uniform(-2, 2, 1000), random.choice(["a", "b", "c"], 1000).astype(object)
    whole = pa.table({"x": x, "kind": kind})
    draw = random.random((3, 1000)) < 0.05
    gap, new = draw[0] | draw[1], draw[2] & ~draw[1]
    damaged = pa.table(
        {
            "x": pa.array(x, mask=draw[0]),
            "kind": pa.array(np.where(new, "unseen", kind), pa.string(), mask=draw[1]),
        }
    )
    tables = []
    for name, table in (("whole", whole), ("damaged", damaged)):
        pyarrow.parquet.write_table(table, f"{name}.parquet")
        answer = run("predict", trained / "reg", f"{name}.parquet", "--out", "p.parquet", "--force")
        assert answer.code == 0
        tables.append(pyarrow.parquet.read_table("p.parquet"))
    expected, found = tables
    assert found.num_rows == 1000 and found.column("row").to_pylist() == list(range(1, 1001))
    mean, reasons = found.column("mean").to_pylist(), found.column("reason").to_pylist()
    assert [value is None for value in mean] == gap.tolist()
    assert [bool(reason) for reason in reasons] == (gap | new).tolist()
    plain = ~(gap | new)
    own = np.array(mean, dtype=float)[plain]
    assert plain.sum() > 800 and (gap.sum(), new.sum()) > (50, 30)
    np.testing.assert_allclose(own, expected.column("mean").to_numpy()[plain], rtol=1e-12)
    assert all("unseen" in reasons[i] for i in np.flatnonzero(new & ~gap))


def test_rows_that_cannot_be_predicted_can_be_left_out(trained: Path, here: Path) -> None:
    table = regression_table()
    x = pc.if_else(pc.equal(table.column("code"), "0004"), None, table.column("x"))
    write_csv(table.set_column(1, "x", x), here / "gaps.csv")
    answer = run(
        "predict", trained / "reg", "gaps.csv", "--out", "p.csv", "--drop-missing", "--id", "code"
    )
    assert answer.err == "Warning: 1 row left out, the first because x is missing.\n"
    codes = (here / "p.csv").read_text().splitlines()[1:]
    assert len(codes) == 39 and not any(line.startswith('"0004"') for line in codes)
    assert codes[0].startswith('"0000"')


def test_intervals_quantiles_and_densities(trained: Path, here: Path) -> None:
    words = ("--interval", "0.5,0.9", "--quantiles", "0.1,0.25", "--density", "--id", "code,x")
    found = predicted(trained / "reg", trained / "reg.csv", *words)
    ends = ["lower_50", "upper_50", "lower_90", "upper_90"]
    names = ["code", "x", "mean", "sd", *ends, "q0.1", "q0.25", "log_density", "reason"]
    assert found.column_names == names
    model, table = load(trained / "reg" / "model.safetensors"), regression_table()
    X, y = features(trained, "reg", table), table["y"].to_numpy()
    assert found["q0.1"].to_numpy() == pytest.approx(model.predict_quantiles(X, [0.1])[:, 0])
    assert found["lower_50"].to_numpy() == pytest.approx(found["q0.25"].to_numpy())
    assert found["upper_90"].to_numpy() == pytest.approx(model.predict_interval(X, 0.9)[1])
    assert found["log_density"].to_numpy() == pytest.approx(model.log_density(X, y))
    labels = predicted(trained / "cls", trained / "cls.parquet", "--no-proba", "--force")
    assert labels.column_names == ["row", "predicted", "reason"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("reg", "--proba"), "--proba is for classification. The model is of regression."),
        (("cls", "--quantiles", "0.5"), "--quantiles is for numbers. The model is of"),
        (("reg", "--interval", "0.5,2"), "--interval must be numbers between 0 and 1. Got '2'"),
    ],
)
def test_options_that_do_not_suit(
    trained: Path, here: Path, words: tuple[str, ...], expected: str
) -> None:
    data = {"reg": "reg.csv", "cls": "cls.parquet"}[words[0]]
    answer = run("predict", trained / words[0], trained / data, *words[1:], "--out", "p.csv")
    assert answer.code == 2 and answer.err.startswith(f"Error: {expected}")
    assert not list(here.iterdir())


def test_new_orders_and_more_columns_do_not_matter(trained: Path, here: Path) -> None:
    table = regression_table().append_column("more", [list(range(40))])
    pyarrow.parquet.write_table(table.select(["more", "kind", "x"]), "other.parquet")
    assert predicted(trained / "reg", "other.parquet").equals(
        predicted(trained / "reg", trained / "reg.csv", "--force")
    )


def test_what_fails_leaves_the_file_as_it_was(
    trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "p.csv").write_text("mine")

    def failing(*_: object) -> None:
        raise NumericalError("It broke.")

    monkeypatch.setattr(command.Predicted, "columns", failing)
    for out in ("p.csv", "new.parquet"):
        answer = run("predict", trained / "reg", trained / "reg.csv", "--out", out, "--force")
        assert (answer.code, answer.err) == (1, "Error: It broke.\n")
    assert [each.name for each in here.iterdir()] == ["p.csv"]
    assert (here / "p.csv").read_text() == "mine"


def test_the_exposure_may_be_another_column(trained: Path, here: Path) -> None:
    table = count_table().append_column("twice", pc.multiply(count_table().column("hours"), 2.0))
    pyarrow.parquet.write_table(table, "more.parquet")
    usual = predicted(trained / "cnt", "more.parquet")
    twice = predicted(trained / "cnt", "more.parquet", "--exposure", "twice", "--force")
    assert twice.column("mean").to_numpy() == pytest.approx(2 * usual.column("mean").to_numpy())


def test_a_file_without_names_is_predicted_as_it_was_fitted(here: Path) -> None:
    messy_files.no_header(here / "own.csv")
    words = ("--no-header", "--target", "x3", "--task", "regression", *NUMBERS)
    assert run("fit", "own.csv", *words, "--out", "m").code == 0
    assert predicted("m", "own.csv").num_rows == messy_files.ROWS
    assert predicted("m", "own.csv", "--no-header", "--force").num_rows == messy_files.ROWS
    assert load_folder(Path("m"), "cpu")[1].header is False
    # Cards of former versions have no such field.
    as_two_files(Path("m"), header=...)
    answer = run("predict", "m", "own.csv", "--out", "q.csv")
    assert answer.code == 1 and "Got no 'x1'." in answer.err


def test_the_decimal_mark_of_new_data_can_be_given(here: Path) -> None:
    messy_files.decimal_commas(here / "commas.csv")
    (here / "points.csv").write_text(messy_files.text(messy_files.houses(), ";"))
    words = ("--decimal", ",", "--target", "price", *NUMBERS)
    assert run("fit", "commas.csv", *words, "--out", "m").code == 0
    commas = predicted("m", "commas.csv", "--decimal", ",")
    points = predicted("m", "points.csv", "--decimal", ".", "--thousands", ",", "--force")
    assert points.equals(commas) and points.column("mean").null_count == 0


def test_exposures_and_targets_are_read_as_other_columns_are(here: Path) -> None:
    table = count_table()
    hours = [f"{1000 * value:,.0f}" for value in table.column("hours").to_pylist()]
    table = table.set_column(1, "hours", [hours])
    write_csv(table, here / "own.csv")
    words = ("--target", "k", "--exposure", "hours", "--weights", "w", "--likelihood", "poisson")
    answer = run("fit", "own.csv", *words, *QUICK, "--out", "m")
    assert answer.code == 0, answer.err
    assert f"Column 'hours' has numbers such as '{hours[0]}'" in answer.err
    k: list[object] = table.column("k").to_pylist()
    hours[2:6], k[7] = ["abc", "", "-1", "0.5"], "TBD"
    write_csv(
        table.set_column(1, "hours", [hours]).set_column(2, "k", [map(str, k)]), here / "t.csv"
    )
    answer = run("predict", "m", "t.csv", "--out", "p.csv", "--json")
    facts, found = json.loads(answer.out), read_table("p.csv")
    assert (facts["rows"], facts["predicted"], facts["scored_rows"]) == (40, 37, 36)
    reasons = dict(enumerate(found.column("reason").to_pylist()))
    assert {row: text for row, text in reasons.items() if text} == {
        2: "hours is 'abc', which is not a number",
        3: "hours is missing",
        4: "hours is -1, which is not positive, from 1e-150 to 1e+150",
        7: "k is 'TBD', which is not a number (not scored)",
    }


@pytest.fixture(scope="module")
def censored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of times and their upper ends, and a model of it."""
    folder = tmp_path_factory.mktemp("censored")
    random = np.random.default_rng(5)
    x = random.uniform(-1, 1, 40)
    time = np.exp(x + random.normal(scale=0.3, size=40))
    end = np.where(np.arange(40) % 4 == 0, np.inf, time)
    table = pa.table({"x": x, "time": time, "end": end})
    pyarrow.parquet.write_table(table, folder / "times.parquet")
    words = ("--target", "time", "--upper", "end", "--likelihood", "weibull", *QUICK)
    answer = run("fit", folder / "times.parquet", *words, "--out", folder / "model")
    assert answer.code == 0, answer.err
    return folder


def test_new_rows_need_no_upper_ends(censored: Path, here: Path) -> None:
    table = pyarrow.parquet.read_table(censored / "times.parquet")
    whole = predicted(censored / "model", censored / "times.parquet")
    empty = table.select(["x"]).append_column("end", pa.nulls(40, pa.float64()))
    for name, new in (("x", table.select(["x"])), ("empty", empty)):
        pyarrow.parquet.write_table(new, f"{name}.parquet")
        assert predicted(censored / "model", f"{name}.parquet", "--force").equals(whole)
    pyarrow.parquet.write_table(table.drop_columns(["end"]), "time.parquet")
    answer = run("predict", censored / "model", "time.parquet", "--out", "p.csv")
    assert answer.err == (
        "'time' has no upper ends, as DATA has no column 'end': predictions are not scored.\n"
    )
    answer = run("predict", censored / "model", "time.parquet", "--out", "d.csv", "--density")
    assert answer.code == 1 and "all columns that the model uses. Got no 'end'." in answer.err


def test_censored_targets_count_in_the_density_alone(censored: Path, here: Path) -> None:
    table = pyarrow.parquet.read_table(censored / "times.parquet")
    x, y, end = (table.column(name).to_numpy().copy() for name in ("x", "time", "end"))
    words = ("predict", censored / "model", censored / "times.parquet", "--out", "p.csv")
    found = json.loads(run(*words, "--json").out)
    exact = end == y
    model, X = load(censored / "model" / "model.safetensors"), pa.table({"x": x})
    assert (found["scored_rows"], exact.sum()) == (40, 30)
    assert found["scores"]["nll"] == pytest.approx(model.nll(X, y, upper=end))
    error = model.predict(X)[exact] - y[exact]
    assert found["scores"]["mse"] == pytest.approx(np.mean(error**2))
    said = run(*words, "--force").out
    assert said.endswith("10 censored targets count in the NLL only.\n")
    endless = table.set_column(2, "end", [np.full(40, np.inf)])
    pyarrow.parquet.write_table(endless, "endless.parquet")
    said = run("predict", censored / "model", "endless.parquet", "--out", "e.csv").out
    assert said.endswith("40 censored targets count in the NLL only.\n") and "RMSE" not in said
    end[3] = np.nan
    pyarrow.parquet.write_table(table.set_column(2, "end", [end]), "gap.parquet")
    gap = predicted(censored / "model", "gap.parquet")
    assert gap.column("reason")[3].as_py() == "end is missing (not scored)"
    assert gap.column("mean").null_count == 0
    end[3] = y[3] / 2
    pyarrow.parquet.write_table(table.set_column(2, "end", [end]), "below.parquet")
    answer = run("predict", censored / "model", "below.parquet", "--out", "b.csv")
    assert f"Got {y[3]:g} with upper {end[3]:g} in row 4. Correct" in answer.err


@pytest.mark.parametrize(
    ("name", "column", "value", "rule"),
    [
        ("cnt", "k", -1.0, "y of directgp predict must be counts, 0, 1, 2, …."),
        ("reg", "y", 1e200, "Input y contains a value beyond ±1e+150."),
    ],
)
def test_a_target_that_cannot_be_is_named_by_its_row(
    trained: Path, here: Path, name: str, column: str, value: float, rule: str
) -> None:
    table = {"cnt": count_table, "reg": regression_table}[name]()
    values = [float(number) for number in table.column(column).to_pylist()]
    # Row 3 cannot be predicted, and its target is not read.
    values[2] = values[7] = values[20] = value
    x = [None if row == 2 else number for row, number in enumerate(table.column("x").to_pylist())]
    table = table.set_column(table.column_names.index(column), column, [values])
    table = table.set_column(table.column_names.index("x"), "x", [pa.array(x)])
    pyarrow.parquet.write_table(table, "bad.parquet")
    words = ("predict", trained / name, "bad.parquet", "--out", "p.parquet")
    answer = run(*words)
    assert answer.code == 1 and not Path("p.parquet").exists()
    exposure = f" with exposure {table.column('hours')[7].as_py():g}" if name == "cnt" else ""
    assert answer.err.endswith(
        f"Error: The target {column!r} cannot be scored: {rule}"
        f" Got {value:g}{exposure} in row 8."
        " Correct or remove such rows, or ignore the target with --no-score.\n"
    )
    assert run(*words, "--no-score").code == 0


def test_a_target_without_numbers_is_not_scored(trained: Path, here: Path) -> None:
    table = regression_table()
    write_csv(table.set_column(3, "y", [["TBD"] * 40]), here / "new.csv")
    answer = run("predict", trained / "reg", "new.csv", "--out", "p.csv")
    assert (answer.code, answer.out) == (0, "Wrote 40 rows to p.csv.\n")
    assert answer.err == "'y' has no numbers: predictions are not scored.\n"
    assert read_table("p.csv").column("reason").null_count == 40


def test_rows_that_are_too_long_are_left_out_if_that_is_wanted(trained: Path, here: Path) -> None:
    lines = (trained / "reg.csv").read_text().splitlines()
    lines[5] += ",sold twice"
    Path("ragged.csv").write_text("\n".join(lines))
    words = ("predict", trained / "reg", "ragged.csv", "--out", "p.csv")
    answer = run(*words)
    assert answer.code == 1 and not Path("p.csv").exists()
    assert answer.err == (
        "Error: Each row must have 4 values, one for each column. In"
        " 'ragged.csv', row 5 has 5. Correct them, or leave them out with --drop-missing.\n"
    )
    answer = run(*words, "--drop-missing")
    left_out = "Left out 1 row with more or fewer values than there are names."
    assert (answer.code, answer.err) == (0, f"Warning: {left_out}\n")
    rows = read_table("p.csv").column("row").to_pylist()
    assert rows == [row for row in range(1, 41) if row != 5]


def test_a_feature_without_values_gives_reasons(trained: Path, here: Path) -> None:
    table = class_table().set_column(1, "z", pa.nulls(40))
    pyarrow.parquet.write_table(table, "gaps.parquet")
    answer = run("predict", trained / "cls", "gaps.parquet", "--out", "p.csv", "--no-score")
    assert answer.err.splitlines()[-1].startswith(
        "Error: DATA must have rows that can be predicted"
    )


def test_intervals_and_quantiles_are_written_once(trained: Path, here: Path) -> None:
    words = ("--interval", "0.9,0.90", "--quantiles", "0.5,0.1,0.5")
    found = predicted(trained / "reg", trained / "reg.csv", *words)
    names = ["row", "mean", "sd", "lower", "upper", "q0.5", "q0.1", "reason"]
    assert found.column_names == names


def hostile_table() -> pa.Table:
    """Names, categories, classes and ids with codes of a terminal, and formulas."""
    random = np.random.default_rng(3)
    x = random.normal(size=40)
    kind = random.choice(["a\x1b]0;t\x07", "=b", "\u200bc"], 40).tolist()
    label = np.where(x > 0, "=yes\x1b[2J", "@no").tolist()
    ids = [f"=cmd({number})" for number in range(40)]
    numbers = [f"-{number}" for number in range(40)]
    names = ("\x1b[31mx\u202e", "k\x9b\nind", "=id", "n", "y\x07")
    return pa.table([x, kind, ids, numbers, label], names=names)


def test_text_of_the_user_cannot_command_a_terminal_or_a_spreadsheet(here: Path) -> None:
    data, model = "t\x1b[1m.parquet", "m\x1b"
    pyarrow.parquet.write_table(hostile_table(), data)
    drop = ("--drop", "=id", "--drop", "n", "--likelihood", "probit")
    answers = [
        run("fit", data, "--target", "y\x07", "--out", model),
        run("fit", data, "--target", "y\x07", *drop, "--out", model, *QUICK),
        run("inspect", model),
        run("predict", model, data, "--id", "=id,n", "--out", "p.csv"),
        run("predict", model, data, "--id", "=id", "--out", "p.parquet"),
        run("predict", model, data, "--id", "\x1b[31m", "--out", "q.csv"),
        run("inspect", "\x1b[31m"),
    ]
    assert [answer.code for answer in answers] == [1, 0, 0, 0, 0, 1, 1]
    for answer in answers:
        assert (answer.out + answer.err).replace("\n", "").isprintable()
    assert r"directgp fit $'t\x1b[1m.parquet' --target $'y\x07'" in answers[0].err
    names, first = Path("p.csv").read_text().splitlines()[:2]
    assert names == '"\'=id","n","p_=yes\\x1b[2J","p_@no","predicted","reason"'
    assert first.startswith('"\'=cmd(0)","-0",')
    assert "=yes\x1b[2J" in pyarrow.parquet.read_table("p.parquet").column("predicted").to_pylist()
