from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tl_lifehist.errors import InputError
from tl_lifehist.sufficiency.onset import onset_of_sufficiency, onset_table


def sweep(*rows: tuple[float, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["soft_mass", "lost_fraction", "variance_lost_fraction"])


SWEEP = sweep((0.02, 0.4, 0.9), (0.11, 0.09, 0.08), (0.23, 0.07, 0.2), (0.6, 0.03, 0.05), (1.0, 0.01, 0.01))


def test_the_least_mass_that_keeps_behaviour_and_beats_variance():
    # 0.02 loses too much, 0.11 is no better than variance
    assert onset_of_sufficiency(SWEEP, full_lost_fraction=0.01) == 0.23
    assert onset_of_sufficiency(SWEEP, full_lost_fraction=0.01, max_lost=0.05) == 0.6
    assert onset_of_sufficiency(SWEEP, full_lost_fraction=0.01, max_lost=0.5) == 0.02
    # exactly as much as may be lost is enough, for a mask and for the full one
    assert onset_of_sufficiency(SWEEP, full_lost_fraction=0.07, max_lost=0.07) == 0.23


@pytest.mark.parametrize("full", [0.11, float("nan"), float("inf")])
def test_there_is_none_where_the_full_mask_fails(full: float):
    assert np.isnan(onset_of_sufficiency(SWEEP, full_lost_fraction=full))


def test_there_is_none_where_no_mask_passes():
    assert np.isnan(onset_of_sufficiency(SWEEP, full_lost_fraction=0.01, max_lost=0.02))
    assert np.isnan(onset_of_sufficiency(sweep(), full_lost_fraction=0.01))
    equal = SWEEP.assign(variance_lost_fraction=SWEEP["lost_fraction"])
    assert np.isnan(onset_of_sufficiency(equal, full_lost_fraction=0.01))


def test_an_unknown_loss_never_passes():
    assert np.isnan(onset_of_sufficiency(sweep((0.1, np.nan, 0.5), (0.2, 0.05, np.nan)), full_lost_fraction=0.0))


fractions = st.floats(0, 1)


@given(rows=st.lists(st.tuples(fractions, fractions, fractions), max_size=12), max_lost=fractions, full=fractions)
def test_the_onset_is_a_mask_of_the_sweep_and_no_smaller_one_passes(
    rows: list[tuple[float, float, float]], max_lost: float, full: float
):
    found = onset_of_sufficiency(sweep(*rows), full_lost_fraction=full, max_lost=max_lost)
    passing = [mass for mass, lost, variance in rows if lost <= max_lost and lost < variance and full <= max_lost]
    assert (found == min(passing)) if passing else np.isnan(found)
    # order and repetition of the masks do not matter
    again = onset_of_sufficiency(sweep(*reversed(rows), *rows), full_lost_fraction=full, max_lost=max_lost)
    assert again == found or (np.isnan(again) and np.isnan(found))


def study_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    frontiers, full = [], []
    for step, layer, shift, lost in ((64, 2, 0.2, 0.3), (0, 10, 0.1, 0.05), (0, 2, 0.0, 0.01)):
        cell = {"step": step, "hook_name": f"blocks.{layer}.hook_mlp_out", "site": "hook_mlp_out", "layer": layer}
        cell |= {"method": "svd"}
        frontiers.append(SWEEP.assign(soft_mass=SWEEP["soft_mass"] * (1 - shift), **cell))
        full.append(cell | {"mask": "full", "lost_fraction": lost})
        full.append(cell | {"mask": "empty", "lost_fraction": 1.0})
    return pd.concat(frontiers), pd.DataFrame(full)


def test_a_row_for_each_cell_by_depth():
    frontier, evaluation = study_tables()
    table = onset_table(frontier, evaluation)
    assert list(table) == ["step", "hook_name", "site", "layer", "method", "onset", "full_lost_fraction"]
    assert table["layer"].tolist() == [2, 10, 2]
    assert table["step"].tolist() == [0, 0, 64]
    assert table["onset"].tolist() == pytest.approx([0.23, 0.207, np.nan], nan_ok=True)
    assert table["full_lost_fraction"].tolist() == [0.01, 0.05, 0.3]
    assert onset_table(frontier, evaluation, max_lost=0.05)["onset"].tolist() == pytest.approx(
        [0.6, 0.54, np.nan], nan_ok=True
    )


def test_a_cell_whose_full_mask_was_not_evaluated_has_no_onset():
    frontier, evaluation = study_tables()
    table = onset_table(frontier, evaluation[evaluation["layer"] == 10])
    assert table["onset"].isna().tolist() == [True, False, True]
    assert table["full_lost_fraction"].isna().tolist() == [True, False, True]


def test_what_is_missing_is_named():
    frontier, evaluation = study_tables()
    with pytest.raises(InputError, match="frontier table has no column 'variance_lost_fraction'.*lost_fraction"):
        onset_of_sufficiency(frontier.drop(columns="variance_lost_fraction"), full_lost_fraction=0.0)
    with pytest.raises(InputError, match="evaluation table has no column 'mask'"):
        onset_table(frontier, evaluation.drop(columns="mask"))
    with pytest.raises(InputError, match="max_lost=2"):
        onset_of_sufficiency(SWEEP, full_lost_fraction=0.0, max_lost=2)


def test_beating_variance_in_the_fourth_digit_is_no_onset():
    close = sweep((0.3, 0.0500, 0.05005), (0.9, 0.04, 0.0405))
    assert onset_of_sufficiency(close, full_lost_fraction=0.01) == 0.9
    assert np.isnan(onset_of_sufficiency(close[:1], full_lost_fraction=0.01))
