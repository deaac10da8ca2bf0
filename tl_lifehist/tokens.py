"""`TokenSet`: the same positions for every checkpoint, and one mask used everywhere.

The labels are aligned with the logits, so causal and masked language models share one scoring path: they differ in
how a `TokenSet` is built and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tl_lifehist.deprecated import warn
from tl_lifehist.errors import InputError

NO_LABEL = -100


@dataclass(frozen=True, eq=False, repr=False)
class TokenSet:
    """Token ids with the positions to analyse and the targets to score.

    Attributes:
        ids: token ids.
        valid: positions that are analysed and intervened on: no padding, no special token, and no position 0 in a
            causal model (it is an attention sink whose activations dwarf all others).
        labels: the target of the logits at that position, -100 where there is none. *Scored* positions are
            valid and have a label.
        attention_mask: what the model may see; None when nothing is padded, and then the model gets none.
        documents: the document each position belongs to, for splits and for bootstraps over documents. One a row
            when not given.

    How it can mislead: token-level errors within a document are correlated, so intervals over tokens are too narrow;
    use `documents`.
    """

    ids: Int[Tensor, "seq pos"]
    valid: Bool[Tensor, "seq pos"]
    labels: Int[Tensor, "seq pos"]
    attention_mask: Int[Tensor, "seq pos"] | None = None
    documents: Int[Tensor, "seq pos"] | None = None

    def __post_init__(self) -> None:
        for name in ("valid", "labels", "attention_mask", "documents"):
            value = getattr(self, name)
            if value is not None and value.shape != self.ids.shape:
                raise InputError(f"{name} has shape {tuple(value.shape)} but ids has {tuple(self.ids.shape)}.")
        if self.ids.numel() and int(self.ids.min()) < 0:
            raise InputError("Token ids must not be negative.")
        if self.documents is None:
            rows = torch.arange(len(self.ids)).unsqueeze(1).expand(self.ids.shape).clone()
            object.__setattr__(self, "documents", rows)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        n_sequences, n_positions = self.ids.shape
        return f"TokenSet({n_sequences} x {n_positions} positions: {self.n_valid} valid, {self.n_scored} scored)"

    def __getitem__(self, rows: slice | Sequence[int] | Tensor | np.ndarray) -> TokenSet:
        """The sequences `rows`, as a TokenSet of their own."""
        index: Any = rows if isinstance(rows, slice) else torch.as_tensor(np.asarray(rows), dtype=torch.long)
        return TokenSet(*(None if t is None else t[index] for t in self.tensors()))  # type: ignore[arg-type]

    def tensors(self) -> tuple[Tensor | None, ...]:
        """The five tensors, in the order of the constructor."""
        return self.ids, self.valid, self.labels, self.attention_mask, self.documents

    @property
    def key(self) -> str:
        """A hash of everything in it, shapes and types included: two texts of one key are one text."""
        digest = hashlib.sha256()
        for name, tensor in self.to_tensors().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()[:16]

    def to_tensors(self) -> dict[str, Tensor]:
        """Its tensors by name, on the CPU and contiguous, as a file holds them."""
        named = {name: getattr(self, name) for name in ("ids", "valid", "labels", "attention_mask", "documents")}
        return {name: t.detach().cpu().contiguous().clone() for name, t in named.items() if t is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> TokenSet:
        """The counterpart of `to_tensors`."""
        return cls(**tensors)

    def batches(self, batch_size: int) -> Iterator[TokenSet]:
        """Consecutive groups of `batch_size` sequences."""
        for start in range(0, len(self), batch_size):
            yield self[start : start + batch_size]

    def head(self, n_valid: int) -> TokenSet:
        """The first sequences that together hold at least `n_valid` valid positions (all, if there are fewer)."""
        held = self.valid.sum(dim=1).cumsum(dim=0)
        return self[: int((held < n_valid).sum()) + 1]

    def subsample(self, n_sequences: int) -> TokenSet:
        """About `n_sequences` of the sequences, evenly spaced, so that all documents stay in."""
        return self[:: max(1, len(self) // max(1, n_sequences))][:n_sequences]

    def take(self, n_valid: int) -> TokenSet:
        """Deprecated: `head`."""
        warn("TokenSet.take", "TokenSet.head")
        return self.head(n_valid)

    def thin(self, n_sequences: int) -> TokenSet:
        """Deprecated: `subsample`."""
        warn("TokenSet.thin", "TokenSet.subsample")
        return self.subsample(n_sequences)

    @property
    def scored(self) -> Bool[Tensor, "seq pos"]:
        """Positions whose prediction counts: valid, with a label."""
        return self.valid & (self.labels != NO_LABEL)

    @property
    def n_valid(self) -> int:
        return int(self.valid.sum())

    @property
    def n_scored(self) -> int:
        return int(self.scored.sum())

    @property
    def row_tokens(self) -> np.ndarray:
        """The token id of each activation row (valid positions in order), `[row]`."""
        return self.ids[self.valid].numpy()

    @property
    def row_documents(self) -> np.ndarray:
        """The document of each activation row, `[row]`."""
        assert self.documents is not None  # filled in __post_init__
        return self.documents[self.valid].numpy()

    @property
    def scored_documents(self) -> np.ndarray:
        """The document of each scored position in order: the groups of intervals over documents."""
        assert self.documents is not None  # filled in __post_init__
        return self.documents[self.scored].cpu().numpy()

    @property
    def row_positions(self) -> np.ndarray:
        """Sequence and position of each activation row, `[row, 2]`."""
        return self.valid.nonzero().numpy()

    @classmethod
    def from_texts(
        cls, texts: Sequence[str], tokenizer: Any, *, context_size: int = 128, keep_partial: bool = True
    ) -> TokenSet:
        """Windows for a causal model: BOS first if the tokenizer has one, never two texts in one window.

        Args:
            texts: one string a document; the document number is the position in this list.
            tokenizer: a Hugging Face tokenizer.
            context_size: positions in a window, BOS included.
            keep_partial: keep each text's last, shorter window, padded on the right and masked. False drops it, and
                then nothing is padded and the model gets no attention mask.

        Raises:
            InputError: no text yields a window.
        """
        bos = tokenizer.bos_token_id  # an id of 0 is a BOS like any other
        head = [] if bos is None else [bos]
        room = context_size - len(head)
        if room < 2:
            raise InputError(f"context_size={context_size} leaves no room for two tokens: use 8 or more.")
        special = set(tokenizer.all_special_ids)
        pad = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, bos) if i is not None), 0)
        rows: list[tuple[int, list[int]]] = []
        for document, ids in enumerate(_token_ids(texts, tokenizer)):
            for start in range(0, len(ids), room):
                body = ids[start : start + room]
                if len(body) == room or (keep_partial and len(body) >= 2):
                    rows.append((document, head + body))
        if not rows:
            raise InputError("No text is long enough for a window: give longer texts or a smaller context_size.")
        padded = [(document, body + [pad] * (context_size - len(body)), len(body)) for document, body in rows]
        tensor = torch.tensor([body for _, body, _ in padded])
        lengths = torch.tensor([n for _, _, n in padded]).unsqueeze(1)
        seen = torch.arange(context_size) < lengths
        valid = seen & ~torch.isin(tensor, torch.tensor(sorted(special), dtype=tensor.dtype))
        labels = torch.full_like(tensor, NO_LABEL)
        labels[:, :-1] = torch.where(valid[:, 1:], tensor[:, 1:], NO_LABEL)
        valid[:, 0] = False
        documents = torch.tensor([document for document, _, _ in padded]).unsqueeze(1).expand(tensor.shape).clone()
        return cls(tensor, valid, labels, None if bool(seen.all()) else seen.long(), documents)

    @classmethod
    def for_masked_lm(
        cls,
        texts: Sequence[str],
        tokenizer: Any,
        *,
        context_size: int = 128,
        mask_rate: float = 0.15,
        seed: int = 0,
    ) -> TokenSet:
        """Windows for a masked language model; the masked positions carry the labels and are the same in every run.

        Every chosen position becomes the mask token (no random or kept tokens), so that a label always means a
        prediction from context. There is no position-0 rule: a bidirectional model has no attention sink to protect.
        A window begins and ends with what the tokenizer itself puts around a text: [CLS] and [SEP], BOS and EOS, or
        nothing.

        Raises:
            InputError: the tokenizer has no mask token, no text yields a window, or special tokens leave no room.

        How it can mislead: a mask token in place of every chosen one is not how these models were trained, where some
        chosen tokens stay or are replaced at random, so the losses are a little higher than published ones.
        """
        if tokenizer.mask_token_id is None:
            raise InputError("This tokenizer has no mask token: use TokenSet.from_texts for a causal model.")
        if not 0 < mask_rate < 1:
            raise InputError(f"mask_rate={mask_rate} must lie between 0 and 1.")
        parts = _token_ids(texts, tokenizer)
        if not any(parts):
            raise InputError("No text holds a token: give longer texts.")
        head, tail = _around_a_text(texts, parts, tokenizer)
        room = context_size - len(head) - len(tail)
        if room < 1:
            raise InputError(f"context_size={context_size} leaves no room beside the special tokens: use 8 or more.")
        pad = tokenizer.pad_token_id or 0
        rows = [
            (document, head + ids[start : start + room] + tail)
            for document, ids in enumerate(parts)
            for start in range(0, len(ids), room)
        ]
        tensor = torch.tensor([body + [pad] * (context_size - len(body)) for _, body in rows])
        seen = torch.arange(context_size) < torch.tensor([len(body) for _, body in rows]).unsqueeze(1)
        special = torch.tensor(sorted({*tokenizer.all_special_ids, *head, *tail}), dtype=tensor.dtype)
        valid = seen & ~torch.isin(tensor, special)
        generator = torch.Generator().manual_seed(seed)
        masked = valid & (torch.rand(tensor.shape, generator=generator) < mask_rate)
        labels = torch.where(masked, tensor, NO_LABEL)
        ids = torch.where(masked, torch.full_like(tensor, tokenizer.mask_token_id), tensor)
        documents = torch.tensor([document for document, _ in rows]).unsqueeze(1).expand(tensor.shape).clone()
        return cls(ids, valid, labels, None if bool(seen.all()) else seen.long(), documents)

    @classmethod
    def pocket(cls, split: str, *, context_size: int = 128) -> TokenSet:
        """The pocket suite's own text: "train", "calibration" or "test", disjoint by document."""
        from tl_lifehist.checkpoints.pocket import pocket_texts, pocket_tokenizer

        texts = [text for _, text in pocket_texts(split)]
        return cls.from_texts(texts, pocket_tokenizer(), context_size=context_size, keep_partial=False)


