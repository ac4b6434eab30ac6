"""The report of a comparison in a browser."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import RECIPES

pytestmark = pytest.mark.browser

TASKS = list(RECIPES)
PHONE = 390

Visit = Callable[..., Any]


def column(page: Any, number: int) -> list[str]:
    """A column of the first table, from top to bottom."""
    rows = page.locator("table.scores").first.locator("tbody tr")
    return [row.locator("th, td").nth(number).inner_text() for row in rows.all()]


def values(page: Any, number: int) -> list[float]:
    rows = page.locator("table.scores").first.locator("tbody tr")
    cells = [row.locator("th, td").nth(number) for row in rows.all()]
    return [float(cell.get_attribute("data-value")) for cell in cells]


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


INKS = """() => {
  const paper = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const tags = "p, td, th, dt, dd, a, h1, h2, h3, figcaption, code, small, caption, summary";
  const seen = [...document.querySelectorAll(tags)];
  return seen.filter((each) => each.innerText && each.innerText.trim())
    .map((each) => [each.tagName, getComputedStyle(each).color, paper(each)]);
}"""


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("width", [1200, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_load(visit: Visit, task: str, width: int, scheme: str) -> None:
    page = visit(task, width, color_scheme=scheme)
    sizes = page.eval_on_selector_all(
        "img", "images => images.map(i => [i.complete, i.naturalWidth, i.naturalHeight])"
    )
    assert len(sizes) >= 5
    assert all(complete and wide > 100 and high > 50 for complete, wide, high in sizes)
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in page.requests if url.startswith("file:")]) == 1


def test_dark_and_narrow_pictures_are_others(visit: Visit) -> None:
    sources = {
        visit("count", width, color_scheme=scheme).eval_on_selector("img", "i => i.currentSrc")
        for width in (1200, PHONE)
        for scheme in ("light", "dark")
    }
    assert len(sources) == 4


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("width", [PHONE, 1200])
def test_no_column_of_the_table_is_cut(visit: Visit, task: str, width: int) -> None:
    page = visit(task, width)
    widths = page.eval_on_selector(".scroll", "box => [box.scrollWidth, box.clientWidth]")
    assert widths[0] <= widths[1]
    shown = page.locator("table.scores").first.locator("thead th:visible").count()
    assert shown == 4 if width == PHONE else shown > 4


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("width", [320, PHONE, 768, 1200])
def test_the_page_does_not_scroll_sideways(visit: Visit, task: str, width: int) -> None:
    page = visit(task, width)
    page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_a_click_sorts(visit: Visit) -> None:
    page = visit("regression")
    first = column(page, 0)
    header = page.locator("table.scores").first.locator("thead th").nth(2)
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    rising = values(page, 2)
    assert rising == sorted(rising) and column(page, 0)[0] == "log-loss DLM, joint"
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert values(page, 2) == sorted(rising, reverse=True)
    page.locator("table.scores").first.locator("thead button").first.click()
    assert column(page, 0) == first
    assert header.get_attribute("aria-sort") == "none"


def test_missing_values_stay_last(visit: Visit) -> None:
    page = visit("regression")
    button = page.locator("table.scores").first.locator("thead button").nth(1)
    for _ in range(2):
        button.click()
        assert column(page, 0)[-1] == "FITC"


def test_keys_sort(visit: Visit) -> None:
    page = visit("regression")
    table = page.locator("table.scores").first
    table.locator("thead button").nth(1).focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "NLL"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert values(page, 2) == sorted(values(page, 2))
    page.keyboard.press("Space")
    assert values(page, 2) == sorted(values(page, 2), reverse=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(visit: Visit, scheme: str) -> None:
    page = visit("regression", color_scheme=scheme)
    found = page.evaluate(INKS)
    assert len(found) > 100
    worst = min(found, key=lambda each: contrast(each[1], each[2]))
    assert contrast(worst[1], worst[2]) >= 4.5, worst
    body = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(body) < 0.05) == (scheme == "dark")


def test_on_paper_all_is_light_and_open(visit: Visit, tmp_path: Path) -> None:
    page = visit("regression", color_scheme="dark")
    closed = page.locator("details table")
    assert not closed.is_visible()
    page.emulate_media(media="print", color_scheme="dark")
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.9
    assert page.eval_on_selector("img", "i => i.currentSrc === i.src")
    assert not page.locator("nav").is_visible()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert closed.is_visible()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert not closed.is_visible()
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000


def test_the_file_works_without_scripts(visit: Visit) -> None:
    page = visit("count", java_script_enabled=False)
    assert page.locator("table.scores tbody tr").count() == 2
    assert page.complaints == []
