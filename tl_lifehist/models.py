"""What a model must offer: TransformerLens' hook interface and nothing else.

A TransformerBridge, a HookedTransformer and a user's own HookedRootModule all satisfy `HookedModel`. No model is
subclassed, no HookPoint swapped, and every hook is gone when the call returns, after an exception too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tl_lifehist.errors import InputError
from tl_lifehist.hook_names import require_known

Hook = tuple[str, Callable[..., Any]]


@runtime_checkable
class HookedModel(Protocol):
    """`hooks`, `hook_dict`, and a call on token ids that returns logits `[seq, pos, d_vocab]`."""

    def hooks(self, fwd_hooks: Any = ..., bwd_hooks: Any = ...) -> AbstractContextManager[Any]: ...

    @property
    def hook_dict(self) -> Mapping[str, Any]: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def require_hooks(model: HookedModel, hook_names: Iterable[str]) -> None:
    """Refuse a model in training mode, and a hook point that the model does not have.

    TransformerBridge 3.9 ignores unknown names without a word, so they are looked up before anything runs.
    """
    training = getattr(model, "training", False)
    if isinstance(model, nn.Module):
        # one part left in training mode is enough to change the numbers
        training = training or any(m.training and m.p > 0 for m in model.modules() if isinstance(m, nn.Dropout))
    if training:
        raise InputError(
            "The model is in training mode, so dropout would change every number: call model.eval() first."
        )
    for name in hook_names:
        require_known([name], model.hook_dict)
        try:
            with model.hooks(fwd_hooks=[(name, _nothing)]):
                pass
        except ValueError as error:  # some points exist only once a setting of the model is switched on
            raise InputError(f"The hook point {name!r} cannot be used: {error}") from error


def _nothing(value: Tensor, hook: Any) -> None:
    """A hook that changes nothing."""


def device_of(model: HookedModel) -> torch.device:
    """The device token ids have to be on."""
    if isinstance(model, nn.Module):
        for parameter in model.parameters():
            return parameter.device
    return torch.device("cpu")


def run_model(
    model: HookedModel,
    ids: Int[Tensor, "seq pos"],
    attention_mask: Int[Tensor, "seq pos"] | None = None,
) -> Float[Tensor, "seq pos d_vocab"]:
    """The model's logits. The mask is passed only when there is one, so models without that argument work."""
    require_readable(getattr(model, "cfg", None), ids)
    device = device_of(model)
    mask = {} if attention_mask is None else {"attention_mask": attention_mask.to(device)}
    logits = model(ids.to(device), **mask)
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids.shape:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"The model gives {shape} for ids {tuple(ids.shape)}: it has to give logits [seq, pos, d_vocab]."
        )
    return logits


def require_readable(cfg: Any, ids: Int[Tensor, "seq pos"]) -> None:
    """Refuse windows longer than a model has positions for, and token ids that it does not know, by its `cfg`."""
    n_ctx = getattr(cfg, "n_ctx", None) or ids.shape[1]
    if getattr(cfg, "positional_embedding_type", None) == "standard" and ids.shape[1] > n_ctx:
        raise InputError(
            f"Windows of {ids.shape[1]} positions are longer than the {n_ctx} that the model has embeddings for: "
            "use a smaller context_size (--context-size)."
        )
    limit = getattr(cfg, "d_vocab", None)
    if limit is not None and limit > 0 and ids.numel() and int(ids.max()) >= limit:
        raise InputError(
            f"Token id {int(ids.max())} is outside the model's vocabulary of {limit}: "
            "tokenize with the tokenizer this model was trained with."
        )


@contextmanager
def exactly_once(model: HookedModel, fwd_hooks: Sequence[Hook]) -> Iterator[None]:
    """Add the hooks for one forward pass and insist that each fired exactly once in it."""
    fired = [0] * len(fwd_hooks)

    def counted(index: int, fn: Callable[..., Any]) -> Callable[..., Any]:
        def run(value: Tensor, hook: Any) -> Any:
            fired[index] += 1
            return fn(value, hook=hook)

        return run

    with model.hooks(fwd_hooks=[(name, counted(i, fn)) for i, (name, fn) in enumerate(fwd_hooks)]):
        yield
    for (name, _), count in zip(fwd_hooks, fired, strict=True):
        if count != 1:
            raise InputError(
                f"The hook point {name!r} fired {count} times in one forward pass instead of once, "
                "so its activation is not defined: choose another hook point."
            )


@contextmanager
def frozen(model: HookedModel) -> Iterator[None]:
    """No parameter asks for a gradient inside; each gets its own setting back, after an exception too.

    A backward pass to the gates then skips every weight gradient, which is most of its cost.
    """
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    asked = [p.requires_grad for p in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, before in zip(parameters, asked, strict=True):
            parameter.requires_grad_(before)
