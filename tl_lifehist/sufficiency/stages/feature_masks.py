"""Masks over the SAEs of a life-history run at one checkpoint: do they pick its carriers?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tl_lifehist.dictionaries.protocol import Dictionary, with_reference
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.lifehistory.stored import alive_features, stored_features
from tl_lifehist.seeds import derive_seed
from tl_lifehist.stages import Inputs, Outputs
from tl_lifehist.sufficiency.calibration import MaskTask, calibrate_on
from tl_lifehist.sufficiency.carriers import FeatureSubset, carrier_enrichment
from tl_lifehist.sufficiency.clean import CleanRun
from tl_lifehist.sufficiency.config import Bridge, Masks
from tl_lifehist.sufficiency.evaluation import evaluate_mask
from tl_lifehist.sufficiency.sites import joined, with_site
from tl_lifehist.sufficiency.stages.reading import Reading
from tl_lifehist.sufficiency.targets import Downstream
from tl_lifehist.tokens import TokenSet

COLUMNS = [
    *("keep_error", "n_alive", "n_carriers", "soft_mass", "enrichment", "against", "null", "low", "high", "p"),
    *("unmatched_share", "mass_gap", "kl", "relative_kl", "lost_fraction"),
    *("empty_kl", "empty_lost_fraction", "full_kl", "full_lost_fraction"),
]


def feature_masks(
    inputs: Inputs,
    *,
    step: int,
    sae_hooks: tuple[str, ...],
    life_history: str,
    masks: Masks,
    bridge: Bridge,
    seed: int,
    folder: str,
    pass_hooks: tuple[str, ...],
    hooks_per_pass: int | None = None,
) -> Outputs:
    """`carriers`: masks over the alive features of each SAE that has a carrier, with its error kept and dropped. No row
    is left out of its texts.

    Args:
        sae_hooks: hook points with SAEs.
        life_history: what the run's SAEs, profiles and carriers are, as a hash.
        folder: where the run lies.
    """
    reading = Reading(inputs, step, step, 0.0, pass_hooks, hooks_per_pass)
    sites = {name: found for name in sae_hooks if (found := Site.read(folder, step, name)) is not None}
    dictionaries = {
        name: with_reference(sites[name].subset, rows.acts, seed=seed) for name, rows in reading.train(tuple(sites))
    }
    tables = [with_site(pd.DataFrame(columns=COLUMNS), step, sae_hooks[0])]
    for name, clean in reading.calibration(tuple(sites), batch_size=masks.batch_size):
        rows = site_rows(
            clean,
            dictionaries[name],
            sites[name],
            inputs.text("test"),
            masks=masks,
            bridge=bridge,
            seed=derive_seed(seed, step, 5),
        )
        tables.append(with_site(pd.DataFrame(rows, columns=COLUMNS), step, name))
    return {"carriers": joined(tables)}


@dataclass(frozen=True, eq=False)
class Site:
    """An SAE of a life history with its profile, the features that the run counts as alive as a dictionary, and which
    of all are carriers.
    """

    profile: FeatureProfiles
    subset: FeatureSubset
    carriers: list[int]

    @classmethod
    def read(cls, folder: str, step: int, hook_name: str) -> Site | None:
        """From the run's folder; None where no carrier is alive."""
        sae, profile, carriers = stored_features(folder, step, hook_name)
        alive = alive_features(folder, step, hook_name)
        return cls(profile, FeatureSubset(sae, alive), carriers) if set(carriers) & set(alive) else None


def site_rows(
    clean: CleanRun,
    dictionary: Dictionary,
    site: Site,
    test: TokenSet,
    *,
    masks: Masks,
    bridge: Bridge,
    seed: int,
) -> Iterator[tuple[Any, ...]]:
    """Two rows of `COLUMNS`, with the error kept and dropped.

    Args:
        clean: of the calibration text.
        dictionary: the alive features, with a reference of the train text.
        test: what costs are measured on.
        seed: of the sets beside the carriers.
    """
    alive = len(site.subset.features)
    tasks = [
        MaskTask(dictionary, Downstream(masks.relative_to), masks.penalty_total / alive, keep_error=keep)
        for keep in (True, False)
    ]
    found = calibrate_on(
        clean, tasks, steps=masks.mask_steps, batch_size=masks.batch_size, learning_rate=masks.learning_rate
    )
    for mask in found:
        beside = carrier_enrichment(
            mask.gates,
            site.profile,
            site.carriers,
            alive=site.subset.features.tolist(),
            n_sets=bridge.n_sets,
            stratum=bridge.stratum,
            max_unmatched=bridge.max_unmatched,
            max_gap=bridge.max_gap,
            seed=seed,
        )
        cost = evaluate_mask(
            clean.model, dictionary, mask, test, hook_name=clean.hook_name, batch_size=masks.batch_size
        )
        yield (
            *(mask.keep_error, alive, len(set(site.carriers)), mask.soft_mass, beside.enrichment, beside.against),
            *(beside.null, beside.low, beside.high, beside.p, beside.unmatched_share, beside.mass_gap),
            *(cost.kl, cost.relative_kl, cost.lost_fraction),
            # with the error kept, gates of 0 are no mean ablation: they are the null
            *(getattr(e, name) for e in (cost.empty, cost.full) for name in ("kl", "lost_fraction")),
        )
