"""The report: figures of a run's tables, and one self-contained page. It knows tables and nothing else."""

from __future__ import annotations

from tl_lifehist.report.export import save_figures
from tl_lifehist.report.page import write_report
from tl_lifehist.report.sections import SECTIONS, Content, Section

__all__ = ["SECTIONS", "Content", "Section", "save_figures", "write_report"]
