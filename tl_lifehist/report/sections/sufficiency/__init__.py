"""The sections of a sufficiency report, in the order of the page, and what its results cannot tell."""

from __future__ import annotations

from markupsafe import Markup

from tl_lifehist.report.sections.base import Section
from tl_lifehist.report.sections.sufficiency import answer, checks, controls, training
from tl_lifehist.report.sections.sufficiency.bridge import BRIDGE
from tl_lifehist.report.sections.sufficiency.published import PUBLISHED
from tl_lifehist.report.sections.sufficiency.trajectories import TRAJECTORIES

SECTIONS: tuple[Section, ...] = (
    answer.ANSWER,
    PUBLISHED,
    answer.MATRIX,
    controls.EQUAL_MASS,
    controls.FRONTIER,
    answer.MAPS,
    training.ONSET,
    TRAJECTORIES,
    training.TRANSFER,
    controls.ENRICHMENT,
    controls.RANKS,
    controls.PREDICTED,
    training.ANISOTROPY,
    training.SENDERS,
    BRIDGE,
    checks.CHECKPOINTS,
    checks.DICTIONARIES,
    checks.STABILITY,
)

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
