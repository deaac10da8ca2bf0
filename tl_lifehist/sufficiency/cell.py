"""One checkpoint and hook point of the study: fit on the train text, calibrate on the second, measure on the third."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import save_file
from torch import Tensor

from tl_lifehist.activations import collect_activations
from tl_lifehist.dictionaries.decomposition import Decomposition, decompose, dictionary_overlap
from tl_lifehist.dictionaries.methods import METHODS
from tl_lifehist.hook_names import parse_hook_name
from tl_lifehist.metrics import top_row_share
from tl_lifehist.models import HookedModel
from tl_lifehist.seeds import derive_seed
from tl_lifehist.sufficiency.alignment import Alignment, align_checkpoints, align_dictionaries, shuffled_rows
from tl_lifehist.sufficiency.calibration import MaskTask, calibrate_masks
from tl_lifehist.sufficiency.cell_tables import measure
from tl_lifehist.sufficiency.clean import NoReference
from tl_lifehist.sufficiency.gates import SoftMask
from tl_lifehist.sufficiency.massive import without_massive
from tl_lifehist.sufficiency.study import SufficiencyStudy
from tl_lifehist.sufficiency.targets import TARGETS, TargetContext
from tl_lifehist.sufficiency.translator import Translator, fit_translator
from tl_lifehist.tokens import TokenSet


@dataclass(frozen=True, eq=False)
class Cell:
    """What is fitted at one checkpoint and hook point. `alignments` are by control and serve every method,
    `dictionary_alignments` are between dictionaries, one for each of the close-ups.
    """

    study: SufficiencyStudy
    step: int
    hook_name: str
    model: HookedModel
    final_model: HookedModel
    calibration: TokenSet
    test: TokenSet
    n_rows: int
    top_row_share: float
    dictionaries: dict[str, Decomposition]
    translator: Translator
    alignments: dict[str, Alignment]
    dictionary_alignments: dict[str, Alignment]


@dataclass(frozen=True)
class Calibrated:
    """A mask of the study with what it was calibrated for."""

    method: str
    target: str
    penalty_total: float
    seed: int
    mask: SoftMask


def cell_unit(folder: Path, study: SufficiencyStudy, step: int, hook_name: str) -> None:
    """Write the tables of one cell, and its dictionaries and fixed head in safetensors."""
    cell = fit(study, step, hook_name)
    masks = calibrate(cell)
    tables = measure(cell, masks)
    tables["stability_dictionaries"] = dictionary_stability(cell)
    for method, dictionary in cell.dictionaries.items():
        dictionary.save(folder / f"{method}.safetensors")
    save_file(
        {"weight": cell.translator.weight.contiguous(), "bias": cell.translator.bias.contiguous()},
        folder / "translator.safetensors",
    )
    site, layer = place(hook_name)
    for name, table in tables.items():
        keys = {"step": step, "hook_name": hook_name, "site": site, "layer": layer}
        table.assign(**keys)[[*keys, *table.columns]].to_parquet(folder / f"{name}.parquet", index=False)


def place(hook_name: str) -> tuple[str, int]:
    """Site and block of a hook point: `("hook_mlp_out", 2)` for `blocks.2.hook_mlp_out`; -1 outside the blocks."""
    layer, site = parse_hook_name(hook_name)
    return site, layer


def fit(study: SufficiencyStudy, step: int, hook_name: str) -> Cell:
    """Dictionaries, fixed head and alignments, on the train text alone."""
    assert study.train is not None
    assert study.calibration is not None
    assert study.test is not None
    model = study.series.load(step)
    final_model = model if step == study.last else study.series.load(study.last)
    train, calibration, test = (
        without_massive(model, hook_name, tokens, study.leave_out_massive)
        for tokens in (study.train, study.calibration, study.test)
    )
    acts = collect_activations(model, hook_name, train)
    final_acts = acts if step == study.last else collect_activations(final_model, hook_name, train)
    dictionaries = {m: _decomposed(study, acts, m, study.seed) for m in study.methods}
    kinds = {"aligned": "ridge", "procrustes": "procrustes", "identity": "identity"}
    alignments = {
        name: align_checkpoints(acts, final_acts, ridge=study.ridge, kind=kind) for name, kind in kinds.items()
    }
    shuffled = shuffled_rows(acts, seed=derive_seed(study.seed, step, 1))
    alignments["shuffled"] = align_checkpoints(shuffled, final_acts, ridge=study.ridge)
    rows = slice(0, MATCHED_ROWS)  # component matching needs no more
    by_dictionary = {
        m: align_dictionaries(
            dictionaries[m], _decomposed(study, final_acts, m, study.seed), acts[rows], final_acts[rows]
        )
        for m in study.close_ups
    }
    translator = fit_translator(
        model,
        hook_name,
        train,
        steps=study.translator_steps,
        seed=derive_seed(study.seed, step, 2),
    )
    return Cell(
        study,
        step,
        hook_name,
        model,
        final_model,
        calibration,
        test,
        len(acts),
        top_row_share(acts),
        dictionaries,
        translator,
        alignments,
        by_dictionary,
    )


MATCHED_ROWS = 8192  # rows on which components of two dictionaries are matched (ours)


def _decomposed(study: SufficiencyStudy, acts: Tensor, method: str, seed: int) -> Decomposition:
    k = study.n_components or min(100, acts.shape[1])
    return decompose(acts, method=method, n_components=k, seed=seed)


def calibrate(cell: Cell) -> list[Calibrated]:
    """All masks of a cell in one descent: targets and methods, then the close-ups' sweep and seeds, downstream."""
    study = cell.study
    context = TargetContext(
        cell.translator, cell.alignments["aligned"], cell.final_model, study.relative_to, study.transfer_loss
    )
    targets = {name: TARGETS[name].make(context) for name in study.targets}
    first = study.seeds[0]
    wanted = [(m, t, study.penalty_total, first) for m in study.methods for t in study.targets]
    if "downstream" in study.targets:
        wanted += [(m, "downstream", total, first) for m in study.close_ups for total in study.sweep]
        wanted += [(m, "downstream", study.penalty_total, seed) for m in study.close_ups for seed in study.seeds[1:]]
    while wanted:
        tasks = []
        for method, target, total, seed in wanted:
            dictionary = cell.dictionaries[method]
            tasks.append(MaskTask(dictionary, targets[target], total / len(dictionary.W_dec), seed))
        try:
            masks = calibrate_masks(
                cell.model,
                tasks,
                cell.calibration,
                hook_name=cell.hook_name,
                steps=study.steps,
                batch_size=study.batch_size,
            )
        except NoReference as error:  # formula 9: such a target has no mask here, and is counted
            wanted = [w for w in wanted if w[1] != error.target]
        else:
            return [Calibrated(*w, mask) for w, mask in zip(wanted, masks, strict=True)]
    return []


