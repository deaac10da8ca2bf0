from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tl_lifehist.errors import InputError
from tl_lifehist.tokens import NO_LABEL, TokenSet, require_scored, require_valid


def tokenizer(*special: str, around: str = "$A", **roles: str) -> PreTrainedTokenizerFast:
    """One id a word: the special tokens first (so that a BOS can have id 0), then w0, w1, ...

    `around` is what the tokenizer makes of a text by itself, "[CLS] $A [SEP]".
    """
    vocabulary = {word: i for i, word in enumerate([*special, *(f"w{i}" for i in range(40))])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pairs = [(word, vocabulary[word]) for word in special]
    made.post_processor = processors.TemplateProcessing(single=around, special_tokens=pairs)
    return PreTrainedTokenizerFast(tokenizer_object=made, **roles)


def words(n: int, start: int = 0) -> str:
    return " ".join(f"w{i}" for i in range(start, start + n))


def test_windows_start_with_bos_never_mix_texts_and_predict_the_next_token():
    tok = tokenizer("<s>", bos_token="<s>")  # id 0 is a BOS like any other
    tokens = TokenSet.from_texts([words(6), words(3, 20)], tok, context_size=4)
    w = {i: i + 1 for i in range(40)}
    assert tokens.ids.tolist() == [[0, w[0], w[1], w[2]], [0, w[3], w[4], w[5]], [0, w[20], w[21], w[22]]]
    assert tokens.valid.tolist() == [[False, True, True, True]] * 3
    assert tokens.labels[:, 1:].tolist() == [[w[1], w[2], -100], [w[4], w[5], -100], [w[21], w[22], -100]]
    assert tokens.attention_mask is None
    assert tokens.documents is not None
    assert tokens.documents[:, 0].tolist() == [0, 0, 1]
    assert (tokens.n_valid, tokens.n_scored) == (9, 6)


def test_without_a_bos_position_0_is_still_left_out():
    tokens = TokenSet.from_texts([words(8)], tokenizer(), context_size=4)
    assert tokens.ids.shape == (2, 4)
    assert not tokens.valid[:, 0].any()


def test_a_short_last_window_is_padded_on_the_right_and_masked_or_dropped():
    tok = tokenizer("<s>", "<pad>", bos_token="<s>", pad_token="<pad>")
    tokens = TokenSet.from_texts([words(5)], tok, context_size=4)
    assert tokens.ids[1].tolist() == [0, 5, 6, 1]
    assert tokens.valid[1].tolist() == [False, True, True, False]
    assert tokens.labels[1].tolist() == [5, 6, -100, -100]
    assert tokens.attention_mask is not None
    assert tokens.attention_mask[1].tolist() == [1, 1, 1, 0]
    dropped = TokenSet.from_texts([words(5)], tok, context_size=4, keep_partial=False)
    assert len(dropped) == 1
    assert dropped.attention_mask is None


def test_special_tokens_in_the_middle_are_neither_valid_nor_labels():
    tok = tokenizer("<s>", "</s>", bos_token="<s>", eos_token="</s>")
    tokens = TokenSet.from_texts(["w1 </s> w2 w3 w4 w5"], tok, context_size=7)
    assert tokens.valid[0].tolist() == [False, True, False, True, True, True, True]
    assert tokens.labels[0, 1].item() == -100


def test_masked_positions_carry_the_labels_and_are_the_same_every_time():
    tok = tokenizer(
        "[CLS]",
        "[SEP]",
        "[PAD]",
        "[MASK]",
        around="[CLS] $A [SEP]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
    )
    texts = [words(30), words(9)]
    tokens = TokenSet.for_masked_lm(texts, tok, context_size=16, mask_rate=0.3, seed=1)
    again = TokenSet.for_masked_lm(texts, tok, context_size=16, mask_rate=0.3, seed=1)
    other = TokenSet.for_masked_lm(texts, tok, context_size=16, mask_rate=0.3, seed=2)
    assert torch.equal(tokens.ids, again.ids)
    assert not torch.equal(tokens.ids, other.ids)
    masked = tokens.labels != -100
    assert torch.equal(tokens.ids == 3, masked)
    assert (tokens.valid[masked]).all()
    assert tokens.valid[0, 1]  # no position-0 rule: [CLS] is left out because it is special
    assert not tokens.valid[:, 0].any()
    assert tokens.attention_mask is not None


@pytest.mark.parametrize(
    ("around", "roles", "first", "last"),
    [
        ("<a> $A <b>", {"cls_token": "<a>", "sep_token": "<b>"}, [0], [1]),
        ("<a> $A <b>", {"bos_token": "<a>", "eos_token": "<b>"}, [0], [1]),  # as EuroBERT's
        ("<a> $A", {"bos_token": "<a>", "eos_token": "<b>"}, [0], []),
        ("<a> $A <b>", {}, [0], [1]),  # used, and not named
        ("$A", {"cls_token": "<a>", "sep_token": "<b>"}, [], []),  # named, and not used
    ],
)
def test_masked_windows_stand_between_what_the_tokenizer_itself_puts_around_a_text(around, roles, first, last):
    tok = tokenizer("<a>", "<b>", "<p>", "<m>", around=around, pad_token="<p>", mask_token="<m>", **roles)
    tokens = TokenSet.for_masked_lm([words(11), words(2, 30)], tok, context_size=7, mask_rate=0.5, seed=3)
    originals = torch.where(tokens.labels == -100, tokens.ids, tokens.labels)
    room = 7 - len(first) - len(last)
    assert originals[0].tolist() == tok(words(room))["input_ids"] == first + [4 + i for i in range(room)] + last
    assert originals[-1].tolist() == first + [34, 35] + last + [2] * (room - 2)
    assert tokens.valid.sum(dim=1).tolist() == [min(room, 11 - start) for start in range(0, 11, room)] + [2]
    assert not tokens.valid[torch.isin(originals, torch.tensor([0, 1, 2]))].any()
    assert tokens.n_scored > 2
    assert tokens.attention_mask is not None
    assert tokens.attention_mask[-1].tolist() == [1] * (7 - room + 2) + [0] * (room - 2)


def test_slices_and_takes_keep_everything_together():
    tokens = TokenSet.from_texts([words(20)], tokenizer("<s>", bos_token="<s>"), context_size=5)
    part = tokens[[3, 0]]
    assert torch.equal(part.ids[1], tokens.ids[0])
    assert part.documents is not None
    assert len(tokens.head(5)) == 2
    assert len(tokens.head(10_000)) == len(tokens)
    assert [len(b) for b in tokens.batches(2)] == [2, 2, 1]
    assert tokens.row_positions.tolist()[:5] == [[0, 1], [0, 2], [0, 3], [0, 4], [1, 1]]


def test_from_tensors_one_document_a_row_by_default():
    ids = torch.arange(6).reshape(2, 3)
    tokens = TokenSet(ids, torch.ones(2, 3, dtype=torch.bool), torch.full((2, 3), -100))
    assert tokens.row_documents.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenSet.from_texts([], tokenizer()), "no text"),
        (lambda: TokenSet.from_texts("one text", tokenizer()), "list of strings"),  # type: ignore[arg-type]
        (lambda: TokenSet.from_texts(["w1"], tokenizer(), context_size=4), "long enough"),
        (lambda: TokenSet.for_masked_lm(["w1 w2"], tokenizer()), "no mask token"),
        (lambda: TokenSet.for_masked_lm([""], tokenizer("<m>", mask_token="<m>")), "No text holds a token"),
        (
            lambda: TokenSet.for_masked_lm(
                ["w1 w2"], tokenizer("<a>", "<m>", around="<a> $A <a>", mask_token="<m>"), context_size=2
            ),
            "no room beside the special tokens",
        ),
        (lambda: TokenSet(torch.tensor([[-1]]), torch.tensor([[True]]), torch.tensor([[-100]])), "negative"),
    ],
)
def test_bad_input_is_named(make, message: str):
    with pytest.raises(Exception, match=message):
        make()


