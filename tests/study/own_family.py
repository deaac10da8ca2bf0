"""An adapter for a model family of one's own: here, GPT-NeoX under another name."""

from __future__ import annotations

from transformer_lens.model_bridge.supported_architectures.neox import NeoxArchitectureAdapter


class ToyAdapter(NeoxArchitectureAdapter):
    """`ToyForCausalLM`."""
