"""Nested configurations: where a flat setting goes, what a TOML file says, and what is refused."""

from __future__ import annotations

import dataclasses
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tl_lifehist.config import configured, from_sections, options, pool_of, to_toml
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.config import EqualFeatures, LifeHistoryConfig, Matching, SAETraining
from tl_lifehist.seeds import study_seed
from tl_lifehist.stages import fingerprint, plain
from tl_lifehist.sufficiency.config import Bridge, Comparisons, SufficiencyConfig

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
        ("[noise]\nnoise_steps = 5", r"noise\.noise_steps takes a list of whole numbers or nothing, not 5"),
        ("[noise]\nnoise_steps = [0.5]", r"noise\.noise_steps takes a list of whole numbers or nothing, not \[0\.5\]"),
        ('[control_sets]\ncontrols = ["mass", 3]', r"controls takes a list of strings, not \['mass', 3\]"),
        ("[sae]\nk = 0", "k=0 must be at least 1"),
        ('[sae]\ninit = "warm"', "init='warm' is unknown"),
    ],
)
def test_mistakes_in_a_file_are_named(text: str, message: str):
    with pytest.raises(InputError, match=message):
        from_sections(LifeHistoryConfig, tomllib.loads(text))


@given(st.floats(0, 1, exclude_min=True), st.integers(1, 10**9), st.booleans(), st.lists(st.integers(0, 10**6)))
def test_any_value_survives_the_file(similarity: float, n: int, flag: bool, steps: list[int]):
    settings = {"min_similarity": similarity, "n_draws": n, "consecutive": flag, "noise_steps": tuple(steps)}
    made = configured(LifeHistoryConfig, None, settings)
    assert from_sections(LifeHistoryConfig, tomllib.loads(to_toml(made))) == made


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_similarity": 5}, "min_similarity=5.0 must lie above 0 and up to 1."),
        ({"min_similarity": 0}, "min_similarity=0.0 must lie above 0 and up to 1."),
        ({"min_similarity": float("nan")}, "min_similarity=nan must lie above 0 and up to 1."),
        ({"transformed": 1.5}, "transformed=1.5 must lie above 0 and up to 1."),
        ({"max_gap": 2}, "max_gap=2 must lie between 0 and 1."),
        ({"level": -1}, "level=-1.0 must lie between 0 and 1."),
        ({"level": float("nan")}, "level=nan must lie between 0 and 1."),
        ({"early_share": 1.1}, "early_share=1.1 must lie between 0 and 1."),
        ({"min_mass_share": -0.1}, "min_mass_share=-0.1 must lie between 0 and 1."),
        ({"null_draws": 0}, "null_draws=0 must be at least 1."),
        ({"n_folds": 0}, "n_folds=0 must be at least 2."),
        ({"n_repeats": -3}, "n_repeats=-3 must be at least 1."),
        ({"n_permutations": -1}, "n_permutations=-1 must be at least 0."),
        ({"n_groups": 0}, "n_groups=0 must be at least 1."),
        ({"min_positives": 1}, "min_positives=1 must be at least 2."),
        ({"inverse_penalty": 0}, "inverse_penalty=0.0 must be a number above 0."),
        ({"onset": -1}, "onset=-1 must be at least 0."),
        ({"onset_share": 7}, "onset_share=7.0 must lie between 0 and 1."),
        ({"contexts": -1}, "contexts=-1 must be at least 1."),
        ({"regression_sets": -9}, "regression_sets=-9 must be at least 1."),
        ({"content_draws": -1}, "content_draws=-1 must be at least 0."),
        ({"window": -1}, "window=-1 must be at least 0."),
        ({"n_rewired": -1}, "n_rewired=-1 must be at least 0."),
        ({"caliper": -1}, "caliper=-1.0 must be at least 0."),
        ({"caliper": float("nan")}, "caliper=nan must be at least 0."),
        ({"max_smd": -0.5}, "max_smd=-0.5 must be at least 0."),
        ({"max_unmatched": 1.01}, "max_unmatched=1.01 must lie between 0 and 1."),
        ({"max_p": 0}, "max_p=0.0 must lie above 0 and up to 1."),
        ({"max_p": 2}, "max_p=2.0 must lie above 0 and up to 1."),
        ({"min_containment": 1.2}, "min_containment=1.2 must lie above 0 and up to 1."),
        ({"min_lift": float("inf")}, "min_lift=inf must be a number above 0."),
        ({"min_rate": -0.1}, "min_rate=-0.1 must lie between 0 and 1."),
        ({"min_count": -1}, "min_count=-1 must be at least 0."),
        ({"firing_threshold": -1}, "firing_threshold=-1.0 must be at least 0."),
        ({"min_snapshots": 0}, "min_snapshots=0 must be at least 1."),
        ({"min_share": 0}, "min_share=0.0 must lie above 0 and up to 1."),
        ({"d_sae": 0}, "d_sae=0 must be at least 1."),
        ({"d_sae": 16, "k": 17}, "k=17 features of d_sae=16 cannot be active: set k to 16 or less."),
    ],
)
def test_settings_out_of_range_are_refused_with_the_range(settings: dict[str, object], message: str):
    with pytest.raises(InputError) as raised:
        configured(LifeHistoryConfig, None, settings)
    assert str(raised.value) == message


