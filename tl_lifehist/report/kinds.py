"""The kinds of run a report can show: for each study its name and its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tl_lifehist.report.sections import life_history, sufficiency


@dataclass(frozen=True)
class Kind:
    """What a page says of one study's runs.

    Attributes:
        title: what the study is about, as a heading.
        limits: what its results cannot tell, a sentence or two each.
    """

    title: str
    limits: Sequence[str]


KINDS: Mapping[str, Kind] = {
    "life-history": Kind("Life history of features", life_history.LIMITS),
    "sufficiency": Kind("Functional sufficiency of masks", sufficiency.LIMITS),
}
