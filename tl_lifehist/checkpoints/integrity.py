"""Are the checkpoints what they say they are? Fingerprints of weights, and what two steps have in common.

An undetected duplicate looks like perfect persistence: every feature lives on, nothing is born and nothing dies.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from tl_lifehist.checkpoints.nature import compare_natures, plain_name
from tl_lifehist.errors import InputError

_BLOCK = re.compile(r"(?:^|\.)(?:blocks?|layers?|h)\.([0-9]+)\.")
_HEADS = {"unembed", "lm_head", "embed_out", "head"}
_HEADS_BY_PARENT = {"decoder", "output"}  # also names of containers, so only as the last module of the path
_EMBEDDINGS = {"wte", "wpe"}
_WEAK = "weak-"  # the mark of a group that is no evidence by itself


@dataclass(frozen=True)
class Duplicate:
    """Two steps that share weights: `groups` of parameters to the last bit, or the `whole` model."""

    step_a: int
    step_b: int
    groups: tuple[str, ...]
    whole: bool


@dataclass(frozen=True)
class IntegrityReport:
    """What is wrong with a series. `str(report)` is for a person.

    `frozen` are groups that are the same at *every* step while others change: a part that was not trained, most
    likely, so it is named but not counted as wrong. `mixed` are the kinds of difference that no training makes, a
    sentence each: another architecture, another precision, weights that were processed and weights that were not.
    `fingerprints` go into a run's record.
    """

    steps: tuple[int, ...]
    duplicates: tuple[Duplicate, ...] = ()
    missing: tuple[int, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict)  # step -> why it is missing
    frozen: tuple[str, ...] = ()
    fingerprints: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    mixed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing is missing, no two steps share weights, and all are of one kind."""
        return not self.duplicates and not self.missing and not self.mixed

    def __str__(self) -> str:
        lines = [f"{len(self.steps)} checkpoints: {'no fault found' if self.ok else 'faults found'}."]
        lines += [f"Step {step} is missing: {self.reasons[step]}" for step in self.missing]
        lines += self.mixed
        for found in self.duplicates[:20]:
            share = "are identical" if found.whole else f"share the weights of {', '.join(found.groups)}"
            lines.append(f"Steps {found.step_a} and {found.step_b} {share}.")
        if len(self.duplicates) > 20:
            lines.append(f"... and {len(self.duplicates) - 20} more pairs of steps.")
        if self.frozen:
            lines.append(f"The same at every step: {', '.join(self.frozen)} (not trained, or copied everywhere).")
        return "\n".join(lines)


def fingerprint(model: Any) -> dict[str, str]:
    """The sha256 of each group of parameters: "embedding", "block 0", "block 1", ..., "head", "rest".

    Names, dtypes, shapes and bytes go in; buffers do not, for they are not trained. A tied head is part of the
    embedding. A value that begins with "weak-" belongs to a group without a matrix that varies (norms, biases, zero
    matrices): such a group may keep its initial value, or survive rounding, with nothing being wrong.

    Works on anything with `named_parameters`. Raises InputError for models without parameters.

    How it can mislead: it names what is equal bit for bit. The same weights rounded to another dtype are different,
    and so are a bridge's and a HookedTransformer's names for the same weights.
    """
    groups: dict[str, list[tuple[str, Tensor]]] = {}
    named = model.named_parameters() if isinstance(model, nn.Module) else ()
    lookup = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding)] if named else []
    for name, parameter in named:
        groups.setdefault(_group(name, lookup), []).append((plain_name(name), parameter.detach()))
    if not groups:
        raise InputError(f"{type(model).__name__} has no parameters, so its weights cannot be compared.")
    return {group: _digest(tensors) for group, tensors in sorted(groups.items(), key=lambda item: _order(item[0]))}


def compare_fingerprints(
    fingerprints: Mapping[int, Mapping[str, str]],
    unreadable: Mapping[int, str] | None = None,
    natures: Mapping[int, Mapping[str, str]] | None = None,
) -> IntegrityReport:
    """What the steps have in common, which could not be read, and which are of another kind (`natures`).

    Two steps are a duplicate when all their groups are equal (`whole`), or when some group is that has a varying
    matrix. A group that is equal at every one of three or more steps, while others change, is `frozen` instead. With
    two steps the two cases cannot be told apart, and it is reported as a duplicate.
    """
    steps = sorted(fingerprints)
    frozen = _frozen([fingerprints[step] for step in steps])
    duplicates = []
    for a, b in combinations(steps, 2):
        one, other = fingerprints[a], fingerprints[b]
        shared = tuple(group for group in one if other.get(group) == one[group])
        whole = len(shared) == len(one) == len(other)
        evidence = tuple(g for g in shared if g not in frozen and not one[g].startswith(_WEAK))
        if whole or evidence:
            duplicates.append(Duplicate(a, b, shared if whole else evidence, whole))
    reasons = dict(sorted((unreadable or {}).items()))
    everything = tuple(sorted({*steps, *reasons}))
    mixed = compare_natures(natures or {})
    return IntegrityReport(everything, tuple(duplicates), tuple(reasons), reasons, frozen, dict(fingerprints), mixed)


def _frozen(prints: list[Mapping[str, str]]) -> tuple[str, ...]:
    if len(prints) < 3:
        return ()
    same = [g for g in prints[0] if not prints[0][g].startswith(_WEAK) and len({p.get(g) for p in prints}) == 1]
    moving = {g for p in prints for g in p if len({other.get(g) for other in prints}) > 1}
    return tuple(same) if moving else ()


def _digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest, strong = hashlib.sha256(), False
    for name, tensor in sorted(tensors, key=lambda item: item[0]):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.reshape(-1).cpu()
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy().data)
            strong = strong or (tensor.ndim > 1 and bool((flat != flat[0]).any()))
    return ("" if strong else _WEAK) + digest.hexdigest()


def _group(name: str, embeddings: list[str]) -> str:
    plain = plain_name(name)
    block = _BLOCK.search(plain)
    if block:
        return f"block {int(block.group(1))}"
    parts = plain.split(".")[:-1]
    if _HEADS.intersection(parts):
        return "head"
    if any("embed" in part or part in _EMBEDDINGS for part in parts) or name.rpartition(".")[0] in embeddings:
        return "embedding"
    return "head" if parts and parts[-1] in _HEADS_BY_PARENT else "rest"


def _order(group: str) -> tuple[int, int]:
    kind, _, index = group.partition(" ")
    return ("embedding", "block", "head", "rest").index(kind), int(index or 0)