def test_the_ends_of_the_ranges_are_legal():
    ends = {"min_similarity": 1.0, "level": 0.0, "max_unmatched": 1.0, "max_smd": 99.0, "d_sae": 16, "k": 16}
    assert configured(LifeHistoryConfig, None, ends).equals == EqualFeatures(max_unmatched=1.0, max_smd=99.0)
    assert configured(SufficiencyConfig, None, {"level": 1, "max_unmatched": 0}).verdicts.level == 1.0
    for settings in ({"level": 1.5}, {"max_unmatched": -0.1}, {"max_gap": -1.0}):
        with pytest.raises(InputError, match=next(iter(settings))):
            configured(SufficiencyConfig, None, settings)


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (LifeHistoryConfig, {"d_sae": "64"}, "d_sae takes a whole number or nothing, not '64'."),
        (LifeHistoryConfig, {"k": True}, "k takes a whole number, not True."),
        (LifeHistoryConfig, {"consecutive": "false"}, "consecutive takes true or false, not 'false'."),
        (LifeHistoryConfig, {"noise_steps": 4096}, "noise_steps takes a list of whole numbers or nothing, not 4096."),
        (LifeHistoryConfig, {"controls": "mass"}, "controls takes a list of strings, not 'mass'."),
        (SufficiencyConfig, {"n_random": "20"}, "n_random takes a whole number, not '20'."),
        (SufficiencyConfig, {"penalty_total": "0.1"}, "penalty_total takes a number, not '0.1'."),
        (SufficiencyConfig, {"sweep": 0.3}, "sweep takes a list of numbers, not 0.3."),
        (SufficiencyConfig, {"sweep": ["a"]}, "sweep takes a list of numbers, not ['a']."),
        (SufficiencyConfig, {"seeds": [0.5]}, "seeds takes a list of whole numbers, not [0.5]."),
        (SufficiencyConfig, {"seeds": np.arange(4).reshape(2, 2)}, "seeds takes a list of whole numbers, not [[0, "),
        (SufficiencyConfig, {"mask_steps": 2.5}, "mask_steps takes a whole number, not 2.5."),
        (SufficiencyConfig, {"mask_steps": np.float64(2.5)}, "mask_steps takes a whole number, not 2.5."),
        (SufficiencyConfig, {"n_components": 3.5}, "n_components takes a whole number or nothing, not 3.5."),
    ],
)
def test_settings_of_another_type_are_refused_wherever_they_are_given(config, settings, message: str):
    with pytest.raises(InputError) as raised:
        configured(config, None, settings)
    assert str(raised.value).startswith(message)
    section, name = next((section, one.name) for section, one in options(config) if one.name in settings)
    with pytest.raises(InputError, match=rf"^{section}\.{name} takes "):
        from_sections(config, {section: settings})


def test_numpys_numbers_and_arrays_become_pythons():
    made = configured(
        SufficiencyConfig, None, {"seeds": np.arange(2), "mask_steps": np.int64(9), "sweep": [np.float32(0.5), 1]}
    )
    assert made == configured(SufficiencyConfig, None, {"seeds": (0, 1), "mask_steps": 9, "sweep": (0.5, 1.0)})
    values = [made.masks.mask_steps, *made.comparisons.seeds, *made.comparisons.sweep]
    assert [type(value) for value in values] == [int, int, int, float, float]
    assert configured(LifeHistoryConfig, None, {"noise_steps": range(2)}).noise.noise_steps == (0, 1)
    seed = study_seed(np.int64(3))
    assert (seed, type(seed)) == (3, int)
    for wrong in ("3", 0.5, True, None, -5, np.int64(-5)):
        with pytest.raises(InputError, match="^seed"):
            study_seed(wrong)


def test_1_and_1_0_are_one_setting_however_it_is_given():
    whole = [
        from_sections(LifeHistoryConfig, tomllib.loads("[matching]\nmin_similarity = 1")),
        configured(LifeHistoryConfig, None, {"min_similarity": 1}),
        configured(LifeHistoryConfig, LifeHistoryConfig(matching=Matching(min_similarity=1)), {}),
        configured(LifeHistoryConfig, None, {"min_similarity": np.int64(1)}),
    ]
    wanted = fingerprint(plain(configured(LifeHistoryConfig, None, {"min_similarity": 1.0})))
    assert [fingerprint(plain(made)) for made in whole] == [wanted] * 4
    assert [str(total) for total in Comparisons(sweep=(1, 3)).sweep] == ["1.0", "3.0"]
    assert str(Bridge(max_gap=1).max_gap) == "1.0"


def test_a_section_of_another_kind_is_refused():
    mixed = LifeHistoryConfig()
    object.__setattr__(mixed, "sae", Matching())  # as Python lets one write it
    with pytest.raises(InputError, match=r"config\.sae is a Matching: give a SAETraining\."):
        configured(LifeHistoryConfig, mixed, {})
