"""Atomic writes: every interleaving of two writers of one file that lost a write before."""

import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from directgp import files
from directgp.files import read_bounded, remove_drafts, replace_file, replacing

MINUTES = 60.0


def drafts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if files.target_of_draft(path.name))


def make_old(draft: Path, seconds: float = 2 * MINUTES) -> None:
    before = time.time() - seconds
    os.utime(draft, (before, before))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def left(path: Path) -> Path:
    """A draft of a killed program, two minutes old."""
    draft = files.draft_of(path)
    draft.write_bytes(b"half")
    make_old(draft)
    return draft


class Interrupted:
    """Calls of a function of the system, before or after which another program acts once."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        module: Any,
        name: str,
        act: Callable[[], None],
        after: bool,
    ) -> None:
        self.function = getattr(module, name)
        self.act: Callable[[], None] | None = act
        self.after = after
        patch.setattr(module, name, self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        act, self.act = self.act, None
        if act is not None and not self.after:
            act()
        result = self.function(*args, **options)
        if act is not None and self.after:
            act()
        return result


# Interleavings


def test_a_draft_removed_before_it_is_locked_gets_another_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A creates its draft and stops for minutes; B removes it; A goes on, and C cleans again."""
    names = []

    def remove() -> None:
        (draft,) = drafts(path.parent)
        names.append(draft.name)
        make_old(draft)
        replace_file(path, b"of B")
        assert drafts(path.parent) == []

    Interrupted(monkeypatch, fcntl, "flock", remove, after=False)
    with replacing(path) as file:
        file.write(b"of A")
        file.flush()
        (draft,) = drafts(path.parent)
        assert draft.name not in names
        make_old(draft)
        # The draft of today is locked, however old it is.
        replace_file(path, b"of C")
        assert drafts(path.parent) == [draft]
    assert path.read_bytes() == b"of A"
    assert os.listdir(path.parent) == [path.name]


def test_a_young_draft_that_is_not_locked_yet_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A creates its draft; B writes; A goes on with the same draft."""
    names = []

    def write() -> None:
        names.extend(drafts(path.parent))
        replace_file(path, b"of B")

    Interrupted(monkeypatch, fcntl, "flock", write, after=False)
    with replacing(path) as file:
        file.write(b"of A")
        assert drafts(path.parent) == names
    assert path.read_bytes() == b"of A"


def test_a_cleaner_removes_only_the_file_that_it_has_locked(
    path: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B opens a draft; C removes it, and another file gets its name; B has the lock of the old."""

    def reuse() -> None:
        left.unlink()
        left.write_bytes(b"newer")
        make_old(left)

    Interrupted(monkeypatch, fcntl, "flock", reuse, after=False)
    remove_drafts(path.parent, {path.name})
    assert left.read_bytes() == b"newer"
    monkeypatch.undo()
    remove_drafts(path.parent, {path.name})
    assert not left.exists()


def test_a_cleaner_that_comes_too_late_leaves_the_file_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B opens the draft of A, which is old and locked; A finishes; B gets the lock."""
    writer = replacing(path)
    file = writer.__enter__()
    file.write(b"of A")
    file.flush()
    (draft,) = drafts(path.parent)
    make_old(draft)

    def finish() -> None:
        writer.__exit__(None, None, None)
        make_old(path)

    Interrupted(monkeypatch, fcntl, "flock", finish, after=False)
    remove_drafts(path.parent, {path.name})
    assert path.read_bytes() == b"of A"
    assert os.listdir(path.parent) == [path.name]


def test_a_draft_that_another_machine_has_removed_gets_another_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B, on another machine, removes the draft of A, whose handle is stale from then on."""
    fstat = os.fstat
    stale = list[int]()

    def status(handle: int) -> os.stat_result:
        if handle in stale:
            stale.clear()
            raise OSError(errno.ESTALE, "stale file handle")
        return fstat(handle)

    def lock(file: BinaryIO, how: int) -> None:
        if not names:
            names.extend(drafts(path.parent))
            stale.append(file.fileno())

    names = list[Path]()
    monkeypatch.setattr(os, "fstat", status)
    monkeypatch.setattr(fcntl, "flock", lock)
    with replacing(path) as file:
        file.write(b"of A")
        assert Path(file.name) not in names
    assert path.read_bytes() == b"of A"


