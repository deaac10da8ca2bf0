"""What is measured at one checkpoint and hook point, on the test text alone, as tables."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.dictionaries.decomposition import Decomposition
from tl_lifehist.seeds import derive_seed
from tl_lifehist.sufficiency.calibration import BATCH_SIZE
from tl_lifehist.sufficiency.evaluation import MaskEvaluation, evaluation_of, masked_versions
from tl_lifehist.sufficiency.fisher import fixed_head_fisher, measure_gate_fisher, predicted_kl
from tl_lifehist.sufficiency.gates import SoftMask
from tl_lifehist.sufficiency.geometry import gini, gini_null, sender_receiver
from tl_lifehist.sufficiency.moments import GateFisher
from tl_lifehist.sufficiency.nulls import dealt_mask, permuted_mask, ranked_mask
from tl_lifehist.sufficiency.overlap import mask_overlap, mask_overlap_null
from tl_lifehist.sufficiency.scoring import InjectedScores, ReaderScores, over
from tl_lifehist.sufficiency.sensitivity import GateScores, enrichment, gate_scores
from tl_lifehist.tail import Tail

if TYPE_CHECKING:
    from tl_lifehist.sufficiency.cell import Calibrated, Cell

FISHER_ROWS = 8192  # rows of the fixed head's Fisher (ours)
EVALUATED = ("nmse", "kl", "relative_kl", "lost_fraction", "accuracy_drop")
ENRICHED = ("enrichment_tau", "enrichment_omega", "enrichment_curvature")
READ = ("fixed_head_kl", "fixed_head_relative_kl", "transfer_nmse", "transfer_kl", "transfer_relative_kl")


@dataclass(frozen=True, eq=False)
class Version:
    """One mask to be scored: `role` is "mask" (targets, empty, full), "null" or "frontier"."""

    role: str
    name: str
    gates: Tensor
    draw: int = 0
    price: float = float("nan")


@dataclass(frozen=True, eq=False)
class Geometry:
    """Sensitivity and curvature of one dictionary on the test text."""

    scores: GateScores
    fisher: GateFisher
    cost: GateFisher  # with the dictionary's error as one more component: what a mask costs beside the clean model
    fixed_fisher: GateFisher
    # what masks of equal soft mass are ranked by, from the calibration text: no test is seen
    ranking: dict[str, Tensor]


def measure(cell: Cell, masks: Sequence[Calibrated]) -> dict[str, pd.DataFrame]:
    """All tables of a cell but the dictionaries' stability; the cell's own columns are added by the caller."""
    geometry = {method: _geometry(cell, dictionary) for method, dictionary in cell.dictionaries.items()}
    versions = {method: _versions(cell, method, masks, geometry[method]) for method in cell.dictionaries}
    scored = _score(cell, versions)
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("dictionaries", "evaluation", "nulls", "frontier", "transfer", "anisotropy")
    }
    components, gates = [], []
    for method, dictionary in cell.dictionaries.items():
        found, result = geometry[method], scored[method]
        listed = versions[method]
        rows = [
            _evaluation_row(v, e, found) | {"method": method} for v, e in zip(listed, result.evaluations, strict=True)
        ]
        tables["dictionaries"].append(_dictionary_row(method, dictionary, result.evaluations[1]))
        for version, row in zip(listed, rows, strict=True):
            if version.role == "mask":
                tables["evaluation"].append({"mask": version.name, "seed": cell.study.seeds[0]} | row)
        tables["nulls"] += _null_rows(listed, rows)
        named = {version.name for version in listed}
        # a target whose reference is practically 0 has no mask here; its row of NaN counts it (formula 9)
        tables["evaluation"] += [
            {"mask": target, "seed": cell.study.seeds[0], "method": method}
            for target in cell.study.targets
            if target not in named
        ]
        tables["frontier"] += _frontier_rows(method, listed, rows, cell.study.mass_price)
        tables["transfer"] += [{"method": method} | row for row in result.transfers]
        tables["anisotropy"].append({"method": method} | _anisotropy_row(cell, method, masks, found))
        components.append(_components(method, dictionary, found))
    for one in masks:
        if one.price == cell.study.mass_price:
            columns = {"method": one.method, "target": one.target, "seed": one.seed}
            values = one.mask.gates.cpu().numpy()
            gates.append(pd.DataFrame({**columns, "component": range(len(values)), "gate": values}))
    made = {name: pd.DataFrame(rows) for name, rows in tables.items()}
    made["components"] = pd.concat(components, ignore_index=True)
    made["masks"] = pd.concat(gates, ignore_index=True) if gates else pd.DataFrame()
    made["stability"] = _stability(cell, masks)
    made["checkpoints"] = pd.DataFrame([_checkpoint_row(cell, next(iter(scored.values())))])
    return made


def _geometry(cell: Cell, dictionary: Decomposition) -> Geometry:
    text: dict[str, Any] = {"hook_name": cell.hook_name, "batch_size": BATCH_SIZE}
    tail = Tail(cell.model, cell.hook_name)
    rows = []
    for start in range(0, len(cell.test), BATCH_SIZE):
        entry = tail.enter(cell.test[start : start + BATCH_SIZE], start)
        rows.append(entry.acts[entry.scored_row])
        if sum(map(len, rows)) >= FISHER_ROWS:
            break
    seed = derive_seed(cell.study.seed, cell.step, 3)
    return Geometry(
        gate_scores(cell.model, dictionary, cell.test, **text),
        measure_gate_fisher(cell.model, dictionary, cell.test, seed=seed, **text),
        measure_gate_fisher(cell.model, dictionary, cell.test, seed=seed, error_component=True, **text),
        fixed_head_fisher(cell.translator, dictionary, torch.cat(rows)[:FISHER_ROWS], seed=seed),
        {
            "top_variance": dictionary.component_variance,
            "tau_ranked": gate_scores(cell.model, dictionary, cell.calibration, **text).tau,
            "fisher_diagonal": measure_gate_fisher(
                cell.model, dictionary, cell.calibration, seed=seed, **text
            ).matrix.diagonal(),
        },
    )


def _versions(cell: Cell, method: str, masks: Sequence[Calibrated], geometry: Geometry) -> list[Version]:
    """Empty, full, the targets' masks, the downstream mask's nulls, and the sweep with its variance masks."""
    study, dictionary = cell.study, cell.dictionaries[method]
    first = study.seeds[0]
    own = [m for m in masks if m.method == method and m.seed == first]
    own_stream = (study.seed, cell.step, zlib.crc32(f"{cell.hook_name}/{method}".encode()))
    none = torch.zeros_like(dictionary.code_mean)
    variance = dictionary.component_variance
    listed = [Version("mask", "empty", none), Version("mask", "full", none + 1)]
    for one in own:
        if one.price == study.mass_price:
            listed.append(Version("mask", one.target, one.mask.gates))
        if one.target != "downstream":
            continue
        if one.price == study.mass_price:
            listed += [
                Version("null", "random", permuted_mask(one.mask, seed=derive_seed(*own_stream, draw)), draw)
                for draw in range(study.n_random)
            ]
            for name, scores in geometry.ranking.items():
                listed += [Version("null", name, gates) for gates in rivals(one.mask, scores)]
        if method in study.close_ups:
            listed.append(Version("frontier", "downstream", one.mask.gates, price=one.price))
            listed += [Version("frontier", "top_variance", g, price=one.price) for g in rivals(one.mask, variance)]
    return listed


def rivals(mask: SoftMask, scores: Tensor) -> tuple[Tensor, Tensor]:
    """A ranking as masks of equal soft mass: hard gates, and the mask's own gates in the order of the ranking."""
    return ranked_mask(scores, mask.soft_mass), dealt_mask(mask, scores)


