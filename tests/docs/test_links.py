"""Test that links, anchors, images and included files exist, and that every page is in a menu.

Pages are parsed as MyST parses them: a heading is an anchor down to the level of
``myst_heading_anchors`` in ``docs/conf.py``. Links to other sites are not followed; the builder
`linkcheck` of Sphinx does that.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.docs.pages import DOCS, PAPER_DOCS, ROOT, text_of

_NOT_PAGES = {"_build", "paper", "tables"}
"""Folders of docs/ and paper/docs/ without pages of their own, as in `exclude_patterns`."""

_EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:|//")
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_TARGET = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
_DIRECTIVE = re.compile(r"\{([\w:-]+)\}\s*(.*)")
_NAMING_FILES = {"figure", "image", "include", "literalinclude"}
_NOT_MARKDOWN = {"code-cell", "eval-rst", "math", "toctree"}


class Page(NamedTuple):
    """Anchors and links of a page."""

    headings: frozenset[str]
    """Anchors of its headings."""

    targets: frozenset[str]
    """Named anchors, which every page can use."""

    links: tuple[str, ...]
    """Targets of links, images and directives that name files."""

    menu: tuple[str, ...]
    """Entries of its toctrees."""


def read(text: str, levels: int) -> Page:
    """Parse a page, with anchors for headings down to a level."""
    tokens = list(_tokens(_FRONT_MATTER.sub("", text)))
    return Page(
        frozenset(_headings(tokens, levels)),
        frozenset(_TARGET.findall(text)),
        tuple(link for token in tokens for link in _links(token)),
        tuple(entry for token in tokens for entry in _menu(token)),
    )


def _tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a page, including those within directives such as notes."""
    for token in MarkdownIt().enable("table").parse(text):
        yield token
        if token.type == "fence" and (found := _DIRECTIVE.match(token.info)):
            if found[1] not in _NOT_MARKDOWN | _NAMING_FILES:
                yield from _tokens(token.content)


def _headings(tokens: list[Token], levels: int) -> Iterator[str]:
    seen: dict[str, int] = {}
    for before, token in pairwise(tokens):
        if before.type == "heading_open" and int(before.tag[1]) <= levels:
            name = slug("".join(each.content for each in token.children or []))
            seen[name] = seen.get(name, -1) + 1
            yield f"{name}-{seen[name]}" if seen[name] else name


def slug(title: str) -> str:
    """Return the anchor of a heading, as GitHub and MyST build it."""
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def _links(token: Token) -> Iterator[str]:
    for each in token.children or []:
        address = each.attrGet("href") or each.attrGet("src")
        if address and not _EXTERNAL.match(str(address)):
            yield unquote(str(address))
    found = _DIRECTIVE.match(token.info) if token.type == "fence" else None
    if found and found[1] in _NAMING_FILES:
        yield found[2].strip()


def _menu(token: Token) -> Iterator[str]:
    if token.type == "fence" and token.info.startswith("{toctree}"):
        for line in filter(None, map(str.strip, token.content.splitlines())):
            if not line.startswith(":"):
                yield line.rpartition("<")[2].rstrip(">").removesuffix(".md").removesuffix(".ipynb")


def broken(pages: dict[Path, Page]) -> list[str]:
    """Return broken links, as "page: link"."""
    named = frozenset().union(*(page.targets for page in pages.values()))
    return [
        f"{path.name}: {link}"
        for path, page in pages.items()
        for link in page.links
        if not _leads_somewhere(path, link, pages, named)
    ]


def _leads_somewhere(path: Path, link: str, pages: dict[Path, Page], named: frozenset[str]) -> bool:
    place, _, anchor = link.partition("#")
    if not place:
        return anchor in pages[path].headings | named
    there = (path.parent / place).resolve()
    if not anchor or not there.exists():
        return there.exists()
    return there in pages and anchor in pages[there].headings


def not_in_menus(pages: dict[Path, Page], first: Path) -> list[str]:
    """Return the pages that cannot be reached through the menus."""
    reached, waiting = set[Path](), [first]
    while waiting:
        path = waiting.pop()
        if path in pages and path not in reached:
            reached.add(path)
            waiting += [each for entry in pages[path].menu for each in _files(path, entry)]
    folders = [first.parent, PAPER_DOCS] if first.parent == DOCS else [first.parent]
    inside = [path for path in pages if any(map(path.is_relative_to, folders))]
    return sorted(str(path) for path in inside if path not in reached)


