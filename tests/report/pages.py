"""Reading a report: its tags, its own text without plotly.js, one section of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from plotly.offline import get_plotlyjs

VOID = {"meta", "br", "wbr", "link", "img", "input"}


class Page(HTMLParser):
    """Tags that open and close in order, ids, scripts, and attributes that could fetch or run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.suspicious: list[tuple[str, str]] = []
        self.scripts = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name == "href":
                self.links.append(value or "")
            elif name in ("src", "srcset", "action", "data") or name.startswith("on"):
                self.suspicious.append((tag, name))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def own(path: Path) -> str:
    """The page without plotly.js."""
    return path.read_text(encoding="utf-8").replace(get_plotlyjs(), "")


def part(text: str, key: str) -> str:
    found = re.search(rf'<section id="{key}">.*?</section>', text, re.DOTALL)
    assert found, key
    return found[0]
