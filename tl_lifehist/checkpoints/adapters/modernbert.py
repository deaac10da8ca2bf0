"""ModernBERT as a masked language model: pre-norm blocks of local and global attention under a prediction head."""

from __future__ import annotations

from typing import Any

# An adapter is a subclass, so TransformerLens has to be there; only TransformerLens, or a boot, imports this file.
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter  # noqa: TID253
from transformer_lens.model_bridge.generalized_components import (  # noqa: TID253
    AttentionBridge,
    DelegatedAttentionBlockBridge,
    EmbeddingBridge,
    LinearBridge,
    MLPBridge,
    NormalizationBridge,
    UnembeddingBridge,
)
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent  # noqa: TID253


class ModernBertArchitectureAdapter(ArchitectureAdapter):
    """`ModernBertForMaskedLM`.

    Attention stays with transformers, which masks some layers to a sliding window and others not and multiplies one
    fused query-key-value matrix: `attn.qkv` and `attn.o` have hook points, queries, keys and values for themselves have
    none.

    Everything between the last block and the logits is `ln_final`, `head` (dense, activation, norm) and `unembed`.
    """

    supports_generation = False
    supports_causal_loss = False
    # The first block reads the residual stream without a norm, so no norm can be folded and no mean taken out.
    supports_fold_ln = False
    supports_center_writing_weights = False

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.cfg.normalization_type = "LN"
        self.cfg.uses_rms_norm = False
        self.cfg.final_rms = False
        self.cfg.positional_embedding_type = "rotary"
        self.cfg.gated_mlp = False  # Wi holds gate and input in one matrix
        self.cfg.attn_only = False
        self.weight_processing_conversions = {}
        attn = AttentionBridge(
            name="attn",
            config=self.cfg,
            submodules={"qkv": LinearBridge(name="Wqkv"), "o": LinearBridge(name="Wo")},
            maintain_native_attention=True,
            fused_qkv=True,
        )
        mlp = MLPBridge(
            name="mlp",
            config=self.cfg,
            submodules={"in": LinearBridge(name="Wi"), "out": LinearBridge(name="Wo")},
        )
        self.component_mapping = {
            "embed": EmbeddingBridge(name="model.embeddings.tok_embeddings"),
            "embed_ln": self._norm("model.embeddings.norm"),
            "blocks": DelegatedAttentionBlockBridge(
                name="model.layers",
                submodules={"ln1": self._norm("attn_norm"), "attn": attn, "ln2": self._norm("mlp_norm"), "mlp": mlp},
            ),
            "ln_final": self._norm("model.final_norm"),
            "head": GeneralizedComponent(name="head"),
            "unembed": UnembeddingBridge(name="decoder"),
        }

    def _norm(self, name: str) -> NormalizationBridge:
        return NormalizationBridge(name=name, config=self.cfg, use_native_layernorm_autograd=True)

    def setup_component_testing(self, hf_model: Any, bridge_model: Any = None) -> None:
        """Nothing to wire: transformers rotates queries and keys itself."""
