from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.contexts import COLUMNS, split_context, top_contexts
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.tokens import TokenSet


@cache
def bytes_and_the() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: one token per byte, " the" besides, and a BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = ["<|bos|>", *alphabet, "Ġt", "Ġth", "Ġthe"]
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e")]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(vocabulary)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|bos|>")


@cache
def whole_words() -> PreTrainedTokenizerFast:
    words = "one two three four five six seven eight nine ten".split()
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="ten"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def firing(
    tokens: TokenSet, at: dict[tuple[int, int], float], n_features: int = 1, feature: int = 0
) -> FeatureProfiles:
    """A profile that fires at (sequence, position) with the given codes."""
    acts = np.zeros((tokens.n_valid, n_features))
    for row, (sequence, position) in enumerate(tokens.row_positions.tolist()):
        acts[row, feature] = at.get((sequence, position), 0.0)
    return FeatureProfiles(0, "h", acts)


def test_the_text_is_exact_and_the_strongest_comes_first():
    tokens = TokenSet.from_texts(["In the end the cat sat", "see the dog"], bytes_and_the(), context_size=32)
    # BOS I n " the" _ e n d " the" _ c ...: the first " the" is at position 3
    profile = firing(tokens, {(0, 3): 1.0, (1, 4): 2.5, (0, 15): 0.5}, n_features=3, feature=2)
    table = top_contexts(profile, tokens, [2, 0], bytes_and_the(), window=4)
    assert list(table.columns) == COLUMNS
    assert table.to_numpy().tolist() == [
        ["h", 2, 1, 2.5, 1, "<|bos|>see", " the", " dog"],
        ["h", 2, 2, 1.0, 0, "<|bos|>In", " the", " end"],
        ["h", 2, 3, 0.5, 0, "at s", "a", "t"],
    ]


@pytest.mark.parametrize("position", [4, 5])
def test_a_token_with_part_of_a_character_shows_the_whole_character(position):
    tokens = TokenSet.from_texts(["café!"], bytes_and_the(), context_size=16)
    table = top_contexts(firing(tokens, {(0, position): 1.0}), tokens, [0], bytes_and_the())
    assert table.loc[0, ["before", "token", "after"]].tolist() == ["<|bos|>caf", "é", "!"]


def test_a_character_cut_by_the_window_stays_broken_and_nothing_is_lost():
    tokens = TokenSet.from_texts(["é€!"], bytes_and_the(), context_size=16)
    ids = tokens.ids[0].tolist()
    assert split_context(bytes_and_the(), ids[2:5], 1) == ("\ufffd", "\ufffd", "")
    for place in range(1, 7):
        for first in range(place + 1):
            for last in range(place + 1, 7):
                parts = split_context(bytes_and_the(), ids[first:last], place - first)
                assert "".join(parts) == bytes_and_the().decode(ids[first:last])
                assert parts[1]


def test_spaces_of_a_word_tokenizer_read_right():
    tokens = TokenSet.from_texts(["one two three four five"], whole_words(), context_size=8)
    table = top_contexts(firing(tokens, {(0, 2): 1.0}), tokens, [0], whole_words(), window=1)
    before, token, after = table.loc[0, ["before", "token", "after"]]
    assert token.strip() == "three"
    assert before + token + after == "two three four"


def test_contexts_are_not_near_identical():
    ids = torch.tensor([[9, 0, 1, 2, 3, 4, 5, 6, 7, 8], [9, 0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1, 0, 9]])
    tokens = TokenSet(
        ids, torch.ones_like(ids, dtype=torch.bool), ids, documents=torch.tensor([[5], [6], [6]]).expand(3, 10)
    )
    at = {(0, 2): 9.0, (0, 3): 8.0, (0, 5): 7.0, (0, 6): 6.0, (1, 2): 5.5, (2, 4): 5.0}
    table = top_contexts(firing(tokens, at), tokens, [0], whole_words(), window=2)
    # (0, 3) lies within 2 of (0, 2), (0, 6) within 2 of (0, 5), and (1, 2) repeats the tokens of (0, 2)
    assert table["activation"].tolist() == [9, 7, 5]
    assert table["document"].tolist() == [5, 5, 6]
    assert top_contexts(firing(tokens, at), tokens, [0], whole_words(), n=1, window=2)["rank"].tolist() == [1]


def test_padding_is_not_shown():
    tokens = TokenSet.from_texts(["one two three four", "one two"], whole_words(), context_size=4)
    assert tokens.attention_mask is not None
    table = top_contexts(firing(tokens, {(1, 1): 1.0}), tokens, [0], whole_words())
    assert "".join(table.loc[0, ["before", "token", "after"]]) == "one two"


def test_a_feature_that_never_fires_has_no_context():
    tokens = TokenSet.from_texts(["one two three"], whole_words(), context_size=4)
    table = top_contexts(firing(tokens, {}), tokens, [0], whole_words())
    assert list(table.columns) == COLUMNS
    assert len(table) == 0


def test_bad_input_is_refused_in_a_sentence():
    tokens = TokenSet.from_texts(["one two three"], whole_words(), context_size=4)
    profile = firing(tokens, {(0, 1): 1.0})
    with pytest.raises(InputError, match="cover 9 rows but the tokens have 2"):
        top_contexts(FeatureProfiles(0, "h", np.ones((9, 1))), tokens, [0], whole_words())
    with pytest.raises(InputError, match="Feature 1 lies outside 0 to 0"):
        top_contexts(profile, tokens, [1], whole_words())
    with pytest.raises(InputError, match="n=0"):
        top_contexts(profile, tokens, [0], whole_words(), n=0)
