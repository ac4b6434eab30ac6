"""The report of the paper's experiments in a browser."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_report import INKS, PHONE, contrast, luminance

pytestmark = pytest.mark.browser

Visit = Callable[..., Any]


@pytest.mark.parametrize("width", [1200, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_load(visit: Visit, width: int, scheme: str) -> None:
    page = visit("reproduction", width, color_scheme=scheme)
    sizes = page.eval_on_selector_all(
        "img", "images => images.map(i => [i.complete, i.naturalWidth, i.naturalHeight])"
    )
    assert len(sizes) == 5
    assert all(complete and wide > 100 and high > 50 for complete, wide, high in sizes)
    assert page.complaints == []
    assert len([url for url in page.requests if not url.startswith("data:")]) == 1


@pytest.mark.parametrize("width", [320, PHONE, 768, 1200])
def test_the_page_does_not_scroll_sideways(visit: Visit, width: int) -> None:
    page = visit("reproduction", width)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [320, 1200])
def test_every_verdict_is_seen_at_once(visit: Visit, width: int) -> None:
    page = visit("reproduction", width)
    badges = page.locator("table.claims .badge")
    assert badges.count() == 4
    for badge in badges.all():
        box = badge.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
    words = [badge.inner_text().split(" ", 1)[1] for badge in badges.all()]
    assert words == ["held", "not held", "no difference", "not decided"]
    signs = page.locator("table.claims caption")
    assert signs.bounding_box()["width"] > 0.6 * min(width, 600)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(visit: Visit, scheme: str) -> None:
    page = visit("reproduction", color_scheme=scheme)
    found = page.evaluate(INKS.replace("summary", "summary, span, h4, li"))
    assert len(found) > 100
    worst = min(found, key=lambda each: contrast(each[1], each[2]))
    assert contrast(worst[1], worst[2]) >= 4.5, worst


def test_on_paper_all_is_light(visit: Visit, tmp_path: Path) -> None:
    page = visit("reproduction", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.9
    inks = page.eval_on_selector_all(".badge", "all => all.map(e => getComputedStyle(e).color)")
    assert min(contrast(ink, "rgb(255, 255, 255)") for ink in inks) >= 4.5
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 30_000
