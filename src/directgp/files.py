"""Replace files in one step, while other programs write them too, and read regular files.

Every file of directgp is written to a draft in the same folder, which is then renamed. If a program
is killed, its draft stays until the next program writes the same file and removes the draft. Four
rules keep a writer and a remover apart:

- The name of a draft is random and never used again.
- A writer locks its draft, and then checks that the name still leads to the file it has locked;
  if not, it takes a new name.
- A remover locks the draft without waiting, and then checks the same before it removes the name.
- A draft younger than a minute is not removed: its writer may not have locked it yet.
"""

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_YOUNG = 60.0
"""Seconds after its last change for which a draft is not removed."""

_ABANDONED = 86_400.0
"""Seconds after its last change for which a draft that cannot be locked is not removed."""

_ATTEMPTS = 100
"""Names that are tried for a draft."""

_DRAFT = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp", re.DOTALL)
"""Names of drafts."""

_NOT_REGULAR = "it is not a regular file"


@contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for reading; raise OSError for a pipe, which may block, or an endless device."""

    def opened(name: str, flags: int) -> int:
        # Without O_NONBLOCK, opening a pipe waits for its writer.
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    if "\0" in os.fspath(path):
        raise OSError(errno.EINVAL, "its name has a null byte", os.fspath(path))
    with open(path, "rb", opener=opened) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, _NOT_REGULAR, os.fspath(path))
        yield file


def read_bounded(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Return the bytes of a regular file; raise OSError if there are more than `max_bytes`."""
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", os.fspath(path))
    return data


def make_folder(path: Path) -> list[Path]:
    """Create a folder and its parents, so that a power cut keeps them; return the new ones."""
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)][::-1]
    for folder in missing:
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
    return missing


def replace_file(path: Path, data: bytes) -> None:
    """Write the data to the path in one step; the old or the new file survives a power cut.

    What is not a regular file, such as a device, is not replaced.
    """
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        # The error of a full disk does not name the file.
        error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield an open draft, and rename it to the path after the block, unless the block raises.

    The block may also open the draft by its name, and write to it there. If the path is a
    link, the file that it leads to is replaced. The new file has the permissions of the old one.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, _NOT_REGULAR, str(path))
    remove_drafts(path.parent, {path.name})
    permissions = _permissions(path)
    draft, file = _new_draft(path)
    try:
        with file:
            if permissions is not None:
                # Before the first byte: the draft of a secret file is secret, too.
                _set_permissions(file, permissions | stat.S_IRUSR | stat.S_IWUSR)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if permissions is not None:
                _set_permissions(file, permissions)
            if fcntl is None:
                # Windows renames no open file.
                file.close()
            os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    sync_folder(path.parent)


def _permissions(path: Path) -> int | None:
    """Return the permissions of a file; None if there is no file."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return None


def _set_permissions(file: BinaryIO, permissions: int) -> None:
    """Set the permissions of an open file, if the file system has permissions."""
    if hasattr(os, "fchmod"):
        with suppress(OSError):
            os.fchmod(file.fileno(), permissions)


def draft_of(path: Path) -> Path:
    """Return a new name for a draft beside the path; no file is created."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def target_of_draft(name: str) -> str | None:
    """Return the name of the file that a draft is to replace; None if this is no draft."""
    match = _DRAFT.fullmatch(name)
    return None if match is None else match[1]


def remove_drafts(folder: Path, targets: Container[str]) -> None:
    """Remove the abandoned drafts of the files of these names in a folder."""
    # A folder that may be written need not be readable.
    with suppress(OSError):
        for name in os.listdir(folder):
            if target_of_draft(name) in targets:
                _remove_if_abandoned(folder / name)


def _new_draft(path: Path) -> tuple[Path, BinaryIO]:
    """Create a draft, locked as long as it is open, if the file system has locks."""
    for _ in range(_ATTEMPTS):
        draft = draft_of(path)
        file = open(draft, "xb")
        if fcntl is None:
            return draft, file
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if _leads_to(draft, file.fileno()):
            return draft, file
        file.close()
    raise OSError(errno.EAGAIN, "its drafts are removed by another program", str(path))


def _remove_if_abandoned(draft: Path) -> None:
    """Remove a draft whose program was killed: it is not young, and nobody holds its lock.

    Where files cannot be locked, it has to be a day old.
    """
    with suppress(OSError):
        facts = os.lstat(draft)
        if not stat.S_ISREG(facts.st_mode) or _age(facts) < _YOUNG:
            return
        if fcntl is None:
            if _age(facts) > _ABANDONED:
                draft.unlink()
            return
        # For writing: network file systems lock no other files.
        with open(draft, "r+b") as file:
            if _is_ownerless(file) and _leads_to(draft, file.fileno()):
                draft.unlink()


def _is_ownerless(file: BinaryIO) -> bool:
    """Lock a draft without waiting, and return whether its writer has ended."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return _age(os.fstat(file.fileno())) > _ABANDONED
    return _age(os.fstat(file.fileno())) >= _YOUNG


def _age(facts: os.stat_result) -> float:
    """Return the seconds since the last change of a file, negative if its clock is ahead."""
    return time.time() - facts.st_mtime


def _leads_to(path: str | Path, handle: int) -> bool:
    """Return whether the path is a name of the file or folder that is open."""
    try:
        # On a network file system, `fstat` raises for a file that another machine has removed.
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except OSError:
        return False


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder during the block, if the system and the file system have locks.

    While another program holds the lock, wait.
    """
    if fcntl is None:
        yield
        return
    handle = _lock_folder(os.path.realpath(folder))
    try:
        yield
    finally:
        os.close(handle)


def _lock_folder(folder: str) -> int:
    """Return a handle of the folder, locked as long as it is open, if there are locks."""
    while True:
        handle = os.open(folder, os.O_RDONLY)
        # Some network file systems have no locks.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        if _leads_to(folder, handle):
            return handle
        # The folder has been deleted, and perhaps created again, while this process waited.
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, on systems that support it."""
    if os.name == "nt":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        # A folder that may be written need not be readable.
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
