"""The kinds of run a report can show: for each study its name, its sections and its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tl_lifehist.report.sections import Section, life_history, sufficiency


@dataclass(frozen=True)
class Kind:
    """What a page says of one study's runs.

    Attributes:
        title: what the study is about, as a heading.
        sections: in the order of the page.
        limits: what its results cannot tell, a sentence or two each.
    """

    title: str
    sections: Sequence[Section]
    limits: Sequence[str]


KINDS: Mapping[str, Kind] = {
    "life-history": Kind("Life history of features", life_history.SECTIONS, life_history.LIMITS),
    "sufficiency": Kind("Functional sufficiency of masks", sufficiency.SECTIONS, sufficiency.LIMITS),
}
