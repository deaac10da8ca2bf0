"""The `Dictionary` protocol, and the reference that mean and resample ablation need.

The contribution of a feature is `decode(a) - decode(a without it)`, never `a_f * W_dec[f]`: SAELens TopK SAEs rescale
by the decoder's norm, and a training SAE has rows that are not unit. `decoder_directions` gives what `decode` really
adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.declared import input_width, require_contributions, require_own_place
from tl_lifehist.errors import InputError

_BLOCK = 1024  # one-hot rows decoded at a time, so that a wide dictionary needs no square identity matrix


@runtime_checkable
class Dictionary(Protocol):
    """`encode(x) -> codes`, `decode(codes) -> x` affine in the codes, and `W_dec` of shape `[feature, d_model]`."""

    @property
    def W_dec(self) -> Any: ...

    def encode(self, x: Any) -> Any: ...

    def decode(self, codes: Any) -> Any: ...


@runtime_checkable
class Referenced(Dictionary, Protocol):
    """A dictionary that carries its reference: mean activation, mean code and a sample of codes."""

    @property
    def x_mean(self) -> Any: ...

    @property
    def code_mean(self) -> Any: ...

    @property
    def code_sample(self) -> Any: ...


def n_features(dictionary: Dictionary) -> int:
    """How many features the dictionary has (SAELens SAEs carry no such number)."""
    return int(dictionary.W_dec.shape[0])


def require_width(dictionary: Dictionary, d_model: int, hook_name: str) -> None:
    """Refuse a dictionary that was made for activations of another width, that says it is for another place, or that
    takes heads one by one.

    Raises:
        InputError: see also `require_own_place`.
    """
    require_own_place(dictionary, hook_name)
    if getattr(dictionary, "hook_z_reshaping_mode", False):
        raise InputError(
            f"The SAE at {hook_name!r} wants heads on an axis of their own, and rows have them side by side: call its "
            "turn_off_forward_pass_hook_z_reshaping() first."
        )
    if input_width(dictionary) != d_model:
        raise InputError(
            f"The dictionary at {hook_name!r} is for activations of width {input_width(dictionary)} "
            f"but the model's are {d_model} wide: use a dictionary trained at this hook point."
        )


@torch.no_grad()
def decoder_directions(
    dictionary: Dictionary, features: Sequence[int] | Tensor | None = None
) -> Float[Tensor, "feature d_model"]:
    """What one unit of each feature's code adds to the reconstruction: `decode(e_f) - decode(0)`.

    Raises:
        InputError: `decode` is not affine (layer-norm statistics kept from `encode`, reshaped heads), or writes at
            another hook point than `encode` reads (a transcoder): then no feature has a contribution of its own.
    """
    require_contributions(dictionary)
    weight = dictionary.W_dec
    count = n_features(dictionary)
    chosen = torch.arange(count) if features is None else torch.as_tensor(features, dtype=torch.long)
    try:
        zero = dictionary.decode(torch.zeros(1, count, dtype=weight.dtype, device=weight.device))
        parts = []
        for index in chosen.split(_BLOCK):
            one_hot = torch.zeros(len(index), count, dtype=weight.dtype, device=weight.device)
            one_hot[torch.arange(len(index)), index.to(weight.device)] = 1
            parts.append(dictionary.decode(one_hot) - zero)
        probe = torch.rand(2, count, generator=torch.Generator().manual_seed(0)).to(weight)
        keep = torch.zeros(count).to(weight)
        keep[chosen.to(weight.device)] = 1
        probe = probe * keep
        whole = dictionary.decode(probe) - zero
    except (AttributeError, RuntimeError, TypeError) as error:
        raise InputError(
            "decode(codes) does not work on codes alone, so features have no contribution of their own: use a "
            "dictionary whose decode is affine (no layer_norm normalisation; for hook_z reshaping call its "
            "turn_off_forward_pass_hook_z_reshaping() first)."
        ) from error
    directions = torch.cat(parts) if parts else zero[:0]
    expected = probe[:, chosen.to(weight.device)] @ directions
    # decode(e) - decode(0) cancels in half precision
    slack = max(1e-4, 16 * torch.finfo(whole.dtype).eps) * float(
        torch.stack([whole, zero.expand_as(whole)]).abs().max()
    )
    if not torch.allclose(whole, expected, rtol=1e-3, atol=max(slack, 1e-10)):
        raise InputError("decode(codes) is not affine in the codes, so features have no contribution of their own.")
    return directions


@dataclass(frozen=True, eq=False)
class ReferencedDictionary:
    """A dictionary with what mean ablation, resampling and centred masks need.

    Attributes:
        dictionary: the dictionary itself; `encode`, `decode` and `W_dec` are passed on.
        x_mean: mean activation of the reference rows.
        code_mean: mean code of the reference rows.
        code_sample: a seeded sample of code rows, for resampling.
    """

    dictionary: Dictionary
    x_mean: Float[Tensor, " d_model"]
    code_mean: Float[Tensor, " feature"]
    code_sample: Float[Tensor, "sample feature"]

    @property
    def W_dec(self) -> Float[Tensor, "feature d_model"]:
        return self.dictionary.W_dec

    def encode(self, x: Tensor) -> Tensor:
        return self.dictionary.encode(x)

    def decode(self, codes: Tensor) -> Tensor:
        return self.dictionary.decode(codes)


@torch.no_grad()
def with_reference(
    dictionary: Dictionary, acts: Float[Tensor, "row d_model"], *, n_codes: int = 4096, seed: int = 0
) -> ReferencedDictionary:
    """The dictionary with its mean activation, mean code and at most `n_codes` sampled code rows over `acts`.

    How it can mislead: the reference is that of these rows; ablating on other text to their mean is off-distribution
    in a way that the figures do not show.

    Raises:
        InputError: no rows, another width, or activations that are not finite.
    """
    if len(acts) == 0:
        raise InputError("There are no activations to take a reference from.")
    require_width(dictionary, acts.shape[1], "the reference")
    if not bool(torch.isfinite(acts).all()):
        raise InputError("The reference activations hold NaN or infinite values.")
    weight = dictionary.W_dec
    total = torch.zeros(n_features(dictionary), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(len(acts), generator=generator)[:n_codes].sort().values
    for rows in acts.split(8192):
        total += dictionary.encode(rows.to(weight)).double().sum(dim=0).cpu()
    return ReferencedDictionary(
        dictionary,
        x_mean=acts.double().mean(dim=0).to(weight),
        code_mean=(total / len(acts)).to(weight),
        code_sample=dictionary.encode(acts[drawn].to(weight)),
    )


def reference_of(
    name: str,
    dictionary: Dictionary,
    reference: Mapping[str, Referenced] | None,
    wanted_by: str,
) -> Referenced:
    """The reference for a hook point, from the mapping or from the dictionary itself.

    Raises:
        InputError: there is none; `wanted_by` says what needs it.
    """
    found = (reference or {}).get(name, dictionary)
    if not isinstance(found, Referenced):
        raise InputError(
            f"{wanted_by} needs a reference at {name!r}: wrap the dictionary in lh.with_reference(sae, acts)."
        )
    return found
