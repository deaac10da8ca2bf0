"""Of what kind a checkpoint is, in what training does not change: architecture, precision, and whether its weights were
processed (norms folded into the next matrix, writing weights centred), which changes what an SAE sees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_ROWS = 512  # of the embedding, looked at
_CENTRED = 0.05  # mean of a row, in units of what chance leaves it at: 1 / sqrt(width)


@torch.no_grad()
def nature(model: Any) -> dict[str, str]:
    """The kind of a model, by aspect: "architecture", "precision", "embedding", "norms" and "processing".

    How it can mislead: norms that were folded away look as they do before training, all ones. At the first steps of a
    series they are taken for untrained, unless the model itself says that it was processed.
    """
    named = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
    shapes = sorted(f"{plain_name(name)} {tuple(parameter.shape)}" for name, parameter in named.items())
    digest = hashlib.sha256("\n".join(shapes).encode()).hexdigest()[:12]
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in named.values() if p.is_floating_point()})
    cfg = getattr(model, "cfg", None)
    kind = getattr(cfg, "architecture", None) or type(model).__name__
    flags = [str(getattr(cfg, "normalization_type", None))]
    flags += ["compatibility mode"] if getattr(model, "compatibility_mode", False) else []
    return {
        "architecture": f"{kind} with {len(shapes)} parameters, {digest}",
        "precision": ", ".join(dtypes),
        "embedding": _embedding(named),
        "norms": _norms(named),
        "processing": ", ".join(flags),
    }


def compare_natures(natures: Mapping[int, Mapping[str, str]]) -> tuple[str, ...]:
    """A sentence for each aspect in which the steps are not of one kind."""
    steps = sorted(natures)
    told = []
    for aspect in dict.fromkeys(aspect for one in natures.values() for aspect in one):
        kinds: dict[str, list[int]] = {}
        for step in steps:
            kinds.setdefault(natures[step].get(aspect, "unknown"), []).append(step)
        untrained = kinds.get("all ones", [])
        if len(kinds) > 1 and not (aspect == "norms" and untrained == steps[: len(untrained)]):
            each = "; ".join(f"{kind} at {_steps(at)}" for kind, at in kinds.items())
            told.append(f"The {aspect} is not the same at every step: {each}.")
    return tuple(told)


def plain_name(name: str) -> str:
    """A parameter's name without those of the wrappers that a bridge puts around every module."""
    return name.replace("_original_component.", "")


def _embedding(named: Mapping[str, Tensor]) -> str:
    tables = (p for n, p in named.items() if p.ndim == 2 and any(part in n for part in ("embed", "wte", "embd")))
    table = next((p for p in tables if p.shape[0] > 1 and p.shape[1] > 1), None)
    if table is None:
        return "unknown"
    rows = table[:_ROWS].float()
    length = rows.square().mean().sqrt()
    off = rows.mean(dim=1).square().mean().sqrt() * rows.shape[1] ** 0.5
    return "centred" if bool(length > 0) and bool(off < _CENTRED * length) else "not centred"


def _norms(named: Mapping[str, Tensor]) -> str:
    found = {n: p for n, p in named.items() if p.ndim == 1 and any(part in n.lower() for part in ("norm", "ln"))}
    if not found:
        return "without weights"
    plain = all(bool((p == (0 if n.endswith(("bias", ".b")) else 1)).all()) for n, p in found.items())
    return "all ones" if plain else "trained"


def _steps(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[:5]))
    return f"step{'s' * (len(steps) > 1)} {shown}{f' and {len(steps) - 5} more' * (len(steps) > 5)}"
