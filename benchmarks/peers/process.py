"""Library processes, as the coordinator uses them."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers.protocol import Message
from directgp.errors import require

ROOT = Path(__file__).resolve().parents[2]

MODULES = {
    "directgp": "benchmarks.peers.ours",
    "floor": "benchmarks.peers.libraries.floor",
    "GPyTorch": "benchmarks.peers.libraries.with_gpytorch",
    "GPflow": "benchmarks.peers.libraries.with_gpflow",
    "GPJax": "benchmarks.peers.libraries.with_gpjax",
}

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
}


class LibraryError(RuntimeError):
    """Raised if a library fails a request."""


def interpreters(given: dict[str, str]) -> dict[str, str]:
    """Return the interpreter of each library, by default from the Makefile's environments."""
    found = {
        "directgp": sys.executable,
        "floor": sys.executable,
        "GPyTorch": str(ROOT / ".venv-peers/bin/python"),
        "GPflow": str(ROOT / ".venv-peers/bin/python"),
        "GPJax": str(ROOT / ".venv-gpjax/bin/python"),
    }
    by_name = {name.lower(): name for name in found}
    for name in given:
        allowed = f"for one of {list(by_name)}"
        require(name.lower() in by_name, "An interpreter of --python", allowed, repr(name))
    return found | {by_name[name.lower()]: path for name, path in given.items()}


def check_interpreters(pythons: dict[str, str], names: Iterable[str]) -> None:
    """Raise if an interpreter is missing."""
    for name in names:
        require(
            shutil.which(pythons[name]) is not None,
            f"The interpreter of {name}",
            "an installed Python",
            repr(pythons[name]),
            f"`make bench` installs it; or name another with --python {name.lower()}=PATH.",
        )


class Process:
    """A running library; it ends with the ``with`` block."""

    def __init__(
        self,
        name: str,
        python: str,
        module: str | None = None,
        arguments: Iterable[str] = (),
        one_thread: bool = True,
    ) -> None:
        self.name = name
        # Read only after an error.
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            [python, "-m", MODULES[name] if module is None else module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=_environment(one_thread),
        )

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.communicate()
        self._log.close()

    def ask(self, do: str, **arguments: Any) -> Message:
        """Send a request to the library and return its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        reply: Message = json.loads(line) if line else {"error": f"It ended.\n{self._said()}"}
        if "error" in reply and set(reply) == {"error"}:
            raise LibraryError(f"{self.name} could not do {do!r}: {reply['error']}")
        return reply

    def _said(self) -> str:
        self._process.wait()
        self._log.seek(0)
        return self._log.read()[-3000:]


def _environment(one_thread: bool) -> dict[str, str]:
    """Return the variables of a process: those for threads are set to one thread or removed."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    others = {name: value for name, value in os.environ.items() if name not in _ONE_THREAD}
    threads = _ONE_THREAD if one_thread else {}
    return {**others, **threads, "PYTHONPATH": os.pathsep.join(paths)}
