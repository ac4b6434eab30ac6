"""Models of the three tasks, trained once."""

from pathlib import Path

import pytest

from tests.cli.running import (
    QUICK,
    class_table,
    count_table,
    regression_table,
    run,
    write_csv,
    write_parquet,
)

ROWS = ("--exposure", "hours", "--weights", "w")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables, and the models `reg`, `cls` and `cnt` of them."""
    folder = tmp_path_factory.mktemp("trained")
    reg = write_csv(regression_table(), folder / "reg.csv")
    cls = write_parquet(class_table(), folder / "cls.parquet")
    cnt = write_parquet(count_table(), folder / "cnt.parquet")
    fits = (
        ("gaussian", reg, "--target", "y", "--drop", "code", "--out", folder / "reg"),
        ("probit", cls, "--target", "label", "--out", folder / "cls"),
        ("poisson", cnt, "--target", "k", *ROWS, "--out", folder / "cnt"),
    )
    for likelihood, *words in fits:
        answer = run("fit", *words, "--likelihood", likelihood, *QUICK, "--quiet")
        assert (answer.code, answer.out, answer.err) == (0, "", ""), answer.err
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, so that what is printed names no other."""
    monkeypatch.chdir(tmp_path)
    for name in ("DIRECTGP_DATA", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
