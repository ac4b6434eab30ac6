"""Run the code of the pages, and compare what it prints with what they say."""

from pathlib import Path

import pytest

from tests.docs.pages import PAPER_DOCS, text_of
from tests.docs.test_code_blocks import blocks, run

PAGES = [page for page in sorted(PAPER_DOCS.glob("*.md")) if any(blocks(text_of(page)))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page: Path) -> None:
    run(text_of(page), str(page))


def test_pages_have_blocks() -> None:
    assert "convergence.md" in {page.name for page in PAGES}
