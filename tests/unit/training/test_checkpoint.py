"""Checkpoint files: round trips, damage, and crashes at every moment of a save."""

import builtins
import errno
import io
import json
import math
import os
import random
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from directgp import files
from directgp.errors import CheckpointError, DirectGPError, InvalidInputError
from directgp.io import CHECKSUM, Contents, digest, read_file, write_file
from directgp.training.checkpoint import CHECKPOINT, fingerprint
from tests.unit.audit import UNWANTED, events_of

save_checkpoint = partial(write_file, CHECKPOINT)
load_checkpoint = partial(read_file, CHECKPOINT)

GENERATOR = torch.Generator().manual_seed(3)
TENSORS: dict[str, Tensor] = {
    "scalar": torch.tensor(1 / 3, dtype=torch.float64),
    "matrix": torch.randn(3, 4, generator=GENERATOR, dtype=torch.float64),
    "float32": torch.randn(5, generator=GENERATOR),
    "half": torch.randn(5, generator=GENERATOR).half(),
    "bfloat16": torch.randn(5, generator=GENERATOR).bfloat16(),
    "generator": GENERATOR.get_state()[:64],
    "permutation": torch.randperm(6, generator=GENERATOR),
    "int32": torch.tensor([-1, 2**31 - 1], dtype=torch.int32),
    "mask": torch.tensor([True, False, True]),
    "flag": torch.tensor(True),
    "count": torch.tensor(-(2**62)),
    "empty": torch.empty(0, 3),
    "odd values": torch.tensor([math.nan, math.inf, -math.inf, -0.0, 5e-324], dtype=torch.float64),
    "β·[name]/with.odd \n things": torch.ones(1),
}
MANIFEST: dict[str, Any] = {
    "step": 17,
    "loss": 0.1 + 0.2,
    "best": math.inf,
    "stage": "β = 0.5",
    "done": False,
    "nothing": None,
    "losses": [1.0, 5e-324, -0.0, 1e308],
    "nested": {"a": [{"b": []}, {}], "": ""},
    "big": 2**80,
    "odd text": '\ud800 "\\\n\x00 __metadata__',
}


class Crash(BaseException):
    """Power is cut."""