@dataclass(frozen=True, eq=False)
class _Scored:
    evaluations: list[MaskEvaluation]
    transfers: list[dict[str, Any]]


@torch.no_grad()
def _score(cell: Cell, versions: dict[str, list[Version]]) -> dict[str, _Scored]:
    """All versions of all dictionaries in one walk over the test text: one clean pass of each model serves them."""
    study, test = cell.study, cell.test
    tail, final_tail = Tail(cell.model, cell.hook_name), Tail(cell.final_model, cell.hook_name)
    bases = {m: MaskBasis.of(d, cell.hook_name) for m, d in cell.dictionaries.items()}
    scores = {m: InjectedScores(tail, d.x_mean) for m, d in cell.dictionaries.items()}
    reads = {m: ReaderScores() for m in bases}
    mean_final = cell.alignments["aligned"].mean_final
    maps = {(m, control): alignment for m in bases for control, alignment in cell.alignments.items()}
    maps |= {(m, "dictionary"): alignment for m, alignment in cell.dictionary_alignments.items()}
    transfers = {key: InjectedScores(final_tail, mean_final) for key in maps}
    main = {m: [i for i, v in enumerate(listed) if v.role == "mask"] for m, listed in versions.items()}
    # the controls of a transfer concern the alignment, so they are scored for few masks
    few = {m: [i for i in main[m] if versions[m][i].name in ("full", "transfer")] for m in bases}
    for start in range(0, len(test), BATCH_SIZE):
        batch = test[start : start + BATCH_SIZE]
        entry, final_entry = tail.enter(batch, start), final_tail.enter(batch, start)
        for m, basis in bases.items():
            rows = masked_versions(basis, entry.acts, [v.gates.to(basis.directions) for v in versions[m]])
            scores[m].inject(entry, [*rows, basis.offset.expand(rows[0].shape)])  # mean ablation last
            reads[m].read(cell.translator, entry, [rows[i] for i in main[m]])
            for (method, control), alignment in maps.items():
                if method == m:
                    chosen = main[m] if control == "aligned" else few[m]
                    transfers[m, control].inject(final_entry, [alignment(rows[i]) for i in chosen])
    found = {}
    for m, listed in versions.items():
        evaluations = []
        for i, version in enumerate(listed):
            at = main[m].index(i) if i in main[m] else None
            read = None if at is None else (reads[m], at)
            final = None if at is None else (transfers[m, "aligned"], at)
            evaluations.append(evaluation_of(i, version.gates, scores[m], read, final, seed=study.seed))
        rows = []
        for (method, control), score in transfers.items():
            if method == m:
                chosen = main[m] if control == "aligned" else few[m]
                rows += [_transfer_row(listed[i].name, control, score, at) for at, i in enumerate(chosen)]
        found[m] = _Scored(evaluations, rows)
    return found


