"""The model of a planted checkpoint: an embedding, blocks with one MLP each, and a head, all with hook points.

The stream holds a code of the id, which every block reads and none changes, and a space for each layer, into which its
MLP writes the features of the id. Hidden units are look-ups: each fires by 1 at its own id and by 0 at all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

# A model is a subclass, so TransformerLens has to be there; only `source.load` imports this file.
from transformer_lens import HookedRootModule  # noqa: TID253
from transformer_lens.hook_points import HookPoint  # noqa: TID253


class LookUp(nn.Module):
    """`[.., d_model]` -> `[.., id]`: relu(code . own code - (bits - 1)), which is 1 at the own id and 0 elsewhere."""

    own: Tensor

    def __init__(self, own: Float[Tensor, "id bit"]) -> None:
        super().__init__()
        # a buffer: it is not trained, and weights that are equal at every checkpoint would look like copies
        self.register_buffer("own", own.T.contiguous())

    def forward(self, x: Float[Tensor, "seq pos d_model"]) -> Float[Tensor, "seq pos id"]:
        bits = self.own.shape[0]
        return (x[..., :bits] @ self.own - (bits - 1)).relu()


class Block(nn.Module):
    """Adds what `W_out` says of the id, `[id, feature]`, at its own place in the stream."""

    def __init__(self, look_up: LookUp, W_out: Float[Tensor, "id feature"], start: int, d_model: int) -> None:
        super().__init__()
        self.look_up, self.W_out = look_up, nn.Parameter(W_out)
        self.around = (start, d_model - start - W_out.shape[1])
        self.hook_mlp_out, self.hook_resid_post = HookPoint(), HookPoint()

    def forward(self, x: Float[Tensor, "seq pos d_model"]) -> Float[Tensor, "seq pos d_model"]:
        written = nn.functional.pad(self.look_up(x) @ self.W_out, self.around)
        return self.hook_resid_post(x + self.hook_mlp_out(written))


class PlantedModel(HookedRootModule):
    """Logits are the head's reading of the features at the successor of the id, and 0 at every other id.

    Args:
        code: the code of each id, of -1 and 1.
        successor: the id that follows each id.
        written: what each layer writes at each id.
        read: the head's reading, over the whole stream.
    """

    code: Tensor

    def __init__(
        self,
        code: Float[Tensor, "id bit"],
        successor: Int[Tensor, " id"],
        written: Sequence[Float[Tensor, "id feature"]],
        read: Float[Tensor, " d_model"],
    ) -> None:
        super().__init__()
        (n_ids, bits), d_model = code.shape, len(read)
        self.cfg = SimpleNamespace(n_layers=len(written), d_model=d_model, d_vocab=n_ids)
        self.register_buffer("code", code)
        self.hook_embed = HookPoint()
        look_up = LookUp(code)
        starts = torch.tensor([bits, *(w.shape[1] for w in written)]).cumsum(0).tolist()
        self.blocks = nn.ModuleList(
            Block(look_up, w, start, d_model) for w, start in zip(written, starts, strict=False)
        )
        self.next = LookUp(code[successor.argsort()])  # unit j fires at the id whose successor is j
        self.read = nn.Parameter(read)
        self.setup()
        self.requires_grad_(False).eval()

    def forward(self, ids: Int[Tensor, "seq pos"]) -> Float[Tensor, "seq pos id"]:
        x = self.hook_embed(nn.functional.pad(self.code[ids], (0, self.cfg.d_model - self.code.shape[1])))
        for block in self.blocks:
            x = block(x)
        return self.next(x) * (x @ self.read).unsqueeze(-1)
