"""Every threshold and size of a life-history study. Values are ours unless marked as the paper's or its authors' prior
work's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tl_lifehist.config import Section, above_zero, at_least, option, share_above_zero, within
from tl_lifehist.errors import InputError, one_of


@dataclass(frozen=True)
class SAETraining(Section):
    """How the SAEs are trained (D1)."""

    d_sae: int | None = option(None, "features of an SAE; 4 times the width by default (prior)")
    k: int = option(32, "active features per token (prior)")
    training_tokens: int = option(600_000, "rows each SAE is trained on")
    init: str = option("shared", 'initial weights: "shared", "independent" or "previous"')

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("init", self.init, ("shared", "independent", "previous"))
        at_least(self, 1, "d_sae", "k", "training_tokens")
        if self.d_sae is not None and self.k > self.d_sae:
            raise InputError(
                f"k={self.k} features of d_sae={self.d_sae} cannot be active: set k to {self.d_sae} or less."
            )


@dataclass(frozen=True)
class Alive(Section):
    """Which features are alive (D2, D3)."""

    firing_threshold: float = option(1e-6, "a code up to it does not fire")
    min_rate: float = option(1e-3, "least firing rate of an alive feature")
    min_count: int = option(50, "least number of firings of an alive feature")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "firing_threshold", "min_count")
        within(self, 0, 1, "min_rate")


@dataclass(frozen=True)
class Matching(Section):
    """Which features of two checkpoints are one (D5 to D7)."""

    min_similarity: float = option(0.5, "least Pearson correlation of a match (paper)")
    method: str = option("gated", 'assignment: "gated", or "dense", the literal order')
    transformed: float | None = option(None, "least correlation of a second, weaker match; none by default (prior)")
    max_gap: int = option(0, "checkpoints that a lineage may skip, 0 or 1; in the other study max_gap is a gap in mass")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("method", self.method, ("gated", "dense"))
        share_above_zero(self, "min_similarity", "transformed")
        within(self, 0, 1, "max_gap")


@dataclass(frozen=True)
class CarrierRule(Section):
    """Which lineages are persistent carriers (D9)."""

    min_snapshots: int | None = option(None, "least number of checkpoints after step 0; by default from min_share")
    min_share: float = option(2 / 3, "share of the checkpoints after step 0, rounded up: 4 of 6 (paper)")
    consecutive: bool = option(True, "the checkpoints follow each other")
    alive_at_end: bool = option(True, "alive at the last checkpoint")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "min_snapshots")
        share_above_zero(self, "min_share")


@dataclass(frozen=True)
class Containment(Section):
    """Which features contain which (D12)."""

    min_containment: float = option(0.8, "least containment index of an edge")
    min_firings: int = option(50, "least number of firings of the contained feature")
    min_lift: float = option(2.0, "least lift of an edge")
    max_p: float = option(1e-6, "largest hypergeometric p, after Bonferroni")

    def __post_init__(self) -> None:
        super().__post_init__()
        share_above_zero(self, "min_containment", "max_p")
        at_least(self, 0, "min_firings")
        above_zero(self, "min_lift")


@dataclass(frozen=True)
class Noise(Section):
    """How much of SAE noise is measured (C1)."""

    noise_steps: tuple[int, ...] | None = option(None, "checkpoints trained again; first, middle and last by default")
    n_frozen: int = option(3, "trainings at the last checkpoint for the frozen null")
    frozen_draws: int = option(500, "draws of the frozen null")
    unrelated_draws: int = option(3, "shuffles of the unrelated null")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 2, "n_frozen")  # one alone gives no spread
        at_least(self, 1, "frozen_draws", "unrelated_draws")


@dataclass(frozen=True)
class ControlSets(Section):
    """Control sets of loads and of recruitment (D19, C6, C8)."""

    controls: tuple[str, ...] = option(
        ("count", "rate", "mass", "norm"), "kinds of control sets for the joint load", registry="control"
    )
    n_draws: int = option(199, "control sets of each kind that is tested, and of recruitment")
    n_described: int = option(39, "control sets of each kind that is only described")
    n_rewired: int = option(20, "degree-preserving rewirings of the graph")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "n_draws", "n_described")
        at_least(self, 0, "n_rewired")


@dataclass(frozen=True)
class EqualFeatures(Section):
    """Which features are equals, among which the label "carrier" is exchanged (D19)."""

    block: int = option(8, "features of neighbouring mass or rate in a group of equals")
    rate_block: int = option(5, "the same where what carriers recruit, their survival and the forecast are tested")
    caliper: float = option(0.25, "width of a group of equals at most, in decades")
    max_unmatched: float = option(0.5, "share of carriers without an equal above which nothing is testable")
    max_smd: float = option(0.25, "standardised mean difference in a layer above which nothing is testable")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 2, "block", "rate_block")
        at_least(self, 0, "caliper", "max_smd")
        within(self, 0, 1, "max_unmatched")


@dataclass(frozen=True)
class Sampling(Section):
    """Parts that are samples even when nothing is reduced."""

    load_tokens: int = option(16_384, "positions on which ablations are scored")
    singles_per_role: int = option(15, "features of each role ablated alone")
    single_carriers: int = option(60, "carriers ablated alone")
    regression_sets: int = option(60, "random sets of the load regression")
    content_draws: int = option(19, "sets of equal mass from the other content class")
    contexts: int = option(5, "contexts shown per carrier")
    window: int = option(12, "tokens shown on each side of a firing")
    regression_share: float = option(1 / 8, "share of the alive features in each of these sets")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "load_tokens", "singles_per_role", "regression_sets", "contexts")
        at_least(self, 0, "single_carriers", "content_draws", "window")
        share_above_zero(self, "regression_share")


@dataclass(frozen=True)
class Sweeps(Section):
    """Other values of thresholds, each tried alone (C4)."""

    similarities: tuple[float, ...] = option((0.3, 0.4, 0.6, 0.7), "other values of min_similarity")
    rates: tuple[float, ...] = option((1e-4, 1e-2), "other values of min_rate, with min_count in proportion")
    containments: tuple[float, ...] = option((0.5, 0.7, 0.8, 0.9, 0.95), "values of min_containment")
    lifts: tuple[float, ...] = option((1.5, 2.0, 5.0), "values of min_lift")
    edge_ps: tuple[float, ...] = option((1e-3, 1e-9), "other values of max_p")
    calipers: tuple[float, ...] = option((0.1, 0.25, 0.5), "values of caliper")
    frequent_ids: int = option(50, "most frequent vocabulary ids left out in control C11")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "frequent_ids")
        for name in ("similarities", "rates", "containments", "edge_ps"):
            if not all(0 < value <= 1 for value in getattr(self, name)):
                raise InputError(f"{name}={list(getattr(self, name))}: every value must lie above 0 and up to 1.")
        for name in ("lifts", "calipers"):
            if not all(value > 0 for value in getattr(self, name)):
                raise InputError(f"{name}={list(getattr(self, name))}: every value must lie above 0.")


@dataclass(frozen=True)
class Forecasting(Section):
    """What is predicted from the onset (D20, D21, D23)."""

    onset: int | None = option(None, "checkpoint to predict from; by default from onset_share")
    onset_share: float = option(0.007, "share of training after which the first checkpoint is the onset (paper)")
    min_positives: int = option(10, "carriers at the onset below which nothing is predicted")
    n_folds: int = option(5, "stratified folds")
    n_repeats: int = option(20, "repeats of the folds")
    n_permutations: int = option(200, "permutations of the labels")
    inverse_penalty: float = option(1.0, "C of the logistic regression")
    n_groups: int = option(10, "groups by entropy whose survival is shown")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "onset", "n_permutations")
        at_least(self, 1, "n_repeats", "n_groups")
        at_least(self, 2, "min_positives", "n_folds")  # each fold leaves one of either class to learn from
        within(self, 0, 1, "onset_share")
        above_zero(self, "inverse_penalty")


@dataclass(frozen=True)
class Verdicts(Section):
    """When a claim counts."""

    level: float = option(0.05, "p at which a claim is beyond its null")
    null_draws: int = option(1000, "draws of nulls and samples of intervals that are cheap")
    early_share: float = option(0.01, "share of training that is early (paper)")
    phase_two_share: float = option(0.28, "share of training after which its third phase begins")
    min_lineages: int = option(10, "lineages below which function and direction are not compared")
    min_role_features: int = option(6, "features below which roles are not compared")
    worlds: int = option(200, "planted worlds without effect in which each test is tried; 0 for none")
    min_mass_share: float = option(0.5, "share of mass on infrastructure ids that makes a feature infrastructure")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "null_draws", "min_lineages", "min_role_features")
        at_least(self, 0, "worlds")
        within(self, 0, 1, "level", "early_share", "phase_two_share", "min_mass_share")


@dataclass(frozen=True)
class LifeHistoryConfig:
    """Every threshold and size of a life-history study, by section."""

    sae: SAETraining = field(default_factory=SAETraining)
    alive: Alive = field(default_factory=Alive)
    matching: Matching = field(default_factory=Matching)
    rule: CarrierRule = field(default_factory=CarrierRule)
    containment: Containment = field(default_factory=Containment)
    noise: Noise = field(default_factory=Noise)
    control_sets: ControlSets = field(default_factory=ControlSets)
    equals: EqualFeatures = field(default_factory=EqualFeatures)
    sampling: Sampling = field(default_factory=Sampling)
    sweep: Sweeps = field(default_factory=Sweeps)
    forecast: Forecasting = field(default_factory=Forecasting)
    verdicts: Verdicts = field(default_factory=Verdicts)
