"""What a study would fetch, compute and store, before any of it is done and without loading weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tl_lifehist.checkpoints.listing import readable, write_listing
from tl_lifehist.checkpoints.shape import ModelShape
from tl_lifehist.dictionaries.decomposition import N_CODES, count_components
from tl_lifehist.dictionaries.sae import NORM_ROWS
from tl_lifehist.lifehistory.study import SIZES, LifeHistoryStudy
from tl_lifehist.preflight import require_layers
from tl_lifehist.sufficiency.calibration import gates_can_close
from tl_lifehist.sufficiency.study import SufficiencyStudy
from tl_lifehist.tokens import TokenSet

if TYPE_CHECKING:
    import pandas as pd

    from tl_lifehist.checkpoints.series import CheckpointSeries

PAGE = 6_000_000  # bytes of the report, most of them the plotting library's
_FLOAT = 4


@dataclass(frozen=True, eq=False)
class StudyPlan:
    """What a study takes. `str(plan)` is for a person.

    Attributes:
        checkpoints: `series.plan()`: step, revision, tokens_billion, size, to_download (bytes).
        work: what is computed: work, units, finished (units that the run folder holds already), positions (that a
            model runs forward on), gradients (those of them that are also run backward).
        storage: what the run folder will hold: what, n, bytes.
        shape: of the model.
        again: bytes that are fetched a second time, where the series drops each checkpoint after use: a study loads
            each once to check it and then to work on it.
        texts: what each split holds, and what the study makes of too little of it, a sentence each.

    How it can mislead: positions are counted as if every control could be drawn and nothing were cached, bytes as if
    every feature were active as often as allowed, so both are upper bounds; a pass above a hook point is counted as a
    whole one. What is not run through a model (matching, NMF, graphs) is not counted at all, and of small models it
    is the larger part.
    """

    series: CheckpointSeries
    checkpoints: pd.DataFrame
    work: pd.DataFrame
    storage: pd.DataFrame
    shape: ModelShape
    again: int = 0
    texts: tuple[str, ...] = ()

    @property
    def to_download(self) -> int:
        """Bytes of configurations and weights that are not in the cache."""
        return int(self.checkpoints["to_download"].sum())

    @property
    def to_store(self) -> int:
        """Bytes of the finished run folder, at most."""
        return int(self.storage["bytes"].sum())

    @property
    def operations(self) -> float:
        """Floating-point operations in the model, roughly: 2 per parameter and position, forward and backward each."""
        runs = float(self.work["positions"].sum() + self.work["gradients"].sum())
        return 2.0 * self.shape.n_parameters * runs

    def __str__(self) -> str:
        shape, lines = self.shape, []
        write_listing(self.series, lines.append, table=self.checkpoints)
        if self.again:
            lines.append(
                f"{readable(self.again)} more, as each checkpoint is dropped after its check, and fetched again."
            )
        lines += ["", *self.texts, ""]
        lines += [
            f"Model: {shape.n_layers} blocks of width {shape.d_model}, {shape.d_vocab:,} tokens, "
            f"{shape.n_parameters / 1e6:,.1f} million parameters.",
            "",
            "To compute, at most:",
            f"{'units':>7}  {'finished':>8}  {'positions':>12}  {'with gradient':>13}",
        ]
        for row in self.work.itertuples(index=False):
            lines.append(f"{row.units:>7}  {row.finished:>8}  {row.positions:>12,}  {row.gradients:>13,}  {row.work}")
        lines += [
            f"{self.operations:.1e} floating-point operations in the model, roughly.",
            "",
            "To store in the run folder, at most:",
            *(f"{readable(row['bytes']):>10}  {row['what']}" for row in self.storage.to_dict("records")),
            f"{readable(self.to_store):>10}  in all, beside the checkpoints' own files.",
        ]
        return "\n".join(lines)


def plan_study(study: LifeHistoryStudy | SufficiencyStudy, out: str | Path | None = None) -> StudyPlan:
    """What `study.run(out)` would fetch, compute and store. Loads no weights and writes nothing.

    Args:
        study: a `LifeHistoryStudy` or a `SufficiencyStudy`.
        out: the run folder, to see what of it is finished already.

    Raises:
        InputError: the hub cannot be reached and a step is not in the cache, or the model has not that many blocks,
            or the activations not that many components.

    How it can mislead: see `StudyPlan`. Weights and the names of hook points within a block are not looked at, so a
    run may still refuse them; it does so before anything is computed.
    """
    import pandas as pd

    shape = study.series.shape
    require_layers(study.hook_names or (), shape)

    if isinstance(study, LifeHistoryStudy):
        work, storage = _life_history(study), _stored_life_history(study)
    else:
        assert study.train is not None
        for method in study.methods:
            count_components(study.n_components, method, n_rows=study.train.n_valid, d_model=shape.d_model)
        work, storage = _sufficiency(study), _stored_sufficiency(study)
    units = None if out is None else Path(out) / "units"
    rows = []
    for name, place, n, positions, gradients in work:
        done = 0 if units is None else sum(not found.name.startswith(".") for found in units.glob(place))
        rows.append((name, n, min(done, n), round(positions), round(gradients)))
    columns = ["work", "units", "finished", "positions", "gradients"]
    checkpoints = study.series.plan()
    again = 0
    if not study.series.keep:
        again = int(checkpoints["size"].sum())
        if isinstance(study, LifeHistoryStudy):
            again += int(checkpoints["size"].iloc[-1])  # the ablations
    return StudyPlan(
        study.series,
        checkpoints,
        pd.DataFrame(rows, columns=columns),
        pd.DataFrame(storage, columns=["what", "n", "bytes"]),
        shape,
        again,
        tuple(_texts(study)),
    )


def _texts(study: LifeHistoryStudy | SufficiencyStudy) -> Iterator[str]:
    for split in ("train", "calibration", "test"):
        tokens = getattr(study, split, None)
        if tokens is not None:
            seen = tokens.ids.numel() if tokens.attention_mask is None else int(tokens.attention_mask.sum())
            yield (
                f"{split}: {len(tokens.documents.unique()):,} documents in {len(tokens):,} windows of "
                f"{tokens.ids.shape[1]}, {seen / tokens.ids.numel():.0%} full; {tokens.n_valid:,} positions to work "
                f"on, {tokens.n_scored:,} to score."
            )
    if isinstance(study, LifeHistoryStudy):
        assert study.train is not None
        if (times := study.training_tokens / study.train.n_valid) > 1:
            yield f"Each SAE is trained on every position about {times:,.1f} times."
    elif not gates_can_close(study.steps):
        yield f"In {study.steps} steps no gate can close, so nothing will be claimed of any mask: use 46 or more."


Work = list[tuple[str, str, int, float, float]]  # work, where its units lie, units, positions, those with gradient
Storage = list[tuple[str, int, int]]


def _positions(tokens: TokenSet | None) -> int:
    assert tokens is not None  # a study fills them in
    return tokens.ids.numel()


def _life_history(study: LifeHistoryStudy) -> Work:
    from tl_lifehist.lifehistory.analyses import STAGES

    assert study.train is not None
    n_steps, n_again, n_hooks = len(study.series), len(study.replicates()), len(study.hook_names)
    trainings = n_steps + n_again
    per_row = _positions(study.train) / study.train.n_valid  # the model also runs positions that no SAE is trained on
    rows = study.training_tokens + min(NORM_ROWS, study.train.n_valid)
    trained = trainings * (rows * per_row + _positions(study.test))
    scored = _positions(study.load_text)
    sets = 6 * study.n_draws  # any, root, mid and leaf by count, by rate, by mass, by mass among the seed-stable
    sets += SIZES["regression_sets"] + 4 * SIZES["content_draws"] + SIZES["single_carriers"]
    sets += 3 * SIZES["singles_per_role"] + n_hooks + 10
    n_analyses = sum(len(functions) for _, functions in STAGES)
    return [
        ("checking the checkpoints", "check/*", n_steps, 8.0 * n_steps, 0),
        (
            f"{trainings * n_hooks} SAEs and their profiles: {n_steps} checkpoints and {n_again} trainings again for "
            f"the noise, {n_hooks} hook points each",
            "saes/*/*",
            trainings,
            trained + n_steps * (1 + n_hooks) * scored,
            0,
        ),
        (
            f"lineages, graphs, controls; {sets} ablations at the last checkpoint",
            "analysis/*",
            n_analyses,
            sets * scored,
            0,
        ),
    ]


def _stored_life_history(study: LifeHistoryStudy) -> Storage:
    assert study.test is not None
    n_saes = (len(study.series) + len(study.replicates())) * len(study.hook_names)
    d_model = study.series.shape.d_model
    d_sae = 4 * d_model if study.d_sae is None else study.d_sae
    one = _FLOAT * (2 * d_model * d_sae + d_sae + d_model)
    warm = len(study.series) * len(study.hook_names) if study.init == "previous" else 0  # training states
    firing = 8 * study.test.n_valid * study.k + 16 * d_sae  # a value and an index each; columns and norms
    alive = 400 * len(study.series) * len(study.hook_names) * d_sae  # lineages, features, edges and roles
    return [
        ("SAEs", n_saes, n_saes * one),
        *([("states that the next training starts from", warm, warm * one)] if warm else []),
        ("sparse profiles", n_saes, n_saes * firing),
        ("tables and graphs", 1, 2 * alive),  # once as units, once gathered
        ("report", 1, PAGE),
    ]


def _sufficiency(study: SufficiencyStudy) -> Work:
    n_steps, n_methods = len(study.series), len(study.methods)
    cells = n_steps * len(study.hook_names or ())
    train, test = _positions(study.train), _positions(study.test)
    assert study.calibration is not None
    window = study.calibration.ids.shape[1]
    further = (len(study.sweep) + len(study.seeds) - 1) * len(study.close_ups)
    down = "downstream" in study.targets
    masks = n_methods * len(study.targets) + (further if down else 0)
    injected = (n_methods + further) * down
    injected += n_methods * ("transfer" in study.targets and study.transfer_loss == "kl")
    descent = injected * study.steps * min(study.batch_size, len(study.calibration)) * window
    fit = train * (3 + (2 if any(m != "svd" for m in study.close_ups) else 0))
    once = _positions(study.calibration) * (2 if study.relative_to == "mean_ablation" else 1)
    main = 3 + len(study.targets)  # empty, full, mean ablation and the targets'
    scored = n_methods * (main + (study.n_random + 3) * down + main + 3 * 3) + 2
    scored += len(study.close_ups) * (2 * (1 + len(study.sweep)) * down + 3)
    # gate scores, two Fisher matrices and one permutation; scores and a Fisher matrix to rank components by
    sensitive = n_methods * (4 * test + 2 * _positions(study.calibration))
    work: Work = [
        ("checking the checkpoints", "check/*", n_steps, 8.0 * n_steps, 0),
        (
            f"{cells * n_methods} dictionaries ({', '.join(study.methods)}) and {cells * masks} masks: {n_steps} "
            f"checkpoints, {len(study.hook_names or ())} hook points each",
            "cells/*/*",
            cells,
            cells * (fit + once + descent + scored * test + sensitive),
            cells * (descent + sensitive),
        ),
    ]
    if study.life_history is not None:
        n = len(study.units()) - cells
        each = 2 * study.steps * min(study.batch_size, len(study.calibration)) * window
        work.append(("masks over the SAEs of the life history", "carriers/*/*", n, n * (each + 8 * test), n * each))
    return work


def _stored_sufficiency(study: SufficiencyStudy) -> Storage:
    assert study.train is not None
    d_model, d_sample = study.series.shape.d_model, min(N_CODES, study.train.n_valid)
    cells = len(study.series) * len(study.hook_names or ())
    k = count_components(study.n_components, study.methods[0], n_rows=study.train.n_valid, d_model=d_model)
    linear = sum(method in ("svd", "ica") for method in study.methods)  # these keep an encoder
    n = len(study.methods)
    one = _FLOAT * (n * (d_model * (k + 2) + k * (d_sample + 2)) + linear * d_model * k)
    gates = 16 * k * n * (len(study.targets) + len(study.sweep) + len(study.seeds))
    return [
        ("dictionaries", cells * n, cells * one),
        ("fixed heads", cells, cells * _FLOAT * (d_model + 1) * d_model),
        ("tables", 1, 2 * cells * (250_000 + gates)),
        ("report", 1, PAGE),
    ]
