"""EuroBERT: Llama's blocks, read in both directions, with a masked language model's objective."""

from __future__ import annotations

from typing import Any

# An adapter is a subclass, so TransformerLens has to be there; only TransformerLens, or a boot, imports this file.
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter  # noqa: TID253
from transformer_lens.model_bridge.generalized_components import (  # noqa: TID253
    BlockBridge,
    EmbeddingBridge,
    GatedMLPBridge,
    LinearBridge,
    PositionEmbeddingsAttentionBridge,
    RMSNormalizationBridge,
    RotaryEmbeddingBridge,
    UnembeddingBridge,
)


class EuroBertArchitectureAdapter(ArchitectureAdapter):
    """`EuroBertForMaskedLM`, with every hook point that a Llama has."""

    supports_generation = False
    supports_causal_loss = False

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.cfg.normalization_type = "RMS"
        self.cfg.uses_rms_norm = True
        self.cfg.final_rms = True
        self.cfg.positional_embedding_type = "rotary"
        self.cfg.gated_mlp = True
        self.cfg.attn_only = False
        self.weight_processing_conversions = {**self._qkvo_weight_conversions()}
        attn = PositionEmbeddingsAttentionBridge(
            name="self_attn",
            config=self.cfg,
            submodules={part: LinearBridge(name=f"{part}_proj") for part in "qkvo"},
            is_causal=False,  # without it a batch that needs no mask would be masked as a causal model's is
        )
        mlp = GatedMLPBridge(
            name="mlp",
            config=self.cfg,
            submodules={
                "gate": LinearBridge(name="gate_proj"),
                "in": LinearBridge(name="up_proj"),
                "out": LinearBridge(name="down_proj"),
            },
        )
        self.component_mapping = {
            "embed": EmbeddingBridge(name="model.embed_tokens"),
            "rotary_emb": RotaryEmbeddingBridge(name="model.rotary_emb"),
            "blocks": BlockBridge(
                name="model.layers",
                submodules={
                    "ln1": RMSNormalizationBridge(name="input_layernorm", config=self.cfg),
                    "attn": attn,
                    "ln2": RMSNormalizationBridge(name="post_attention_layernorm", config=self.cfg),
                    "mlp": mlp,
                },
            ),
            "ln_final": RMSNormalizationBridge(name="model.norm", config=self.cfg),
            "unembed": UnembeddingBridge(name="lm_head"),
        }
