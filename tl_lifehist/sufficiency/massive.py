"""Massive activations: a few rows that can hold most of a site's variance and decide every NMSE."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tl_lifehist.activations import collect_activations
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel
from tl_lifehist.tokens import TokenSet


def without_massive(model: HookedModel, hook_name: str, tokens: TokenSet, share: float = 1e-3) -> TokenSet:
    """The same tokens with the `share` of the valid positions whose activation lies farthest from the mean left out:
    no more valid, so neither fitted, nor replaced, nor scored.

    Args:
        model: whose activations are looked at.
        hook_name: where.
        tokens: the text.
        share: of the valid positions, at least one; 0 leaves the tokens as they are.

    Raises:
        InputError: a share outside [0, 0.5).

    How it can mislead: what is left is a chosen part of the text. Delimiters and first tokens are over-represented
    among what goes, and another checkpoint would leave out other positions.
    """
    require_share(share)
    if share == 0:
        return tokens
    return keep_rows(tokens, ordinary_rows(collect_activations(model, hook_name, tokens), share))


@torch.no_grad()
def ordinary_rows(acts: Float[Tensor, "row d_model"], share: float) -> Bool[Tensor, " row"]:
    """Which rows are not among the `share` of them, at least one, that lie farthest from the mean; all for 0."""
    require_share(share)
    kept = torch.ones(len(acts), dtype=torch.bool)
    if share > 0:
        distance = (acts - acts.mean(dim=0)).double().square().sum(dim=1)
        kept[distance.topk(max(1, round(share * len(acts)))).indices.cpu()] = False
    return kept


def keep_rows(tokens: TokenSet, kept: Bool[Tensor, " row"]) -> TokenSet:
    """The tokens with only those of their valid positions still valid."""
    valid = tokens.valid.clone()
    valid[tokens.valid] = kept
    return replace(tokens, valid=valid)


def require_share(share: float) -> None:
    """Refuse a share of rows to leave out that is none."""
    if not 0 <= share < 0.5:
        raise InputError(f"share={share} must lie between 0 and 0.5.")
