"""The text of a page of the documentation; a notebook reads as a page with code cells."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PAPER_DOCS = ROOT / "paper" / "docs"
"""Pages of directgp_paper, which the build copies to docs/paper."""


def text_of(path: Path) -> str:
    """Return the Markdown of a page, or that of a notebook, with its code in ``{code-cell}``s."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join(_cell(cell["cell_type"], "".join(cell["source"])) for cell in cells)


def _cell(kind: str, source: str) -> str:
    return f"```{{code-cell}}\n{source}\n```\n" if kind == "code" else f"{source}\n"
