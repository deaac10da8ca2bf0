"""Refuse pages on the API that lack a public name, or have one that is none.

python docs/check_api.py
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

PAGES = Path(__file__).parent / "api"
PACKAGES = ("checkpoints", "dictionaries", "lifehistory", "sufficiency")


def public_names() -> set[str]:
    """Every name at the top, and one dot further."""
    top = importlib.import_module("tl_lifehist")
    names = {f"tl_lifehist.{name}" for name in set(top.__all__) - set(PACKAGES)}
    for package in PACKAGES:
        names |= {f"tl_lifehist.{package}.{name}" for name in importlib.import_module(f"tl_lifehist.{package}").__all__}
    return names


def listed_names(pages: Path = PAGES) -> list[str]:
    """The names that the pages have an entry for."""
    return [
        name for page in sorted(pages.glob("*.md")) for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.M)
    ]


def faults(pages: Path = PAGES) -> list[str]:
    """A line for each name that is missing, and for each that stands twice."""
    listed = listed_names(pages)
    missing = [f"no page in {pages.name}/ has {name}" for name in sorted(public_names() - set(listed))]
    return missing + [f"{name} stands twice" for name in sorted({name for name in listed if listed.count(name) > 1})]


if __name__ == "__main__":
    sys.exit("\n".join(faults()) or 0)
