"""Each claim holds one way only: planted the way it says it is beyond, planted the other way it never is."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
from report.plausible_masks import plausible_mask_tables

from tl_lifehist.sufficiency.claims import make_claims

SITE = "hook_mlp_out"
UNIT = ["step", "hook_name"]
Tables = dict[str, pd.DataFrame]


def planted() -> Tables:
    """No claim here rests on carriers or trajectories."""
    tables = plausible_mask_tables(seed=1)
    tables.pop("carriers")
    tables["trajectories"] = tables["trajectories"].iloc[:0]
    return tables


def verdict(tables: Tables, words: str) -> pd.Series:
    claims = make_claims(tables, 0, steps=1000)
    (at,) = [
        i
        for i, claim in enumerate(claims["claim"])
        if claim.startswith(f"{SITE}:") and words in claim.split(": ", 1)[1]
    ]
    return claims.iloc[at]


def of_rival(kind: str) -> Callable[[Tables, float], None]:
    def plant(tables: Tables, factor: float) -> None:
        """The mask loses `factor` of what its rival loses, in every unit."""
        evaluation, nulls = tables["evaluation"], tables["nulls"]
        own = evaluation[evaluation["mask"] == "downstream"].groupby(UNIT)["lost_fraction"].mean()
        chosen = nulls["kind"] == kind
        at = pd.MultiIndex.from_frame(nulls.loc[chosen, UNIT])
        nulls.loc[chosen, "lost_fraction"] = own.reindex(at).to_numpy() / factor

    return plant


def of_masks(column: str, mask: str, rival: str) -> Callable[[Tables, float], None]:
    def plant(tables: Tables, factor: float) -> None:
        table = tables["evaluation"]
        other = table[table["mask"] == rival].groupby(UNIT)[column].mean()
        chosen = table["mask"] == mask
        at = pd.MultiIndex.from_frame(table.loc[chosen, UNIT])
        table.loc[chosen, column] = other.reindex(at).to_numpy() * factor

    return plant


def of_columns(name: str, column: str, null: str) -> Callable[[Tables, float], None]:
    def plant(tables: Tables, factor: float) -> None:
        tables[name][column] = tables[name][null] * factor

    return plant


def of_tau(tables: Tables, factor: float) -> None:
    evaluation, nulls = tables["evaluation"], tables["nulls"]
    nulls.loc[nulls["kind"] == "random", "enrichment_tau"] = 1.0
    evaluation.loc[evaluation["mask"] == "downstream", "enrichment_tau"] = factor


def of_transfer(tables: Tables, factor: float) -> None:
    table = tables["transfer"]
    table.loc[table["control"] == "shuffled", "nmse"] = 1.0
    table.loc[table["control"] == "aligned", "nmse"] = factor


LESS = {
    "less than mean ablation": of_masks("lost_fraction", "downstream", "empty"),
    "less than random masks": of_rival("random"),
    "by variance": of_rival("top_variance"),
    "by tau": of_rival("tau_ranked"),
    "by curvature": of_rival("fisher_diagonal"),
    "smaller than reconstruction masks": of_masks("soft_mass", "downstream", "reconstruction"),
    "transfer NMSE": of_transfer,
}
MORE = {
    "omega enrichment": of_masks("enrichment_omega", "downstream", "reconstruction"),
    "tau enrichment": of_tau,
    "Gini of tau": of_columns("anisotropy", "gini_tau", "gini_null"),
    "two seeds agree": of_columns("stability", "overlap", "overlap_null"),
}
WAYS = [(words, plant, 0.8, 1.25) for words, plant in LESS.items()]
WAYS += [(words, plant, 1.25, 0.8) for words, plant in MORE.items()]


@pytest.mark.parametrize(("words", "plant", "as_claimed", "other_way"), WAYS, ids=[way[0] for way in WAYS])
def test_a_claim_is_beyond_in_its_own_direction_only(words, plant, as_claimed, other_way):
    for factor, expected in ((as_claimed, "beyond"), (other_way, "within"), (1.0, "within")):
        tables = planted()
        plant(tables, factor)
        row = verdict(tables, words)
        assert row["verdict"] == expected
        assert row["observed"] == pytest.approx(factor * row["null"])
        if factor != 1.0:
            assert (row["p"] < 0.01) == (expected == "beyond")


@pytest.mark.parametrize(("earlier", "last", "expected"), [(0.8, 9.0, "beyond"), (1.1, 0.01, "within")])
def test_a_checkpoints_transfer_to_itself_is_no_transfer(earlier, last, expected):
    """The last checkpoint's rows are left out, whatever they show."""
    tables = planted()
    of_transfer(tables, earlier)
    table = tables["transfer"]
    table.loc[(table["control"] == "aligned") & (table["step"] == table["step"].max()), "nmse"] = last
    row = verdict(tables, "transfer NMSE")
    assert row["verdict"] == expected
    assert row["observed"] == pytest.approx(earlier)
    here = table[(table["site"] == SITE) & (table["step"] < table["step"].max())]
    assert row["n"] == len(here[UNIT].drop_duplicates())
