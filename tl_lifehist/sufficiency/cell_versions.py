"""The masks of a cell, each beside the masks it has to beat."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tl_lifehist.seeds import derive_seed
from tl_lifehist.sufficiency.nulls import permuted_mask, rivals

if TYPE_CHECKING:
    from tl_lifehist.sufficiency.cell import Calibrated, Cell


@dataclass(frozen=True, eq=False)
class Version:
    """One mask to be scored: `role` is "mask" (targets, empty, full), "null" or "frontier"."""

    role: str
    name: str
    gates: Tensor
    draw: int = 0
    penalty_total: float = float("nan")


def versions_of(cell: Cell, method: str, masks: Sequence[Calibrated], ranking: dict[str, Tensor]) -> list[Version]:
    """Empty, full, the targets' masks, the downstream mask's nulls, and the sweep with its variance masks."""
    study, dictionary = cell.study, cell.dictionaries[method]
    first = study.seeds[0]
    own = [m for m in masks if m.method == method and m.seed == first]
    own_stream = (study.seed, cell.step, zlib.crc32(f"{cell.hook_name}/{method}".encode()))
    none = torch.zeros_like(dictionary.code_mean)
    variance = dictionary.component_variance
    listed = [Version("mask", "empty", none), Version("mask", "full", none + 1)]
    for one in own:
        if one.penalty_total == study.penalty_total:
            listed.append(Version("mask", one.target, one.mask.gates))
        if one.target != "downstream":
            continue
        if one.penalty_total == study.penalty_total:
            listed += [
                Version("null", "random", permuted_mask(one.mask, seed=derive_seed(*own_stream, draw)), draw)
                for draw in range(study.n_random)
            ]
            for name, scores in ranking.items():
                listed += [Version("null", name, gates) for gates in rivals(one.mask, scores)]
        if method in study.close_ups:
            listed.append(Version("frontier", "downstream", one.mask.gates, penalty_total=one.penalty_total))
            listed += [
                Version("frontier", "top_variance", g, penalty_total=one.penalty_total)
                for g in rivals(one.mask, variance)
            ]
    return listed
