"""The sections of a life-history report, in the order of the page, and what its results cannot tell."""

from __future__ import annotations

from markupsafe import Markup

from tl_lifehist.report.sections.base import Section
from tl_lifehist.report.sections.life_history import carriers, effects, history, structure
from tl_lifehist.report.sections.life_history.published import PUBLISHED

SECTIONS: tuple[Section, ...] = (
    PUBLISHED,
    *history.SECTIONS,
    *effects.SECTIONS,
    *structure.SECTIONS,
    carriers.CARRIERS,
    effects.CONTENT,
    carriers.SWEEPS,
)

LIMITS = (
    "A death may be noise of SAE training: two SAEs of one checkpoint agree only in part. Read match rates beside "
    "their floors.",
    "A carrier has been selected for being stable under SAE training, and it is broad. That carriers bear more of "
    "the loss than random features follows from breadth alone; only controls matched in mass say more.",
    "“Not testable” is a result: where carriers have no equals, no fair control exists and no p is given.",
    Markup(
        "Features are the SAE's. Another width, sparsity, threshold or set of tokens gives other features and other "
        "counts."
    ),
    "What lies in the reconstruction error, or fires too rarely to count as alive, is in none of these tables.",
    "A containment edge says that one feature fires where another fires, not that one causes or precedes the other.",
    (
        "Intervals are of one training run: over documents for the joint load, over lineages or features "
        "elsewhere. Nothing here says what another seed of the model would show."
    ),
)
