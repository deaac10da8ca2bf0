"""The sections of a sufficiency report, in the order of the page, and what its results cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from markupsafe import Markup

from tl_lifehist.report.sections.base import Content, Section
from tl_lifehist.report.sections.sufficiency import answer, checks, controls, training
from tl_lifehist.report.sections.sufficiency.bridge import bridge
from tl_lifehist.report.sections.sufficiency.published import published
from tl_lifehist.report.sections.sufficiency.trajectories import trajectories
from tl_lifehist.report.tables import RunTables


def _section(title: str, needs: tuple[str, ...], build: Callable[[RunTables], Content], remedy: str = "") -> Section:
    return Section(title, "sufficiency", needs, build, remedy)


SECTIONS: Mapping[str, Section] = {
    "answer": _section("How small, and how sufficient", ("evaluation",), answer.answer),
    "published_masks": _section("Beside the published figures", ("published",), published),
    "matrix": _section("Every mask under every metric", ("evaluation",), answer.matrix),
    "equal_mass": _section("Beside masks of equal mass", ("evaluation", "nulls"), controls.equal_mass),
    "frontier": _section("Frontier", ("frontier",), controls.frontier),
    "maps": _section("By checkpoint and layer", ("evaluation",), answer.maps),
    "onset": _section("When: the onset of sufficiency", ("onset",), training.onset),
    "trajectories": _section("Trajectories", ("trajectories",), trajectories),
    "transfer": _section("Transfer to the last checkpoint", ("transfer",), training.transfer),
    "enrichment": _section("Enrichment", ("evaluation", "nulls"), controls.enrichment),
    "ranks": _section("Which components are kept", ("masks", "components"), controls.ranks),
    "predicted": _section("Predicted and measured KL", ("evaluation",), controls.predicted),
    "anisotropy": _section("Anisotropy", ("anisotropy",), training.anisotropy),
    "senders": _section("Senders and receivers, a hypothesis", ("anisotropy",), training.senders),
    "bridge": _section("Carriers in downstream masks", ("carriers",), bridge, "give the study a life-history run"),
    "clean": _section("Checkpoints", ("checkpoints",), checks.checkpoints),
    "dictionaries": _section("Dictionaries", ("dictionaries",), checks.dictionaries),
    "stability": _section("Stability over seeds", ("stability",), checks.stability),
}

LIMITS = (
    "Sufficiency is relative to a target. A mask that keeps the predictions need not keep the activation, and the "
    "targets are never merged into one score of maturity.",
    Markup(
        "<strong>The empty mask is the null.</strong> Where mean ablation of a site costs the model little, every "
        "mask of it “preserves behaviour”, and a small one shows nothing. Read a lost fraction beside every relative "
        "KL."
    ),
    "The site decides the result: the output of one MLP and the residual stream give opposite pictures, and at which "
    "site the published figures were taken is not known to us.",
    "Masks are not unique. Other components can be as sufficient; overlap between seeds says how often that happens.",
    "No component is claimed to be a concept that a person would recognise.",
    "Nothing is said of text the model generates, of following instructions, or of learning in context: predictions "
    "are scored on given text, position by position.",
    "A dictionary bounds its masks: what the full mask loses, no mask of it can keep.",
    "A few massive activations can hold most of the variance of a residual site and decide every NMSE.",
    "Intervals of one KL are over documents, of trajectories over cells of one model. Nothing here says what another "
    "seed of the model, or a larger one, would show.",
)
