"""A causal language model and what was found out about it at load.

Shapes: B rows, L tokens, N selected tokens, H hidden, V vocabulary, X outputs (H or V).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from verl.models.batching import ModelBatch
from verl.models.causal_forward import CausalForward
from verl.models.response_outputs import probe_sharing, response_outputs

_PROBE_TOKENS = 4
# Large enough that soft-capped logits (caps of 30 to 50 are in use) differ visibly from plain ones.
_PROBE_LOGIT_SCALE = 100.0
_PROBE_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class PolicyModel:
    """A causal LM ready for training or scoring.

    Build it with `PolicyModel.build`, after an adapter was added.

    Attributes:
        network: What is trained: the transformers model, or peft's wrapper around it.
        transformer: The transformers model itself (`network` without the wrapper; same weights).
        head: Its LM head; a plain linear layer if `has_plain_head`.
        forward: The decoder if `has_plain_head`, else the whole model.
        compute_dtype: float32, or bfloat16 (autocast over float32 weights).
        device: Where the weights are.
        has_plain_head: Whether logits are `head(decoder output)` and nothing else, so that the head may be
            applied to chosen positions only. False with soft-capping, logit scales and the like.
        can_pad: Whether left padding and a cache give what plain rows give, so that prompts can be shared.
    """

    network: nn.Module
    transformer: PreTrainedModel
    head: nn.Linear
    forward: CausalForward
    compute_dtype: torch.dtype
    device: torch.device
    has_plain_head: bool
    can_pad: bool

    @classmethod
    def build(cls, network: nn.Module, transformer: PreTrainedModel, compute_dtype: torch.dtype) -> PolicyModel:
        """Looks the parts up and probes what the model can do; train mode stays as it was."""
        was_training = network.training
        network.eval()
        has_plain_head = probe_plain_head(transformer)
        if has_plain_head:
            forward = CausalForward(transformer.get_decoder(), "last_hidden_state")
        else:
            forward = CausalForward(transformer, "logits")
        device = transformer.device
        with autocast(device, compute_dtype):
            can_pad = probe_sharing(forward, transformer.config, device, compute_dtype)
        network.train(was_training)
        return cls(
            network=network,
            transformer=transformer,
            head=transformer.get_output_embeddings(),  # pyright: ignore[reportArgumentType]
            forward=forward,
            compute_dtype=compute_dtype,
            device=device,
            has_plain_head=has_plain_head,
            can_pad=can_pad,
        )

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model has positions for; nothing = no limit stated."""
        return max_positions(self.transformer.config)

    def autocast(self) -> AbstractContextManager[Any]:
        """Computes in `compute_dtype`."""
        return autocast(self.device, self.compute_dtype)

    def response_outputs(self, batch: ModelBatch, selected: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Hidden states [N, H] (plain head) or logits [N, V] that predict the selected response tokens."""
        can_share = self.can_pad and can_cache(self.network)
        with self.autocast():
            return response_outputs(self.forward, self.transformer.config, batch, selected, can_share=can_share)

    def logits(self, outputs_NX: torch.Tensor) -> torch.Tensor:
        """Float32 logits [N, V] of what `forward` gave.

        The head runs in float32 even under autocast: log-probs are differences of large numbers.
        """
        if not self.has_plain_head:
            return outputs_NX.float()
        with torch.autocast(self.device.type, enabled=False):
            return self.head(outputs_NX.float())


def max_positions(config: PreTrainedConfig) -> int | None:
    """Longest sequence that a configuration has positions for; nothing = no limit stated."""
    # Not every architecture has such a limit, so the attribute may be missing.
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Autocast to `dtype`, or nothing for float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


def can_cache(network: nn.Module) -> bool:
    """Whether the network keeps a key-value cache now: transformers drops it when it recomputes activations."""
    return not (network.training and any(getattr(m, "gradient_checkpointing", False) for m in network.modules()))


@torch.no_grad()
def probe_plain_head(transformer: PreTrainedModel) -> bool:
    """Whether the model's logits are its linear head on its decoder's output, and nothing more.

    The decoder's output is replaced by large random states during one small forward pass, for soft-capping does
    not show on the small logits of an ordinary input.
    """
    head = transformer.get_output_embeddings()
    # Exactly nn.Linear: an adapter on the head is a subclass or wrapper with terms of its own.
    if type(head) is not nn.Linear:
        return False
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, _PROBE_TOKENS, head.in_features, generator=generator).to(head.weight)
    states *= _PROBE_LOGIT_SCALE / head(states).std().clamp(min=1e-6)

    def replace_output(module: nn.Module, inputs: Any, output: Any) -> Any:
        output.last_hidden_state = states
        return output

    handle = transformer.get_decoder().register_forward_hook(replace_output)
    try:
        ids = torch.arange(_PROBE_TOKENS, device=transformer.device)[None]
        own = transformer(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    finally:
        handle.remove()
    plain = head(states)
    return own.shape == plain.shape and bool((own - plain).abs().max() <= _PROBE_TOLERANCE * plain.abs().max())
