"""Stability of dictionaries: those of further seeds beside a checkpoint's own."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from tl_lifehist.dictionaries.decomposition import Decomposition, dictionary_overlap
from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.stages import Inputs, Outputs
from tl_lifehist.sufficiency.config import Dictionaries
from tl_lifehist.sufficiency.fitted import decomposed
from tl_lifehist.sufficiency.sites import joined, with_site
from tl_lifehist.sufficiency.stages.reading import Reading, fit_stage

COLUMNS = ["method", "seed_a", "seed_b", "dictionary_overlap", "dictionary_null"]


def refits(
    inputs: Inputs,
    *,
    step: int,
    last: int,
    hook_names: tuple[str, ...],
    dictionaries: Dictionaries,
    seeds: tuple[int, ...],
    seed: int,
    pass_hooks: tuple[str, ...],
    hooks_per_pass: int | None = None,
) -> Outputs:
    """`stability`: overlap of dictionaries of two seeds, of methods that have a start."""
    random = [m for m in dictionaries.methods if not METHODS[m].deterministic]
    reading = Reading(inputs, step, last, dictionaries.leave_out_massive, pass_hooks, hooks_per_pass)
    found = []
    if random and len(seeds) > 1:
        held = inputs[fit_stage(step)]
        for name, acts in reading.train_acts(hook_names):
            rows = []
            for method in random:
                own = Decomposition.from_tensors(held[f"{name}/dictionaries/{method}"])
                rows += dictionary_stability(own, acts, seeds=seeds, options=dictionaries, seed=seed)
            found.append(with_site(pd.DataFrame(rows, columns=COLUMNS), step, name))
    empty = with_site(pd.DataFrame(columns=COLUMNS), step, hook_names[0])
    return {"stability": joined(found or [empty])}


def dictionary_stability(
    own: Decomposition, acts: Tensor, *, seeds: tuple[int, ...], options: Dictionaries, seed: int
) -> list[tuple[Any, ...]]:
    """How far dictionaries of two seeds have the same directions, beside random directions: method, seed_a, seed_b,
    dictionary_overlap, dictionary_null.

    Args:
        own: the study's dictionary, fitted to `acts` with `seed`.
        acts: the rows of all of them.
    """
    fitted = {s: own if s == seed else decomposed(acts, own.method, options, s) for s in seeds}
    generator = torch.Generator().manual_seed(seed)
    drawn = replace(own, W_dec=torch.randn(own.W_dec.shape, generator=generator).to(own.W_dec))
    null = dictionary_overlap(own, drawn)
    return [
        (own.method, a, b, dictionary_overlap(fitted[a], fitted[b]), null) for a, b in combinations(sorted(seeds), 2)
    ]
