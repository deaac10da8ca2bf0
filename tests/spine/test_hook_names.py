from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tl_lifehist.hook_names import parse_hook_name


@pytest.mark.parametrize(
    ("hook_name", "place"),
    [
        ("blocks.2.hook_mlp_out", (2, "hook_mlp_out")),
        ("blocks.11.attn.hook_z", (11, "attn.hook_z")),
        ("hook_embed", (-1, "hook_embed")),
        ("blocks.-1.hook_mlp_out", (-1, "blocks.-1.hook_mlp_out")),
        ("blocks.2.", (-1, "blocks.2.")),
        ("encoder.blocks.2.hook_mlp_out", (-1, "encoder.blocks.2.hook_mlp_out")),
        ("", (-1, "")),
    ],
)
def test_a_hook_name_says_its_block_and_site(hook_name: str, place: tuple[int, str]):
    assert parse_hook_name(hook_name) == place


@given(st.integers(0, 500), st.from_regex(r"[a-z_][a-z_.]*", fullmatch=True))
def test_a_name_that_is_put_together_is_taken_apart_again(block: int, site: str):
    assert parse_hook_name(f"blocks.{block}.{site}") == (block, site)