def _token_ids(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    if isinstance(texts, str):
        raise InputError("texts is one string: give a list of strings, one per document.")
    if not len(texts):
        raise InputError("There is no text: give at least one document.")
    return tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]


def _around_a_text(texts: Sequence[str], parts: Sequence[Sequence[int]], tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and after a text of its own accord."""
    # Asked by trying: which special tokens a tokenizer has names for does not say which of them it uses, and where.
    plain, shortest = min(((ids, text) for ids, text in zip(parts, texts, strict=True) if ids), key=lambda p: len(p[0]))
    whole = tokenizer(shortest, verbose=False)["input_ids"]
    for before in range(len(whole) - len(plain) + 1):
        if list(whole[before : before + len(plain)]) == list(plain):
            return list(whole[:before]), list(whole[before + len(plain) :])
    raise InputError(
        "This tokenizer does not keep a text in one piece when it adds its special tokens: "
        "build the windows yourself and give TokenSet(ids, valid, labels)."
    )


def require_scored(tokens: TokenSet) -> None:
    """Refuse a text without a position to score."""
    if tokens.n_scored == 0:
        raise InputError("No position is scored: the token set needs labels at valid positions.")


def require_valid(tokens: TokenSet) -> None:
    """Refuse a text without a position to analyse."""
    if tokens.n_valid == 0:
        raise InputError("No position is valid: every token is padding, special or the first of its sequence.")
