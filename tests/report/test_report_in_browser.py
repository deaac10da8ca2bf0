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
def test_the_page_draws_all_figures_and_never_scrolls_sideways(page: Browser, report: Path, width: int) -> None:
    page.open(report, width=width)
    assert page.evaluate(f"{FIGURES}.length > 10 && {FIGURES}.every(plot => plot.querySelector('.main-svg'))")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    boxes = "[...document.querySelectorAll('main > section, figure, .scroll')]"
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
