from __future__ import annotations

import re

import pytest

from tl_lifehist.errors import InputError, one_of


def test_a_choice_passes_and_anything_else_is_told_the_choices():
    one_of("mode", "mean", ("zero", "mean", "resample"))
    with pytest.raises(InputError, match=re.escape('mode=\'half\' is unknown: use "zero", "mean" or "resample".')):
        one_of("mode", "half", ("zero", "mean", "resample"))
    with pytest.raises(InputError, match=re.escape('kind=None is unknown: use "a" or "b".')):
        one_of("kind", None, {"a": 1, "b": 2})