def _transfer_row(mask: str, control: str, score: InjectedScores, version: int) -> dict[str, Any]:
    kl = float(score.kl(version).mean())
    relative = over(kl, score.entropy)
    return {"mask": mask, "control": control, "nmse": score.nmse(version), "kl": kl, "relative_kl": relative}


def _evaluation_row(version: Version, found: MaskEvaluation, geometry: Geometry) -> dict[str, Any]:
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


def _components(method: str, dictionary: Decomposition, geometry: Geometry) -> pd.DataFrame:
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
            variance[v.price] = min(row["lost_fraction"], variance.get(v.price, float("inf")))
    return [
        {
            "method": method,
            "price": v.price,
            "penalty": v.price / len(v.gates),
            **{name: row[name] for name in ("soft_mass", "relative_kl", "lost_fraction", "accuracy_drop")},
            "operating": v.price == operating,
            "variance_lost_fraction": variance[v.price],
        }
        for v, row in swept
        if v.name == "downstream"
    ]


def _anisotropy_row(cell: Cell, method: str, masks: Sequence[Calibrated], geometry: Geometry) -> dict[str, Any]:
    study = cell.study
    own = {
        m.target: m.mask
        for m in masks
        if m.method == method and m.seed == study.seeds[0] and m.price == study.mass_price
    }
    null = gini_null(
        cell.model,
        cell.dictionaries[method],
        cell.test,
        hook_name=cell.hook_name,
        seed=derive_seed(study.seed, cell.step, 4),
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
            own["fixed_head"], own["downstream"], geometry.fixed_fisher, geometry.fisher, seed=study.seed
        )
        row |= {
            "mask_overlap": both.overlap,
            "overlap_null": both.overlap_null,
            "overlap_p": both.overlap_p,
            "fisher_alignment": both.alignment,
        }
    return row


def _stability(cell: Cell, masks: Sequence[Calibrated]) -> pd.DataFrame:
    """Overlap of downstream masks of two seeds, beside random masks of the same gates."""
    study = cell.study
    rows = []
    for method in study.close_ups:
        own = {
            m.seed: m.mask for m in masks if (m.method, m.target, m.price) == (method, "downstream", study.mass_price)
        }
        for a, b in combinations(sorted(own), 2):
            chance = mask_overlap_null(own[a], own[b], seed=study.seed)
            rows.append((method, "downstream", a, b, mask_overlap(own[a], own[b]), chance.mean))
    return pd.DataFrame(rows, columns=["method", "target", "seed_a", "seed_b", "overlap", "overlap_null"])


def _checkpoint_row(cell: Cell, scored: _Scored) -> dict[str, Any]:
    empty = scored.evaluations[0]
    return {
        "n_scored": empty.n_scored,
        "n_documents": len(empty.by_document),
        "clean_ce": empty.base_ce,
        "clean_entropy": empty.entropy,
        "clean_accuracy": empty.accuracy,
        "empty_kl": empty.kl,
        "empty_relative_kl": empty.relative_kl,
        "empty_accuracy_drop": empty.accuracy_drop,
        "top_row_share": cell.top_row_share,
        "translator_kl": float(cell.translator.history["kl"].tail(20).mean()),
        "n_rows": cell.n_rows,
    }
