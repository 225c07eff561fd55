"""A causal language model and what was found out about it at load.

Shapes: B rows, L tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

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
        decoder: The transformers model without its head.
        head: Its LM head; a plain linear layer if `has_plain_head`.
        compute_dtype: float32, or bfloat16 (autocast over float32 weights).
        device: Where the weights are.
        has_plain_head: Whether logits are `head(decoder output)` and nothing else, so that the head may be
            applied to chosen positions only. False with soft-capping, logit scales and the like.
    """

    network: nn.Module
    transformer: PreTrainedModel
    decoder: nn.Module
    head: nn.Linear
    compute_dtype: torch.dtype
    device: torch.device
    has_plain_head: bool

    @classmethod
    def build(cls, network: nn.Module, transformer: PreTrainedModel, compute_dtype: torch.dtype) -> PolicyModel:
        """Looks the parts up and probes the head."""
        return cls(
            network=network,
            transformer=transformer,
            decoder=transformer.get_decoder(),
            head=transformer.get_output_embeddings(),  # pyright: ignore[reportArgumentType]
            compute_dtype=compute_dtype,
            device=transformer.device,
            has_plain_head=probe_plain_head(transformer),
        )

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model has positions for; nothing = no limit stated."""
        return max_positions(self.transformer.config)

    def autocast(self) -> AbstractContextManager[Any]:
        """Computes in `compute_dtype`."""
        return autocast(self.device, self.compute_dtype)

    def hidden_states(self, input_ids_BL: torch.Tensor) -> torch.Tensor:
        """Decoder output [B, L, H] for right-padded rows.

        The mask is all ones on purpose: to the right of the last real token a causal model sees nothing of the
        padding, and without padding in the mask attention takes its quick causal path.
        """
        with self.autocast():
            mask_BL = torch.ones_like(input_ids_BL)
            return self.decoder(input_ids=input_ids_BL, attention_mask=mask_BL, use_cache=False).last_hidden_state

    def own_logits(self, input_ids_BL: torch.Tensor, last: int) -> torch.Tensor:
        """The model's own float32 logits [B, last, V] at the last `last` columns of right-padded rows."""
        keep = {"logits_to_keep": last} if "logits_to_keep" in forward_parameters(self.transformer) else {}
        with self.autocast():
            mask_BL = torch.ones_like(input_ids_BL)
            logits = self.transformer(input_ids=input_ids_BL, attention_mask=mask_BL, use_cache=False, **keep).logits
        return logits[:, -last:].float()

    def head_logits(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        """Head on chosen decoder outputs, always in float32: log-probs are differences of large numbers."""
        with torch.autocast(self.device.type, enabled=False):
            return self.head(hidden_NH.float())


def max_positions(config: PreTrainedConfig) -> int | None:
    """Longest sequence that a configuration has positions for; nothing = no limit stated."""
    # Not every architecture has such a limit, so the attribute may be missing.
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Autocast to `dtype`, or nothing for float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


def forward_parameters(module: nn.Module) -> frozenset[str]:
    """Names that `module.forward` takes."""
    return frozenset(inspect.signature(module.forward).parameters)


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
