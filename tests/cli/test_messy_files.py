"""Tables as people have them are used with a sentence, or refused with a command that works."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from directgp.cli.model_folder import load_folder
from directgp.cli.options import DataOptions
from directgp.datasets import read_table
from tests.cli import messy_files
from tests.cli.running import QUICK, run

USED = {
    "decimal_commas": "Numbers are read with a decimal comma; --decimal . reads a point.",
    "latin_1": "The file is not UTF-8; it is read as cp1252.",
    "utf_16": "The file is not UTF-8; it is read as utf-16.",
    "thousands": "Column 'price' has numbers such as '3,942', read as 3,942.",
    "dollars": "Column 'price' has numbers such as '$3,941.94', read as 3,941.94.",
    "percents": "Column 'age' has numbers such as '34 %', read as 34.",
    "title_above_names": "Left out 2 lines above the names of the columns.",
    "columns_without_names": "Left out because they have no name: 'Unnamed: 4' and 'Unnamed: 5'.",
    "three_classes": "The 3 classes in order, with their numbers of rows: 'north' (20), 'south'"
    " (14) and 'west' (26).",
    "repeated_names": "Columns of the same name were renamed: 'size_2'.",
}

REFUSED = {
    "iso_dates": "Column 'sold' has dates or times, such as '2020-01-01': use --dates days or"
    " --drop sold.",
    "german_dates": "Column 'sold' has dates or times, such as '01.01.2020': use --dates days or"
    " --drop sold.",
    "gaps_in_numbers": "Values are missing in 'size' (7), of 60 rows: use --missing impute or"
    " --missing drop.",
    "gaps_in_categories": "Values are missing in 'district' (7), of 60 rows: use --missing impute"
    " or --missing drop.",
    "gaps_in_target": "Values are missing in 'price' (2), of 60 rows: use --missing drop.",
    "one_bad_cell": "59 of 60 values of 'size' are numbers; row 8 has 'unknown': use --missing"
    " impute or --categories size.",
    "bad_cells_among_whole_numbers": "58 of 60 values of 'age' are numbers; row 8 has 'new' and 1"
    " other row has text, too: use --missing impute or --categories age.",
    "bad_cell_in_a_name_of_two_words": "59 of 60 values of 'living area' are numbers; row 8 has"
    " 'unknown': use --missing impute or --categories 'living area'.",
    "workbook": "Column 'sold' has dates or times, such as '2020-01-01 00:00:00': use --dates days"
    " or --drop sold.",
    "workbook_of_two_sheets": "--sheet must name a sheet. Got 2 sheets in"
    " 'workbook_of_two_sheets.xlsx'. The sheets are 'Prices' and 'Notes'.",
    "identifiers": "Column 'code' must be of categories that recur. Got 60 different texts in 60"
    " rows, such as 'H-000'. Leave out identifiers and free text with --drop code.",
    "ragged_rows": "Each row must have 4 values, one for each column. In 'ragged_rows.csv', row 5"
    " has 5. Correct them, or leave them out with --missing drop.",
    "no_header": "The target must be a column of the table. Got 'price'. The first row has numbers"
    " instead of names: add a row of names above, or use --no-header and columns x1, x2, …",
    "empty_column": "Column 'remarks' has no values: use --drop remarks.",
    "a_class_seen_once": "The target 'district' must be numbers or classes of at least 2 rows each."
    " Got one row in 1 class: 'harbour'. Correct these rows, or give --positive LABEL to predict"
    " one class against the rest.",
}


def fit(name: str, *words: str) -> Any:
    """Write the file and train a model quickly."""
    file = Path(f"{name}.xlsx" if name.startswith("workbook") else f"{name}.csv")
    getattr(messy_files, name)(file)
    target = "price" if _likelihood(name) == "gaussian" else "district"
    return run(
        "fit",
        file,
        "--target",
        target,
        *QUICK,
        "--kernel",
        "rbf",
        "--ard",
        "--likelihood",
        _likelihood(name),
        *words,
        "--out",
        "m",
    )


def _likelihood(name: str) -> str:
    return {"three_classes": "softmax", "a_class_seen_once": "probit"}.get(name, "gaussian")


def words_that_work(err: str) -> list[str]:
    """Return the words of the command that is printed at the end, as a shell would."""
    command = err.partition("This works:\n")[2]
    assert max(map(len, command.splitlines())) <= 80
    return shlex.split(command.replace("\\\n", ""))


@pytest.mark.parametrize("name", USED)
def test_used_with_a_sentence(here: Path, name: str) -> None:
    answer = fit(name)
    assert answer.code == 0, answer.err
    assert USED[name] in answer.err.splitlines()


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_command_that_works(here: Path, name: str) -> None:
    answer = fit(name)
    assert answer.code == 1 and answer.out == ""
    assert answer.err.splitlines()[:2] == [f"Error: {REFUSED[name]}", "This works:"]
    assert not Path("m").exists()
    program, *words = words_that_work(answer.err)
    again = run(*words)
    assert (program, again.code) == ("directgp", 0), again.err
    assert load_folder(Path("m"), "cpu")[1].rows >= 53


def test_all_problems_are_told_at_once(here: Path) -> None:
    answer = fit("everything_at_once")
    lines = answer.err.splitlines()
    assert lines[0] == "Error: The table cannot be used as it is."
    assert [line.split(":")[0].split(". Got")[0] for line in lines[1:5]] == [
        "  - 59 of 60 values of 'size' are numbers; row 4 has 'unknown'",
        "  - Column 'sold' has dates or times, such as '01.01.2020'",
        "  - Values are missing in 'district' (1), of 60 rows",
        "  - Column 'code' must be of categories that recur",
    ]
    again = run(*words_that_work(answer.err)[1:])
    assert again.code == 0, again.err
    assert load_folder(Path("m"), "cpu")[1].rows == messy_files.ROWS
    # New rows are read in the same way: the model says nothing is wrong with its own table.
    answer = run("predict", "m", "everything_at_once.csv", "--out", "p.csv", "--json")
    assert json.loads(answer.out)["predicted"] == messy_files.ROWS


@pytest.mark.parametrize("name", ["times", "times_and_text"])
def test_a_model_of_times_predicts_its_own_table(here: Path, name: str) -> None:
    assert fit(name, "--dates", "days", "--missing", "impute").code == 0
    answer = run("predict", "m", f"{name}.csv", "--out", "p.csv", "--json")
    assert json.loads(answer.out)["predicted"] == messy_files.ROWS
    reasons = [reason for reason in read_table("p.csv")["reason"].to_pylist() if reason]
    assert len(reasons) == (name == "times_and_text")


@pytest.mark.parametrize("commas", [True, False])
def test_the_decimal_mark_is_that_of_the_new_file(here: Path, commas: bool) -> None:
    assert fit("decimal_commas").code == 0
    rows = [["0.5", "west", "1"], ["1.234", "west", "1"], ["unknown", "west", "1"]]
    cells = [[messy_files.comma(c) if commas else c for c in row] for row in rows]
    Path("new.csv").write_text(messy_files.text([["size", "district", "age"], *cells], ";"))
    assert run("predict", "m", "new.csv", "--out", "p.parquet", "--quiet").code == 0
    Path("new.csv").write_text(messy_files.text([["size", "district", "age"], *rows[:2]]))
    assert run("predict", "m", "new.csv", "--out", "q.parquet", "--quiet").code == 0
    found, expected = read_table("p.parquet")["mean"], read_table("q.parquet")["mean"]
    assert found.to_pylist() == [*expected.to_pylist(), None]


def test_names_with_commas_can_be_dropped(here: Path) -> None:
    answer = fit("commas_in_names")
    words = words_that_work(answer.err)
    assert words[-4:] == ["--drop", "price, usd", "--drop", "the code"]
    again = run(*words[1:])
    assert again.code == 0, again.err
    # The command that compare prints for fit has the same words.
    given = DataOptions("data.csv", drop=["price, usd", "the code"], header=False, sheet="a b")
    expected = "data.csv --sheet 'a b' --no-header --drop 'price, usd' --drop 'the code'"
    assert shlex.join(given.words()) == expected


def test_commands_are_not_wrapped_in_a_narrow_terminal(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    name = "a_long_name_of_a_column_that_has_no_values"
    Path("long.csv").write_text(messy_files.text(messy_files.with_column(name, [""] * 60)))
    words = ("--target", "price", *QUICK, "--kernel", "rbf", "--ard", "--likelihood", "gaussian")
    answer = run("fit", "long.csv", *words, "--out", "a_folder_of_some_length")
    assert f"--drop {name}" in answer.err.partition("This works:\n")[2]
    answer = run(*words_that_work(answer.err)[1:])
    command = "directgp predict a_folder_of_some_length DATA --out predictions.csv"
    assert answer.out.splitlines()[-1] == f"Next: {command}"


def test_too_few_rows_to_compare_are_enough_to_fit(here: Path) -> None:
    messy_files.twelve_rows(Path("few.csv"))
    answer = run("compare", "few.csv", "--target", "price", "--task", "regression", "--json")
    error = json.loads(answer.out)
    assert error == {
        "error": "The table must have at least 20 rows. Got 12.",
        "command": "directgp fit few.csv --target price --task regression --out model",
    }
    again = run(*shlex.split(error["command"])[1:], *QUICK)
    assert again.code == 0, again.err
