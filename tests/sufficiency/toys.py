"""Models whose answers are known: import as `from sufficiency.toys import ...`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.linalg import hadamard
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from tl_lifehist.tokens import NO_LABEL, TokenSet


class RowModel(HookedRootModule):
    """An embedding, one HookPoint (`hook_embed`) and a head that acts on each position alone."""

    def __init__(self, embedding: Tensor, head: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embedding = nn.Parameter(embedding)
        self.hook_embed = HookPoint()
        self.head = head
        self.setup()
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.hook_embed(self.embedding[ids]))


@dataclass(frozen=True, eq=False)
class SignToy:
    """Columns of +1 and -1, each scaled; the head reads a few of them. Every pair of columns is uncorrelated.

    `acts` [row d_model] is `offset + signs * scales`; token i of `tokens` (ids [row, 1]) embeds to row i; `labels`
    [row] are 1 where the logit difference c * (sum of the read signs) is positive.
    """

    model: RowModel
    tokens: TokenSet
    acts: Tensor
    signs: Tensor
    scales: Tensor
    read: tuple[int, ...]
    offset: float
    labels: Tensor
    hook_name: str = "hook_embed"

    def reading_head(self, columns: Sequence[int], c: float = 1.0) -> Callable[[Tensor], Tensor]:
        """A head of two classes whose logit difference is c times the sum of the signs in `columns`."""
        weight = torch.zeros(len(self.scales), dtype=torch.float64)
        weight[list(columns)] = c / self.scales[list(columns)]
        return _difference_head(weight, self.offset)


def _difference_head(weight: Tensor, offset: float) -> Callable[[Tensor], Tensor]:
    def head(rows: Tensor) -> Tensor:
        difference = (rows - offset) @ weight.to(rows)
        return torch.stack([-difference / 2, difference / 2], dim=-1)

    return head


def sign_toy(
    c: float = 1.0,
    *,
    read: Sequence[int] = (5, 11, 17),
    d_model: int = 20,
    base: float = 0.9,
    order: int = 32,
    offset: float = 3.0,
    repeats: int = 1,
) -> SignToy:
    """With the defaults the toy "H20" of the exact checks, in float64.

    Of the Hadamard matrix of `order` without its constant column, columns 0, 1, 3, 7, ... (they enumerate all sign
    patterns) go to the positions `read`, the others fill the rest in order; column i is scaled by 2 * base**i.
    """
    columns = torch.from_numpy(hadamard(order).astype("float64"))[:, 1:]
    independent = [2**j - 1 for j in range(len(read))]
    others = [i for i in range(order - 1) if i not in independent]
    place = dict(zip(read, independent, strict=True))
    chosen = [place[i] if i in place else others.pop(0) for i in range(d_model)]
    signs = columns[:, chosen].repeat(repeats, 1)
    scales = 2 * base ** torch.arange(d_model, dtype=torch.float64)
    acts = offset + signs * scales
    weight = torch.zeros(d_model, dtype=torch.float64)
    weight[list(read)] = c / scales[list(read)]
    labels = (signs[:, list(read)].sum(1) > 0).long()
    ids = torch.arange(len(acts)).unsqueeze(1)
    tokens = TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), labels.unsqueeze(1))
    model = RowModel(acts.clone(), _difference_head(weight, offset))
    return SignToy(model, tokens, acts, signs, scales, tuple(read), offset, labels)


def tanh_model(d_model: int = 6, d_vocab: int = 4, n_ids: int = 24, *, seed: int = 0) -> RowModel:
    """logits = tanh(h A) B: a head that acts on each position alone and is not linear."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(d_model, 8, generator=generator, dtype=torch.float64) / d_model**0.5
    b = torch.randn(8, d_vocab, generator=generator, dtype=torch.float64)
    embedding = torch.randn(n_ids, d_model, generator=generator, dtype=torch.float64)
    return RowModel(embedding, lambda rows: torch.tanh(rows @ a) @ b)


