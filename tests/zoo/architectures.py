"""Hand-written models of many architectures, tiny and in float64: import as `from zoo.architectures import ZOO`.

Each says what it is in its docstring. Most are a `Stack` of `Block`s with one thing that is not as usual.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

D, VOCAB, POSITIONS, BLOCKS, HEADS = 8, 11, 9, 4, 2

ZOO: dict[str, Callable[[], Any]] = {}


def architecture(cls: type) -> type:
    """Put a model into the zoo under its docstring's first line."""
    ZOO[(cls.__doc__ or "").splitlines()[0].rstrip(".")] = cls
    return cls


class Draw:
    """Weights from one seeded stream."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> nn.Parameter:
        fan = shape[-2] if len(shape) > 1 else 1
        return nn.Parameter(torch.randn(*shape, generator=self.generator, dtype=torch.float64) * scale / fan**0.5)


def norm(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


class Block(nn.Module):
    """Attention and an MLP, each behind a norm, added to the residual stream."""

    is_causal = True

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.qkv, self.out = draw(3, D, D), draw(D, D)
        self.up, self.down = draw(D, 2 * D), draw(2 * D, D)
        self.hook_resid_pre, self.hook_attn_out = HookPoint(), HookPoint()
        self.hook_mlp_out, self.hook_resid_post, self.hook_z = HookPoint(), HookPoint(), HookPoint()

    def attend(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        keys = x if keys is None else keys
        q, k, v = (y @ w for y, w in zip((x, keys, keys), self.qkv, strict=True))
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in (q, k, v))
        scores = q @ k.transpose(-1, -2) / (D / HEADS) ** 0.5
        if self.is_causal:
            scores = scores.masked_fill(~causal(x.shape[1]), float("-inf"))
        z = self.hook_z((scores.softmax(-1) @ v).transpose(1, 2))
        return z.flatten(2) @ self.out

    def mlp(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.up) @ self.down

    def forward(self, x: Tensor) -> Tensor:
        x = self.hook_resid_pre(x)
        x = x + self.hook_attn_out(self.attend(norm(x)))
        return self.hook_resid_post(x + self.hook_mlp_out(self.mlp(norm(x))))


class Stack(HookedRootModule):
    """Embedding, blocks, norm, unembedding."""

    block: type[Block] = Block

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        draw = Draw(seed)
        self.embedding, self.places, self.unembedding = draw(VOCAB, D), draw(POSITIONS, D), draw(D, VOCAB)
        self.blocks = nn.ModuleList([self.block(draw) for _ in range(BLOCKS)])
        self.more(draw)
        self.setup()
        self.eval()

    def more(self, draw: Draw) -> None:
        """Further weights."""

    def embed(self, ids: Tensor) -> Tensor:
        return self.embedding[ids] + self.places[: ids.shape[1]]

    def head(self, x: Tensor) -> Tensor:
        return norm(x) @ self.unembedding

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@architecture
class Plain(Stack):
    """pre-norm stack"""


@architecture
class Parallel(Stack):
    """attention and MLP in parallel"""

    class block(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = self.hook_resid_pre(x)
            return self.hook_resid_post(
                x + self.hook_attn_out(self.attend(norm(x))) + self.hook_mlp_out(self.mlp(norm(x)))
            )


@architecture
class PostNorm(Stack):
    """norms after each sum, before the hook point"""

    class block(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = self.hook_resid_pre(x)
            x = norm(x + self.hook_attn_out(self.attend(x)))
            return self.hook_resid_post(norm(x + self.hook_mlp_out(self.mlp(x))))


@architecture
class NormBehindHook(Stack):
    """norm inside the block behind hook_resid_post"""

    class block(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = self.hook_resid_pre(x)
            x = norm(x + self.hook_attn_out(self.attend(x)))
            return torch.tanh(self.hook_resid_post(x + self.hook_mlp_out(self.mlp(x))))


@architecture
class Sandwich(Stack):
    """sandwich norms"""

    class block(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = self.hook_resid_pre(x)
            x = x + self.hook_attn_out(norm(self.attend(norm(x))))
            return self.hook_resid_post(x + self.hook_mlp_out(norm(self.mlp(norm(x)))))


@architecture
class UNet(Stack):
    """U-net skips from early to late blocks"""

    def forward(self, ids: Tensor) -> Tensor:
        x, kept = self.embed(ids), []
        for i, block in enumerate(self.blocks):
            if i < BLOCKS // 2:
                kept.append(x)
            else:
                x = x + kept.pop()
            x = block(x)
        return self.head(x)


@architecture
class EmbeddingInHead(Stack):
    """embedding added in the head"""

    def forward(self, ids: Tensor) -> Tensor:
        x = first = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x + first)


@architecture
class BigramHead(Stack):
    """bigram logits added to the model's"""

    def more(self, draw: Draw) -> None:
        self.bigrams = draw(VOCAB, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + self.bigrams[ids]


@architecture
class EmbeddingBeforeBlocks(Stack):
    """embedding mixed in before each block"""

    def forward(self, ids: Tensor) -> Tensor:
        x = first = norm(self.embed(ids))
        for i, block in enumerate(self.blocks):
            x = block(x + 0.3 * (i > 0) * first)
        return self.head(x)


@architecture
class MaskFirst(Stack):
    """block(mask, x)"""

    class block(Block):
        def forward(self, mask: Tensor, x: Tensor) -> Tensor:
            return super().forward(x)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        mask = torch.ones(len(ids), ids.shape[1], D, dtype=torch.float64)  # numbers of a residual stream's shape
        for block in self.blocks:
            x = block(mask, x)
        return self.head(x)


@architecture
class Keyword(Stack):
    """block(resid=x)"""

    class block(Block):
        def forward(self, *, resid: Tensor) -> Tensor:
            return super().forward(resid)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(resid=x)
        return self.head(x)


@architecture
class Pairs(Stack):
    """blocks that return (x, attention)"""

    class block(Block):
        def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
            return super().forward(x), None

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)[0]
        return self.head(x)


