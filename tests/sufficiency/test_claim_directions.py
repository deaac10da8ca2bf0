"""Each claim holds one way only: planted the way it says it is beyond, planted the other way it never is."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
from report.plausible_masks import plausible_mask_tables

from tl_lifehist.claims import Claim
from tl_lifehist.sufficiency.claims import make_claims
from tl_lifehist.sufficiency.config import Masks, Verdicts

SITE = "hook_mlp_out"
UNIT = ["step", "hook_name"]
Tables = dict[str, pd.DataFrame]


def planted() -> Tables:
    """No claim here rests on carriers or trajectories."""
    tables = plausible_mask_tables(seed=1)
    tables.pop("carriers")
    tables["trajectories"] = tables["trajectories"].iloc[:0]
    return tables


def claimed(tables: Tables, name: str) -> Claim:
    (found,) = [one for one in make_claims(tables, Masks(), verdicts=Verdicts(), seed=0) if one.id == name]
    return found


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
    f"masks.{SITE}.cheaper_than_empty": of_masks("lost_fraction", "downstream", "empty"),
    f"masks.{SITE}.cheaper_than_random": of_rival("random"),
    f"masks.{SITE}.cheaper_than_top_variance": of_rival("top_variance"),
    f"masks.{SITE}.cheaper_than_tau_ranked": of_rival("tau_ranked"),
    f"masks.{SITE}.cheaper_than_fisher_diagonal": of_rival("fisher_diagonal"),
    f"masks.{SITE}.smaller_than_reconstruction": of_masks("soft_mass", "downstream", "reconstruction"),
    f"transfer.{SITE}.closer_than_shuffled": of_transfer,
}
MORE = {
    f"masks.{SITE}.more_coherent_than_reconstruction": of_masks("enrichment_omega", "downstream", "reconstruction"),
    f"masks.{SITE}.more_sensitive_than_random": of_tau,
    f"sensitivity.{SITE}.concentrated": of_columns("anisotropy", "gini_tau", "gini_null"),
    f"stability.{SITE}.masks_of_two_seeds": of_columns("stability", "overlap", "overlap_null"),
}
WAYS = [(name, plant, 0.8, 1.25) for name, plant in LESS.items()]
WAYS += [(name, plant, 1.25, 0.8) for name, plant in MORE.items()]


@pytest.mark.parametrize(("name", "plant", "as_claimed", "other_way"), WAYS, ids=[way[0] for way in WAYS])
def test_a_claim_is_beyond_in_its_own_direction_only(name, plant, as_claimed, other_way):
    for factor, expected in ((as_claimed, "beyond"), (other_way, "within"), (1.0, "within")):
        tables = planted()
        plant(tables, factor)
        claim = claimed(tables, name)
        assert claim.verdict == expected
        assert claim.observed == pytest.approx(factor * claim.null)
        if factor != 1.0:
            assert (claim.p < 0.01) == (expected == "beyond")


@pytest.mark.parametrize(("earlier", "last", "expected"), [(0.8, 9.0, "beyond"), (1.1, 0.01, "within")])
def test_a_checkpoints_transfer_to_itself_is_no_transfer(earlier, last, expected):
    """The last checkpoint's rows are left out, whatever they show."""
    tables = planted()
    of_transfer(tables, earlier)
    table = tables["transfer"]
    table.loc[(table["control"] == "aligned") & (table["step"] == table["step"].max()), "nmse"] = last
    claim = claimed(tables, f"transfer.{SITE}.closer_than_shuffled")
    assert claim.verdict == expected
    assert claim.observed == pytest.approx(earlier)
    here = table[(table["site"] == SITE) & (table["step"] < table["step"].max())]
    assert claim.n == len(here[UNIT].drop_duplicates())
