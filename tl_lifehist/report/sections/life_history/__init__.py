"""The sections of a life-history report, in the order of the page, and what its results cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tl_lifehist.report.sections.base import Content, Section
from tl_lifehist.report.sections.life_history import carriers, effects, history, structure
from tl_lifehist.report.sections.life_history.published import published
from tl_lifehist.report.tables import RunTables


def _section(title: str, needs: tuple[str, ...], build: Callable[[RunTables], Content]) -> Section:
    return Section(title, "life-history", needs, build)


SECTIONS: Mapping[str, Section] = {
    "published": _section("Beside the published figures", ("published",), published),
    "checkpoints": _section("Checkpoints", ("checkpoints",), history.checkpoints),
    "lineages": _section("Lineages", ("lineages",), history.raster),
    "events": _section("Births and deaths", ("events",), history.events),
    "persistence": _section("Persistence and noise", ("events",), history.persistence),
    "rematch": _section("Re-match floors", ("rematch",), history.rematch),
    "nulls": _section("Carriers and their nulls", ("nulls", "carriers"), history.nulls),
    "load": _section("Joint load of the carriers", ("load", "load_summary"), effects.load),
    "parts": _section("The load and its parts", ("ablation_parts",), effects.parts),
    "single": _section("Single features", ("single",), effects.single),
    "dag": _section("Containment graph", ("edges", "features", "carriers"), structure.dag),
    "recruitment": _section("Recruitment", ("dag",), structure.recruitment),
    "forecast": _section("Early forecast of carriers", ("forecast",), structure.forecast),
    "direction": _section("Function and direction", ("direction",), structure.direction),
    "survival": _section("Survival by entropy", ("survival_by_entropy",), structure.survival),
    "carriers": _section("The carriers and where they fire", ("carriers",), carriers.carriers),
    "content": _section("Content classes", ("content",), effects.content),
    "sweeps": _section("Sweeps", ("sweeps",), carriers.sweeps),
}

LIMITS = (
    "A death may be noise of SAE training: two SAEs of one checkpoint agree only in part. Read match rates beside "
    "their floors.",
    "A carrier has been selected for being stable under SAE training, and it is broad. That carriers bear more of "
    "the loss than random features follows from breadth alone; only controls matched in mass say more.",
    "“Not testable” is a result: where carriers have no equals, no fair control exists and no p is given.",
    "Features are the SAE's. Another width, sparsity, threshold or set of tokens gives other features and other "
    "counts.",
    "What lies in the reconstruction error, or fires too rarely to count as alive, is in none of these tables.",
    "A containment edge says that one feature fires where another fires, not that one causes or precedes the other.",
    (
        "Intervals are of one training run: over documents for the joint load, over lineages or features "
        "elsewhere. Nothing here says what another seed of the model would show."
    ),
)
