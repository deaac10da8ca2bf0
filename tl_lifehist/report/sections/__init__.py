"""The sections of a life-history report, in the order of the page."""

from __future__ import annotations

from tl_lifehist.report.sections import carriers, effects, history, structure
from tl_lifehist.report.sections.base import Content, Section

SECTIONS: tuple[Section, ...] = (
    *history.SECTIONS,
    *effects.SECTIONS,
    *structure.SECTIONS,
    carriers.CARRIERS,
    effects.CONTENT,
    carriers.SWEEPS,
)

__all__ = ["SECTIONS", "Content", "Section"]
