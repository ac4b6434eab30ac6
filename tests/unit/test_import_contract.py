"""The contract of `make lint` that forbids circles of imports finds one wherever it is written."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2] / "pyproject.toml"

FIRST = "from circular.second import b\n\na = 1\n"

IN_A_FUNCTION = "b = 2\n\n\ndef late() -> int:\n    from circular.first import a\n\n    return a\n"

FOR_TYPES = (
    "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import circular.first\n\nb = 2\n"
)


def lint(folder: Path, second: str) -> subprocess.CompletedProcess[str]:
    """Check a package of two modules by the contract of this project."""
    contracts = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]
    (contract,) = [c for c in contracts["contracts"] if c["type"] == "acyclic_siblings"]
    package = folder / "circular"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "first.py").write_text(FIRST)
    (package / "second.py").write_text(second)
    (folder / "lint.toml").write_text(
        '[tool.importlinter]\nroot_package = "circular"\n[[tool.importlinter.contracts]]\n'
        f'name = "circles"\ntype = "{contract["type"]}"\nancestors = ["circular"]\n'
    )
    command = (
        "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    return subprocess.run(
        [sys.executable, "-c", command, "--config", "lint.toml", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("second", [IN_A_FUNCTION, FOR_TYPES], ids=["function", "types"])
def test_a_circle_is_found(second: str, tmp_path: Path) -> None:
    found = lint(tmp_path, second)
    assert found.returncode == 1, found.stderr
    assert "No cycles are allowed in circular" in found.stdout


def test_a_package_without_a_circle_passes(tmp_path: Path) -> None:
    found = lint(tmp_path, "b = 2\n")
    assert found.returncode == 0, found.stdout