def same(one: Tensor, other: Tensor) -> bool:
    """Equal in dtype, shape and every bit."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def equals(found: Contents, tensors: dict[str, Tensor], manifest: dict[str, Any]) -> bool:
    return (
        found.tensors.keys() == tensors.keys()
        and all(same(found.tensors[name], tensors[name]) for name in tensors)
        and repr(found.manifest) == repr(manifest)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.ckpt"


@pytest.fixture
def old(path: Path) -> bytes:
    """A checkpoint in place, and its bytes."""
    save_checkpoint(path, TENSORS, MANIFEST)
    return path.read_bytes()


def save_new(path: Path) -> None:
    save_checkpoint(path, {"new": torch.ones(3)}, {"step": 18})


def refusal(path: Path) -> str:
    """What the refusal to load says."""
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    return str(caught.value)


# Round trips


def test_what_was_saved_comes_back_to_the_bit(path: Path) -> None:
    save_checkpoint(path, TENSORS, MANIFEST)
    assert equals(load_checkpoint(path), TENSORS, MANIFEST)
    assert os.listdir(path.parent) == [path.name]


def test_a_save_replaces_what_was_there(path: Path, old: bytes) -> None:
    save_new(path)
    assert equals(load_checkpoint(path), {"new": torch.ones(3)}, {"step": 18})
    save_checkpoint(str(path), dict(reversed(TENSORS.items())), MANIFEST)
    assert equals(load_checkpoint(str(path)), TENSORS, MANIFEST)


def test_nothing_at_all_can_be_saved(path: Path) -> None:
    save_checkpoint(path, {}, {})
    assert load_checkpoint(path) == Contents({}, {})


def test_views_parameters_and_shared_memory_are_copied(path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    parameter = torch.nn.Parameter(base.clone())
    given = {
        "a": base,
        "same": base,
        "transposed": base.T,
        "column": base[:, 1],
        "expanded": torch.ones(1).expand(4),
        "parameter": parameter,
    }
    save_checkpoint(path, given, {})
    found = load_checkpoint(path).tensors
    assert all(same(found[name], given[name].detach().contiguous()) for name in given)
    assert all(not tensor.requires_grad for tensor in found.values())
    found["a"].add_(1.0)
    assert same(found["same"], base)


def test_a_loaded_tensor_outlives_the_file(path: Path, old: bytes) -> None:
    found = load_checkpoint(path)
    path.write_bytes(b"\xff" * len(old))
    path.unlink()
    assert equals(found, TENSORS, MANIFEST)


def test_a_generator_goes_on_where_it_was(path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    torch.randn(5, generator=generator)
    save_checkpoint(path, {"state": generator.get_state()}, {})
    ahead = torch.randn(5, generator=generator)
    other = torch.Generator()
    other.set_state(load_checkpoint(path).tensors["state"])
    assert torch.equal(torch.randn(5, generator=other), ahead)


def test_the_file_is_safetensors_and_has_the_usual_permissions(path: Path, old: bytes) -> None:
    length = int.from_bytes(old[:8], "little")
    header = json.loads(old[8 : 8 + length])
    assert set(header) == {*TENSORS, "__metadata__"}
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_link_stays_a_link(tmp_path: Path, path: Path, old: bytes) -> None:
    link = tmp_path / "elsewhere" / "link.ckpt"
    link.parent.mkdir()
    link.symlink_to(path)
    save_new(link)
    assert link.is_symlink()
    assert load_checkpoint(path).manifest == {"step": 18}


# What cannot be saved


@pytest.mark.parametrize(
    ("manifest", "culprit"),
    [
        ({"a": {"b": (1, 2)}}, r"manifest\['a'\]\['b'\] must be .* Got a tuple"),
        ({"a": [0, torch.ones(1)]}, r"manifest\['a'\]\[1\] must be .* Got a Tensor"),
        ({"a": {1: 2}}, r"keys of manifest\['a'\] must be strings. Got \[1\]"),
        ({"a": {1, 2}}, "Got a set"),
        ({"a": b"bytes"}, "Got a bytes"),
    ],
)
def test_a_manifest_that_would_come_back_changed_is_refused(
    path: Path, old: bytes, manifest: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(InvalidInputError, match=culprit):
        save_checkpoint(path, {}, manifest)
    assert path.read_bytes() == old


@pytest.mark.parametrize(
    "tensors",
    [
        {"x": torch.zeros(2, dtype=torch.complex64)},
        {"x": torch.zeros(2, 2).to_sparse()},
        {"__metadata__": torch.zeros(2)},
    ],
    ids=["complex", "sparse", "reserved name"],
)
def test_a_tensor_that_cannot_be_kept_is_refused(
    path: Path, old: bytes, tensors: dict[str, Tensor]
) -> None:
    with pytest.raises(InvalidInputError):
        save_checkpoint(path, tensors, {})
    assert path.read_bytes() == old


# Damage


def test_a_checkpoint_error_is_a_directgp_error_and_an_os_error() -> None:
    assert issubclass(CheckpointError, DirectGPError)
    assert issubclass(CheckpointError, OSError)


def test_a_checkpoint_cut_short_anywhere_is_refused(path: Path, old: bytes) -> None:
    for length in [*range(0, 40), *range(40, len(old), 7), len(old) - 1]:
        path.write_bytes(old[:length])
        assert str(path) in refusal(path)


def test_a_file_that_goes_on_is_refused(path: Path, old: bytes) -> None:
    for more in (b"\0", b" ", old):
        path.write_bytes(old + more)
        refusal(path)


def test_every_flip_in_the_bytes_of_a_tensor_is_caught(path: Path, old: bytes) -> None:
    begin = 8 + int.from_bytes(old[:8], "little")
    assert len(old) - begin == sum(t.numel() * t.element_size() for t in TENSORS.values())
    rng = random.Random(0)
    for index in range(begin, len(old)):
        damaged = bytearray(old)
        damaged[index] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        assert "do not match their sha256" in refusal(path)


@pytest.mark.slow
def test_every_flip_in_the_header_is_caught_or_changes_nothing(path: Path, old: bytes) -> None:
    begin = 8 + int.from_bytes(old[:8], "little")
    rng = random.Random(1)
    caught = 0
    for index in range(begin):
        damaged = bytearray(old)
        damaged[index] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            assert equals(load_checkpoint(path), TENSORS, MANIFEST)
        except CheckpointError as error:
            caught += 1
            assert str(path) in str(error)
    assert caught > 0.95 * begin


@given(st.data())
@settings(max_examples=200)
def test_any_damage_is_caught_or_changes_nothing(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.ckpt"
        save_checkpoint(path, TENSORS, MANIFEST)
        damaged = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            a = data.draw(st.integers(0, len(damaged)))
            b = data.draw(st.integers(a, min(len(damaged), a + 40)))
            damaged[a:b] = data.draw(st.binary(max_size=40))
        path.write_bytes(damaged)
        try:
            assert equals(load_checkpoint(path), TENSORS, MANIFEST)
        except CheckpointError as error:
            assert str(path) in str(error)


def written(tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> bytes:
    """A safetensors file by other hands."""
    data: bytes = save(tensors, metadata)
    return data


def claiming(text: str) -> bytes:
    """A file of ours in everything but the text of its manifest, with the right sha256."""
    return written({}, {CHECKPOINT.key: text, CHECKSUM: digest(text, {})})


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "not a whole safetensors file"),
        (b"PK\x03\x04 a zip file, as torch.save writes it", "not a whole safetensors file"),
        (b"\x80\x04\x95 a pickle", "not a whole safetensors file"),
        (b"{}", "not a whole safetensors file"),
        (b"\xff" * 8 + b"{}", "not a whole safetensors file"),
        ((2).to_bytes(8, "little") + b"[]", "not a whole safetensors file"),
        ((2).to_bytes(8, "little") + b"{}", "not written by directgp.train"),
        (written({"x": torch.ones(2)}, None), "not written by directgp.train"),
        (written({"x": torch.ones(2)}, {"format": "pt"}), "not written by directgp.train"),
        (claiming("no JSON"), "its manifest cannot be read"),
        (claiming("[1, 2]"), "its manifest has no schema"),
        (claiming("7"), "its manifest has no schema"),
        (claiming("{}"), "its manifest has no schema"),
        (claiming('{"schema": 2}'), "its manifest is missing"),
        (claiming('{"schema": 2, "manifest": [1]}'), "its manifest is missing"),
        (claiming("[" * 200_000), "its manifest cannot be read"),
        (written({}, {CHECKPOINT.key: '{"schema": 2, "manifest": {}}'}), "sha256"),
    ],
    # The order of keys in a file, and so its bytes, differ from process to process.
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_a_foreign_file_is_refused_with_words(path: Path, data: bytes, what: str) -> None:
    path.write_bytes(data)
    said = refusal(path)
    assert said.startswith(f"{path} cannot be loaded as a checkpoint: ")
    assert what in said
    assert said.endswith("Delete it and start again, or resume from another checkpoint.")


def lying(entry: dict[str, Any], count: int = 1) -> bytes:
    """A file whose header promises what is not there."""
    header = json.dumps({f"x{i}": entry for i in range(count)}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


@pytest.mark.parametrize(
    "data",
    [
        lying({"dtype": "F64", "shape": [2**60], "data_offsets": [0, 2**63]}),
        lying({"dtype": "F64", "shape": [3], "data_offsets": [0, 16]}),
        lying({"dtype": "F64", "shape": [2**32, 2**32], "data_offsets": [0, 16]}),
        lying({"dtype": "F64", "shape": [2], "data_offsets": [16, 0]}),
        lying({"dtype": "F99", "shape": [2], "data_offsets": [0, 16]}),
        lying({"dtype": "F8_E8M0", "shape": [16], "data_offsets": [0, 16]}),
        lying({"dtype": "F64", "shape": [-2], "data_offsets": [0, 16]}),
        lying({"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}, count=100_000),
        lying({"dtype": "F64", "shape": [0, 2**62], "data_offsets": [0, 0]}),
    ],
)
def test_a_header_that_lies_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert "cannot be loaded as a checkpoint" in refusal(path)


@pytest.mark.parametrize("schema", ["1", "3", '"2"', "null"])
def test_an_unknown_schema_is_refused(path: Path, schema: str) -> None:
    path.write_bytes(claiming(f'{{"schema": {schema}, "manifest": {{}}}}'))
    said = refusal(path)
    assert str(path) in said
    assert "schema" in said and "reads schema 2" in said
    assert "Resume with the version that wrote it" in said


@pytest.mark.usefixtures("without_shape_checks")
def test_loading_a_checkpoint_opens_one_file_and_runs_nothing(path: Path, old: bytes) -> None:
    events = events_of(lambda: read_file(CHECKPOINT, path))
    opened = [event.arguments for event in events if event.name == "open"]
    assert opened and all(str(path) in arguments for arguments in opened), opened
    assert not [event for event in events if event.name.startswith(UNWANTED)]


# Files and folders that cannot be used


def test_what_is_not_there_cannot_be_loaded(path: Path) -> None:
    said = refusal(path)
    assert str(path) in said and "Check the path" in said
    assert "could not be read" in refusal(path.parent)
    assert "could not be read" in refusal(path / "\0")


def test_a_missing_folder_is_an_error_with_words(path: Path) -> None:
    gone = path.parent / "gone" / "run.ckpt"
    with pytest.raises(CheckpointError) as caught:
        save_new(gone)
    assert str(gone) in str(caught.value)
    assert "Give a file in a folder that exists" in str(caught.value)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert not gone.parent.exists()


@pytest.mark.parametrize("name", ["folder", "x" * 300, "nul\0"])
def test_a_name_that_cannot_be_a_file_is_an_error_with_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError):
        save_new(tmp_path / name)
    assert os.listdir(tmp_path) == ["folder"]


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that cannot be written to, with a checkpoint; permissions do not bind root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_checkpoint(folder / "run.ckpt", TENSORS, MANIFEST)
        folder.chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(user)
            folder.chmod(0o755)


def test_a_checkpoint_in_a_read_only_folder_is_an_error(read_only: Path) -> None:
    with pytest.raises(CheckpointError, match="could not be written") as caught:
        save_new(read_only / "run.ckpt")
    assert isinstance(caught.value.__cause__, PermissionError)
    assert equals(load_checkpoint(read_only / "run.ckpt"), TENSORS, MANIFEST)
    assert os.listdir(read_only) == ["run.ckpt"]


# Crashes


class HalfWriter(io.FileIO):
    """A file that takes half of what it is given, then fails."""

    failure: BaseException = Crash()

    def write(self, data: Any, /) -> int:
        super().write(bytes(data)[: len(data) // 2])
        raise self.failure


def inject(monkeypatch: pytest.MonkeyPatch, moment: str, failure: BaseException) -> None:
    """Let a save fail at a moment: opening, writing, syncing, replacing, syncing the folder."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise failure

    def half_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        handle = HalfWriter(file, mode.replace("b", ""))
        handle.failure = failure
        return handle

    really_sync = os.fsync

    def sync_files_only(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise failure
        really_sync(handle)

    def sync_folders_only(handle: int) -> None:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise failure
        really_sync(handle)

    target: dict[str, tuple[Any, str, Callable[..., Any]]] = {
        "open": (builtins, "open", fail),
        "write": (builtins, "open", half_open),
        "fsync": (os, "fsync", sync_folders_only),
        "replace": (os, "replace", fail),
        "fsync of the folder": (os, "fsync", sync_files_only),
    }
    monkeypatch.setattr(*target[moment])


BEFORE = ["open", "write", "fsync", "replace"]


@pytest.mark.parametrize("moment", BEFORE)
def test_a_save_that_fails_leaves_the_old_file_and_no_litter(
    path: Path, old: bytes, moment: str
) -> None:
    for number in (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT):
        with pytest.MonkeyPatch.context() as patch:
            inject(patch, moment, OSError(number, os.strerror(number)))
            with pytest.raises(CheckpointError) as caught:
                save_new(path)
        assert os.strerror(number) in str(caught.value)
        assert str(path) in str(caught.value)
        assert path.read_bytes() == old
        assert os.listdir(path.parent) == [path.name]
    assert equals(load_checkpoint(path), TENSORS, MANIFEST)


@pytest.mark.parametrize("moment", BEFORE)
def test_a_crash_leaves_the_old_file(
    path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As after a power cut, nobody tidies up."""
    with monkeypatch.context() as patch:
        inject(patch, moment, Crash())
        patch.setattr(Path, "unlink", lambda self: None)
        with pytest.raises(Crash):
            save_new(path)
    assert path.read_bytes() == old
    if moment == "write":
        assert len(os.listdir(path.parent)) == 2  # the injected crash came half-way indeed
    save_new(path)  # what a crash left behind is not in the way
    assert load_checkpoint(path).manifest == {"step": 18}


def test_ctrl_c_leaves_the_old_file_and_no_litter(
    path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, "fsync", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        save_new(path)
    assert path.read_bytes() == old
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("moment", BEFORE)
def test_a_first_save_that_fails_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with monkeypatch.context() as patch:
        inject(patch, moment, OSError(errno.ENOSPC, "full"))
        with pytest.raises(CheckpointError, match="full"):
            save_new(path)
    assert os.listdir(path.parent) == []


def test_after_the_replacing_the_new_file_is_whole(
    path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        inject(patch, "fsync of the folder", OSError(errno.EIO, "no luck"))
        with pytest.raises(CheckpointError, match="no luck"):
            save_new(path)
    assert load_checkpoint(path).manifest == {"step": 18}


def test_a_file_system_that_cannot_sync_folders_will_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, "fsync of the folder", OSError(errno.EINVAL, "cannot"))
    save_new(path)
    assert load_checkpoint(path).manifest == {"step": 18}


def test_file_name_and_folder_are_synced_in_this_order(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order without which a power cut can leave a name with no contents."""
    events: list[str] = []
    really_sync, really_replace = os.fsync, os.replace

    def sync(handle: int) -> None:
        kind = os.fstat(handle)
        whole = kind.st_size > 200 if stat.S_ISREG(kind.st_mode) else True
        assert whole, "synced before all was written"
        events.append("folder" if stat.S_ISDIR(kind.st_mode) else "file")
        really_sync(handle)

    def replace(source: Path, target: Path) -> None:
        assert source.parent == target.parent
        events.append("name")
        really_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    save_new(path)
    assert events == ["file", "name", "folder"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_leaves_the_old_checkpoint(
    path: Path, old: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's own ENOSPC, raised when the buffer is written out."""
    draft = path.with_name("draft")
    monkeypatch.setattr(files, "_new_draft", lambda path: (draft, open("/dev/full", "wb")))
    with pytest.raises(CheckpointError, match="No space left"):
        save_new(path)
    monkeypatch.undo()
    assert path.read_bytes() == old


def test_who_reads_while_others_write_finds_a_whole_file(path: Path) -> None:
    """Two writers, one reader."""
    done = threading.Event()

    def write(value: int) -> None:
        while not done.is_set():
            save_checkpoint(path, {"x": torch.full((500,), value)}, {"value": value})

    save_checkpoint(path, {"x": torch.full((500,), 0)}, {"value": 0})
    threads = [threading.Thread(target=write, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        seen = set()
        for _ in range(200):
            found = load_checkpoint(path)
            seen.add(found.manifest["value"])
            assert bool((found.tensors["x"] == found.manifest["value"]).all())
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert len(seen) > 1
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.slow
def test_a_killed_writer_leaves_a_whole_file(path: Path) -> None:
    program = """
import sys, torch
from directgp.io import write_file
from directgp.training.checkpoint import CHECKPOINT
step = 0
while True:
    step += 1
    write_file(CHECKPOINT, sys.argv[1], {"x": torch.full((200_000,), step)}, {"step": step})
    print(step, flush=True)
"""
    rng = random.Random(0)
    for _ in range(10):
        command = [sys.executable, "-c", program, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            threading.Event().wait(rng.uniform(0, 0.05))
            writer.kill()
        found = load_checkpoint(path)
        assert bool((found.tensors["x"] == found.manifest["step"]).all())


# Fingerprints


def test_a_fingerprint_is_a_sha256_that_stays_the_same() -> None:
    entries: dict[str, Any] = {"X": torch.arange(3.0), "beta": 0.5, "names": ["a", "b"]}
    found = fingerprint(**entries)
    assert found == fingerprint(**dict(reversed(entries.items())))
    # Fixed for ever: a checkpoint of today must be known tomorrow.
    assert found == "4218faeec11d3952c795a2d04dae36e3afdc9433aedfcb97b55ce2693851b2d3"


def test_how_a_tensor_lies_in_memory_does_not_matter() -> None:
    X = torch.arange(12.0).reshape(3, 4)
    assert fingerprint(X=X) == fingerprint(X=X.T.contiguous().T)
    assert fingerprint(X=X) == fingerprint(X=torch.nn.Parameter(X))
    assert fingerprint(s={"a": 1, "b": 2}, t=(1, 2)) == fingerprint(t=[1, 2], s={"b": 2, "a": 1})


def test_whatever_differs_gives_another_fingerprint() -> None:
    X = torch.arange(12.0).reshape(3, 4)
    changed = X.clone()
    changed[2, 3] = torch.nextafter(changed[2, 3], torch.tensor(100.0))
    variants: list[dict[str, Any]] = [
        {},
        {"X": X},
        {"Y": X},
        {"X": changed},
        {"X": X.reshape(4, 3)},
        {"X": X.T},
        {"X": X.double()},
        {"X": X.view(torch.int32)},
        {"X": torch.empty(0, 3)},
        {"X": torch.empty(3, 0)},
        {"X": X, "Y": X},
        {"X": X[:2], "Y": X[2:]},
        {"X": X[:1], "Y": X[1:]},
        {"X": torch.tensor(1)},
        {"X": torch.tensor(True)},
        {"X": 1},
        {"X": 1.0},
        {"X": True},
        {"X": "1"},
        {"X": None},
        {"X": "None"},
        {"X": [1]},
        {"X": [1, 2]},
        {"X": [[1], 2]},
        {"X": {"1": 2}},
        {"X": 0.1 + 0.2},
        {"X": 0.3},
        {"X": math.nan},
        {"X": math.inf},
        {"X": 0.0},
        {"X": -0.0},
        {"X": "", "Y": "a"},
        {"X": "a", "Y": ""},
    ]
    found = [fingerprint(**variant) for variant in variants]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", [torch.ones(2)], {1: 2}, len])
def test_a_value_without_a_lasting_form_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"fingerprint\['x'\]"):
        fingerprint(x=value)
