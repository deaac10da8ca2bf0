"""Numbers and texts as a reader sees them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tl_lifehist.report.markup import badge, frame, interval, number, p_value, percent, visible


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234, "1,234"),
        (np.int64(-3), "−3"),
        (0.123456, "0.123"),
        (-0.5, "−0.5"),
        (12345.6, "12,346"),
        (2.0, "2"),
        (float("nan"), "–"),
        (float("-inf"), "−∞"),
        (None, "–"),
        (pd.NA, "–"),
        (np.bool_(True), "yes"),
        ("a < b", "a &lt; b"),
        ("", "–"),
    ],
)
def test_a_value_for_a_reader(value: object, text: str) -> None:
    assert number(value) == text


def test_a_small_p_says_only_that_it_is_small() -> None:
    assert p_value(0.0004) == "&lt; 0.001"
    assert p_value(0.0123) == "0.012"
    assert p_value(float("nan")) == "–"


def test_shares_and_intervals() -> None:
    assert percent(0.256) == "25.6\u00a0%"
    assert percent(float("nan")) == "–"
    assert interval(0.1, 0.25) == "0.1 to 0.25"
    assert interval(float("nan"), float("nan")) == ""


def test_a_verdict_is_words_whatever_it_is() -> None:
    assert badge("beyond") == '<span class="badge beyond">beyond</span>'
    assert badge("<b>") == '<span class="badge untestable">&lt;b&gt;</span>'


def test_white_space_is_shown() -> None:
    assert visible("a\nb") == "a<i>↵</i><wbr>b"
    assert visible(" a", spaces=True) == "<i>·</i>a"
    assert visible("\t\x00\u202e") == "<i>⇥</i><i>U+0000</i><i>U+202E</i>"
    assert visible("\ud800") == "<i>U+D800</i>"


@given(st.text())
def test_no_text_becomes_markup(text: str) -> None:
    bare = visible(text, spaces=True).replace("<i>", "").replace("</i>", "").replace("<wbr>", "")
    assert "<" not in bare
    assert '"' not in bare


def test_a_frame_becomes_a_table_with_its_headings() -> None:
    text = frame(pd.DataFrame({"a": ["x<"], "b": [0.5], "c": [1]}), {"a": "A & B", "b": "b"})
    assert text.count("<td") == 2
    assert "<th>A &amp; B</th><th class=number>b</th>" in text
    assert "<td>x&lt;</td><td class=number>0.5</td>" in text
