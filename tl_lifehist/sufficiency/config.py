"""Every threshold and size of a sufficiency study. Values are ours unless marked as the paper's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tl_lifehist.config import Section, above_zero, at_least, option, within
from tl_lifehist.errors import InputError, one_of


@dataclass(frozen=True)
class Dictionaries(Section):
    """How activations are decomposed (formula 1)."""

    methods: tuple[str, ...] = option(
        ("svd", "ica", "nmf", "semi_nmf"), "decompositions, names in METHODS (paper)", registry="decomposition"
    )
    n_components: int | None = option(None, "components of each; the smaller of 100 and the width by default")
    offset: str = option("minimum", 'what makes activations non-negative for "nmf": "minimum" or "relu"')
    max_iter: int | None = option(None, "passes of a decomposition at most; its own limit by default")
    tol: float | None = option(None, "relative change at which a decomposition stops; its own by default")
    leave_out_massive: float = option(0.0, "share of the rows farthest from the mean that is left out of every split")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("offset", self.offset, ("minimum", "relu"))
        at_least(self, 1, "n_components", "max_iter")
        above_zero(self, "tol")
        if not 0 <= self.leave_out_massive < 0.5:
            raise InputError(f"leave_out_massive={self.leave_out_massive} must lie between 0 and 0.5.")


@dataclass(frozen=True)
class Heads(Section):
    """What is fitted to read activations elsewhere: fixed heads (formula 7) and alignments (formula 16)."""

    translator_steps: int = option(400, "Adam steps of a fixed head")
    translator_rows: int = option(256, "scored positions per step of a fixed head")
    translator_rate: float = option(3e-3, "learning rate of a fixed head")
    ridge: float = option(1e-3, "penalty of an alignment, relative to the variance")
    matched_rows: int = option(8192, "rows on which the components of two dictionaries are matched")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "translator_steps", "translator_rows", "matched_rows")
        above_zero(self, "translator_rate")
        if not 0 <= self.ridge < math.inf:
            raise InputError(f"ridge={self.ridge} must be a number and not negative.")


@dataclass(frozen=True)
class Masks(Section):
    """What masks preserve, and how they are calibrated (formulas 5 to 9)."""

    targets: tuple[str, ...] = option(
        ("reconstruction", "fixed_head", "downstream", "transfer"),
        "what masks preserve, names in TARGETS (paper)",
        registry="target",
    )
    penalty_total: float = option(0.1, "lambda times the number of components")
    relative_to: str = option("entropy", 'what KL is relative to: "entropy", "mean_ablation" or "nats"')
    transfer_loss: str = option("nmse", 'loss of a transfer mask: "nmse" or "kl"')
    mask_steps: int = option(1000, "Adam steps of a mask")
    batch_size: int = option(16, "sequences per step of a mask")
    learning_rate: float = option(0.05, "learning rate of a mask")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "mask_steps", "batch_size")
        above_zero(self, "penalty_total", "learning_rate")
        one_of("relative_to", self.relative_to, ("entropy", "mean_ablation", "nats"))
        one_of("transfer_loss", self.transfer_loss, ("nmse", "kl"))


@dataclass(frozen=True)
class Comparisons(Section):
    """What masks stand beside: other penalties, other seeds, masks that nobody optimised."""

    close_ups: tuple[str, ...] | None = option(
        None, "methods with frontier, stability and transfer between dictionaries; the first by default"
    )
    sweep: tuple[float, ...] = option((0.01, 0.03, 0.3, 1.0), "further values of penalty_total, for the frontier")
    seeds: tuple[int, ...] = option((0, 1, 2), "seeds of masks and dictionaries; figures are the first one's")
    n_random: int = option(20, "random masks of equal soft mass beside each downstream mask")
    overlap_draws: int = option(1000, "random masks beside an overlap")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "n_random")
        at_least(self, 1, "overlap_draws")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(*self.seeds, 0) < 0:
            raise InputError(f"seeds={list(self.seeds)}: name at least one, each once, and none below 0.")
        if not all(0 < total < math.inf for total in self.sweep) or len(set(self.sweep)) != len(self.sweep):
            raise InputError(f"sweep={list(self.sweep)}: every value must be a number above 0, each once.")


@dataclass(frozen=True)
class Geometry(Section):
    """How sensitivity and curvature are measured (formulas 12 and 14), and the intervals beside figures."""

    fisher_rows: int = option(8192, "rows of the fixed head's Fisher")
    fisher_samples: int = option(1, "label sets drawn for each sequence of a Fisher")
    label_draws: int = option(1, "permutations of the labels beside the Gini of tau")
    interval_draws: int = option(1000, "draws of the interval of a KL over documents")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "fisher_rows", "fisher_samples", "label_draws", "interval_draws")


@dataclass(frozen=True)
class Trends(Section):
    """When masks changed: trajectories (formula 17) and the onset of sufficiency (formula 18)."""

    max_lost: float = option(0.1, "share of what mean ablation costs that a sufficient mask may lose")
    onset_margin: float = option(0.01, "share of its loss by which a mask has to beat the variance mask")
    trend_p: float = option(0.05, "p at which a trajectory is claimed")
    trend_draws: int = option(1000, "draws of a trajectory's interval and p")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "trend_draws")
        within(self, 0, 1, "max_lost", "onset_margin", "trend_p")


@dataclass(frozen=True)
class Bridge(Section):
    """Carriers of a life history in masks over its SAEs."""

    n_sets: int = option(1000, "sets of equal mass beside the carriers")
    stratum: int = option(10, "features of neighbouring mass among which labels are exchanged")
    max_unmatched: float = option(0.1, "share of carriers without an equal above which nothing is testable")
    max_gap: float = option(
        0.1, "gap in log mass, in standard deviations, above which nothing is testable; no gap in lineages, as there"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "n_sets", "stratum")
        at_least(self, 0, "max_gap")
        within(self, 0, 1, "max_unmatched")


@dataclass(frozen=True)
class Verdicts(Section):
    """When a claim counts."""

    level: float = option(0.05, "p at which a claim is beyond its null")
    least_units: int = option(5, "checkpoints and hook points below which no sign test is made")
    n_flips: int = option(2000, "flips of the signs of units")
    least_effect: float = option(0.01, "difference, as a share of the larger mean, below which nothing counts")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "least_units", "n_flips")
        within(self, 0, 1, "level", "least_effect")


@dataclass(frozen=True)
class Memory(Section):
    """What decides nothing but how much is held at once."""

    hooks_per_pass: int | None = option(None, "hook points that a clean pass serves at once; all by default")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "hooks_per_pass")


@dataclass(frozen=True)
class SufficiencyConfig:
    """Every threshold and size of a sufficiency study, by section."""

    dictionaries: Dictionaries = field(default_factory=Dictionaries)
    heads: Heads = field(default_factory=Heads)
    masks: Masks = field(default_factory=Masks)
    comparisons: Comparisons = field(default_factory=Comparisons)
    geometry: Geometry = field(default_factory=Geometry)
    trends: Trends = field(default_factory=Trends)
    bridge: Bridge = field(default_factory=Bridge)
    verdicts: Verdicts = field(default_factory=Verdicts)
    memory: Memory = field(default_factory=Memory)
