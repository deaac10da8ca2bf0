"""What the tested claims of a life history say, in plain words."""

from __future__ import annotations

from tl_lifehist.claims import Claim, sentence

# found, and what would have been found
WORDS = {
    "load.count": (
        "In this run, on new text, removing the {n} carriers costs {effect} nats more than removing as many features "
        "of any kind.",
        "removing the carriers costs more than removing as many features of any kind",
    ),
    "load.mass": (
        "In this run, on new text, removing the {n} carriers that have an equal costs {effect} nats more than removing "
        "features of equal mass.",
        "removing the carriers costs more than removing features of equal mass",
    ),
    "recruitment.container": (
        "What carriers reach in the containment graph differs from what features of their firing rates reach, by "
        "{effect} of the features.",
        "carriers reach another share of the features than others of their firing rates",
    ),
    "forecast.beyond_rate": (
        "Entropy, containment and strength at the onset tell later carriers beyond firing rate and layer, by {effect} "
        "in AUC.",
        "the measurements at the onset tell later carriers beyond firing rate and layer",
    ),
    "survival.entropy": (
        "At equal firing rate the broader half of the features reaches the end more often, by {effect}.",
        "broad features survive longer than others of their firing rate",
    ),
    "events.early": (
        "In an early transition {effect} more of the alive features are born or die than in a later one.",
        "features are born and die more in early transitions",
    ),
    "features.change": (
        "Between checkpoints {effect} of the features change beyond what a second SAE training of one checkpoint "
        "changes.",
        "features change between checkpoints beyond the noise of SAE training",
    ),
    "direction.function_first": (
        "Early features are nearer their end in function than in direction, by {effect} beyond what two SAE trainings "
        "of one model show.",
        "function comes before direction",
    ),
}


def in_words(claim: Claim) -> Claim:
    """The claim with its sentence, where it is tested."""
    return sentence(claim, *WORDS[claim.id]) if claim.id in WORDS else claim
