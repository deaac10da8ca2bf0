"""What is measured at one checkpoint and hook point, on the test text alone, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from tl_lifehist.dictionaries.decomposition import Decomposition
from tl_lifehist.seeds import derive_seed
from tl_lifehist.sufficiency.calibration import BATCH_SIZE
from tl_lifehist.sufficiency.cell import Calibrated, Cell
from tl_lifehist.sufficiency.cell_geometry import CellGeometry
from tl_lifehist.sufficiency.cell_scores import Scored, Versions
from tl_lifehist.sufficiency.cell_versions import Version
from tl_lifehist.sufficiency.evaluation import MaskEvaluation
from tl_lifehist.sufficiency.fisher import predicted_kl
from tl_lifehist.sufficiency.geometry import gini, gini_null, sender_receiver
from tl_lifehist.sufficiency.overlap import mask_overlap, mask_overlap_null
from tl_lifehist.sufficiency.sensitivity import enrichment

EVALUATED = ("nmse", "kl", "relative_kl", "lost_fraction", "accuracy_drop")
ENRICHED = ("enrichment_tau", "enrichment_omega", "enrichment_curvature")
READ = ("fixed_head_kl", "fixed_head_relative_kl", "transfer_nmse", "transfer_kl", "transfer_relative_kl")


def cell_tables(
    cell: Cell,
    masks: Sequence[Calibrated],
    versions: Versions,
    geometry: Mapping[str, CellGeometry],
    scored: Scored,
) -> dict[str, pd.DataFrame]:
    """All tables of a cell; the columns that say which it is are added by the caller.

    Args:
        masks: the calibrated ones.
        versions: what was scored, by method.
        geometry: by method.
        scored: the figures of the versions.
    """
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("dictionaries", "evaluation", "nulls", "frontier", "transfer", "anisotropy")
    }
    components, first = [], cell.comparisons.seeds[0]
    for method, dictionary in cell.fitted.dictionaries.items():
        found, listed, figures = geometry[method], versions[method], scored.evaluations[method]
        rows = [_evaluation_row(v, e, found) | {"method": method} for v, e in zip(listed, figures, strict=True)]
        tables["dictionaries"].append(_dictionary_row(method, dictionary, figures[1]))
        for version, row in zip(listed, rows, strict=True):
            if version.role == "mask":
                tables["evaluation"].append({"mask": version.name, "seed": first} | row)
        tables["nulls"] += _null_rows(listed, rows)
        named = {version.name for version in listed}
        # a target whose reference is practically 0 has no mask here; its row of NaN counts it (formula 9)
        tables["evaluation"] += [
            {"mask": target, "seed": first, "method": method} for target in cell.masks.targets if target not in named
        ]
        tables["frontier"] += _frontier_rows(method, listed, rows, cell.masks.penalty_total)
        tables["transfer"] += [{"method": method} | row for row in scored.transfers[method]]
        tables["anisotropy"].append({"method": method} | _anisotropy_row(cell, method, masks, found))
        components.append(_components(method, dictionary, found))
    made = {name: pd.DataFrame(rows) for name, rows in tables.items()}
    made["components"] = pd.concat(components, ignore_index=True)
    made["stability"] = _stability(cell, masks)
    made["checkpoints"] = pd.DataFrame([_checkpoint_row(cell, next(iter(scored.evaluations.values()))[0])])
    return made


def _evaluation_row(version: Version, found: MaskEvaluation, geometry: CellGeometry) -> dict[str, Any]:
    row: dict[str, Any] = {
        "soft_mass": found.soft_mass,
        "kl_low": found.kl_interval[0],
        "kl_high": found.kl_interval[1],
    }
    row |= {name: getattr(found, name) for name in (*EVALUATED, *READ, "n_scored")}
    curvature = geometry.fisher.matrix.diagonal().clamp_min(0)
    for name, scores in (("tau", geometry.scores.tau), ("omega", geometry.scores.omega), ("curvature", curvature)):
        row[f"enrichment_{name}"] = enrichment(version.gates, scores)
    return row | {"predicted_kl": predicted_kl(version.gates, geometry.cost.matrix)}


def _dictionary_row(method: str, dictionary: Decomposition, full: MaskEvaluation) -> dict[str, Any]:
    return {
        "method": method,
        "n_components": len(dictionary.W_dec),
        "n_rows": dictionary.n_rows,
        "explained_variance": dictionary.explained_variance,
        "test_nmse": full.nmse,
        "converged": dictionary.converged,
        "n_iter": dictionary.n_iter,
    }


def _components(method: str, dictionary: Decomposition, geometry: CellGeometry) -> pd.DataFrame:
    scores = geometry.scores
    columns = {
        "tau": scores.tau,
        "omega": scores.omega,
        "omega_debiased": scores.omega_debiased,
        "curvature": geometry.fisher.matrix.diagonal(),
        "variance": dictionary.component_variance,
    }
    values = {name: value.cpu().double().numpy() for name, value in columns.items()}
    return pd.DataFrame({"method": method, "component": range(len(scores.tau)), **values})


def _null_rows(listed: Sequence[Version], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each random mask, and one for each ranking: the harder rival, that is the cheaper of its masks."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for version, row in zip(listed, rows, strict=True):
        key = (version.name, version.draw)
        if version.role == "null" and not (key in found and found[key]["kl"] <= row["kl"]):
            kept = {name: row[name] for name in ("method", "soft_mass", *EVALUATED, *ENRICHED)}
            found[key] = {"target": "downstream", "kind": version.name, "draw": version.draw} | kept
    return list(found.values())


def _frontier_rows(
    method: str, listed: Sequence[Version], rows: Sequence[dict[str, Any]], operating: float
) -> list[dict[str, Any]]:
    swept = [(v, row) for v, row in zip(listed, rows, strict=True) if v.role == "frontier"]
    variance: dict[float, float] = {}
    for v, row in swept:
        if v.name == "top_variance":
            variance[v.penalty_total] = min(row["lost_fraction"], variance.get(v.penalty_total, float("inf")))
    return [
        {
            "method": method,
            "penalty_total": v.penalty_total,
            "penalty": v.penalty_total / len(v.gates),
            **{name: row[name] for name in ("soft_mass", "relative_kl", "lost_fraction", "accuracy_drop")},
            "operating": v.penalty_total == operating,
            "variance_lost_fraction": variance[v.penalty_total],
        }
        for v, row in swept
        if v.name == "downstream"
    ]


def _anisotropy_row(cell: Cell, method: str, masks: Sequence[Calibrated], geometry: CellGeometry) -> dict[str, Any]:
    operating = (method, cell.comparisons.seeds[0], cell.masks.penalty_total)
    own = {m.target: m.gates for m in masks if (m.method, m.seed, m.penalty_total) == operating}
    null = gini_null(
        cell.model,
        cell.fitted.dictionaries[method],
        cell.test,
        hook_name=cell.hook_name,
        n_draws=cell.geometry.label_draws,
        seed=derive_seed(cell.seed, cell.step, 4),
        batch_size=BATCH_SIZE,
    )
    row: dict[str, Any] = {
        "participation_ratio": geometry.fisher.participation_ratio,
        "participation_fixed_head": geometry.fixed_fisher.participation_ratio,
        "gini_tau": gini(geometry.scores.tau),
        "gini_null": float(null.mean()),
        "n_sequences": geometry.scores.n_sequences,
        "mask_overlap": float("nan"),
        "overlap_null": float("nan"),
        "overlap_p": float("nan"),
        "fisher_alignment": float("nan"),
    }
    if "fixed_head" in own and "downstream" in own:
        both = sender_receiver(
            own["fixed_head"],
            own["downstream"],
            geometry.fixed_fisher,
            geometry.fisher,
            n_draws=cell.comparisons.overlap_draws,
            seed=cell.seed,
        )
        row |= {
            "mask_overlap": both.overlap,
            "overlap_null": both.overlap_null,
            "overlap_p": both.overlap_p,
            "fisher_alignment": both.alignment,
        }
    return row


def _stability(cell: Cell, masks: Sequence[Calibrated]) -> pd.DataFrame:
    """Overlap of downstream masks of two seeds, beside random masks of the same gates. Where every step sees all of the
    calibration text a seed draws nothing, and there is nothing to compare.
    """
    rows, operating = [], cell.masks.penalty_total
    for method in cell.close_ups if cell.masks.batch_size < len(cell.calibration) else ():
        own = {
            m.seed: m.gates for m in masks if (m.method, m.target, m.penalty_total) == (method, "downstream", operating)
        }
        for a, b in combinations(sorted(own), 2):
            chance = mask_overlap_null(own[a], own[b], n_draws=cell.comparisons.overlap_draws, seed=cell.seed)
            rows.append((method, "downstream", a, b, mask_overlap(own[a], own[b]), chance.mean))
    return pd.DataFrame(rows, columns=["method", "target", "seed_a", "seed_b", "overlap", "overlap_null"])


def _checkpoint_row(cell: Cell, empty: MaskEvaluation) -> dict[str, Any]:
    return {
        "n_scored": empty.n_scored,
        "n_documents": len(empty.by_document),
        "clean_ce": empty.base_ce,
        "clean_entropy": empty.entropy,
        "clean_accuracy": empty.accuracy,
        "empty_kl": empty.kl,
        "empty_relative_kl": empty.relative_kl,
        "empty_accuracy_drop": empty.accuracy_drop,
        "top_row_share": cell.fitted.top_row_share,
        "translator_kl": float(cell.fitted.translator.history["kl"].tail(20).mean()),
        "n_rows": cell.fitted.n_rows,
    }