def _files(path: Path, entry: str) -> list[Path]:
    """Return the files that an entry of a menu may mean: a page or a notebook."""
    folder = path.parent
    if folder == DOCS and entry.startswith("paper/"):
        folder, entry = PAPER_DOCS, entry.removeprefix("paper/")
    return [(folder / f"{entry}{suffix}").resolve() for suffix in (".md", ".ipynb")]


def wrong_entries(pages: dict[Path, Page]) -> list[str]:
    """Return menu entries that are not pages, as "page: entry"."""
    return [
        f"{path.name}: {entry}"
        for path, page in pages.items()
        for entry in page.menu
        if not pages.keys() & _files(path, entry)
    ]


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    """Return the pages of docs/ and the README and similar files, with all headings as anchors."""
    found = re.search(r"^myst_heading_anchors = (\d)$", (DOCS / "conf.py").read_text(), re.M)
    assert found is not None
    levels = {path: 6 for path in [*ROOT.glob("*.md"), ROOT / "paper" / "README.md"]}
    for folder in (DOCS, PAPER_DOCS):
        for path in sorted([*folder.rglob("*.md"), *folder.rglob("*.ipynb")]):
            if path.relative_to(folder).parts[0] not in _NOT_PAGES:
                levels[path] = int(found[1])
    return {path: read(text_of(path), levels[path]) for path in levels}


def test_links_lead_somewhere(pages: dict[Path, Page]) -> None:
    assert broken(pages) == []


def test_every_page_is_in_a_menu(pages: dict[Path, Page]) -> None:
    assert not_in_menus(pages, DOCS / "index.md") == []
    assert wrong_entries(pages) == []


def test_pages_are_read(pages: dict[Path, Page]) -> None:
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= {path.name for path in pages}
    assert "docs/images/report.png" in pages[ROOT / "README.md"].links
    assert "tables/steps.md" in pages[DOCS / "performance.md"].links
    assert "#probit-and-logistic" in pages[DOCS / "likelihoods.md"].links
    assert "β" in pages[DOCS / "objectives.md"].headings
    assert "same-losses" in pages[DOCS / "performance.md"].targets


def test_pictures_are_small() -> None:
    paths = [*DOCS.glob("images/**/*.png"), *PAPER_DOCS.glob("images/**/*.png")]
    sizes = {path.name: path.stat().st_size for path in paths}
    assert len(sizes) >= 13 and max(sizes.values()) < 200_000, "for everyone who clones"


def _made(folder: Path, **texts: str) -> dict[Path, Page]:
    paths = {folder / f"{name}.md": text for name, text in texts.items()}
    for path, text in paths.items():
        path.write_text(text, encoding="utf-8")
    return {path: read(text, 2) for path, text in paths.items()}


@pytest.mark.parametrize(
    "text",
    [
        "[a](gone.md)",
        "[](gone.md)",
        "![a](gone.png)",
        "[a](#gone)",
        "[a](other.md#gone)",
        "[a](other.md#deep)",
        "| a |\n|---|\n| [b](gone.md) |",
        "```{include} gone.md\n```",
        "```{figure} gone.png\nWords\n```",
        "```{note}\n[a](gone.md)\n```",
        "[a][b]\n\n[b]: gone.md",
        "---\nformat: x\n---\n[a](#format-x)",
    ],
)
def test_wrong_links_are_found(text: str, tmp_path: Path) -> None:
    assert len(broken(_made(tmp_path, page=text, other="# Other\n\n### Deep"))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "[](other.md)",
        "[a](other.md#which-β-a)",
        "[a](other.md#twice-1)",
        "## Why: `x`?\n\n[a](#why-x)",
        "[a](#named)",
        "[a](https://example.org/gone)",
        "`[a](gone.md)`",
        "```\n[a](gone.md)\n```",
        "```{include} other.md\n```",
    ],
)
def test_right_links_are_not_found(text: str, tmp_path: Path) -> None:
    other = "# Other\n\n## Which β, a\n\n## Twice\n\n## Twice\n\n(named)=\n### Deep"
    assert broken(_made(tmp_path, page=text, other=other)) == []


def test_missing_and_wrong_entries_are_found(tmp_path: Path) -> None:
    menu = "```{toctree}\n:maxdepth: 1\n\none\nTwo <two>\ngone\n```"
    found = _made(
        tmp_path, index=menu, one="# One", two="```{toctree}\nthree\n```", three="", four=""
    )
    assert not_in_menus(found, tmp_path / "index.md") == [str(tmp_path / "four.md")]
    assert wrong_entries(found) == ["index.md: gone"]