def test_a_writer_gives_up_if_every_draft_is_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(file: BinaryIO, how: int) -> None:
        for draft in drafts(path.parent):
            draft.unlink()

    monkeypatch.setattr(fcntl, "flock", remove)
    with pytest.raises(OSError, match="its drafts are removed by another program") as caught:
        replace_file(path, b"new")
    assert caught.value.filename == str(path)


# Drafts of killed programs


def test_the_next_writer_removes_what_a_killed_one_left(path: Path, left: Path) -> None:
    foreign = path.with_name(f".another.{'0' * 16}.tmp")
    foreign.write_bytes(b"")
    make_old(foreign)
    replace_file(path, b"new")
    assert sorted(os.listdir(path.parent)) == [foreign.name, path.name]


@pytest.mark.parametrize("seconds", [0.0, 0.8 * MINUTES, -60 * MINUTES])
def test_what_is_young_or_of_the_future_stays(path: Path, left: Path, seconds: float) -> None:
    make_old(left, seconds)
    replace_file(path, b"new")
    assert left.exists()


@pytest.mark.parametrize("days, stays", [(0.9, True), (1.1, False)])
@pytest.mark.parametrize("system", ["Windows", "no locks"])
def test_without_locks_a_draft_is_removed_after_a_day(
    path: Path, left: Path, monkeypatch: pytest.MonkeyPatch, system: str, days: float, stays: bool
) -> None:
    def unsupported(file: BinaryIO, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    if system == "Windows":
        monkeypatch.setattr(files, "fcntl", None)
    else:
        monkeypatch.setattr(fcntl, "flock", unsupported)
    make_old(left, days * 24 * 60 * MINUTES)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert left.exists() == stays


def test_links_and_pipes_with_the_name_of_a_draft_stay(path: Path, left: Path) -> None:
    mine = path.with_name("mine")
    left.rename(mine)
    left.symlink_to(mine)
    pipe = files.draft_of(path)
    os.mkfifo(pipe)
    os.utime(pipe, (0, 0))
    os.utime(left, (0, 0), follow_symlinks=False)
    replace_file(path, b"new")
    assert mine.read_bytes() == b"half"
    assert left.is_symlink() and pipe.is_fifo()


# Writing and reading


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_block_that_fails_leaves_the_old_file(path: Path, error: BaseException) -> None:
    path.write_bytes(b"old")
    with pytest.raises(type(error)), replacing(path) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("permissions", [0o600, 0o444, 0o664])
def test_a_file_that_is_replaced_keeps_its_permissions(path: Path, permissions: int) -> None:
    path.write_bytes(b"old")
    path.chmod(permissions)
    with replacing(path) as file:
        # The draft is readable by no more users.
        assert os.fstat(file.fileno()).st_mode & 0o777 == permissions | 0o600
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == permissions


def test_the_target_of_a_link_is_replaced(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path.name)
    replace_file(link, b"new")
    assert link.is_symlink() and path.read_bytes() == b"new"


def test_a_draft_may_be_written_by_its_name(path: Path) -> None:
    with replacing(path) as file:
        Path(file.name).write_bytes(b"new")
    assert path.read_bytes() == b"new"


def test_a_folder_that_cannot_be_listed_is_written(
    path: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> list[str]:
        raise PermissionError(errno.EACCES, "no", str(folder))

    monkeypatch.setattr(os, "listdir", refuse)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_folder_that_cannot_be_opened_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(name: Any, *options: Any, **more: Any) -> int:
        if name == path.parent:
            raise PermissionError(errno.EACCES, "no", str(name))
        return opened(name, *options, **more)

    monkeypatch.setattr(os, "open", refuse)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_folder_created_again_is_locked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B deletes the folder and creates it again, while A waits for its lock."""
    folder = tmp_path / "folder"
    folder.mkdir()

    def again() -> None:
        folder.rename(tmp_path / "old")
        folder.mkdir()

    Interrupted(monkeypatch, fcntl, "flock", again, after=True)
    with files.locked_folder(folder):
        handle = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)


def test_a_folder_deleted_meanwhile_is_not_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    handles = os.listdir("/dev/fd")
    Interrupted(monkeypatch, fcntl, "flock", folder.rmdir, after=True)
    with pytest.raises(FileNotFoundError), files.locked_folder(folder):
        pass
    assert os.listdir("/dev/fd") == handles


def test_a_link_to_a_folder_locks_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder)
    with files.locked_folder(link):
        handle = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)


def test_a_file_is_read_up_to_a_bound(path: Path) -> None:
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_bounded(path, 4)
    with pytest.raises(OSError, match="it is not a regular file"):
        read_bounded("/dev/zero", 4)
