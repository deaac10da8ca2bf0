"""What an SAE says of itself, and is believed: where it reads and writes, and what its features are worth there.

SAELens' `cfg` is read by its names alone, so that nothing here imports sae_lens; what has no `cfg` says nothing.
"""

from __future__ import annotations

from typing import Any

from tl_lifehist.errors import InputError
from tl_lifehist.hook_names import same_place

# Of the input, undone after decoding with what `encode` kept of each row: a feature then adds another vector to each.
_BY_ROW = ("layer_norm", "constant_norm_rescale", "constant_scalar_rescale")


def declared_hook_name(dictionary: Any) -> str | None:
    """The hook point that the dictionary says it reads, None where it does not say."""
    name = getattr(_metadata(dictionary), "hook_name", None)
    return name if isinstance(name, str) and name else None


def is_transcoder(dictionary: Any) -> bool:
    """Whether it writes at another hook point than it reads."""
    return "transcoder" in _architecture(dictionary)


def why_no_contribution(dictionary: Any) -> str | None:
    """Why no feature has a contribution of its own at the hook point that is read; None where each has one."""
    if is_transcoder(dictionary):
        out = getattr(_metadata(dictionary), "hook_name_out", None) or "another hook point"
        return (
            f"it is a {_architecture(dictionary)}, which writes at {out} what it computes from where it reads: "
            "no change of its input is a feature's"
        )
    if _architecture(dictionary) == "temporal":
        return "it is a temporal SAE, whose codes are of whole sequences"
    kind = _normalization(dictionary)
    return f"it rescales each input by itself (normalize_activations={kind!r})" if kind in _BY_ROW else None


def require_contributions(dictionary: Any) -> None:
    """Refuse, by its kind, a dictionary whose features have no contribution of their own.

    Raises:
        InputError: a transcoder, a temporal SAE, or one that normalises each input by itself.
    """
    reason = why_no_contribution(dictionary)
    if reason is not None:
        raise InputError(
            f"The features of this dictionary have no contribution of their own, for {reason}: profiles and matching "
            "take it; use another SAE where something is ablated or masked."
        )


def require_own_place(dictionary: Any, hook_name: str) -> None:
    """Refuse an SAE at another hook point than its own, and one that wants its input scaled by a factor not at hand.

    Raises:
        InputError: the SAE says that it is for another hook point, or for scaled activations.
    """
    own = declared_hook_name(dictionary)
    if own is not None and not same_place(own, hook_name):
        raise InputError(
            f"The SAE given for {hook_name!r} says that it reads {own!r}: give it there, or, if it is meant for "
            f"{hook_name!r}, say so with sae.cfg.metadata.hook_name = {hook_name!r}."
        )
    head = getattr(_metadata(dictionary), "hook_head_index", None)
    if head is not None:
        raise InputError(
            f"The SAE for {hook_name!r} reads head {head} alone: give an SAE of the whole hook point, or clear "
            "sae.cfg.metadata.hook_head_index if it is one."
        )
    if _architecture(dictionary) == "temporal":
        raise InputError(f"The SAE for {hook_name!r} is temporal, its codes are of whole sequences: use another kind.")
    scaled = _normalization(dictionary)
    if scaled in ("expected_average_only_in", "covariance_whitening"):
        fold = "fold_activation_norm_scaling_factor" if scaled.startswith("expected") else "fold_activation_whitening"
        raise InputError(
            f"The SAE for {hook_name!r} was trained on scaled activations (normalize_activations={scaled!r}) and the "
            f"scale is not part of it: load its folder with lh.load_sae, or call sae.{fold}(...) with what it was "
            "trained with."
        )


def require_profiles(dictionary: Any, hook_name: str) -> None:
    """Refuse a kind whose codes are negative at times, which a profile does not hold.

    Raises:
        InputError: an AbsTopK SAE.
    """
    if _architecture(dictionary) == "abstopk":
        raise InputError(
            f"The SAE for {hook_name!r} is an abstopk, whose codes are negative at times, and profiles need codes >= 0"
            ": give one of another kind."
        )


def input_width(dictionary: Any) -> int:
    """Width of the activations that are encoded."""
    wide = getattr(getattr(_bare(dictionary), "cfg", None), "d_in", None) if is_transcoder(dictionary) else None
    return int(dictionary.W_dec.shape[1] if wide is None else wide)


def _bare(dictionary: Any) -> Any:
    # with_reference wraps the dictionary, and what it says is still its own
    while not hasattr(dictionary, "cfg") and hasattr(dictionary, "dictionary"):
        dictionary = dictionary.dictionary
    return dictionary


def _metadata(dictionary: Any) -> Any:
    return getattr(getattr(_bare(dictionary), "cfg", None), "metadata", None)


def _architecture(dictionary: Any) -> str:
    named = getattr(getattr(_bare(dictionary), "cfg", None), "architecture", None)
    return str(named()) if callable(named) else str(named or "")


def _normalization(dictionary: Any) -> str:
    return str(getattr(getattr(_bare(dictionary), "cfg", None), "normalize_activations", None) or "none")
