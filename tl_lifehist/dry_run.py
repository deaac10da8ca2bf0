"""What a study would fetch, compute and store, before any of it is done and without loading weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from tl_lifehist.checkpoints.listing import readable, write_listing
from tl_lifehist.checkpoints.shape import ModelShape
from tl_lifehist.config import to_toml
from tl_lifehist.execute import units_of
from tl_lifehist.hook_names import require_blocks
from tl_lifehist.models import require_hooks, require_readable
from tl_lifehist.preflight import require_different
from tl_lifehist.stages import Planned
from tl_lifehist.store import Store, require_folder
from tl_lifehist.study import Study, plan_of, require_own, spoken
from tl_lifehist.tokens import TokenSet

if TYPE_CHECKING:
    from tl_lifehist.checkpoints.series import CheckpointSeries

PAGE = 6_000_000  # bytes of the report, most of them the plotting library's
_OTHER = "everything that runs no model"


@dataclass(frozen=True, eq=False)
class StudyPlan:
    """What a study takes. `str(plan)` is for a person.

    Attributes:
        checkpoints: `series.plan()`: step, revision, tokens_billion, size, to_download (bytes).
        work: what is computed: work, stages, finished (stages that the run folder holds already), positions
            (that a model runs forward on), gradients (those of them that are also run backward).
        storage: what the run folder will hold: what, stages, bytes.
        shape: of the model.
        stages: every stage with its state in the run folder and what has changed.
        settings: the whole configuration, as a TOML file has it; the command prints it before the plan.
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
    stages: tuple[Planned, ...]
    settings: str
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
    def loads(self) -> int:
        """How often a checkpoint is loaded, at most: where units run in one process, those that follow share one."""
        units = units_of(self.stages, "", self.series, {}, 1)
        return sum(len(unit.weights) for unit in units)

    @property
    def operations(self) -> float:
        """Floating-point operations in the model, roughly: 2 per parameter and position, forward and backward each."""
        runs = float(self.work["positions"].sum() + self.work["gradients"].sum())
        return 2.0 * self.shape.n_parameters * runs

    def __str__(self) -> str:
        shape, lines = self.shape, []
        write_listing(self.series.name, self.checkpoints, lines.append)
        lines += ["", *self.texts, ""]
        lines += [
            f"Model: {shape.n_layers} blocks of width {shape.d_model}, {shape.d_vocab:,} tokens, "
            f"{shape.n_parameters / 1e6:,.1f} million parameters.",
            "",
            *spoken(self.stages),
            "",
            "To compute, at most:",
            f"{'stages':>7}  {'finished':>8}  {'positions':>12}  {'with gradient':>13}",
        ]
        for row in self.work.itertuples(index=False):
            lines.append(f"{row.stages:>7}  {row.finished:>8}  {row.positions:>12,}  {row.gradients:>13,}  {row.work}")
        lines += [
            f"{self.loads} loads of a checkpoint; {self.operations:.1e} floating-point operations in the model, about.",
            "",
            "To store in the run folder, at most:",
            *(f"{readable(row['bytes']):>10}  {row['what']}" for row in self.storage.to_dict("records")),
            f"{readable(self.to_store):>10}  in all, beside the checkpoints' own files.",
        ]
        return "\n".join(lines)


def plan_study(study: Study, out: str | Path | None = None, *, threads: int = 1) -> StudyPlan:
    """What `study.run(out)` would fetch, compute and store. Loads no weights and writes nothing.

    Args:
        study: a `LifeHistoryStudy` or a `SufficiencyStudy`.
        out: the run folder, to see what of it is finished already.
        threads: as in `study.run`.

    Raises:
        InputError: the hub cannot be reached and a step is not in the cache, or the model has no such hook point,
            reads no windows of this length or no such token ids, two checkpoints are the same, `out` is no folder or
            holds another run, or what the study itself refuses.

    How it can mislead: see `StudyPlan`. Weights are not looked at, so a run may still refuse them; it does so before
    anything of that checkpoint is computed.
    """
    shape = study.series.shape
    require_blocks(study.hook_names, shape.n_layers)
    model = study.series.unfilled()
    if model is not None:
        require_hooks(model, study.hook_names)
        for tokens in study.texts().values():
            require_readable(getattr(model, "cfg", None), tokens.ids)
    if out is not None:
        require_folder(Path(out))
    store = None if out is None or not Path(out).is_dir() else Store(out)
    if store is not None:
        require_own(store, study)
    if not study.allow_duplicates:
        require_different(study.series)
    planned = plan_of(study, store, threads=threads)
    titles = [one.stage.title or one.stage.name for one in planned]
    costs = pd.DataFrame(
        {
            "work": [title if one.stage.steps else _OTHER for title, one in zip(titles, planned, strict=True)],
            "what": titles,
            "stages": 1,
            "finished": [int(one.done) for one in planned],
            **{
                name: [getattr(one.stage.cost, name) for one in planned] for name in ("positions", "gradients", "bytes")
            },
        }
    )
    work = costs.groupby("work", sort=False)[["stages", "finished", "positions", "gradients"]].sum().reset_index()
    storage = costs[costs["bytes"] > 0].groupby("what", sort=False)[["stages", "bytes"]].sum().reset_index()
    texts = study.texts()
    storage.loc[len(storage)] = ["texts", len(texts), sum(_bytes(tokens) for tokens in texts.values())]
    storage.loc[len(storage)] = ["report", 1, PAGE]
    return StudyPlan(
        study.series,
        study.series.plan(),
        work.round().astype({"positions": "int64", "gradients": "int64"}),
        storage.astype({"bytes": "int64"}),
        shape,
        tuple(planned),
        to_toml(study.config),
        (*(_held(split, tokens) for split, tokens in texts.items()), *study.warnings()),
    )


def _bytes(tokens: TokenSet) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tokens.to_tensors().values())


def _held(split: str, tokens: TokenSet) -> str:
    seen = tokens.ids.numel() if tokens.attention_mask is None else int(tokens.attention_mask.sum())
    assert tokens.documents is not None  # filled in by itself
    return (
        f"{split}: {len(tokens.documents.unique()):,} documents in {len(tokens):,} windows of "
        f"{tokens.ids.shape[1]}, {seen / tokens.ids.numel():.0%} full; {tokens.n_valid:,} positions to work "
        f"on, {tokens.n_scored:,} to score."
    )
