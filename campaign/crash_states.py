"""Power cuts at every moment of a write: the old or the new contents are there, never between.

In the manner of ALICE (Pillai et al., OSDI 2014): strace records what a writer does to its files.
For every moment, all states that a file system may leave are made: what has not been synced is
dropped, alone, from some point on or altogether, or is torn. Each state is opened as a user would.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from campaign.trials import HELD, Trial

SUMS = ("operations", "states")

_CALLS = (
    "openat,write,pwrite64,fsync,fdatasync,ftruncate,lseek,close,"
    "renameat,renameat2,unlinkat,mkdirat,rename,unlink,mkdir,rmdir"
)
_DATA = ("write", "truncate")
_NAMES = ("create", "rename", "unlink", "mkdir")


class Operation(NamedTuple):
    """What a writer did: to the data of a file, or to names in a folder."""

    what: str
    """"write", "truncate", "create", "rename", "unlink", "mkdir" or "sync"."""

    path: str = ""
    """The name that is changed, or the folder that is synced."""

    file: int = -1
    """The file, whatever its name is."""

    at: int = 0
    """Offset of a write, or size after a truncation."""

    data: bytes = b""
    """Bytes of a write."""

    source: str = ""
    """Old name of a file."""


@dataclass
class Disk:
    """Files by number, and names of files and folders (None)."""

    files: dict[int, bytes] = field(default_factory=dict)
    names: dict[str, int | None] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Disk":
        disk = cls()
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                disk.files[len(disk.files)] = path.read_bytes()
                disk.names[str(path)] = len(disk.files) - 1
            else:
                disk.names[str(path)] = None
        return disk

    def copy(self) -> "Disk":
        return Disk(dict(self.files), dict(self.names))

    def apply(self, done: Operation, torn: str = "") -> None:
        """Do an operation, or a part of it."""
        if done.what == "write":
            old, data = self.files.get(done.file, b""), done.data
            if torn == "half":
                data = data[: len(data) // 2]
            elif torn == "zeros":
                data = bytes(len(data))
            old = old.ljust(done.at, b"\0")
            self.files[done.file] = old[: done.at] + data + old[done.at + len(data) :]
        elif done.what == "truncate":
            self.files[done.file] = self.files.get(done.file, b"")[: done.at].ljust(done.at, b"\0")
        elif done.what == "create":
            self.files.setdefault(done.file, b"")
            self.names[done.path] = done.file
        elif done.what == "rename":
            self.names.pop(done.source, None)
            self.names[done.path] = done.file
        elif done.what == "unlink":
            self.names.pop(done.path, None)
        elif done.what == "mkdir":
            self.names[done.path] = None

    def tree(self) -> dict[str, bytes | None]:
        """Return what can be reached: a file in a folder that is missing cannot."""
        return {
            name: None if file is None else self.files.get(file, b"")
            for name, file in sorted(self.names.items())
            if all(
                str(parent) in self.names
                for parent in Path(name).parents
                if str(parent).startswith(self.root) and str(parent) != self.root
            )
        }

    root = ""


# Recording


def record(folder: Path, command: list[str]) -> list[Operation]:
    """Run a program, and return what it did to the files in the folder."""
    with tempfile.TemporaryDirectory() as elsewhere:
        log = Path(elsewhere) / "log"
        strace = ["strace", "-f", "-y", "-xx", "-s", "100000000", "--seccomp-bpf"]
        before = Disk.read(folder)
        done = subprocess.run(
            [*strace, "-e", f"trace={_CALLS}", "-o", log, *command],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command} failed: {done.stderr[-2000:]}")
        return list(_operations(_lines(log), str(folder), before.copy()))


def _lines(log: Path) -> Iterator[tuple[str, str]]:
    """Yield process and call, with the halves of an interrupted call joined."""

    begun: dict[str, str] = {}
    for line in log.read_text().splitlines():
        process, call = line.split(maxsplit=1)
        if call.endswith("<unfinished ...>"):
            begun[process] = call.removesuffix("<unfinished ...>")
        elif call.startswith("<..."):
            yield process, begun.pop(process, "") + call.partition("resumed>")[2]
        else:
            yield process, call


_HEX = r"(?:\\x[0-9a-f]{2})*"
_TEXT = re.compile(rf'"({_HEX})"')
_FD = re.compile(rf"(\d+|AT_FDCWD)<({_HEX})>")


def _plain(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _operations(calls: Iterator[tuple[str, str]], root: str, disk: Disk) -> Iterator[Operation]:
    """Yield the operations on files below the root."""

    offsets: dict[tuple[str, str], int] = {}
    for _, call in calls:
        name, _, rest = call.partition("(")
        arguments, _, result = rest.rpartition(" = ")
        if not result or result.startswith("-1") or "(" not in call:
            continue
        fds = [(number, os.fsdecode(_plain(path))) for number, path in _FD.findall(arguments)]
        texts = [_plain(text) for text in _TEXT.findall(arguments)]
        if name in ("renameat", "renameat2", "unlinkat", "mkdirat", "openat"):
            paths = [
                os.path.normpath(os.path.join(folder, os.fsdecode(text)))
                for (_, folder), text in zip(fds, texts, strict=False)
            ]
        else:
            paths = [os.fsdecode(text) for text in texts]
        if name == "openat":
            path, fd = paths[0], result.split("<")[0]
            offsets[fd, path] = 0
            if not path.startswith(f"{root}/") or "O_CREAT" not in arguments:
                continue
            if path not in disk.names:
                made = Operation("create", path, max([-1, *disk.files]) + 1)
            elif "O_TRUNC" in arguments:
                made = Operation("truncate", file=disk.names[path] or 0)
            else:
                continue
            disk.apply(made)
            yield made
        elif name in ("write", "pwrite64", "ftruncate", "fsync", "fdatasync", "lseek"):
            fd, path = fds[0]
            if name == "lseek":
                offsets[fd, path] = int(result)
            if not f"{path}/".startswith(f"{root}/"):
                continue
            if name in ("fsync", "fdatasync"):
                file = disk.names.get(path)
                yield Operation("sync", path) if file is None else Operation("sync", file=file)
                continue
            file = disk.names[path] or 0
            if name == "ftruncate":
                made = Operation(
                    "truncate", file=file, at=int(arguments.split(",")[-1].strip(" )"))
                )
            elif name == "write":
                at = offsets.get((fd, path), 0)
                made = Operation("write", file=file, at=at, data=texts[0][: int(result)])
                offsets[fd, path] = at + int(result)
            elif name == "pwrite64":
                at = int(arguments.split(",")[-1].strip(" )"))
                made = Operation("write", file=file, at=at, data=texts[0][: int(result)])
            else:
                continue
            disk.apply(made)
            yield made
        elif name.startswith(("rename", "unlink", "mkdir", "rmdir")):
            if not all(path.startswith(f"{root}/") for path in paths):
                continue
            if name.startswith("rename"):
                source, path = paths
                made = Operation("rename", path, disk.names[source] or 0, source=source)
            else:
                made = Operation("mkdir" if name.startswith("mkdir") else "unlink", paths[0])
            disk.apply(made)
            yield made


# States


def _synced(done: list[Operation], index: int) -> bool:
    """Return whether an operation is on the disk after those that follow it."""
    made = done[index]
    for later in done[index + 1 :]:
        if later.what == "sync" and made.what in _DATA and later.file == made.file:
            return True
        if later.what == "sync" and made.what in _NAMES and later.file < 0:
            # Both names of a renaming are in one folder.
            if later.path == os.path.dirname(made.path):
                return True
    return False


def states(before: Disk, done: list[Operation]) -> Iterator[tuple[str, Disk]]:
    """Yield what may be on the disk after a power cut when these operations were done."""
    changes = [i for i, operation in enumerate(done) if operation.what != "sync"]
    loose = [i for i in changes if not _synced(done, i)]
    data = [i for i in loose if done[i].what in _DATA]
    plans: list[tuple[str, set[int], dict[int, str]]] = [
        ("all", set(), {}),
        ("nothing unsynced", set(loose), {}),
        ("names without data", set(data), {}),
        ("data without names", set(loose) - set(data), {}),
    ]
    for place, i in enumerate(loose):
        plans.append((f"without {done[i].what} {i}", {i}, {}))
        plans.append((f"nothing from {done[i].what} {i}", set(loose[place:]), {}))
    for i in data:
        plans += [(f"{how} of write {i}", set(), {i: how}) for how in ("half", "zeros")]
        rest = {j for j in loose if j > i}
        plans += [(f"{how} of write {i}, the last", rest, {i: how}) for how in ("half", "zeros")]
    for label, dropped, torn in plans:
        disk = before.copy()
        disk.root = before.root
        for i in changes:
            if i not in dropped:
                disk.apply(done[i], torn.get(i, ""))
        yield label, disk


def check_all(
    name: str, before: Disk, done: list[Operation], look: Callable[[Path], str], root: Path
) -> tuple[int, str]:
    """Open every state; return their number, and the first failure in words.

    `look` returns "old", "new", or what is wrong. After the last operation it must be "new".
    """
    verdicts: dict[str, str] = {}
    for moment in range(len(done) + 1):
        for label, disk in states(before, done[:moment]):
            tree = disk.tree()
            digest = hashlib.sha256(repr(sorted(tree.items())).encode()).hexdigest()
            if digest not in verdicts:
                shutil.rmtree(root)
                root.mkdir()
                for path, data in tree.items():
                    if data is None:
                        os.makedirs(path, exist_ok=True)
                    else:
                        Path(path).write_bytes(data)
                try:
                    verdicts[digest] = look(root)
                except Exception:
                    verdicts[digest] = " | ".join(traceback.format_exc().strip().splitlines()[-2:])
            verdict = verdicts[digest]
            if verdict not in ("old", "new") or (moment == len(done) and verdict != "new"):
                wanted = "the new one" if moment == len(done) else "the old or the new one"
                what = f"{name}, after operation {moment} of {len(done)}, {label}: {verdict}"
                return len(verdicts), f"{what}, not {wanted}"
    return len(verdicts), ""


# Writers: what is there before, what is written in another process, and what is looked for


class Writer(NamedTuple):
    """A writer of files in a folder."""

    prepare: Callable[[Path], object]
    write: Callable[[Path], object]
    look: Callable[[Path], str]


def _model(name: str) -> Path:
    from campaign.models import corpus

    return corpus()[name].absolute()


def _look_at_model(root: Path) -> str:
    import directgp

    kind = type(directgp.load(root / "model", device="cpu").likelihood_).__name__
    return {"Gaussian": "old", "StudentT": "new"}[kind]


def _write_model(root: Path) -> None:
    import directgp

    directgp.load(_model("model student_t"), device="cpu").save(root / "model")


def _write_checkpoint(root: Path) -> None:
    from directgp.io import read_file, write_file
    from directgp.training.checkpoint import CHECKPOINT

    write_file(CHECKPOINT, root / "run", *read_file(CHECKPOINT, _model("checkpoint adam")))


def _look_at_checkpoint(root: Path) -> str:
    from directgp.io import read_file
    from directgp.training.checkpoint import CHECKPOINT

    return "new" if "now.batches.epoch" in read_file(CHECKPOINT, root / "run").tensors else "old"


def _put(root: Path, *which: str) -> None:
    from directgp.experiments.store import Store
    from tests.unit.experiments.cells import finished, small_cell

    with Store(root / "fits.sqlite") as store:
        for method in which:
            store.put(finished(small_cell(method), 0.1, model=bytes(9000)))


def _look_at_store(old: tuple[str, ...]) -> Callable[[Path], str]:
    def look(root: Path) -> str:
        from directgp.experiments.store import Store
        from tests.unit.experiments.cells import finished, small_cell

        with Store(root / "fits.sqlite") as store:
            whole = store._file._connection.execute("pragma integrity_check").fetchall()
            if whole != [("ok",)]:
                return f"integrity {whole}"
            for method in (*old, "vfe"):
                if small_cell(method) not in store:
                    if method == "vfe":
                        return "old"
                    return f"{method} is lost"
                (record,) = store.records([small_cell(method)])
                wanted = finished(small_cell(method), 0.1).outcome.model_dump_json()
                if record.outcome.model_dump_json() != wanted:
                    return f"{method} is another"
                if store.model(small_cell(method)) != bytes(9000):
                    return f"the model of {method} is another"
        return "new"

    return look


_FIT = ("--target", "target", "--task", "regression", "--beta", "1", "--inducing", "3")


def _fit(root: Path) -> None:
    from campaign.models import command

    table = _model("folder regression").with_suffix(".csv")
    rows = table.read_text().splitlines(keepends=True)[:26]
    with tempfile.TemporaryDirectory() as elsewhere:
        data = Path(elsewhere) / "some.csv"
        data.write_text("".join(rows))
        words = ("--hyperparameters", "joint", "--max-iter", "2", "--force", "--quiet")
        code, said = command("fit", data, *_FIT, *words, "--out", root / "a" / "model")
    if code:
        raise RuntimeError(said)


def _old_folder(root: Path) -> None:
    shutil.copytree(_model("folder regression"), root / "a" / "model")


def _folder_of_two_files(root: Path) -> None:
    from campaign.models import split_folder

    _old_folder(root)
    split_folder(root / "a" / "model")


def _look_at_folder(root: Path) -> str:
    from directgp.cli.model_folder import check_model_folder, load_folder

    folder = root / "a" / "model"
    if not folder.exists() or not any(file.name[0] != "." for file in folder.iterdir()):
        # Nothing was there before, and a fit finds nothing in its way.
        check_model_folder(folder, force=False)
        return "old"
    check_model_folder(folder, force=True)
    _, card = load_folder(folder, "cpu")
    return {30: "old", 25: "new"}.get(card.rows, f"a model of {card.rows} rows")


def _look_at_replaced(root: Path) -> str:
    return _look_at_folder(root) if (root / "a" / "model").exists() else "no folder"


def _copied(name: str, file: str) -> Callable[[Path], object]:
    return lambda root: shutil.copy(_model(name), root / file)


WRITERS: dict[str, Writer] = {
    "model": Writer(_copied("model gaussian", "model"), _write_model, _look_at_model),
    "checkpoint": Writer(
        _copied("checkpoint lbfgs", "run"), _write_checkpoint, _look_at_checkpoint
    ),
    "store": Writer(
        lambda root: _put(root, "elbo", "fitc"),
        lambda root: _put(root, "vfe"),
        _look_at_store(("elbo", "fitc")),
    ),
    "new store": Writer(lambda root: None, lambda root: _put(root, "vfe"), _look_at_store(())),
    "folder": Writer(_old_folder, _fit, _look_at_replaced),
    "folder of two files": Writer(_folder_of_two_files, _fit, _look_at_replaced),
    "new folder": Writer(lambda root: None, _fit, _look_at_folder),
}


def attack(number: int) -> Trial:
    """Record a writer, and open every state that a power cut may leave."""
    name = list(WRITERS)[number % len(WRITERS)]
    writer = WRITERS[name]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "disk"
        root.mkdir()
        writer.prepare(root)
        before = Disk.read(root)
        before.root = str(root)
        done = record(root, [sys.executable, "-m", "campaign.crash_states", name, str(root)])
        if not any(operation.what in _DATA for operation in done):
            raise RuntimeError(f"nothing was recorded of {name}")
        if Disk.read(root).files == before.files:
            raise RuntimeError(f"{name} wrote nothing")
        number_of_states, failure = check_all(name, before, done, writer.look, root)
    facts = {"operations": len(done), "states": number_of_states}
    return Trial(name, "lost" if failure else HELD, failure, facts)


if __name__ == "__main__":
    WRITERS[sys.argv[1]].write(Path(sys.argv[2]))