@architecture
class TwoStreams(Stack):
    """two residual streams, block(x, y) -> (x, y)"""

    class block(Block):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            y = y + self.mlp(norm(x))
            return super().forward(x + 0.5 * norm(y)), y

    def forward(self, ids: Tensor) -> Tensor:
        x = y = self.embed(ids)
        for block in self.blocks:
            x, y = block(x, y)
        return self.head(x + y)


@architecture
class HyperConnections(Stack):
    """streams stacked in one tensor, mixed between blocks"""

    def more(self, draw: Draw) -> None:
        self.mix = draw(BLOCKS, 2, 2)

    def forward(self, ids: Tensor) -> Tensor:
        streams = torch.stack([self.embed(ids)] * 2)
        for block, mix in zip(self.blocks, self.mix, strict=True):
            streams = torch.einsum("ij,j...->i...", mix, streams)
            streams = torch.stack([block(streams[0]), streams[1]])
        return self.head(streams.sum(0))


@architecture
class HeadOfAllLayers(Stack):
    """head that reads the mean of all layers"""

    def forward(self, ids: Tensor) -> Tensor:
        x, seen = self.embed(ids), []
        for block in self.blocks:
            x = block(x)
            seen.append(x)
        return self.head(torch.stack(seen).mean(0))


@architecture
class DenselyConnected(Stack):
    """each block reads the mean of all before it"""

    def forward(self, ids: Tensor) -> Tensor:
        seen = [self.embed(ids)]
        for block in self.blocks:
            seen.append(block(torch.stack(seen).mean(0)))
        return self.head(seen[-1])


@architecture
class HeadOfPositions(Stack):
    """head that reads the position before as well"""

    def head(self, x: Tensor) -> Tensor:
        return super().head(x + nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])


@architecture
class PooledHead(Stack):
    """bidirectional, with a pooler of the first position in the head"""

    class block(Block):
        is_causal = False

    def head(self, x: Tensor) -> Tensor:
        return super().head(x + torch.tanh(x[:, :1]))


@architecture
class Bidirectional(Stack):
    """bidirectional"""

    class block(Block):
        is_causal = False


@architecture
class PerLayerEmbeddings(Stack):
    """an embedding of its own added after each block"""

    def more(self, draw: Draw) -> None:
        self.tables = draw(BLOCKS, VOCAB, D)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block, table in zip(self.blocks, self.tables, strict=True):
            x = block(x) + table[ids]
        return self.head(x)


@architecture
class PerLayerInputs(Stack):
    """per-layer inputs given to each block"""

    class block(Block):
        def forward(self, x: Tensor, own: Tensor) -> Tensor:
            return super().forward(x) + own

    def more(self, draw: Draw) -> None:
        self.tables = draw(BLOCKS, VOCAB, D)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block, table in zip(self.blocks, self.tables, strict=True):
            x = block(x, table[ids])
        return self.head(x)


@architecture
class Twice(Stack):
    """the stack run twice"""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in [*self.blocks, *self.blocks]:
            x = block(x)
        return self.head(x)