def dictionary_stability(cell: Cell) -> pd.DataFrame:
    """How far dictionaries of two seeds have the same directions, beside random directions: method, seed_a, seed_b,
    dictionary_overlap, dictionary_null. Methods without randomness are left out.
    """
    study = cell.study
    assert study.train is not None
    methods = [m for m in study.methods if not METHODS[m].deterministic]
    rows: list[tuple[Any, ...]] = []
    if methods and len(study.seeds) > 1:
        tokens = without_massive(cell.model, cell.hook_name, study.train, study.leave_out_massive)
        acts = collect_activations(cell.model, cell.hook_name, tokens)
    for method in methods if len(study.seeds) > 1 else ():
        own = cell.dictionaries[method]
        fitted = {s: own if s == study.seed else _decomposed(study, acts, method, s) for s in study.seeds}
        generator = torch.Generator().manual_seed(study.seed)
        drawn = replace(own, W_dec=torch.randn(own.W_dec.shape, generator=generator).to(own.W_dec))
        null = dictionary_overlap(own, drawn)
        for a, b in combinations(sorted(study.seeds), 2):
            rows.append((method, a, b, dictionary_overlap(fitted[a], fitted[b]), null))
    return pd.DataFrame(rows, columns=["method", "seed_a", "seed_b", "dictionary_overlap", "dictionary_null"])
