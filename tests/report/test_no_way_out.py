"""No control of a page leads out of it or sends its data anywhere: in a real Chromium, every button is pressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser

from tl_lifehist.report import save_figures
from tl_lifehist.report.figures.style import BUTTONS

pytestmark = pytest.mark.browser

KEPT = sorted({"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"})
PRESSED = """(() => {
  const out = [];
  window.open = (url) => { out.push(String(url)); return null; };
  HTMLFormElement.prototype.submit = function () { out.push(this.action); };
  addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (link && !/^(#|data:|blob:)/.test(link.getAttribute("href"))) out.push(link.href);
    if (link) event.preventDefault();
  }, true);
  const pictures = "[data-title^='Download plot']";  // a picture of the figure: a file of the reader's own
  document.querySelectorAll(`.modebar-btn:not(${pictures}), a[href], button, summary`).forEach((control) =>
    control.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true })));
  document.querySelectorAll("[class*=dialog] button").forEach((button) => button.click());
  return new Promise((done) => setTimeout(() => done(out), 300));
})()"""
NAMES = "[...new Set([...document.querySelectorAll('.modebar-btn')].map(button => button.dataset.title))].sort()"


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.mark.parametrize("name", ["report", "mask_report", "both_report"])
def test_a_report_has_the_buttons_that_we_name_and_none_leads_out(
    page: Browser, name: str, request: pytest.FixtureRequest
) -> None:
    page.open(request.getfixturevalue(name), width=1280)
    assert page.evaluate(NAMES) == KEPT
    assert page.evaluate(PRESSED) == []
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_nor_does_a_figure_that_is_a_page_of_its_own(page: Browser, run: Path, tmp_path: Path) -> None:
    written = next(path for path in save_figures(run, tmp_path / "figures", "html") if path.name == "events.html")
    page.open(written, width=900)
    assert page.evaluate(NAMES) == KEPT
    assert page.evaluate(PRESSED) == []


def test_every_button_is_one_of_a_list() -> None:
    assert len([button for group in BUTTONS for button in group]) == len(KEPT)


def test_without_scripts_the_page_says_why_there_are_no_figures(page: Browser, report: Path) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.load(report)
        box = page.call("DOM.getDocument")["root"]["nodeId"]
        found = page.call("DOM.querySelector", nodeId=box, selector="noscript p")["nodeId"]
        model = page.call("DOM.getBoxModel", nodeId=found)["model"]
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert model["width"] > 300
    assert model["height"] > 20
