"""The report in a real Chromium: light and dark, wide and narrow, without an error and without a request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser

pytestmark = pytest.mark.browser

FIGURES = "[...document.querySelectorAll('.plot')]"
FONT = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
GROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["report", "mask_report", "both_report"])
def test_the_page_draws_all_figures_and_never_scrolls_sideways(
    page: Browser, name: str, width: int, request: pytest.FixtureRequest
) -> None:
    page.open(request.getfixturevalue(name), width=width)
    assert page.evaluate(f"{FIGURES}.length > 10 && {FIGURES}.every(plot => plot.querySelector('.main-svg'))")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    boxes = "[...document.querySelectorAll('main section, figure, .scroll')]"
    outside = f"{boxes}.filter(box => box.getBoundingClientRect().right > innerWidth).length"
    assert page.evaluate(outside) == 0
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_figures_follow_the_readers_colours_also_when_they_change(page: Browser, report: Path) -> None:
    page.open(report, width=800, dark=False)
    light = page.evaluate(f"[{FONT}, {GROUND}]")
    page.scheme(dark=True)
    page.settle()
    dark = page.evaluate(f"[{FONT}, {GROUND}]")
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    page.open(report, width=800, dark=True)
    assert page.evaluate(f"[{FONT}, {GROUND}]") == dark
    assert page.errors == []


def test_hostile_token_text_stays_text(page: Browser, report: Path) -> None:
    page.open(report, width=1280)
    marks = page.evaluate("[...document.querySelectorAll('mark')].map(m => m.textContent)")
    assert "<script>alert('token')</script>" in marks
    assert page.evaluate("[...document.scripts].filter(s => s.textContent.startsWith('alert')).length") == 0


def test_numbers_on_a_figure_can_be_read_in_both_schemes(page: Browser, mask_report: Path) -> None:
    texts = "[...document.querySelectorAll('[id^=plot-matrix] .heatmap-label text')]"
    for dark in (False, True):
        page.open(mask_report, width=1280, dark=dark)
        ink = page.evaluate("getComputedStyle(document.body).color")
        assert page.evaluate(f"{texts}.length > 50")
        assert page.evaluate(f"[...new Set({texts}.map(t => getComputedStyle(t).fill))]") == [ink]


def test_a_figure_too_wide_for_a_phone_scrolls_by_itself(page: Browser, mask_report: Path) -> None:
    box = "document.querySelector('[id^=plot-matrix]').parentElement"
    page.open(mask_report, width=390)
    assert page.evaluate(f"{box}.scrollWidth > {box}.clientWidth")
    page.open(mask_report, width=1280)
    assert page.evaluate(f"{box}.scrollWidth == {box}.clientWidth")


def test_the_contents_lead_to_both_parts(page: Browser, both_report: Path) -> None:
    page.open(both_report, width=800)
    links = "[...document.querySelectorAll('nav a')]"
    assert page.evaluate(f"{links}.every(link => document.getElementById(link.hash.slice(1)))")
    assert page.evaluate("document.querySelectorAll('.part').length") == 2
    assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == page.evaluate(
        "document.querySelectorAll('[id]').length"
    )
