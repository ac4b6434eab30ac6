"""`directgp compare`: scores, report and errors."""

import json
import re
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import pyarrow.parquet
import pytest

from directgp.cli import compare as command
from directgp.cli import output_paths
from directgp.experiments import engine
from directgp.experiments.store import Store
from directgp.reports import compare as compare_report
from tests.cli.running import class_table, count_table, regression_table, run, write_csv
from tests.unit.experiments.cells import small_cell

SHORT = ("--repeats", "2", "--betas", "4,1", "--inducing", "5", "--max-iter", "2")
QUICK = (*SHORT, "--likelihood", "gaussian", "--kernel", "rbf", "--ard")
"""The model is not chosen, which takes a second for each repeat."""

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No processes of its own: they take seconds to begin."""
    monkeypatch.setattr(command, "_workers", lambda *_: 0)


@pytest.fixture
def table(here: Path) -> Path:
    write_csv(regression_table(), here / "houses.csv")
    return Path("houses.csv")


TARGET = ("--target", "y", "--drop", "code")


@pytest.mark.usefixtures("in_this_process", "without_drawing")
def test_regression(table: Path) -> None:
    answer = run("compare", table, *TARGET, *SHORT)
    assert answer.code == 0, answer.err
    assert (
        "houses: 40 rows, 3 features. Training on 22 rows, choosing β on 8 rows, testing on 10;"
        in answer.err
    )
    assert "[24/24] " in answer.err
    verdict, _, rest = answer.out.partition("houses: 22 training rows, mean ± standard error of 2")
    questions = [line for line in verdict.splitlines() if line.endswith("?")]
    assert questions == ["Is it good?", "Which one?", "What next?"]
    assert "directgp fit houses.csv --target y --drop code --task regression" in verdict
    lines = rest.splitlines()
    assert lines[1].split()[:5] == ["method", "β", "NLL", "RMSE", "MSE"]
    assert [line.split("  ")[0] for line in lines[2:14]] == [
        *("ELBO", "β-ELBO", "FITC", "log-loss DLM, joint", "log-loss DLM, fixed"),
        *("square-loss DLM, joint", "square-loss DLM, fixed", "ELBO, basic noise"),
        *("directgp fit", "mean", "linear model", "gradient boosting"),
    ]
    assert answer.out.count("*") >= 5
    assert lines[-1] == "Report: report/index.html"
    names = {path.name for path in Path("report").iterdir()}
    written = {"index.html", "report.json", "results.parquet", "figures", "fits.sqlite"}
    assert names == {*written, "directgp-files.json"}
    results = pyarrow.parquet.read_table("report/results.parquet")
    assert results.num_rows == 24


@pytest.mark.usefixtures("in_this_process", "without_drawing")
@pytest.mark.parametrize(("task", "second"), [("classification", "error"), ("count", "MRE")])
@pytest.mark.slow_for("count")
def test_other_tasks(here: Path, task: str, second: str) -> None:
    made, target = (class_table(), "label") if task == "classification" else (count_table(), "k")
    path = write_csv(made, here / "table.csv")
    words = ("--target", target, "--task", task, "--methods", "elbo,log-fixed")
    answer = run("compare", path, *words, *SHORT)
    assert answer.code == 0, answer.err
    titles = next(line for line in answer.out.splitlines() if line.startswith("method"))
    assert second in titles.split()


@pytest.mark.usefixtures("in_this_process", "without_drawing")
def test_json_is_the_document_of_the_report(table: Path) -> None:
    words = ("--methods", "elbo,fitc", "--sizes", "12,all", "--json")
    answer = run("compare", table, *TARGET, *QUICK, *words)
    document = json.loads(answer.out)
    assert document == json.loads(Path("report/report.json").read_bytes())
    assert document["sizes"] == [12, 22] and len(document["standings"]) == 4


@pytest.mark.usefixtures("in_this_process", "without_drawing")
def test_quiet_says_nothing(table: Path) -> None:
    answer = run("compare", table, *TARGET, *QUICK, "--methods", "elbo", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    assert Path("report/index.html").exists()


@pytest.mark.usefixtures("in_this_process", "without_drawing")
def test_fits_are_kept_and_never_repeated(table: Path) -> None:
    words = (table, *TARGET, *QUICK, "--methods")
    assert run("compare", *words, "elbo").code == 0
    before = Path("report/results.parquet").read_bytes()
    refused = run("compare", *words, "elbo")
    assert refused.code == 1
    assert refused.err == (
        "Error: --out must be a new folder. Got 'report', which holds the fits of an earlier run."
        " Continue with --resume, or start again with --force.\n"
    )
    assert Path("report/results.parquet").read_bytes() == before
    more = run("compare", *words, "elbo,log-fixed", "--resume")
    assert "2 fits to run. 2 fits finished already." in more.err
    anew = run("compare", *words, "elbo", "--force")
    assert "2 fits to run.\n" in anew.err
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    changed = run("compare", *words, "elbo", "--resume")
    assert "2 fits to run.\n" in changed.err


@pytest.mark.usefixtures("in_this_process", "without_drawing")
def test_the_command_that_repeats_it(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["compare", str(table), *TARGET, *QUICK, "--methods", "elbo", "--resume"]
    monkeypatch.setattr(sys, "argv", ["directgp", *words])
    assert run(*words).code == 0
    document = json.loads(Path("report/report.json").read_bytes())
    assert document["command"] == " ".join(["directgp", *words[:-1]])


@pytest.mark.usefixtures("in_this_process", "without_drawing")
def test_the_table_fits_the_terminal(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = ((40, "square-joint"), (80, "square-joint"), (200, "square-loss DLM, joint"))
    for columns, name in widths:
        monkeypatch.setenv("COLUMNS", str(columns))
        words = ("--methods", "elbo,fitc,square-joint,mean", "--resume")
        answer = run("compare", table, *TARGET, *QUICK, *words)
        lines = answer.out.splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("method"))
        rows = lines[start : start + 5]
        assert max(map(len, rows)) <= columns and "…" not in "".join(rows)
        assert any(row.startswith(name) for row in rows)
        titles = rows[0].split()
        assert titles[:3] == ["method", *(("NLL", "RMSE") if columns == 40 else ("β", "NLL"))]
        assert not any(line.endswith(" ") for line in lines)


@pytest.mark.usefixtures("in_this_process", "without_drawing")
def test_the_next_command_is_not_wrapped(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    answer = run("compare", table, *TARGET, *QUICK, "--methods", "elbo")
    assert "directgp fit houses.csv --target y --drop code --task regression" in answer.out


@pytest.mark.usefixtures("in_this_process", "without_drawing")
def test_a_pipe_gets_no_control_codes(table: Path) -> None:
    answer = run("compare", table, *TARGET, *QUICK, "--methods", "elbo,log-fixed")
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f]", answer.out + answer.err) is None


@pytest.mark.usefixtures("without_drawing")
@pytest.mark.slow
def test_processes_of_its_own_give_the_same_results(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (table, *TARGET, *QUICK, "--methods", "elbo,log-fixed,square-fixed", "--quiet")
    assert run("compare", *words, "--jobs", "2", "--out", "two").code == 0
    monkeypatch.setattr(command, "_workers", lambda *_: 0)
    assert run("compare", *words, "--out", "none").code == 0
    rows = [
        [{**row, "seconds": 0} for row in pyarrow.parquet.read_table(path).to_pylist()]
        for path in ("two/results.parquet", "none/results.parquet")
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--methods elbo,magic",
            "--methods must be of elbo, beta-elbo, fitc, log-joint, log-fixed, square-joint,"
            " square-fixed, elbo-basic, auto, mean, linear, boosting, or of crps-joint, crps-fixed,"
            " absolute-joint, absolute-fixed,"
            " pinball-joint, pinball-fixed, zero-one-cost-joint, zero-one-cost-fixed. Got 'magic'.",
        ),
        (
            "--methods zero-one-cost-joint",
            "--methods must be of losses that suit the likelihood gaussian. Got"
            " 'zero-one-cost-joint'. ZeroOneCost needs a likelihood of two labels. Got Gaussian."
            " Use Probit or Logistic; for real targets or counts, square_loss or log_loss.",
        ),
        ("--methods ,", "--methods must name at least one. Got none."),
        (
            "--likelihood probit",
            "--likelihood must be one of gaussian, student_t, heteroscedastic, gamma, log_normal,"
            " beta, gaussian_known_noise, tobit, weibull for regression. Got 'probit'.",
        ),
        (
            "--likelihood student_t --methods square-joint",
            "--methods must be of elbo, beta-elbo, log-joint, log-fixed here. Got 'square-joint'."
            " square-loss DLM, joint needs a real-valued target with Gaussian noise.",
        ),
        ("--repeats 0", "--repeats must be from 1 to 1,000. Got 0."),
        ("--repeats 1000000000000", "--repeats must be from 1 to 1,000. Got 1000000000000."),
        ("--repeats many", "Invalid value for '--repeats': Input should be a valid integer"),
        (
            "--sizes 5000",
            "--sizes must be 'all' or from 10 to 22, the rows of this table to train on. Got 5000.",
        ),
        (
            "--sizes ten",
            "--sizes must be 'all' or whole numbers from 1 to 1,000,000,000. Got 'ten'.",
        ),
        ("--betas 1,-1", "--betas must be numbers of at least 0. Got '-1'."),
        ("--betas big", "--betas must be numbers of at least 0. Got 'big'."),
        ("--jobs 0", "--jobs must be from 1 to 1,000. Got 0."),
        (
            "--inducing few",
            "--inducing must be 'auto' or a whole number from 1 to 1,000,000,000. Got 'few'.",
        ),
        ("--max-iter 0", "--max-iter must be from 1 to 1,000,000,000. Got 0."),
        ("--resume --force", "--resume and --force cannot be given together. Leave one out."),
        (
            "--drop y",
            "A column to drop must be another one than the target. Got 'y'.",
        ),
        (
            "--task count --positive b",
            "--positive must be given with --task classification only. Got --task count. Leave one"
            " out.",
        ),
        ("--kernel cubic", "--kernel must be auto, rbf, matern12, matern32 or matern52, or"),
        ("--device cuda", "device of compare must be one that this machine has."),
        ("--seed -1", "--seed must be from 0 to 2³² − 1. Got -1."),
    ],
)
def test_a_wrong_option_is_refused(table: Path, words: str, sentence: str) -> None:
    answer = run("compare", table, *TARGET, *words.split())
    assert answer.code == (1 if "cuda" in words or "--drop" in words else 2)
    errors = [line for line in answer.err.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and errors[0].startswith(f"Error: {sentence}"), answer.err
    assert answer.out == "" and not Path("report").exists()


@pytest.mark.parametrize(
    ("out", "sentence"),
    [
        ("houses.csv", "a new folder. Got 'houses.csv', which is a file. Name another."),
        (
            ".",
            "a new folder or that of a report. Got '.', which holds other files. Name another.",
        ),
        (
            "houses.csv/report",
            "in a folder that can be written to. Got 'houses.csv/report'. Name another.",
        ),
        ("/proc/report", "in a folder that can be written to. Got '/proc/report'. Name another."),
    ],
)
def test_places_are_refused_before_the_data_are_read(table: Path, out: str, sentence: str) -> None:
    # Were they read, the missing file would be spoken of.
    answer = run("compare", "missing.csv", *TARGET, "--out", out)
    assert (answer.code, answer.out, answer.err) == (1, "", f"Error: --out must be {sentence}\n")
    assert [path.name for path in Path().iterdir()] == [table.name]


def test_a_folder_that_is_there_is_enough(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_in_mine(dir: Path) -> IO[bytes]:
        if dir.name != "mine":
            raise PermissionError
        return TemporaryFile(dir=dir)

    monkeypatch.setattr(output_paths, "TemporaryFile", only_in_mine)
    (here / "reports" / "mine").mkdir(parents=True)
    answers = [run("compare", "x.csv", "--out", out).err for out in ("reports/mine", "reports/no")]
    assert answers[0].startswith("Error: DATA must be a file that exists")
    assert answers[1].startswith("Error: --out must be in a folder that can be written to.")


@pytest.mark.usefixtures("in_this_process")
def test_an_interrupt_says_how_to_go_on(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.Runner, "run", stopped)
    answer = run("compare", table, *TARGET, *QUICK)
    assert answer.code == 130
    assert answer.err.splitlines()[-2:] == [
        "Finished results are kept. The same command with --resume continues.",
        "Interrupted.",
    ]


@pytest.mark.usefixtures("in_this_process", "without_drawing")
def test_two_programs_share_a_folder_but_do_not_delete_each_others_work(table: Path) -> None:
    words = (table, *TARGET, *QUICK, "--methods", "elbo")
    assert run("compare", *words).code == 0
    with Store(Path("report/fits.sqlite")) as other:
        assert other.lease(small_cell())
        shared = run("compare", *words, "--resume")
        assert shared.code == 0 and "0 fits to run. 2 fits finished already." in shared.err
        refused = run("compare", *words, "--force")
    assert refused.code == 1
    assert "report/fits.sqlite is in use by another program." in refused.err
    assert run("compare", *words, "--force").code == 0


@pytest.mark.usefixtures("in_this_process", "without_drawing")
def test_a_damaged_fit_is_reported_and_run_again(table: Path) -> None:
    words = (table, *TARGET, *QUICK, "--methods", "elbo,mean")
    assert run("compare", *words).code == 0
    before = pyarrow.parquet.read_table("report/results.parquet").drop_columns("seconds")
    with closing(sqlite3.connect("report/fits.sqlite")) as file, file:
        file.execute("update results set outcome = replace(outcome, '\"nll\":', '\"nll\":1')")
        file.execute("delete from results where cell like '%\"mean\"%' and cell like '%:1,%'")
    answer = run("compare", *words, "--resume")
    assert answer.code == 0 and "4 fits to run." in answer.err
    assert "Warning: 3 stored results are damaged: they did not match the checksum" in answer.err
    assert json.loads(Path("report/report.json").read_bytes())["damaged"] == 3
    assert "3 stored results are damaged" in Path("report/index.html").read_text()
    after = pyarrow.parquet.read_table("report/results.parquet").drop_columns("seconds")
    # As text, since the β of the mean is NaN.
    assert str(after.to_pylist()) == str(before.to_pylist())
    again = run("compare", *words, "--resume")
    assert "0 fits to run. 4 fits finished already." in again.err and "damaged" not in again.err


@pytest.mark.usefixtures("in_this_process", "without_drawing")
@pytest.mark.parametrize("after", ["the first fit", "the last fit", "the report"])
def test_a_folder_that_is_deleted_during_the_run_is_missed(
    table: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    fits = {"the first fit": 1, "the last fit": 2}.get(after)
    put, write = Store.put, compare_report.write_report
    done = []

    def put_and_delete(store: Store, record: Any) -> None:
        put(store, record)
        done.append(record)
        if len(done) == fits:
            shutil.rmtree("report")

    def delete_and_write(*arguments: Any) -> Path:
        if fits is None:
            shutil.rmtree("report")
        return write(*arguments)

    monkeypatch.setattr(Store, "put", put_and_delete)
    monkeypatch.setattr(compare_report, "write_report", delete_and_write)
    answer = run("compare", table, *TARGET, *QUICK, "--methods", "elbo")
    assert answer.code == 1 and "Report:" not in answer.out
    assert re.search(r"report/fits.sqlite was deleted .*Run the command again\.", answer.err)


@pytest.mark.parametrize("out", ["x" * 250, "folder/" + "y" * 300, "z/" * 2040 + "z"])
@pytest.mark.parametrize("words", ["compare", "fit", "reproduce"])
def test_a_path_that_is_too_long_is_refused_before_any_work(
    table: Path, words: str, out: str
) -> None:
    data = () if words == "reproduce" else (table, *TARGET)
    answer = run(words, *data, "--out", out)
    assert answer.code == 1
    assert answer.err.startswith("Error: --out must be a path that can be created. Got '")
    assert [path.name for path in Path().iterdir()] == [table.name]
