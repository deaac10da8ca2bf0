"""What kind of text a feature lives on: byte fragments, white space and markup, or legible words (D24)."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.contexts import REPLACEMENT, decode
from tl_lifehist.lifehistory.profiles import FeatureProfiles

TokenClass = Literal["infrastructure", "legible"]

LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # bytes that are no UTF-8, as Python's "surrogateescape" keeps them
CONTROL = ("Cc", "Zl", "Zp")  # control characters, new line and tab among them; line and paragraph separators
MARKUP = re.compile(
    r"""^\s*<[A-Za-z!?] | </ | /> | ^\s*[<>]+\s*$  # tags, whole or broken
      | <\| | \|>                              # special tokens
      | &(?:[A-Za-z]+|\#x?[0-9A-Fa-f]+);       # entities
      | \{\{ | \}\} | \[\[ | \]\]              # wiki and template braces
      | ``` | ={3,} | -{3,} | \*{3,} | \#{2,}  # fences, rules and headings
      | ://                                    # addresses
      | ^\s*\\[A-Za-z]+                        # TeX commands
      | \b(?:href|src|xmlns)=?$""",
    re.VERBOSE,
)
FILE_EXTENSION = re.compile(
    r"^\s*\.(?:bat|bin|bmp|c|cc|cfg|conf|cpp|cs|css|csv|dat|dll|docx?|exe|gif|go|gz|h|hpp|html?|ini|ipynb|jar|java|jpe?g"
    r"|json|jsx?|log|lua|md|mp[34]|pdf|php|pl|png|pptx?|ps1|py|rb|rs|rst|sh|sql|svg|tar|tex|tiff?|toml|tsx?|txt|vue|wav"
    r"|xlsx?|xml|ya?ml|zip)$",
    re.IGNORECASE,
)


def token_class(text: str) -> TokenClass:
    """Whether a token's text is "infrastructure" or "legible" (D24; the rules are ours).

    Infrastructure: no text or white space only; U+FFFD or a part of a UTF-8 sequence; any control character, new line
    or tab; markup; a file extension. A leading space alone is nothing: " the" is legible.

    How it can mislead: the rules look at one token at a time, so "html" is legible and so is a bracket in code.
    """
    fragment = REPLACEMENT in text or LONE_SURROGATE.search(text) is not None or "\ufeff" in text
    control = not text.strip() or any(unicodedata.category(character) in CONTROL for character in text)
    markup = MARKUP.search(text) is not None or FILE_EXTENSION.match(text) is not None
    return "infrastructure" if fragment or control or markup else "legible"


def vocabulary_classes(tokenizer: Any, n: int) -> NDArray[np.bool_]:
    """Which of the vocabulary ids 0 to n - 1 are infrastructure, `[id]`; ids without text are.

    A token that is a part of a UTF-8 sequence decodes to U+FFFD and is found by that.
    """
    if n < 1:
        raise InputError(f"n={n} must be the size of the vocabulary.")
    return np.array([token_class(decode(tokenizer, [i])) == "infrastructure" for i in range(n)])


def content_classes(
    profile: FeatureProfiles, infrastructure: NDArray[np.bool_], *, min_mass_share: float = 0.5
) -> NDArray[Any]:
    """Each feature's class (D24): "infrastructure" with half or more of its mass on such ids, or else "legible".

    A feature that never fires has no class and gets "".

    Args:
        profile: with `token_ids`.
        infrastructure: from `vocabulary_classes`.
        min_mass_share: least share of the mass for "infrastructure" (ours).

    How it can mislead: it is the class of the tokens a feature fires on, not of what it says about them; a feature
    for the start of a sentence may fire on new lines only.

    Raises:
        InputError: profiles without `token_ids`, or an id outside `infrastructure`.
    """
    by_token = profile.by_token()
    if by_token.shape[0] > len(infrastructure):
        raise InputError(
            f"Token id {by_token.shape[0] - 1} has no class: there are classes for {len(infrastructure)} ids; "
            "pass the vocabulary's size to vocabulary_classes."
        )
    mass = by_token.T @ np.asarray(infrastructure, dtype=np.float64)[: by_token.shape[0]]
    total = np.asarray(by_token.sum(axis=0)).ravel()
    # A hair of room, so that exactly that share counts whatever the order of the sum
    enough = mass >= min_mass_share * total * (1 - 1e-9)
    return np.where(total <= 0, "", np.where(enough, "infrastructure", "legible"))


def vocabulary_key(tokenizer: Any) -> str:
    """A hash of what a tokenizer's ids stand for; empty where there is none."""
    if tokenizer is None:
        return ""
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda piece: (piece[1], piece[0]))
    return hashlib.sha256(repr(pieces).encode("utf-8", "surrogatepass")).hexdigest()[:16]
