"""Data sets of the paper from a folder, a download or a formula, with their differences."""

import hashlib
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import getdefaulttimeout, socket
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from sklearn.datasets import get_data_home

from directgp.datasets import prepare
from directgp.errors import InvalidInputError
from directgp_paper.datasets import PAPER, Download, FetchError, Home, PaperDataset, open_paper
from tests.unit.datasets.small_tables import ROWS, repeated, small

DIFFERENCE = "It is small."
REMEDY = "Give --data-dir with pol.parquet (column y)."


def single(table: pa.Table) -> pa.Table:
    """In single precision."""
    return table.cast(pa.schema([(name, pa.float32()) for name in table.column_names]))


KNOWN = single(small(b=np.arange(ROWS) * 0.1))


def read_parquet(files: Any) -> pa.Table:
    return pyarrow.parquet.read_table(files[0])


def fingerprint(table: pa.Table) -> str:
    return prepare(table, "y", task="regression", name="any", source="any")[0].fingerprint()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@dataclass(frozen=True)
class Server:
    url: str
    folder: Path
    stop: Any


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A public home on this machine."""
    folder = tmp_path / "public"
    folder.mkdir()
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def stop() -> None:
        http.shutdown()
        thread.join()
        http.server_close()

    yield Server(f"http://127.0.0.1:{http.server_port}", folder, stop)
    if thread.is_alive():
        stop()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty cache, and without a data folder."""
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "home"))
    monkeypatch.delenv("DIRECTGP_DATA", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def pol(monkeypatch: pytest.MonkeyPatch) -> PaperDataset:
    """A small set in the place of pol, of which a copy is known."""
    facts = replace(
        PAPER["pol"],
        rows=ROWS,
        features=2,
        copies=(fingerprint(KNOWN),),
        differences=DIFFERENCE,
        home=None,
        not_fetched="it is small",
    )
    monkeypatch.setitem(PAPER, "pol", facts)
    return facts


def sha256_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def at_home(
    monkeypatch: pytest.MonkeyPatch, server: Server, table: pa.Table = KNOWN, **changes: Any
) -> Path:
    """Put the table at pol's home, as one file of parquet, and tell the registry."""
    file = server.folder / "pol.bin"
    pyarrow.parquet.write_table(table, file)
    facts = PAPER["pol"]
    sha256 = changes.get("sha256", None if "fingerprint" in changes else sha256_of(file))
    download = Download(f"{server.url}/pol.bin", sha256)
    home = Home((download,), read_parquet, changes.get("fingerprint"))
    monkeypatch.setitem(PAPER, "pol", replace(facts, home=home, not_fetched=""))
    return file


def refusal(name: str = "pol", **options: Any) -> str:
    with pytest.raises(InvalidInputError) as raised:
        open_paper(name, **options)
    return str(raised.value)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "feather"])
