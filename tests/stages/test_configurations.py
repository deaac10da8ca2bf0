"""Nested configurations: where a flat setting goes, what a TOML file says, and what is refused."""

from __future__ import annotations

import dataclasses
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tl_lifehist.sufficiency.config import SufficiencyConfig

from tl_lifehist.config import configured, from_sections, options, pool_of, to_toml
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.config import LifeHistoryConfig, SAETraining
from tl_lifehist.stages import plain

CONFIGS = [LifeHistoryConfig, SufficiencyConfig]


@pytest.mark.parametrize("config", CONFIGS)
def test_sections_are_small_names_unique_and_each_setting_says_what_it_is(config):
    pool = pool_of(config())  # refuses names that stand twice
    assert len(pool) > 20
    for section in dataclasses.fields(config):
        assert 1 <= len(dataclasses.fields(section.default_factory)) <= 8, section.name
    for _, one in options(config):
        assert 10 < len(one.metadata["about"]) < 110, one.name


@pytest.mark.parametrize("config", CONFIGS)
def test_the_printed_file_gives_the_configuration_again(config):
    changed = config()
    for section, one in options(config):
        value = getattr(getattr(changed, section), one.name)
        if isinstance(value, int) and not isinstance(value, bool):
            changed = configured(config, changed, {one.name: value + 1})
    assert changed != config()
    assert from_sections(config, tomllib.loads(to_toml(changed))) == changed
    assert from_sections(config, plain(changed)) == changed  # as study.json has it
    assert from_sections(config, {}) == config()


def test_flat_settings_go_to_their_sections():
    made = configured(LifeHistoryConfig, None, {"d_sae": 64, "min_similarity": 0.6, "n_draws": 7})
    assert (made.sae.d_sae, made.matching.min_similarity, made.control_sets.n_draws) == (64, 0.6, 7)
    again = configured(LifeHistoryConfig, made, {"k": 3})
    assert again.sae == SAETraining(d_sae=64, k=3)
    with pytest.raises(InputError, match="config is a SAETraining: give a LifeHistoryConfig"):
        configured(LifeHistoryConfig, SAETraining(), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sea]\nk = 3", r"\[sea\] is no section; there are: sae, "),
        ("[sae]\nkk = 3", r"sae\.kk is no setting; the nearest are: k"),
        ('[sae]\nk = "3"', r"sae\.k takes a whole number, not '3'"),
        ("[sae]\nk = 3.5", r"sae\.k takes a whole number, not 3\.5"),
        ("[sae]\nk = true", r"sae\.k takes a whole number, not True"),
        ("[rule]\nconsecutive = 1", r"rule\.consecutive takes true or false, not 1"),
        ("[noise]\nnoise_steps = 5", r"noise\.noise_steps takes a list or nothing, not 5"),
        ("[sae]\nk = 0", "k=0 must be at least 1"),
        ('[sae]\ninit = "warm"', "init='warm' is unknown"),
    ],
)
def test_mistakes_in_a_file_are_named(text: str, message: str):
    with pytest.raises(InputError, match=message):
        from_sections(LifeHistoryConfig, tomllib.loads(text))


@given(st.floats(0, 1, allow_nan=False), st.integers(1, 10**9), st.booleans(), st.lists(st.integers(0, 10**6)))
def test_any_value_survives_the_file(similarity: float, n: int, flag: bool, steps: list[int]):
    settings = {"min_similarity": similarity, "n_draws": n, "consecutive": flag, "noise_steps": tuple(steps)}
    made = configured(LifeHistoryConfig, None, settings)
    assert from_sections(LifeHistoryConfig, tomllib.loads(to_toml(made))) == made
