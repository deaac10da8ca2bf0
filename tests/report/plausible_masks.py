"""Made-up tables of a sufficiency run: every table, plausible values at two sites that differ. No model is involved."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
from report.plausible import in_order

from tl_lifehist.claims import Claim, claims_table
from tl_lifehist.sufficiency.tables import TABLES

STEPS = [0, 512, 4000, 143000]
LAYERS = (0, 2, 4)
SITES = ("hook_mlp_out", "hook_resid_post")
METHODS = ("svd", "ica", "nmf", "semi_nmf")
MASS = {"reconstruction": 0.73, "fixed_head": 0.83, "downstream": 0.066, "transfer": 0.4}
LOST = {"reconstruction": 0.45, "fixed_head": 0.5, "downstream": 0.86, "transfer": 0.7}
NMSE = {"reconstruction": 0.215, "fixed_head": 0.3, "downstream": 0.95, "transfer": 0.6, "full": 0.2, "empty": 1.0}
EMPTY = {"hook_mlp_out": 0.035, "hook_resid_post": 2.1}  # relative KL of mean ablation
ENTROPY = 2.8


class Grid:
    """The cells of a run, and noise around values."""

    def __init__(
        self, seed: int, steps: list[int], layers: tuple[int, ...], sites: tuple[str, ...], methods: tuple[str, ...]
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.places = [
            {"step": step, "hook_name": f"blocks.{layer}.{site}", "site": site, "layer": layer}
            for step, layer, site in itertools.product(steps, layers, sites)
        ]
        self.cells = [{**place, "method": method} for place in self.places for method in methods]
        self.last = steps[-1]

    def near(self, value: float, spread: float = 0.15) -> float:
        return float(value * np.exp(self.rng.normal(0, spread)))

    def share(self, value: float, spread: float = 0.15) -> float:
        return min(self.near(value, spread), 1.0)


def scores(site: str, mass: float, lost: float, nmse: float) -> dict[str, float]:
    relative = EMPTY[site] * lost
    return {
        "soft_mass": mass,
        "nmse": nmse,
        "kl": relative * ENTROPY,
        "relative_kl": relative,
        "lost_fraction": lost,
        "accuracy_drop": 40 * relative / (1 + relative),
    }


def evaluation_table(grid: Grid, seeds: tuple[int, ...]) -> pd.DataFrame:
    rows = []
    for cell in grid.cells:
        ends = {"empty": (0.0, 1.0), "full": (1.0, grid.share(0.05 if cell["step"] else 0.3))}
        for mask in (*MASS, *ends):
            for seed in seeds[:1] if mask in ends else seeds:
                mass, lost = ends.get(mask) or (grid.share(MASS[mask]), grid.share(LOST[mask], 0.08))
                nmse = NMSE[mask] if mask in ends else grid.share(NMSE[mask], 0.03)
                own = scores(cell["site"], mass, lost, nmse)
                gain = {"tau": 3, "omega": 5, "curvature": 2}
                if mask in ends:
                    enriched = {f"enrichment_{name}": 1.0 if mass else np.nan for name in gain}
                else:
                    enriched = {f"enrichment_{name}": grid.near(min(1 / mass, most)) for name, most in gain.items()}
                rows.append(
                    {
                        **cell,
                        "mask": mask,
                        "seed": seed,
                        **own,
                        "kl_low": 0.9 * own["kl"],
                        "kl_high": 1.1 * own["kl"],
                        "fixed_head_kl": own["kl"] * 0.7,
                        "fixed_head_relative_kl": own["relative_kl"] * 0.7,
                        "transfer_nmse": grid.near(own["nmse"]),
                        "transfer_kl": grid.near(own["kl"]),
                        "transfer_relative_kl": grid.near(own["relative_kl"]),
                        **enriched,
                        "predicted_kl": grid.near(own["kl"], 0.5) if mask != "full" else 0.0,
                        "n_scored": 16_384,
                    }
                )
    return pd.DataFrame(rows)


def nulls_table(grid: Grid, n_draws: int) -> pd.DataFrame:
    better = {"random": 1.15, "top_variance": 1.0, "tau_ranked": 1.02, "fisher_diagonal": 0.97}
    rows = []
    target = "downstream"  # the only one that has masks of equal mass
    for cell, (kind, factor) in itertools.product(grid.cells, better.items()):
        for draw in range(n_draws if kind == "random" else 1):
            lost, nmse = grid.share(LOST[target] * factor, 0.08), grid.near(NMSE[target])
            own = scores(cell["site"], MASS[target], lost, nmse)
            enriched = grid.near(1.0 if kind == "random" else 2.5, 0.1)
            rows.append(
                {**cell, "target": target, "kind": kind, "draw": draw, **own, "enrichment_tau": enriched}
                | {"enrichment_omega": 1.1 * enriched, "enrichment_curvature": 0.9 * enriched}
            )
    return pd.DataFrame(rows)


def component_tables(grid: Grid, seeds: tuple[int, ...], k: int = 12) -> dict[str, pd.DataFrame]:
    components, masks = [], []
    for cell in grid.cells:
        variance = 0.3 * 0.75 ** np.arange(k) * np.exp(grid.rng.normal(0, 0.05, k))
        tau = variance * np.exp(grid.rng.normal(0, 1, k))
        omega = tau * grid.rng.uniform(0, 1, k)
        components += [
            {**cell, "component": i, "tau": tau[i], "omega": omega[i], "omega_debiased": omega[i] * 0.9}
            | {"curvature": tau[i] * 2, "variance": variance[i]}
            for i in range(k)
        ]
        for target, seed in itertools.product(MASS, seeds):
            gates = (1 / (1 + np.exp(-(np.log(variance) + 3) * 2 - grid.rng.normal(0, 1, k)))) ** (1 / MASS[target])
            masks += [{**cell, "target": target, "seed": seed, "component": i, "gate": gates[i]} for i in range(k)]
    return {"components": pd.DataFrame(components), "masks": pd.DataFrame(masks)}


def sweep_tables(grid: Grid) -> dict[str, pd.DataFrame]:
    frontier, onset = [], []
    for cell in grid.cells:
        full = grid.share(0.05 if cell["step"] else 0.3)
        for penalty in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2):
            mass = grid.share(min(0.9, 3e-4 / penalty), 0.05)
            lost = full + (1 - full) * (1 - mass) ** 3
            frontier.append(
                {
                    **cell,
                    "penalty_total": penalty * 100,
                    "penalty": penalty,
                    "soft_mass": mass,
                    "relative_kl": lost * EMPTY[cell["site"]],
                    "lost_fraction": lost,
                    "accuracy_drop": 10 * lost,
                    "operating": penalty == 1e-3,
                    "variance_lost_fraction": grid.share(lost * 1.05, 0.05),
                }
            )
        when = grid.share(0.5) if cell["step"] and grid.rng.random() < 0.7 else np.nan
        onset.append({**cell, "onset": when, "full_lost_fraction": full})
    return {"frontier": pd.DataFrame(frontier), "onset": pd.DataFrame(onset)}


def transfer_table(grid: Grid) -> pd.DataFrame:
    base = {"aligned": 0.3, "identity": 0.7, "shuffled": 1.05, "procrustes": 0.5, "dictionary": 0.6}
    rows = []
    for cell, mask in itertools.product(grid.cells, (*MASS, "full", "empty")):
        early = 1 - np.log1p(cell["step"]) / np.log1p(grid.last)
        for control in [*base, "identity"]:
            level = base[control] + 0.6 * early * (control != "shuffled")
            lost = 1.0 if mask == "empty" else grid.near(level)
            worse = 1.3 if "nmf" in cell["method"] else 1.0
            relative = EMPTY[cell["site"]] * lost * worse
            rows.append(
                {**cell, "mask": mask, "control": control, "nmse": lost * worse, "kl": relative * ENTROPY}
                | {"relative_kl": relative}
            )
    return pd.DataFrame(rows)


def training_tables(grid: Grid, seeds: tuple[int, ...]) -> dict[str, pd.DataFrame]:
    anisotropy, stability = [], []
    for cell in grid.cells:
        grown = np.log1p(cell["step"]) / np.log1p(grid.last)
        anisotropy.append(
            {
                **cell,
                "participation_ratio": grid.near(30 - 20 * grown),
                "participation_fixed_head": grid.near(25 - 10 * grown),
                "gini_tau": grid.share(0.3 + 0.4 * grown),
                "gini_null": grid.share(0.3 + 0.1 * grown),
                "mask_overlap": grid.share(0.6 - 0.3 * grown),
                "overlap_null": grid.share(0.2),
                "overlap_p": 0.2,
                "fisher_alignment": grid.share(0.5),
                "n_sequences": 256,
            }
        )
        for (a, b), target in itertools.product(itertools.combinations(seeds, 2), MASS):
            stability.append(
                {**cell, "target": target, "seed_a": a, "seed_b": b, "overlap": grid.share(0.8, 0.1)}
                | {
                    "overlap_null": grid.share(MASS[target]),
                    "dictionary_overlap": grid.share(0.95, 0.03),
                    "dictionary_null": 0.3,
                }
            )
    return {"anisotropy": pd.DataFrame(anisotropy), "stability": pd.DataFrame(stability)}


def trajectories_table(grid: Grid) -> pd.DataFrame:
    quantities = ("relative_kl", "kl", "soft_mass", "nmse", "enrichment_tau", "enrichment_omega")
    rows = []
    for site, mask, quantity, against in itertools.product(
        dict.fromkeys(place["site"] for place in grid.places), MASS, quantities, ("checkpoint", "depth")
    ):
        pooled, stratified = grid.rng.uniform(-0.9, 0.9, 2)
        rows.append(
            {
                "site": site,
                "mask": mask,
                "quantity": quantity,
                "against": against,
                "pooled": pooled,
                "pooled_low": max(pooled - 0.15, -1),
                "pooled_high": min(pooled + 0.15, 1),
                "stratified": stratified,
                "stratified_low": max(stratified - 0.25, -1),
                "stratified_high": min(stratified + 0.25, 1),
                "n_cells": len(grid.cells),
                "n_strata": 12,
                "n_constant": 0,
                "empty": pooled * 0.9,
                "full": grid.rng.uniform(-0.5, 0.5),
                "absolute_kl": grid.rng.uniform(-0.5, 0.5),
                "p": 0.01 if abs(pooled) > 0.6 else 0.3,
                "clean_entropy": -0.95 if against == "checkpoint" else np.nan,
                "claimed": bool(abs(pooled) > 0.6),
            }
        )
    return pd.DataFrame(rows)


def ground_tables(grid: Grid) -> dict[str, pd.DataFrame]:
    checkpoints, carriers = [], []
    for place in grid.places:
        relative = grid.near(EMPTY[place["site"]])
        grown = np.log1p(place["step"]) / np.log1p(grid.last)
        checkpoints.append(
            {
                **place,
                "n_scored": 16_384,
                "n_documents": 256,
                "clean_ce": 10.8 - 7.5 * grown,
                "clean_entropy": 10.5 - 7.7 * grown,
                "clean_accuracy": 0.41 * grown,
                "empty_kl": relative * ENTROPY,
                "empty_relative_kl": relative,
                "empty_accuracy_drop": 40 * relative / (1 + relative),
                "top_row_share": grid.share(0.6 if "resid" in place["site"] else 0.05),
                "translator_kl": grid.near(0.2),
                "n_rows": 60_000,
            }
        )
        carriers += [
            {
                **place,
                "keep_error": keep_error,
                "n_alive": 900,
                "n_carriers": 110,
                "soft_mass": grid.share(0.2),
                "enrichment": grid.near(1 + 2 * grown),
                "against": grid.near(1 + 2 * grown),
                "null": 1 + grown,
                "low": 0.8 + grown,
                "high": 1.3 + grown,
                "p": 0.001 if grown > 0.5 else 0.4,
                "unmatched_share": 0.04,
                "mass_gap": 0.02,
                "kl": grid.near(0.05),
                "relative_kl": grid.near(0.02),
                "lost_fraction": grid.share(0.2),
                "empty_lost_fraction": 0.98 if keep_error else 1.0,
                "full_lost_fraction": 0.0 if keep_error else 0.07,
                "empty_kl": 0.25,
                "full_kl": 0.0 if keep_error else 0.0175,
            }
            for keep_error in (True, False)
        ]
    dictionaries = [
        {
            **cell,
            "n_components": 100,
            "n_rows": 60_000,
            "explained_variance": grid.share(0.8, 0.05),
            "test_nmse": grid.share(0.22, 0.05),
            "converged": cell["method"] != "ica" or cell["step"] > 0,
            "n_iter": int(grid.rng.integers(20, 300)),
        }
        for cell in grid.cells
    ]
    return {
        "checkpoints": pd.DataFrame(checkpoints),
        "dictionaries": pd.DataFrame(dictionaries),
        "carriers": pd.DataFrame(carriers),
    }


def small_tables() -> dict[str, pd.DataFrame]:
    published = [
        ("soft mass of the downstream mask, hook_mlp_out", "6.5 %", 48, "6.6 %"),
        ("relative KL of the downstream mask, hook_mlp_out", "0.030", 48, "0.020"),
        ("relative KL of the empty mask, hook_mlp_out", "0.034", 48, "not published"),
        ("omega enrichment of the downstream mask, hook_mlp_out", "4.9x", 48, "5.32x"),
    ]
    tested = {"headline": True, "n": 48, "of": "documents", "unit": "share of what mean ablation costs"}
    claims = [
        Claim(
            "masks.hook_mlp_out.cheaper_than_gradient",
            "hook_mlp_out: downstream masks lose less than gates of the same values dealt by tau",
            verdict="beyond",
            sentence="Downstream masks at hook_mlp_out lose 0.14 [0.1, 0.18] less.",
            observed=0.86,
            null=1.0,
            effect=0.14,
            low=0.1,
            high=0.18,
            p=0.001,
            q=0.003,
            **tested,
        ),
        Claim(
            "masks.hook_mlp_out.cheaper_than_variance",
            "hook_mlp_out: downstream masks lose less than gates of the same values dealt by variance",
            verdict="within",
            sentence="No sign that downstream masks at hook_mlp_out lose less than variance masks.",
            observed=0.86,
            null=0.86,
            effect=0.0,
            low=-0.05,
            high=0.05,
            p=0.4,
            q=0.4,
            note="same gates",
            **tested,
        ),
        Claim("trajectories.relative_kl", "relative KL rises in training", observed=0.7, null=0.63, **tested).because(
            "the empty mask rises too"
        ),
    ]
    return {
        "published": pd.DataFrame(published, columns=["quantity", "ours", "n", "published"]),
        "claims": claims_table(claims),
    }


def plausible_mask_tables(
    *,
    seed: int = 0,
    steps: list[int] = STEPS,
    layers: tuple[int, ...] = LAYERS,
    sites: tuple[str, ...] = SITES,
    methods: tuple[str, ...] = METHODS,
    seeds: tuple[int, ...] = (0, 1),
    n_draws: int = 3,
) -> dict[str, pd.DataFrame]:
    """Every table of a sufficiency run, by name."""
    grid = Grid(seed, steps, layers, sites, methods)
    made = {
        "evaluation": evaluation_table(grid, seeds),
        "nulls": nulls_table(grid, n_draws),
        **component_tables(grid, seeds),
        **sweep_tables(grid),
        "transfer": transfer_table(grid),
        **training_tables(grid, seeds),
        "trajectories": trajectories_table(grid),
        **ground_tables(grid),
        **small_tables(),
    }
    return in_order(made, TABLES)


def mask_record(
    steps: list[int] = STEPS, layers: tuple[int, ...] = LAYERS, sites: tuple[str, ...] = SITES
) -> dict[str, Any]:
    return {
        "study": "sufficiency",
        "config": {"dictionaries": {"n_components": 100, "methods": list(METHODS)}, "masks": {"penalty": 0.001}},
        "texts": {"test": {"key": "c0ffee", "sequences": 256, "positions": 16_384}},
        "reduced": {"steps of the optimiser": "200 of 1,000"},
        "versions": {"tl_lifehist": "0.1.0", "torch": "2.9.0"},
        "seed": 0,
        "threads": 1,
        "fingerprints": {str(step): f"{step:064x}" for step in steps},
        "series": "EleutherAI/pythia-160m",
        "hook_names": [f"blocks.{layer}.{site}" for layer in layers for site in sites],
        "steps": steps,
    }