@pytest.mark.parametrize(("split", "least"), [("train", 200_000), ("calibration", 60_000), ("test", 60_000)])
def test_the_pocket_slices_hold_the_promised_text(split: str, least: int):
    tokens = TokenSet.pocket(split)
    assert tokens.n_valid >= least
    assert tokens.attention_mask is None
    assert (tokens.ids[:, 0] == 0).all()


def test_the_pocket_slices_share_no_document():
    from tl_lifehist.checkpoints.pocket import pocket_texts

    names = [{name for name, _ in pocket_texts(split)} for split in ("train", "calibration", "test")]
    assert len(set().union(*names)) == sum(len(part) for part in names)


@pytest.mark.parametrize(("held", "wanted", "kept"), [(10, 4, 4), (10, 10, 10), (10, 25, 10), (7, 1, 1), (9, 2, 2)])
def test_thinning_keeps_about_as_many_and_from_everywhere(held, wanted, kept):
    ids = torch.arange(held).unsqueeze(1).repeat(1, 3)
    found = TokenSet(ids, torch.ones_like(ids).bool(), ids).subsample(wanted).ids[:, 0]
    assert len(found) == kept
    gaps = {int(gap) for gap in found.diff()}
    assert len(gaps) <= 1  # evenly
    assert int(found[-1]) >= held * (kept - 1) // kept // 2


def test_special_tokens_within_a_text_are_neither_analysed_nor_masked():
    """Also those that the tokenizer itself puts nowhere: a separator, and a mask that stood in the text before."""
    roles = {"sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    tok = tokenizer("[SEP]", "[PAD]", "[MASK]", **roles)
    text = "w5 [SEP] w6 w7 [MASK] w8 [SEP] w9"
    for seed in range(5):
        tokens = TokenSet.for_masked_lm([text], tok, context_size=8, mask_rate=0.6, seed=seed)
        assert tokens.valid.tolist() == [[True, False, True, True, False, True, False, True]]
        assert (tokens.labels[~tokens.valid] == -100).all()
        assert tokens.ids[0, [1, 4, 6]].tolist() == [0, 2, 0]


def test_a_text_without_a_position_to_use_is_refused():
    ids, no = torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.bool)
    labels = torch.full((1, 3), NO_LABEL)
    require_valid(TokenSet(ids, ~no, labels))
    require_scored(TokenSet(ids, ~no, labels + 101))
    with pytest.raises(InputError, match="No position is scored"):
        require_scored(TokenSet(ids, ~no, labels))
    with pytest.raises(InputError, match="No position is valid"):
        require_valid(TokenSet(ids, no, labels))
