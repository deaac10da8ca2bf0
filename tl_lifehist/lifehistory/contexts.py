"""Where a feature fires most strongly, as text to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.tokens import TokenSet

COLUMNS = ["hook_name", "feature", "rank", "activation", "document", "before", "token", "after"]
REPLACEMENT = "\ufffd"


def top_contexts(
    profile: FeatureProfiles,
    tokens: TokenSet,
    features: Sequence[int],
    tokenizer: Any,
    *,
    n: int = 5,
    window: int = 12,
) -> pd.DataFrame:
    """The `n` strongest activations of each feature with the text around them.

    One row per context, strongest first: hook_name, feature, rank (from 1), activation, document, before, token, after.
    `before + token + after` is the text of up to `window` tokens on either side, decoded in one piece; a token that
    holds only some bytes of a character is shown as the whole character. An activation within `window` tokens of
    a stronger one that is already shown is passed over, and so is a context whose tokens were shown before.

    Args:
        profile: profiles over exactly these tokens.
        tokens: their rows are the valid positions in order.
        features: the features to show.
        tokenizer: the Hugging Face tokenizer of the model.

    How it can mislead: the strongest activations are the easiest to name and the least typical; most of what a feature
    does lies further down.

    Raises:
        InputError: profiles over other tokens, a feature that does not exist, or `n` or `window` out of range.
    """
    if profile.n_rows != tokens.n_valid:
        raise InputError(
            f"The profiles cover {profile.n_rows} rows but the tokens have {tokens.n_valid} valid positions: "
            "give the tokens that the profiles were computed on."
        )
    if n < 1 or window < 0:
        raise InputError(f"n={n} must be at least 1 and window={window} at least 0.")
    for feature in features:
        if not 0 <= feature < profile.n_features:
            raise InputError(f"Feature {feature} lies outside 0 to {profile.n_features - 1}, the profile's features.")
    positions, documents = tokens.row_positions, tokens.row_documents
    ids = tokens.ids.numpy()
    seen = np.ones(ids.shape, dtype=bool) if tokens.attention_mask is None else tokens.attention_mask.numpy() > 0
    rows = []
    for feature in features:
        start, stop = profile.acts.indptr[feature : feature + 2]
        codes, at = profile.acts.data[start:stop], profile.acts.indices[start:stop]
        shown: list[tuple[int, int]] = []
        texts: set[tuple[int, ...]] = set()
        for entry in np.argsort(-codes, kind="stable").tolist():
            sequence, position = (int(v) for v in positions[at[entry]])
            if any(s == sequence and abs(p - position) <= window for s, p in shown):
                continue
            first, last = _around(seen[sequence], position, window)
            piece = ids[sequence, first:last].tolist()
            if (*piece, position - first) in texts:
                continue
            shown.append((sequence, position))
            texts.add((*piece, position - first))
            text = split_context(tokenizer, piece, position - first)
            where = int(documents[at[entry]])
            rows.append((profile.hook_name, int(feature), len(shown), float(codes[entry]), where, *text))
            if len(shown) == n:
                break
    return pd.DataFrame(rows, columns=COLUMNS)


def _around(seen: NDArray[np.bool_], position: int, window: int) -> tuple[int, int]:
    """First and last + 1 of the positions around one, stopping where the padding begins."""
    hidden = np.flatnonzero(~seen)
    before, after = hidden[hidden < position], hidden[hidden > position]
    first = max(position - window, int(before[-1]) + 1 if len(before) else 0)
    return first, min(position + window + 1, int(after[0]) if len(after) else len(seen))


def split_context(tokenizer: Any, ids: Sequence[int], place: int) -> tuple[str, str, str]:
    """The decoded text of `ids`, cut before and after the token at `place`; the three parts join to the whole.

    Decoding a single token loses spaces and breaks characters that are spread over several tokens. So prefixes are
    decoded, and a cut is only made where a prefix reads the same as the whole does.
    """
    whole = decode(tokenizer, ids)
    start = _agreement(decode(tokenizer, ids[:place]), whole)
    stop = len(whole)
    for end in range(place + 1, len(ids)):
        prefix = decode(tokenizer, ids[:end])
        if whole.startswith(prefix):
            stop = len(prefix)
            break
    if start >= stop and start and whole[start - 1] == REPLACEMENT:
        start, stop = start - 1, start  # two tokens with broken bytes that decode to one sign
    return whole[:start], whole[start : max(start, stop)], whole[max(start, stop) :]


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of these ids, special tokens and all spaces kept."""
    if not len(ids):
        return ""
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _agreement(prefix: str, whole: str) -> int:
    """How many leading characters the two texts share."""
    return next(
        (i for i, (a, b) in enumerate(zip(prefix, whole, strict=False)) if a != b), min(len(prefix), len(whole))
    )
