"""Test that every python block of the README and of docs/ runs and prints what it says.

The comments ``# prints: ...`` of a block have its output, in order and without regard to white
space, so that a long line may be broken. A block after the line ``<!-- no-run -->`` is skipped. The
blocks of a file share their names. The output of a ``{code-cell}`` is written to the page by the
build and not compared; pages that have no other blocks, and notebooks, are run by `make docs`, and
here as slow tests.
"""

import contextlib
import io
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import pytest

from directgp.errors import DirectGPWarning
from tests.docs.pages import DOCS, ROOT, text_of

matplotlib.use("Agg")

NOTEBOOKS = sorted(DOCS.glob("notebooks/*.ipynb"))
_COPIES = DOCS / "paper"
"""Copies that a build leaves there; the tests of directgp_paper run their blocks."""

_PAGES = [page for page in DOCS.rglob("*.md") if not page.is_relative_to(_COPIES)]
PAGES = [ROOT / "README.md", *sorted(_PAGES), *NOTEBOOKS]

_BLOCK = re.compile(
    r"^(<!-- no-run -->\n+)?```(python|\{code-cell\})\n(?::[^\n]*\n)*(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_SHOWN = re.compile(r"# prints: (.*)$", re.MULTILINE)


class Block(NamedTuple):
    """Code to run, the number of lines above it, and whether its output is compared."""

    code: str
    line: int
    compared: bool


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks to run."""
    for match in _BLOCK.finditer(text):
        if match[1] is None:
            yield Block(match[3], text.count("\n", 0, match.start(3)), match[2] == "python")


def run(text: str, name: str) -> None:
    """Run the blocks of a page in one namespace and compare the output of each."""
    namespace: dict[str, object] = {}
    for code, line, compared in blocks(text):
        printed = io.StringIO()
        # Add empty lines, so that a traceback has the line number of the page.
        compiled = compile("\n" * line + code, name, "exec")
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            if not compared:
                # The page shows warnings as a part of the output.
                warnings.simplefilter("ignore", DirectGPWarning)
            exec(compiled, namespace)
        shown = " ".join(_SHOWN.findall(code))
        assert not compared or printed.getvalue().split() == shown.split(), (
            f"{name}, line {line + 1}"
        )


FIRST = ("README.md", "index.md", "start.md")
"""Pages that users read first."""

LIGHT = ("comparison.md", "data.md", "likelihoods.md", "objectives.md", "posteriors.md", "scale.md")
"""Other pages whose blocks take less than a second; the rest is slow."""


def cases() -> Iterator[Any]:
    """Yield the pages with blocks."""
    for page in PAGES:
        slow = page.name not in FIRST + LIGHT
        if any(blocks(text_of(page))):
            yield pytest.param(page, marks=[pytest.mark.slow] if slow else [], id=page.name)


@pytest.mark.parametrize("page", list(cases()))
def test_blocks_run(page: Path, without_shape_checks: None) -> None:
    run(text_of(page), str(page))


def test_pages_have_blocks() -> None:
    with_blocks = {page.name for page in PAGES if any(blocks(text_of(page)))}
    assert with_blocks >= {"README.md", "choosing.md", "index.md", "likelihoods.md"}
    assert {page.name for page in NOTEBOOKS} <= with_blocks and len(NOTEBOOKS) >= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_cell_ids_and_no_outputs(path: Path) -> None:
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) >= (4, 5)
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)


@pytest.mark.parametrize(
    "code", ["print(1)  # prints: 2", "print(1)", "# prints: 1", "x", "print(1)\n# prints: 1\ny"]
)
def test_wrong_blocks_fail(code: str) -> None:
    with pytest.raises((AssertionError, NameError)):
        run(f"```python\n{code}\n```\n", "page")


def test_names_are_shared_and_blocks_skipped() -> None:
    first = "```python\nx = 1\n```\n"
    skipped = "<!-- no-run -->\n```python\nx = 2\n```\n"
    last = "```python\nprint(x)  # prints: 1\n```\n"
    run(f"{first}\n{skipped}\n{last}", "page")


def test_cells_run_whatever_they_print() -> None:
    run("```{code-cell}\n:tags: [hide-input]\nx = 1\nprint(x)\n```\n", "page")
    with pytest.raises(NameError):
        run("```{code-cell}\nx\n```\n", "page")
