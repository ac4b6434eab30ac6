"""Files of tensors with a manifest."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from directgp import io
from directgp.errors import CheckpointError, InvalidInputError, ModelFileError
from directgp.io import CHECKSUM, FileKind, as_json, digest, read_file, write_file

NOTE = FileKind(
    name="note",
    writer="write_note",
    key="tests.note",
    schema=3,
    error=ModelFileError,
    if_unreadable="Look elsewhere.",
    if_damaged="Write it again.",
    if_other_schema="Use another pen.",
)
LETTER = FileKind("letter", "write_letter", "tests.letter", 3, CheckpointError, "A.", "B.", "C.")
TENSORS = {"x": torch.tensor([1.0, torch.nan, -0.0]), "i": torch.arange(3)}
MANIFEST: dict[str, Any] = {"a": [1, 2.5, None, True, "β"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "note"


@pytest.fixture
def old(path: Path) -> bytes:
    write_file(NOTE, path, TENSORS, MANIFEST)
    return path.read_bytes()


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_file(NOTE, path)
    return str(caught.value)


def test_what_was_written_comes_back(path: Path, old: bytes) -> None:
    found = read_file(NOTE, path)
    assert found.manifest == MANIFEST
    assert digest("", found.tensors) == digest("", TENSORS)
    assert os.listdir(path.parent) == [path.name]


def test_a_file_of_another_kind_is_refused(path: Path, old: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_file(LETTER, path)
    assert str(caught.value) == (
        f"{path} cannot be loaded as a letter: it was not written by write_letter. B."
    )


def test_every_refusal_speaks_of_the_kind(path: Path, old: bytes) -> None:
    path.write_bytes(old[:-1])
    said = refusal(path)
    assert said.startswith(f"{path} cannot be loaded as a note: it is not a whole safetensors file")
    assert said.endswith(". Write it again.")
    path.unlink()
    said = refusal(path)
    assert said.startswith(f"The note {path} could not be read: ")
    assert said.endswith(" Look elsewhere.")
    text = '{"schema": 4, "manifest": {}}'
    path.write_bytes(save({}, {NOTE.key: text, CHECKSUM: digest(text, {})}))
    assert refusal(path) == (
        f"{path} is a note of schema 4, and this version of directgp reads schema 3."
        " Use another pen."
    )


@pytest.mark.parametrize("dtype", [torch.int16, torch.complex64, torch.float8_e4m3fn], ids=str)
def test_tensors_that_nobody_writes_are_not_read(path: Path, dtype: torch.dtype) -> None:
    tensors = {"x": torch.zeros(2, dtype=dtype)}
    with pytest.raises(InvalidInputError):
        write_file(NOTE, path, tensors, {})
    text = '{"schema": 3, "manifest": {}}'
    path.write_bytes(save(tensors, {NOTE.key: text, CHECKSUM: "0"}))
    assert f"write_note writes no tensors of {dtype}" in refusal(path)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_file_and_no_litter(
    path: Path,
    old: bytes,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    failure: BaseException,
) -> None:
    def fail(*args: Any) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(os, moment, fail)
        with pytest.raises((ModelFileError, KeyboardInterrupt)) as caught:
            write_file(NOTE, path, {}, {})
    if isinstance(failure, OSError):
        assert str(caught.value).startswith(f"The note {path} could not be written: ")
        assert str(caught.value).endswith("; a note that was there has not been damaged.")
    assert path.read_bytes() == old
    assert os.listdir(path.parent) == [path.name]


def test_what_is_no_regular_file_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, Path("/dev/zero"), tmp_path):
        assert "could not be read" in refusal(place)
    for place in (pipe, tmp_path):
        with pytest.raises(ModelFileError, match="it is not a regular file"):
            write_file(NOTE, place, {}, {})
    assert pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]


def safetensors(header: str, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + data


PLACE = '"x": {"dtype": "F64", "shape": [1], "data_offsets": '
HEADERS = {
    "a header of 100,000,001 bytes": (100_000_001).to_bytes(8, "little") + b"{}",
    "the file has 0 bytes, too few for a header": b"",
    "the file has 7 bytes, too few for a header": b"7 bytes",
    "the header says 8000000000": safetensors(f"{{{PLACE}[0, 8000000000]}}}}", b"8 bytes."),
    "the header says 0": safetensors("{}", b"8 bytes."),
    "the header says ab": safetensors(f'{{{PLACE}"ab"}}}}'.replace('"ab"', '["", "ab"]')),
    "a tensor without a place": safetensors('{"x": 7}'),
    "a header without tensors": safetensors("[]"),
    "11 tensors, and 10 are allowed": safetensors(
        "{" + ", ".join(f'"{i}": {{}}' for i in range(11)) + "}"
    ),
    "more than 1,000 values": safetensors("[" + "0," * 1000 + "0]"),
}


@pytest.mark.parametrize("why", HEADERS)
def test_a_header_that_is_not_sound_is_refused_before_the_tensors_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(io, "MAX_TENSORS", 10)
    monkeypatch.setattr(io, "_MAX_VALUES", 1000)
    monkeypatch.setattr(io, "load", None)
    path.write_bytes(HEADERS[why])
    assert why in refusal(path)


def test_what_could_not_be_read_again_is_not_written(
    path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "_MAX_VALUES", 1000)
    with pytest.raises(ModelFileError, match="more than 1,000 values in its header"):
        write_file(NOTE, path, {}, {"a": [0] * 1000})
    assert path.read_bytes() == old


def test_only_what_json_gives_back_is_json() -> None:
    assert as_json({"a": [1, (2.0, None)]}, "x", tuples=True) == {"a": [1, [2.0, None]]}
    with pytest.raises(InvalidInputError, match=r"x\['a'\]\[1\] must be .* Got a tuple"):
        as_json({"a": [1, (2.0, None)]}, "x")
