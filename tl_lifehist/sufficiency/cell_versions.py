"""The masks of a cell, each beside the masks it has to beat."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tl_lifehist.seeds import derive_seed
from tl_lifehist.sufficiency.cell import Calibrated, Cell
from tl_lifehist.sufficiency.nulls import permuted_mask, rivals


@dataclass(frozen=True, eq=False)
class Version:
    """One mask to be scored: `role` is "mask" (targets, empty, full), "null" or "frontier"."""

    role: str
    name: str
    gates: Tensor
    draw: int = 0
    penalty_total: float = float("nan")


def versions_of(cell: Cell, method: str, masks: Sequence[Calibrated], ranking: Mapping[str, Tensor]) -> list[Version]:
    """Empty, full, the targets' masks, the downstream mask's nulls, and the sweep with its variance masks."""
    dictionary, operating = cell.fitted.dictionaries[method], cell.masks.penalty_total
    own = [m for m in masks if m.method == method and m.seed == cell.comparisons.seeds[0]]
    own_stream = (cell.seed, cell.step, zlib.crc32(f"{cell.hook_name}/{method}".encode()))
    none = torch.zeros_like(dictionary.code_mean)
    variance = dictionary.component_variance
    listed = [Version("mask", "empty", none), Version("mask", "full", none + 1)]
    for one in own:
        if one.penalty_total == operating:
            listed.append(Version("mask", one.target, one.gates))
        if one.target != "downstream":
            continue
        if one.penalty_total == operating:
            listed += [
                Version("null", "random", permuted_mask(one.gates, seed=derive_seed(*own_stream, draw)), draw)
                for draw in range(cell.comparisons.n_random)
            ]
            for name, scores in ranking.items():
                listed += [Version("null", name, gates) for gates in rivals(one.gates, scores)]
        if method in cell.close_ups:
            total = one.penalty_total
            listed.append(Version("frontier", "downstream", one.gates, penalty_total=total))
            listed += [Version("frontier", "top_variance", g, penalty_total=total) for g in rivals(one.gates, variance)]
    return listed
