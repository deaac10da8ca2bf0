"""A masked reconstruction in parts: a base, the codes that the gates multiply, and their directions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.declared import require_own_place
from tl_lifehist.dictionaries.protocol import Dictionary, decoder_directions, reference_of, require_width


@dataclass(frozen=True, eq=False)
class MaskBasis:
    """`rows(acts, z) = base(acts) + (z * codes(acts)) @ directions` (formula 2 of the sufficiency methods).

    A loss over many steps encodes once and multiplies by new gates.

    Attributes:
        dictionary: the dictionary.
        center_codes: codes are `u - u_mean` and the base is the mean activation, so that gates of 0 are mean ablation;
            otherwise codes are `u` and the base is `decode(0)`.
        keep_error: the base also holds what the open mask misses, so that gates of 1 give x back exactly.
        directions: what one unit of each code adds.
    """

    dictionary: Dictionary
    center_codes: bool
    keep_error: bool
    directions: Float[Tensor, "component d_model"]
    offset: Float[Tensor, " d_model"]
    code_mean: Float[Tensor, " component"]

    @classmethod
    @torch.no_grad()
    def of(
        cls, dictionary: Dictionary, hook_name: str, *, center_codes: bool = True, keep_error: bool = False
    ) -> MaskBasis:
        """The basis of a dictionary.

        Raises:
            InputError: a missing reference, a `decode` that is not affine, or an SAE of another hook point.
        """
        require_own_place(dictionary, hook_name)
        directions = _raised(decoder_directions(dictionary).detach())
        if center_codes:
            reference = reference_of(hook_name, dictionary, None, "center_codes=True")
            offset, code_mean = _raised(reference.x_mean.detach()), _raised(reference.code_mean.detach())
        else:
            code_mean = directions.new_zeros(len(directions))
            zero = code_mean.to(dictionary.W_dec).unsqueeze(0)
            offset = _raised(dictionary.decode(zero).squeeze(0).detach())
        return cls(dictionary, center_codes, keep_error, directions, offset, code_mean)

    @torch.no_grad()
    def codes(self, acts: Float[Tensor, "row d_model"]) -> Float[Tensor, "row component"]:
        """The codes that the gates multiply."""
        require_width(self.dictionary, acts.shape[1], "the hook point")
        return self.dictionary.encode(acts.to(self.dictionary.W_dec)).detach().to(self.directions) - self.code_mean

    @torch.no_grad()
    def base(
        self, acts: Float[Tensor, "row d_model"], codes: Float[Tensor, "row component"] | None = None
    ) -> Float[Tensor, "row d_model"]:
        """What stays at gates of 0. `codes`: those of `acts`, when they are known already."""
        acts = acts.to(self.directions)
        if not self.keep_error:
            return self.offset.expand(acts.shape)
        # so that open gates give the activation back, whatever the dictionary's mean error is
        return acts - (self.codes(acts) if codes is None else codes) @ self.directions

    def rows(
        self, acts: Float[Tensor, "row d_model"], gates: Float[Tensor, "*row component"]
    ) -> Float[Tensor, "row d_model"]:
        """The masked reconstruction; gates of one mask, or a mask for each row. Gradients flow to the gates."""
        codes = self.codes(acts)
        return self.base(acts, codes) + (gates.to(codes) * codes) @ self.directions


def _raised(value: Tensor) -> Tensor:
    """At least float32: gates, losses and reconstructions are never computed in half precision."""
    return value.to(torch.promote_types(value.dtype, torch.float32))