@architecture
class LastTwice(Stack):
    """the last block run twice"""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in [*self.blocks, self.blocks[-1]]:
            x = block(x)
        return self.head(x)


@architecture
class Reversed(Stack):
    """blocks run in another order"""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in list(self.blocks)[::-1]:
            x = block(x)
        return self.head(x)


@architecture
class SharedWeights(Stack):
    """weights shared by all blocks"""

    def more(self, draw: Draw) -> None:
        for block in list(self.blocks)[1:]:
            for name, weight in self.blocks[0].named_parameters(recurse=False):
                setattr(block, name, weight)


@architecture
class Noise(Stack):
    """noise in evaluation mode"""

    class block(Block):
        def mlp(self, x: Tensor) -> Tensor:
            return super().mlp(x + 0.1 * torch.randn_like(x))


@architecture
class LateNoise(Stack):
    """noise in the head alone"""

    def head(self, x: Tensor) -> Tensor:
        return super().head(x + 0.1 * torch.randn_like(x))


@architecture
class State(Stack):
    """a state kept between passes"""

    def more(self, draw: Draw) -> None:
        self.register_buffer("passes", torch.zeros((), dtype=torch.float64))

    def embed(self, ids: Tensor) -> Tensor:
        self.passes += 1
        return super().embed(ids) * (1 + 0.1 * torch.sin(self.passes))


@architecture
class NeverCalled(Stack):
    """blocks that hold hook points and are never called"""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block.hook_resid_pre(x)
            x = x + block.hook_attn_out(block.attend(norm(x)))
            x = block.hook_resid_post(x + block.hook_mlp_out(block.mlp(norm(x))))
        return self.head(x)


@architecture
class Experts(Stack):
    """a mixture of experts"""

    class block(Block):
        def __init__(self, draw: Draw) -> None:
            super().__init__(draw)
            self.router, self.experts = draw(D, 3), draw(3, D, D)

        def mlp(self, x: Tensor) -> Tensor:
            weight = (x @ self.router).softmax(-1)
            best = weight.argmax(-1)
            return weight.max(-1).values.unsqueeze(-1) * torch.einsum("bpd,bpde->bpe", x, self.experts[best])


@architecture
class CapacityExperts(Experts):
    """experts with a capacity that the batch shares"""

    class block(Experts.block):
        def mlp(self, x: Tensor) -> Tensor:
            out = super().mlp(x).flatten(0, 1)
            served = torch.arange(len(out)) < 2 * len(out) // 3
            return (out * served.unsqueeze(1)).unflatten(0, x.shape[:2])


@architecture
class BatchStatistics(Stack):
    """activations normalised over the batch"""

    class block(Block):
        def mlp(self, x: Tensor) -> Tensor:
            return super().mlp(x - x.mean(dim=(0, 1), keepdim=True))


@architecture
class SoftCaps(Stack):
    """tied and scaled embeddings, soft caps"""

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(ids) * D**0.5

    def head(self, x: Tensor) -> Tensor:
        return 2 * torch.tanh(norm(x) @ self.embedding.T / 2)


