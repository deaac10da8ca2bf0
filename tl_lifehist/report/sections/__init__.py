"""The sections of reports by name: a new one is a file and a `SECTIONS.register(name, Section(...))`."""

from __future__ import annotations

from tl_lifehist.registry import Registry
from tl_lifehist.report.sections import life_history, sufficiency
from tl_lifehist.report.sections.base import Content, Section

ANCHORS = ("claims", "limits", "provenance", "contents")  # of the page itself

SECTIONS: Registry[Section] = Registry(
    "section", {**life_history.SECTIONS, **sufficiency.SECTIONS}, travels=False, reserved=ANCHORS
)


def sections_of(study: str) -> dict[str, Section]:
    """The sections of one study's runs, in the order in which they were registered."""
    return {name: section for name, section in SECTIONS.items() if section.study == study}


__all__ = ["SECTIONS", "Content", "Section", "sections_of"]
