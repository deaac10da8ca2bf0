"""The gate Fisher: how the predictions curve away when gates close (formulas 12 and 13).

`M = mean over scored positions of G^T (diag p - p p^T) G`, G the derivative of a position's logits with respect to the
gates, with every position injected. The estimate draws labels from the model: the gradients of their loss have M as
their covariance, and one backward pass gives a sequence's gradient for all gates. The exact form takes one forward-mode
product for each component instead.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.dictionaries.protocol import Dictionary
from tl_lifehist.errors import InputError, one_of
from tl_lifehist.models import HookedModel
from tl_lifehist.readout import Head, readout_cross_entropy, sample_labels
from tl_lifehist.sufficiency.curvature import centred, exact_blocks
from tl_lifehist.sufficiency.gradients import BATCH_SIZE, sequence_gradients
from tl_lifehist.sufficiency.moments import FisherMoments, GateFisher
from tl_lifehist.sufficiency.nulls import as_gates
from tl_lifehist.sufficiency.translator import Translator
from tl_lifehist.suffix import ModelSuffix
from tl_lifehist.tokens import TokenSet

_ROWS = 4096  # rows of the fixed head at a time


def gate_fisher(
    model: HookedModel,
    dictionary: Dictionary,
    tokens: TokenSet,
    *,
    hook_name: str,
    method: str = "estimate",
    n_samples: int = 1,
    seed: int = 0,
    center_codes: bool = True,
    keep_error: bool = False,
    batch_size: int = BATCH_SIZE,
) -> Float[Tensor, "component component"]:
    """The matrix of `measure_gate_fisher`: M of formula 12 of the sufficiency methods."""
    return measure_gate_fisher(
        model,
        dictionary,
        tokens,
        hook_name=hook_name,
        method=method,
        n_samples=n_samples,
        seed=seed,
        center_codes=center_codes,
        keep_error=keep_error,
        batch_size=batch_size,
    ).matrix


def measure_gate_fisher(
    model: HookedModel,
    dictionary: Dictionary,
    tokens: TokenSet,
    *,
    hook_name: str,
    method: str = "estimate",
    n_samples: int = 1,
    seed: int = 0,
    center_codes: bool = True,
    keep_error: bool = False,
    error_component: bool = False,
    batch_size: int = BATCH_SIZE,
) -> GateFisher:
    """The gate Fisher of a model at z = 1, with its standard error (formula 12 of the sufficiency methods).

    An edit at one position moves the logits at every later one, so all positions are injected together; a Fisher of
    each position alone is wrong in a model with attention.

    Args:
        tokens: text; its labels say which positions are scored and are not read otherwise.
        method: "estimate": the mean over sequences of g g^T / scored positions, g the gradient of the summed loss of
            labels drawn from the model; unbiased. "exact": one forward-mode product for each component; no draws, for
            small models and few components (memory: scored positions of a batch x components x d_model).
        n_samples: label sets drawn for each sequence; each costs one more backward pass.
        seed: of the draws.
        center_codes: as in `MaskedReconstruction`.
        keep_error: as in `MaskedReconstruction`.
        error_component: count what the open mask misses as one more component, the last one, and expand about the clean
            activation (ours). `predicted_kl` is then the cost beside the clean predictions, the dictionary's own error
            included. For the estimate only.
        batch_size: sequences in one pass.

    Raises:
        InputError: as `gate_scores`; an unknown method, no samples.

    How it can mislead: see `GateFisher`.
    """
    _require_method(method, n_samples)
    if error_component and method == "exact":
        raise InputError('error_component=True goes with method="estimate".')
    moments = FisherMoments()
    if method == "exact":
        for batch, blocks in exact_blocks(
            ModelSuffix(model, hook_name),
            MaskBasis.of(dictionary, hook_name, center_codes=center_codes, keep_error=keep_error),
            tokens,
            batch_size,
        ):
            moments.add_blocks(blocks, batch.scored.sum(1))
        return moments.result(method)
    generator = torch.Generator().manual_seed(seed)
    for batch, gradients in sequence_gradients(
        model,
        dictionary,
        tokens,
        lambda batch, head, final: [sample_labels(head, final, generator) for _ in range(n_samples)],
        hook_name=hook_name,
        center_codes=center_codes,
        keep_error=keep_error,
        error_component=error_component,
        batch_size=batch_size,
    ):
        moments.add_gradients(gradients, batch.scored.sum(1))
    return moments.result(method)


def fixed_head_fisher(
    reader: Translator | Head,
    dictionary: Dictionary,
    acts: Float[Tensor, "row d_model"],
    *,
    method: str = "estimate",
    n_samples: int = 1,
    seed: int = 0,
    center_codes: bool = True,
    keep_error: bool = False,
) -> GateFisher:
    """The gate Fisher of a head that reads each position alone, M_ij = E[u_i u_j v_i^T F v_j] (formula 12).

    Args:
        reader: a translator, read by its own head; or any function from activations to logits.
        acts: activations at the hook point, one row a position.
        method: as in `measure_gate_fisher`, with rows in the place of sequences.

    Raises:
        InputError: no rows, another width, a missing reference, an unknown method.

    How it can mislead: the rows of one text are correlated, so the standard error is too small. The head's curvature
    says what is linearly readable there, not what the model reads.
    """
    _require_method(method, n_samples)
    if len(acts) == 0:
        raise InputError("There are no activations for the fixed head to read.")
    readout = _readout(reader)
    basis = MaskBasis.of(dictionary, "the fixed head", center_codes=center_codes, keep_error=keep_error)
    generator = torch.Generator().manual_seed(seed)
    moments = FisherMoments()
    for part in acts.split(_ROWS):
        codes = basis.codes(part)
        rows = basis.base(part, codes) + codes @ basis.directions
        if method == "exact":
            for _, scaled in centred(readout, rows, codes.unsqueeze(2) * basis.directions):
                moments.add_blocks(scaled @ scaled.transpose(1, 2), torch.ones(len(scaled), dtype=torch.long))
            continue
        rows.requires_grad_()
        drawn = []
        for _ in range(n_samples):
            labels = sample_labels(readout, rows.detach(), generator)
            with torch.enable_grad():
                loss = readout_cross_entropy(readout, rows, labels).sum()
            drawn.append(codes * (torch.autograd.grad(loss, rows)[0] @ basis.directions.T))
        moments.add_gradients(torch.stack(drawn), torch.ones(len(rows), dtype=torch.long))
    return moments.result(method)


def predicted_kl(mask: Any, fisher: Float[Tensor, "k k"]) -> float:
    """(1 - z)^T M (1 - z) / 2 in nats: what the expansion around the full mask says that a mask costs (formula 12 of
    the sufficiency methods).

    How it can mislead: it is the KL from the *full mask's* predictions; from the clean model's only where M has an
    `error_component`, which a mask closes. It holds for gates near 1, and for small masks it can be far above or below
    the measured KL.

    Args:
        mask: gates, or a mask that has `.gates`.
        fisher: M, of `gate_fisher` or `measure_gate_fisher`, over the mask's components, or one more.

    Raises:
        InputError: another number of gates than the Fisher's, gates outside [0, 1].
    """
    z = as_gates(mask)
    if len(fisher) == len(z) + 1:
        z = torch.cat([z, z.new_zeros(1)])  # the error is what no mask keeps
    if len(z) != len(fisher):
        raise InputError(f"There are {len(z)} gates and a Fisher of {len(fisher)} components: give one gate for each.")
    closed = 1 - z.double().cpu()
    return float(closed @ fisher.detach().double().cpu() @ closed) / 2


def closed_form_gates(shares: Float[Tensor, " component"], *, penalty: float) -> Float[Tensor, " component"]:
    """z_i = max(0, 1 - penalty / (2 rho_i)): the best mask where components do not interact (formula 13).

    That is the case for reconstruction with uncorrelated codes and orthogonal directions (SVD).

    Args:
        shares: rho_i, the share of the variance that each component explains; or M_ii / (2 reference) for a KL relative
            to `reference`, which then takes M as diagonal.
        penalty: lambda of the objective, the penalty on one open gate.

    Raises:
        InputError: a negative share or penalty.
    """
    if penalty < 0 or bool((shares < 0).any()):
        raise InputError("Shares and penalty must not be negative.")
    return torch.where(shares > 0, 1 - penalty / (2 * shares), 0.0).clamp(0, 1).to(shares)


def _require_method(method: str, n_samples: int) -> None:
    one_of("method", method, ("estimate", "exact"))
    if n_samples < 1:
        raise InputError(f"n_samples={n_samples} must be at least 1.")


def _readout(reader: Translator | Head) -> Head:
    if not isinstance(reader, Translator):
        return reader
    head = reader.head
    return lambda acts: head(reader(acts))