class AttentionToy(HookedRootModule):
    """Two causal attention layers with tanh maps after a hook point: an edit at one position moves later logits.

    There is no position embedding, so that padding on either side changes nothing once it is masked.
    """

    def __init__(self, d_vocab: int = 7, d_model: int = 5, *, n_layers: int = 2, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[-2] ** 0.5)

        self.embedding, self.head = weight(d_vocab, d_model), weight(d_model, d_vocab)
        self.attention = nn.ParameterList([weight(3, d_model, d_model) for _ in range(n_layers)])
        self.mlp = nn.ParameterList([weight(d_model, d_model) for _ in range(n_layers)])
        self.hook_embed = HookPoint()
        self.hook_mid = HookPoint()
        self.setup()
        self.eval()

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.hook_embed(self.embedding[ids])
        n = ids.shape[1]
        seen = torch.ones(n, n, dtype=torch.bool).tril()
        if attention_mask is not None:
            # a padded position sees itself, so that its softmax is over something
            seen = seen & attention_mask.bool()[:, None, :] | torch.eye(n, dtype=torch.bool)
        for layer, (qkv, mlp) in enumerate(zip(self.attention, self.mlp, strict=True)):
            q, k, v = (x @ w for w in qkv)
            scores = (q @ k.transpose(-1, -2)).masked_fill(~seen, float("-inf"))
            x = x + scores.softmax(-1) @ v
            x = x + torch.tanh(x @ mlp)
            if layer == 0:
                x = self.hook_mid(x)
        return x @ self.head


def causal_tokens(ids: Tensor) -> TokenSet:
    """Every position valid, each labelled with the next token, the last with none."""
    labels = torch.full_like(ids, NO_LABEL)
    labels[:, :-1] = ids[:, 1:]
    return TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), labels)


def padded(tokens: TokenSet, n_left: int, n_right: int, *, pad_id: int = 0) -> TokenSet:
    """The same sequences with padding on both sides, masked, neither valid nor labelled."""

    def wide(value: Tensor, fill: int) -> Tensor:
        return nn.functional.pad(value.long(), (n_left, n_right), value=fill)

    assert tokens.documents is not None
    mask = torch.ones_like(tokens.ids) if tokens.attention_mask is None else tokens.attention_mask
    documents = tokens.documents[:, :1].expand(-1, tokens.ids.shape[1] + n_left + n_right).clone()
    return TokenSet(
        wide(tokens.ids, pad_id), wide(tokens.valid, 0).bool(), wide(tokens.labels, NO_LABEL), wide(mask, 0), documents
    )


class LinearDictionary:
    """Codes `(x - b_dec) @ W_enc`, reconstruction `b_dec + codes @ W_dec`, with its means over `acts`."""

    def __init__(self, W_enc: Tensor, W_dec: Tensor, acts: Tensor, b_dec: Tensor | None = None) -> None:
        self.W_enc, self.W_dec = W_enc, W_dec
        self.x_mean = acts.mean(0)
        self.b_dec = self.x_mean if b_dec is None else b_dec
        self.code_sample = self.encode(acts)
        self.code_mean = self.code_sample.mean(0)

    def encode(self, x: Tensor) -> Tensor:
        return (x - self.b_dec) @ self.W_enc

    def decode(self, codes: Tensor) -> Tensor:
        return self.b_dec + codes @ self.W_dec


def axis_dictionary(acts: Tensor, order: Sequence[int] | None = None) -> LinearDictionary:
    """The coordinate axes around the mean, in the given order (what SVD finds on the sign toy)."""
    axes = torch.eye(acts.shape[1], dtype=acts.dtype)[list(order) if order is not None else slice(None)]
    return LinearDictionary(axes.T.contiguous(), axes, acts)


def random_dictionary(acts: Tensor, n_components: int, *, seed: int = 0) -> LinearDictionary:
    """Random directions that are not orthogonal, with random codes for each row."""
    generator = torch.Generator().manual_seed(seed)
    d_model = acts.shape[1]
    encoder = torch.randn(d_model, n_components, generator=generator, dtype=torch.float64)
    decoder = torch.randn(n_components, d_model, generator=generator, dtype=torch.float64) / d_model**0.5
    return LinearDictionary(encoder.to(acts) / d_model**0.5, decoder.to(acts), acts)