def test_a_known_copy_is_recognised_in_any_format(
    suffix: str, folder: Path, pol: PaperDataset
) -> None:
    file = folder / f"pol.{suffix}"
    if suffix == "csv":
        # Text of single precision: 0.1 is read as another number than it was.
        pyarrow.csv.write_csv(KNOWN, file)
    elif suffix == "feather":
        pyarrow.feather.write_feather(KNOWN, str(file))
    else:
        pyarrow.parquet.write_table(KNOWN, file)
    data = open_paper("pol", folder)
    assert (data.origin, data.differences, data.facts) == ("folder", DIFFERENCE, pol)
    assert (data.problem.name, data.problem.source) == ("pol", file.name)
    assert data.problem.X == pytest.approx(np.column_stack([KNOWN["a"], KNOWN["b"]]))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (small(), "A copy that is not known, of 30 × 2 rows × features, as in the paper."),
        (
            small(c=np.arange(ROWS)),
            "A copy that is not known, of 30 × 3 rows × features instead of 30 × 2.",
        ),
        # One number in 60 is another.
        (
            KNOWN.set_column(0, "a", pa.array([9.0, *KNOWN["a"].to_pylist()[1:]], pa.float32())),
            "A copy that is not known, of 30 × 2 rows × features, as in the paper.",
        ),
    ],
)
def test_unknown_copy_is_reported(
    table: pa.Table, words: str, folder: Path, pol: PaperDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow.parquet.write_table(table, folder / "pol.parquet")
    assert open_paper("pol", folder).differences == words
    monkeypatch.setenv("DIRECTGP_DATA", str(folder))
    assert open_paper("pol").differences == words


def test_the_task_is_the_papers(folder: Path) -> None:
    whole = repeated(0, 1, 2, 3, 1, 0, 2)
    for name in ("sarcos", "abalone"):
        pyarrow.parquet.write_table(small(y=whole), folder / f"{name}.parquet")
    assert open_paper("sarcos", folder).problem.task == "regression"
    assert open_paper("abalone", folder).problem.task == "count"


def test_a_file_without_y_is_refused(folder: Path) -> None:
    pyarrow.parquet.write_table(small().rename_columns(["a", "b", "z"]), folder / "pol.parquet")
    assert refusal(data_dir=folder).startswith("The target must be a column of the table. Got 'y'")


def test_fetched_once_and_then_from_the_cache(
    server: Server, pol: PaperDataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at_home(monkeypatch, server, fingerprint=fingerprint(KNOWN))
    before = getdefaulttimeout()
    data = open_paper("pol")
    assert (data.origin, data.differences) == ("fetched", DIFFERENCE)
    assert data.problem.fingerprint() == fingerprint(KNOWN)
    assert data.problem.source == f"{server.url}/pol.bin"
    server.stop()
    again = open_paper("pol")
    assert again.problem.fingerprint() == fingerprint(KNOWN)
    assert [file.name for file in (tmp_path / "home" / "directgp").iterdir()] == ["pol.bin"]
    assert getdefaulttimeout() == before


def test_download_without_fingerprint_has_no_differences(
    server: Server, pol: PaperDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home(monkeypatch, server, small())
    data = open_paper("pol")
    assert (data.origin, data.differences) == ("fetched", "")


def test_data_folder_comes_before_download(
    server: Server, folder: Path, pol: PaperDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home(monkeypatch, server)
    pyarrow.parquet.write_table(KNOWN, folder / "pol.parquet")
    assert open_paper("pol", folder).origin == "folder"


def test_download_in_its_own_format(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = PAPER["pol"]
    assert facts.home is not None
    i = np.arange(30)
    parts = [np.column_stack([i[:20], -i[:20]]), i[:20], np.column_stack([i[20:], -i[20:]]), i[20:]]
    downloads = []
    for download, part in zip(facts.home.files, parts, strict=True):
        name = download.url.rsplit("/", 1)[-1]
        np.savetxt(server.folder / name, part)
        downloads.append(Download(f"{server.url}/{name}", sha256_of(server.folder / name)))
    home = replace(facts.home, files=tuple(downloads), fingerprint=None)
    monkeypatch.setitem(PAPER, "pol", replace(facts, rows=30, features=2, home=home))
    problem = open_paper("pol").problem
    assert (problem.X == np.column_stack([i, -i])).all() and (problem.y == i).all()


def test_wrong_checksum_raises(
    server: Server, pol: PaperDataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = at_home(monkeypatch, server, sha256="0" * 64)
    words = refusal()
    assert words.startswith(
        f"The data set 'pol' at {server.url}/pol.bin must be the file of sha256"
    )
    assert hashlib.sha256(file.read_bytes()).hexdigest() in words and words.endswith(REMEDY)
    assert not list((tmp_path / "home" / "directgp").iterdir())
    at_home(monkeypatch, server, sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    assert open_paper("pol").origin == "fetched"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            small(c=np.arange(ROWS)),
            "must be of 30 × 2 rows × features, as in the paper. Got 30 × 3. ",
        ),
        (
            small().slice(0, 29),
            "must be of 30 × 2 rows × features, as in the paper. Got 29 × 2. ",
        ),
        (small(), f"must be the numbers of fingerprint {fingerprint(KNOWN)}. Got others, of"),
    ],
)
def test_wrong_size_or_numbers_raise(
    table: pa.Table,
    words: str,
    server: Server,
    pol: PaperDataset,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    at_home(monkeypatch, server, table, fingerprint=fingerprint(KNOWN))
    said = refusal()
    assert f"The data set 'pol' at {server.url}/pol.bin {words}" in said
    assert said.endswith(f"The file may have changed. {REMEDY}")
    # What was wrong is not in the way of what is right.
    assert not list((tmp_path / "home" / "directgp").iterdir())
    at_home(monkeypatch, server, fingerprint=fingerprint(KNOWN))
    assert open_paper("pol").origin == "fetched"


def test_unreadable_download_raises(
    server: Server, pol: PaperDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home(monkeypatch, server, fingerprint="0" * 64).write_text("<html>Please log in.</html>")
    assert "must be readable. Got a file with the error: " in refusal()


def test_missing_download_raises(
    server: Server, pol: PaperDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home(monkeypatch, server).unlink()
    with pytest.raises(FetchError) as raised:
        open_paper("pol")
    assert str(raised.value) == (
        "The data set 'pol' must be in the data folder, or available for download. Got an error"
        f" from {server.url}/pol.bin: HTTP Error 404: File not found. {REMEDY}"
    )


def test_unreachable_server_raises(
    server: Server, pol: PaperDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home(monkeypatch, server)
    server.stop()
    with pytest.raises(FetchError, match=r"Connection refused\. Give --data-dir with pol\.parquet"):
        open_paper("pol")


def test_silent_server_times_out(pol: PaperDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("directgp_paper.datasets.download._TIMEOUT", 0.05)
    with socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/pol.bin"
        home = Home((Download(url, "0" * 64),), read_parquet)
        monkeypatch.setitem(PAPER, "pol", replace(pol, home=home))
        with pytest.raises(FetchError, match="timed out"):
            open_paper("pol")


def test_download_false_downloads_nothing(
    server: Server, pol: PaperDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_home(monkeypatch, server)
    assert refusal(download=False) == (
        "The data set 'pol' must be in the data folder. Got no file of that name there, and no"
        f" download: downloads are not allowed. {REMEDY} Its source: {pol.source}, {pol.url}"
    )


@pytest.mark.parametrize("name", ["airline", "peds1_dir1"])
def test_sets_without_download_raise_with_the_reason(name: str) -> None:
    facts = PAPER[name]
    words = refusal(name)
    assert f"no download: {facts.not_fetched}. Give --data-dir with {name}.parquet" in words
    assert facts.url in words


def test_failed_download_falls_back_to_the_formula(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = server.folder / "twonorm.bin"
    pyarrow.parquet.write_table(small(y=repeated(0, 1)), file)
    home = Home((Download(f"{server.url}/twonorm.bin", sha256_of(file)),), read_parquet)
    monkeypatch.setitem(PAPER, "twonorm", replace(PAPER["twonorm"], home=home))
    content = file.read_bytes()
    file.unlink()
    assert open_paper("twonorm").origin == "generated"
    # But not in place of what came and is wrong.
    file.write_bytes(content)
    assert "must be of 7,400 × 20 rows × features, as in the paper. Got 30 × 2." in refusal(
        "twonorm"
    )


def test_a_file_without_a_known_sha256_is_not_downloaded(
    server: Server, pol: PaperDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = at_home(monkeypatch, server, sha256=None)
    with pytest.raises(FetchError, match=r"no sha256 is known.*Download http.*yourself into"):
        open_paper("pol")
    cache = Path(get_data_home()) / "directgp"
    shutil.copy(file, cache / "pol.bin")
    assert open_paper("pol").origin == "fetched"


def test_each_public_file_is_known_by_a_sha256() -> None:
    unknown = {
        name
        for name, facts in PAPER.items()
        if facts.home and not facts.home.fingerprint and not all(f.sha256 for f in facts.home.files)
    }
    assert unknown == {"sarcos"}


def test_an_unknown_name() -> None:
    assert refusal("poll") == (
        "The name must be one of the paper's data sets. Got 'poll'. Did you mean 'pol'?"
    )
