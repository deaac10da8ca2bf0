"""The sections of a report, one folder per study."""

from __future__ import annotations

from tl_lifehist.report.sections.base import Content, Section

__all__ = ["Content", "Section"]
