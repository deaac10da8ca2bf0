from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_contexts import bytes_and_the

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.content import content_classes, token_class, vocabulary_classes
from tl_lifehist.lifehistory.profiles import FeatureProfiles


@pytest.mark.parametrize(
    "text",
    [
        *("\ufffd", "a\ufffd", "\udcc3", "\ufeff"),  # broken UTF-8
        *("", " ", "    ", "\n", "\t", "\r\n", "the\n", "\u00a0", "\x00", "a\x07", "\u2028"),  # white space, control
        *("<div", "</", "</p>", "/>", "<!--", "<?xml", " <", ">>", "<|endoftext|>", "|>", "&nbsp;", "&#39;"),  # tags
        *("{{", " ]]", "```", "====", "-----", "##", "://", "https://", " \\begin", "href=", "src"),  # other markup
        *(".py", " .html", ".JSON", ".cpp", ".tar", ".mp3"),  # file extensions
    ],
)
def test_infrastructure(text):
    assert token_class(text) == "infrastructure"


@pytest.mark.parametrize(
    "text",
    [
        " the",
        "the",
        "Paris",
        "é",
        " 猫",
        "क",
        ".",
        ",",
        " (",
        "'s",
        " -",
        "--",
        "#",
        "2024",
        "<3",
        " = ",
        "html",
        ".com",
        "a<b",
    ],
)
def test_legible(text):
    assert token_class(text) == "legible"


@given(st.text(alphabet=st.characters(categories=["L"]), min_size=1))
def test_letters_are_legible_with_and_without_a_leading_space(word):
    if word not in ("href", "src", "xmlns"):
        assert token_class(word) == token_class(" " + word) == "legible"


@given(st.text())
def test_a_control_character_decides_wherever_it_stands(text):
    assert token_class(text + "\n") == token_class("\x1b" + text) == "infrastructure"


def test_a_vocabulary_is_classed_id_by_id():
    tokenizer = bytes_and_the()
    n = len(tokenizer)
    classes = vocabulary_classes(tokenizer, n + 2)
    assert (classes.dtype, len(classes)) == (bool, n + 2)

    def of(text: str) -> list[bool]:
        return classes[tokenizer(text)["input_ids"]].tolist()

    assert of(" the") == [False]
    assert of("cat") == [False] * 3
    assert of(" \n") == [True, True]
    assert of("é") == [True, True]  # its two bytes alone are no text
    assert classes[tokenizer.bos_token_id]
    assert classes[n:].all()  # a padded vocabulary's ids have no text


def test_half_of_the_mass_makes_a_feature_infrastructure():
    infrastructure = np.array([True, False, True])
    ids = np.array([0, 1, 1, 2])
    acts = np.array([[2.0, 0, 0, 0.3], [1, 0, 0, 0.1], [1, 3, 0, 0.2001], [0, 0, 0, 0]])
    acts[3, 1] = 2.9
    profile = FeatureProfiles(0, "h", acts, token_ids=ids)
    # exactly half; under half; never fires; 0.3 of 0.6001
    assert content_classes(profile, infrastructure).tolist() == ["infrastructure", "legible", "", "legible"]


def test_mass_decides_and_not_the_number_of_firings():
    profile = FeatureProfiles(0, "h", np.array([[5.0], [1], [1], [1]]), token_ids=np.array([0, 1, 1, 1]))
    assert content_classes(profile, np.array([True, False])).tolist() == ["infrastructure"]


def test_bad_input_is_refused_in_a_sentence():
    profile = FeatureProfiles(0, "h", np.ones((2, 1)), token_ids=np.array([0, 5]))
    with pytest.raises(InputError, match="Token id 5 has no class"):
        content_classes(profile, np.zeros(5, dtype=bool))
    with pytest.raises(InputError, match="token_ids"):
        content_classes(FeatureProfiles(0, "h", np.ones((2, 1))), np.zeros(5, dtype=bool))
    with pytest.raises(InputError, match="vocabulary"):
        vocabulary_classes(bytes_and_the(), 0)
