"""Hooked models small enough for closed forms."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint


class LinearToy(HookedRootModule):
    """logits = W2 (e + W1 e) with hook points after the embedding and after the first layer."""

    def __init__(
        self, d_vocab: int = 7, d_model: int = 5, *, seed: int = 0, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator, dtype=dtype) / shape[-1] ** 0.5)

        self.embed, self.first, self.head = weight(d_vocab, d_model), weight(d_model, d_model), weight(d_model, d_vocab)
        self.hook_embed, self.hook_mid = HookPoint(), HookPoint()
        self.setup()
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.hook_embed(self.embed[ids])
        return self.hook_mid(x + x @ self.first) @ self.head


class RepairToy(HookedRootModule):
    """The second layer puts back what the first lost: removing both costs more than removing each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.eye(2, dtype=torch.float64) * 3)
        self.hook_a, self.hook_b = HookPoint(), HookPoint()
        self.setup()
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed[ids]
        a, b = self.hook_a(x), self.hook_b(x)
        return torch.maximum(a, b)


class AxisDictionary:
    """Codes are the coordinates' positive parts; each row of W_dec is an axis times `scale`."""

    def __init__(self, d_model: int, *, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> None:
        self.W_dec = torch.eye(d_model, dtype=dtype) * scale
        self.scale = scale

    def encode(self, x: Tensor) -> Tensor:
        return x.clamp_min(0) / self.scale

    def decode(self, codes: Tensor) -> Tensor:
        return codes @ self.W_dec


class TwiceToy(HookedRootModule):
    """Its hook point fires twice in one forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.eye(3))
        self.hook_twice = HookPoint()
        self.setup()
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        return self.hook_twice(self.hook_twice(self.embed[ids]))


class NaNToy(LinearToy):
    """Token 3 embeds to NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.embed.data[3] = float("nan")
