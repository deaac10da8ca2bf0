from __future__ import annotations

import pytest

import tl_lifehist as lh
from tl_lifehist.errors import InputError

pytestmark = pytest.mark.usefixtures("saelens")

HOOK = "blocks.1.hook_resid_post"
SIZES = {"d_sae": 48, "k": 6, "training_tokens": 8000}


@pytest.fixture(scope="module")
def world(pocket_series):
    series = pocket_series.subset([0, 1024, 4096])
    train, test = lh.TokenSet.pocket("train")[::15], lh.TokenSet.pocket("test")[::8]
    return series, train, test, lh.train_saes(series, [HOOK], train, **SIZES)


def test_an_sae_matches_itself_and_both_floors_lie_below(world, pocket_model):
    _, train, test, saes = world
    sae = saes[4096, HOOK]
    found = lh.compare_saes(sae, sae, pocket_model, HOOK, test, train_tokens=train, training_tokens=8000)
    assert found.rate == 1
    assert (found.match.pairs[:, 0] == found.match.pairs[:, 1]).all()
    assert found.n_alive == lh.profile_saes(pocket_model, {HOOK: sae}, test)[HOOK].alive().sum()
    assert 0 < found.floor_init < found.floor_data < 1
    assert found.floor_n_alive > 10


def test_a_feature_of_the_series_own_sae_is_traced_to_its_own_lineage(world):
    series, _, test, saes = world
    profiles = lh.activation_profiles(series, saes, test)
    lineages = lh.trace_lineages(profiles)
    longest = lineages.summary().query("death.isna()").nlargest(1, "n_snapshots").iloc[0]
    own = lineages.to_dataframe().query("lineage == @longest.lineage")
    feature = int(own.iloc[-1]["feature"])
    life = lh.life_of(saes[4096, HOOK], feature, series, saes, test)
    assert life.hook_name == HOOK  # from the SAE's metadata
    assert life.birth == longest["birth"]
    history = life.history.set_index("step")
    assert history.loc[4096, "feature"] == feature
    assert history.loc[4096, "similarity"] == pytest.approx(1)
    assert history.loc[4096, "cosine"] == pytest.approx(1, abs=1e-4)
    assert history.loc[history["in_lineage"], "feature"].tolist() == own["feature"].tolist()
    assert (history["null_similarity"] < 0.4).all()
    assert len(life.contexts) > 0


def test_bad_questions_are_named(world, make_sae):
    series, _, test, saes = world
    with pytest.raises(InputError, match="Feature 48 lies outside 0 to 47"):
        lh.life_of(saes[4096, HOOK], 48, series, saes, test)
    with pytest.raises(InputError, match="pass hook_name="):
        lh.life_of(make_sae(), 0, series, saes, test)
    silent = make_sae(d_sae=16, k=4)
    silent.b_enc.data[2] = -1e6
    with pytest.raises(InputError, match="never fires on these"):
        lh.life_of(silent, 2, series, saes, test, hook_name=HOOK)
