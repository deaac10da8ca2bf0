"""What a section of the report is: some sentences, some figures, and what must be said about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import plotly.graph_objects as go

from tl_lifehist.errors import one_of
from tl_lifehist.report.figures.style import in_style
from tl_lifehist.report.tables import TABLES, RunTables


@dataclass(frozen=True)
class Content:
    """One section as it is shown. Each text is HTML where it is `Markup`; any other is escaped when it is shown.

    Attributes:
        text: one or two sentences with the run's own numbers.
        definition: what is shown, by formula and number of definition.
        control: what it has to be read beside.
        sample: over how many of what.
        misleads: how a reader can be misled.
        points: more sentences, one paragraph each, for what must not be mixed.
        table: what has to be seen at once, above the figures.
        figures: by file name without its ending; a figure of plotly's own gets the page's style.
        more: tables and lists under the figures.
    """

    text: str
    definition: str
    control: str
    sample: str
    misleads: str
    points: Sequence[str] = ()
    table: str = ""
    figures: Mapping[str, go.Figure] = field(default_factory=dict)
    more: str = ""


@dataclass(frozen=True)
class Section:
    """A section of the page of one study's runs. The name it is registered under is its anchor.

    Attributes:
        title: its heading.
        study: whose runs have it: "life-history" or "sufficiency".
        needs: names of tables without which it is left out.
        build: makes the content from a run that has them.
        remedy: what to do for it where it was left out; plain text.

    Raises:
        InputError: an unknown study.
    """

    title: str
    study: str
    needs: tuple[str, ...]
    build: Callable[[RunTables], Content]
    remedy: str = ""

    def __post_init__(self) -> None:
        one_of("study", self.study, tuple(TABLES))

    def content(self, run: RunTables) -> Content | str:
        """The content, or the reason why it was not computed."""
        reason = run.why_none(*self.needs)
        if reason is None:
            content = self.build(run)
            return replace(content, figures={name: in_style(fig) for name, fig in content.figures.items()})
        return f"{reason}; {self.remedy}" if self.remedy else reason