@architecture
class StateSpace(Stack):
    """a state-space model"""

    class block(Block):
        def __init__(self, draw: Draw) -> None:
            super().__init__(draw)
            self.decay, self.gate = draw(D), draw(D, D)

        def attend(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
            decay, state, out = torch.sigmoid(self.decay), torch.zeros_like(x[:, 0]), []
            for step in x.unbind(1):
                state = decay * state + (1 - decay) * step
                out.append(torch.sigmoid(step @ self.gate) * state)
            z = self.hook_z(torch.stack(out, 1).unflatten(-1, (HEADS, -1)))
            return z.flatten(2) @ self.out


@architecture
class Recurrent(Stack):
    """a recurrent network"""

    class block(Block):
        def attend(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
            state, out = torch.zeros_like(x[:, 0]), []
            for step in x.unbind(1):
                state = torch.tanh(step @ self.qkv[0] + state @ self.qkv[1])
                out.append(state)
            z = self.hook_z(torch.stack(out, 1).unflatten(-1, (HEADS, -1)))
            return z.flatten(2) @ self.out


@architecture
class InPlace(Stack):
    """blocks that work in place"""

    class block(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = self.hook_resid_pre(x)
            x += self.hook_attn_out(self.attend(norm(x)))
            x += self.hook_mlp_out(self.mlp(norm(x)))
            return self.hook_resid_post(x)


@architecture
class KeptActivation(Stack):
    """a later block reads what an earlier one has kept"""

    class block(Block):
        def __init__(self, draw: Draw) -> None:
            super().__init__(draw)
            self.kept: list[Tensor] = []
            self.reads: list[Tensor] | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.reads:
                x = x + 0.5 * self.reads[0]
            x = super().forward(x)
            self.kept[:] = [x]
            return x

    def more(self, draw: Draw) -> None:
        self.blocks[3].reads = self.blocks[1].kept


@architecture
class SharedKeys(Stack):
    """later blocks attend to the keys of an earlier one"""

    class block(Block):
        def forward(self, x: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            x = self.hook_resid_pre(x)
            keys = norm(x) if keys is None else keys
            x = x + self.hook_attn_out(self.attend(norm(x), keys))
            return self.hook_resid_post(x + self.hook_mlp_out(self.mlp(norm(x)))), keys

    def forward(self, ids: Tensor) -> Tensor:
        x, keys = self.embed(ids), None
        for block in self.blocks:
            x, keys = block(x, keys)
        return self.head(x)


@architecture
class MixtureOfDepths(Stack):
    """a router that lets positions pass a block by"""

    class block(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = self.hook_resid_pre(x)
            taken = (x[..., :1] > 0).to(x)
            x = x + taken * self.hook_attn_out(self.attend(norm(x)))
            return self.hook_resid_post(x + taken * self.hook_mlp_out(self.mlp(norm(x))))


@architecture
class Swallows(Stack):
    """a forward that catches exceptions"""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            try:
                x = block(x)
            except Exception:
                x = x * 2
        return self.head(x)


@architecture
class LeftOpen(Stack):
    """a flag that stays set where a pass is ended early"""

    busy = False

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) * (2 if self.busy else 1)
        self.busy = True
        x = self.blocks[0](x)
        for block in list(self.blocks)[1:]:
            x = block(x)
        self.busy = False
        return self.head(x)


@architecture
class LeftOpenLate(Stack):
    """a flag that stays set where a pass is ended early, read behind the hook point"""

    busy = False

    def forward(self, ids: Tensor) -> Tensor:
        x, was = self.embed(ids), self.busy
        self.busy = True
        for block in self.blocks:
            x = block(x) * (1.5 if was else 1.0)
        self.busy = False
        return self.head(x)


@architecture
class Checkpointed(Stack):
    """blocks computed again in the backward pass"""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


@architecture
class NoGradients(Stack):
    """a forward without gradients"""

    @torch.no_grad()
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids)


@architecture
class InnerGradient(Stack):
    """a forward that takes gradients of its own weights"""

    class block(Block):
        def mlp(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                (slope,) = torch.autograd.grad((torch.tanh(self.up) @ self.down).square().mean(), self.up)
            return torch.tanh(x @ (self.up - slope)) @ self.down


class LastPosition(Stack):
    """logits of the last position alone"""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids)[:, -1]


@architecture
class NoBlocks(HookedRootModule):
    """hook points without blocks"""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Plain()
        self.hook_mid = HookPoint()
        self.setup()
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.inner.embed(ids)
        layers = list(self.inner.blocks)
        x = self.hook_mid(layers[1](layers[0](x)))
        return self.inner.head(layers[3](layers[2](x)))


def hooked_encoder() -> Any:
    from transformer_lens import HookedEncoder
    from transformer_lens.config import HookedTransformerConfig

    config = HookedTransformerConfig(
        n_layers=BLOCKS, d_model=D, n_ctx=POSITIONS, d_head=4, n_heads=HEADS, d_mlp=16, act_fn="gelu", d_vocab=VOCAB,
        dtype=torch.float64,
    )  # fmt: skip
    return _seeded(lambda: HookedEncoder(config))


def hooked_transformer() -> Any:
    from transformer_lens import HookedTransformer
    from transformer_lens.config import HookedTransformerConfig

    config = HookedTransformerConfig(
        n_layers=BLOCKS, d_model=D, n_ctx=POSITIONS, d_head=4, n_heads=HEADS, d_mlp=16, act_fn="gelu", d_vocab=VOCAB,
        dtype=torch.float64, use_attn_result=True, seed=0,
    )  # fmt: skip
    return _seeded(lambda: HookedTransformer(config))


def _seeded(make: Callable[[], Any]) -> Any:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.manual_seed(0)
        model = make().eval()
        with torch.no_grad():  # their own initial weights are so small that every prediction is the same
            for weight in model.parameters():
                weight.copy_(0.4 * torch.randn(weight.shape, dtype=torch.float64))
    return model


# of TransformerLens itself; version 4 has neither
ZOO["TransformerLens' HookedEncoder"] = hooked_encoder
ZOO["TransformerLens' HookedTransformer"] = hooked_transformer
