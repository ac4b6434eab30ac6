"""Test that the pages for developers name files and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "directgp"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

FUNCTIONS = re.findall(r"`([\w/]+\.py):(\w+)`", TEXT)
FILES = re.findall(r"`([\w/]+\.py)`", TEXT)
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATHS = re.findall(r"`((?:src|paper|tests|docs)/[\w/]+(?:\.\w+|/))`", CONTRIBUTING)
PLACEHOLDER = "src/directgp/cli/NAME.py"
PACKAGES = re.findall(r"^\| `([^|]*)` \| ", TEXT, re.MULTILINE)


def defined(path: Path) -> set[str]:
    """Return the names of the functions and methods of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "function"), FUNCTIONS)
def test_functions_exist(file: str, function: str) -> None:
    assert function in defined(ROOT / file if file.startswith("paper/") else SOURCE / file)


@pytest.mark.parametrize("file", sorted(set(FILES)))
def test_files_exist(file: str) -> None:
    assert any((folder / file).is_file() for folder in (ROOT, SOURCE))


@pytest.mark.parametrize("path", sorted({*PATHS} - {PLACEHOLDER}))
def test_paths_of_contributing_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_package_is_described() -> None:
    described = {name for row in PACKAGES for name in row.replace("`", "").split(", ")}
    present = {path.stem for path in SOURCE.iterdir() if path.stem[0] != "_" and path.stem != "py"}
    assert described == present


def test_all_five_operations_are_listed() -> None:
    assert len(FUNCTIONS) >= 40


def test_paths_of_contributing_are_found() -> None:
    assert len({*PATHS}) >= 40 and PLACEHOLDER in PATHS
