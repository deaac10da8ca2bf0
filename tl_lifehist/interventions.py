"""Interventions: plain TransformerLens hooks that drop into `model.hooks(fwd_hooks=...)`.

`fwd_hooks()` is pure: two calls share no state, and nothing is kept on the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.dictionaries.protocol import (
    Dictionary,
    Referenced,
    decoder_directions,
    n_features,
    reference_of,
    require_width,
)
from tl_lifehist.errors import InputError, nearest, one_of
from tl_lifehist.hook_rows import flat, with_rows
from tl_lifehist.models import Hook

Valid = Bool[Tensor, "seq pos"]


@runtime_checkable
class Intervention(Protocol):
    """What changes activations: a list of forward hooks for the positions `valid`."""

    def fwd_hooks(self, valid: Valid | None = None) -> list[Hook]: ...


def _on_rows(edit: Callable[[Tensor], Tensor], valid: Valid | None) -> Callable[..., Tensor]:
    """A hook that replaces the rows at `valid` positions by `edit(rows)` and leaves the others untouched, bit by
    bit.
    """

    def hook_fn(value: Tensor, hook: Any) -> Tensor:
        where = torch.ones(value.shape[:2], dtype=torch.bool) if valid is None else valid
        if where.shape != value.shape[:2]:
            raise InputError(
                f"valid has shape {tuple(where.shape)} but the batch is {tuple(value.shape[:2])}: "
                "pass the rows of tokens.valid that belong to this batch."
            )
        rows = flat(value, getattr(hook, "name", None) or "the hook point", tuple(where.shape))
        return with_rows(value, where, edit(rows[where.to(value.device)]))

    return hook_fn


class FeatureAblation:
    """Remove features, at one hook point or jointly at many, in one forward pass.

    With `form="subtract"` the hook returns `x - (decode(a) - decode(a'))`, with `a` the codes of the stream as earlier
    hooks left it and `a'` the same codes with the features replaced; the dictionary's error stays, so ablating nothing
    changes nothing. With `form="substitute"` it returns `decode(a')`, whose baseline is `decode(a)` (`.baseline`).

    Args:
        dictionaries: a dictionary for each hook point.
        features: the features to ablate at each hook point.
        mode: "zero" sets the codes to 0, "mean" to the reference mean, "resample" to codes of reference rows.
        form: "subtract" or "substitute".
        reference: for "mean" and "resample": a mapping of hook point to the result of `with_reference`; not needed
            where the dictionaries carry their reference themselves.
        seed: draws the resampled rows; every call of a hook on as many rows takes the same ones.

    How it can mislead: zero is off-distribution for a feature that fires everywhere, so its cost mixes the loss of
    information with the shift of the mean; compare with `mode="mean"`.

    Raises:
        InputError: no dictionary for a hook point, a feature that does not exist, a missing reference, a dictionary
            whose `decode` is not affine.
    """

    def __init__(
        self,
        dictionaries: Mapping[str, Dictionary],
        features: Mapping[str, Sequence[int]],
        *,
        mode: str = "zero",
        form: str = "subtract",
        reference: Mapping[str, Referenced] | None = None,
        seed: int = 0,
    ) -> None:
        one_of("mode", mode, ("zero", "mean", "resample"))
        one_of("form", form, ("subtract", "substitute"))
        self.dictionaries = dict(dictionaries)
        self.features = {name: torch.as_tensor(list(f), dtype=torch.long) for name, f in features.items()}
        self.mode, self.form, self.seed = mode, form, seed
        self.reference: dict[str, Referenced] = {}
        self._directions: dict[str, Tensor] = {}
        for name, chosen in self.features.items():
            if name not in self.dictionaries:
                raise InputError(
                    f"There is no dictionary for {name!r}; there is one for: {nearest(name, self.dictionaries)}."
                )
            dictionary = self.dictionaries[name]
            count = n_features(dictionary)
            if len(chosen) and not (int(chosen.min()) >= 0 and int(chosen.max()) < count):
                raise InputError(f"A feature at {name!r} lies outside 0 to {count - 1}, the dictionary's features.")
            if len(chosen.unique()) != len(chosen):
                raise InputError(f"A feature at {name!r} is named twice: name each feature once.")
            if mode != "zero":
                self.reference[name] = reference_of(name, dictionary, reference, f"mode={mode!r}")
            if len(chosen):
                self._directions[name] = decoder_directions(dictionary, chosen)

    @property
    def baseline(self) -> FeatureAblation | None:
        """What the effect is measured against: the full reconstruction for "substitute", the bare model (None) else."""
        if self.form == "subtract":
            return None
        empty: dict[str, Sequence[int]] = {name: [] for name in self.features}
        return FeatureAblation(self.dictionaries, empty, form="substitute")

    def fwd_hooks(self, valid: Valid | None = None) -> list[Hook]:
        """Hooks for `model.hooks(fwd_hooks=...)`.

        Args:
            valid: the positions to change, `tokens.valid` of the batch. None changes every position, and that includes
                position 0 and BOS, whose activations dwarf all others: rarely what is wanted in a causal model.
        """
        active = [name for name, f in self.features.items() if len(f) or self.form == "substitute"]
        return [(name, _on_rows(self._edit(name), valid)) for name in active]

    def _edit(self, name: str) -> Callable[[Tensor], Tensor]:
        dictionary, chosen = self.dictionaries[name], self.features[name]

        def edit(rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
            require_width(dictionary, rows.shape[1], name)
            codes = dictionary.encode(rows.to(dictionary.W_dec))
            if not _all_finite(codes):
                raise InputError(f"The dictionary at {name!r} gives NaN or infinite codes: it cannot be ablated.")
            index = chosen.to(codes.device)
            change = self._replacement(name, len(rows)) - codes[:, index]
            if self.form == "subtract":
                return rows + (change @ self._directions[name].to(change)).to(rows)
            return dictionary.decode(codes.index_add(1, index, change)).to(rows)

        return edit

    def _replacement(self, name: str, n_rows: int) -> Tensor:
        chosen = self.features[name]
        if self.mode == "zero":
            return torch.zeros(())
        reference = self.reference[name]
        if self.mode == "mean":
            return reference.code_mean[chosen]
        sample = reference.code_sample
        generator = torch.Generator().manual_seed(self.seed)
        return sample[torch.randint(len(sample), (n_rows,), generator=generator)][:, chosen]


def _all_finite(codes: Tensor) -> bool:
    """Whether no code is NaN or infinite. A sum is both where a term is, and costs a quarter of a look at each term;
    that it can also overflow is settled by that look.
    """
    return bool(torch.isfinite(codes.sum())) or bool(torch.isfinite(codes).all())


class MaskedReconstruction:
    """Replace the activation at a hook point by its reconstruction with each component scaled by a gate.

    With `center_codes` the result is `mean + (gates * (u - u_mean)) V`, so that gates of 0 are mean ablation; without,
    it is `b + (gates * u) V`. `keep_error` adds what the open mask misses, so that gates of
    1 give the activation back.
    Gradients flow to `gates`.

    Args:
        hook_name: where the reconstruction goes.
        dictionary: with a reference (`with_reference`) when `center_codes` is set.
        gates: one value in [0, 1] for each component.

    How it can mislead: a small mask that keeps the model's behaviour at a place the model hardly needs shows nothing;
    compare with gates of 0.

    Raises:
        InputError: gates of another length or outside [0, 1], a missing reference, a `decode` that is not affine.
    """

    def __init__(
        self,
        hook_name: str,
        dictionary: Dictionary,
        gates: Float[Tensor, " component"],
        *,
        center_codes: bool = True,
        keep_error: bool = False,
    ) -> None:
        if gates.shape != (n_features(dictionary),):
            raise InputError(
                f"There are {gates.shape} gates for {n_features(dictionary)} components: give one for each."
            )
        detached = gates.detach()
        if not bool(((detached >= 0) & (detached <= 1)).all()):
            raise InputError("Gates must lie between 0 and 1.")
        self.hook_name, self.dictionary, self.gates = hook_name, dictionary, gates
        self.basis = MaskBasis.of(dictionary, hook_name, center_codes=center_codes, keep_error=keep_error)

    def fwd_hooks(self, valid: Valid | None = None) -> list[Hook]:
        """Hooks for `model.hooks(fwd_hooks=...)`; `valid` as in `FeatureAblation.fwd_hooks`."""
        return [(self.hook_name, _on_rows(self._edit, valid))]

    def _edit(self, rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        require_width(self.dictionary, rows.shape[1], self.hook_name)
        return self.basis.rows(rows, self.gates).to(rows.device)
