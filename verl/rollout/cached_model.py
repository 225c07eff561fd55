"""Next-token logits of a growing batch, over a key-value cache.

Shapes: P unique prompts, R rows (samples), K cached positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from verl.models.policy import PolicyModel, forward_parameters
from verl.rollout.kv_cache import share_out

_PROBE_PROMPT = (1, 2, 3, 4)
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-1}


@dataclass(slots=True)
class DecodeState:
    """What the model remembers of the rows.

    Attributes:
        cache: Keys and values.
        mask: Which cached positions each row sees, with room for those to come: [R, 1, 1, K] to be added to the
            scores, [R, K] of 0 and 1, or nothing if no row is padded.
        position_R: Position of the next token; nothing if no row is padded (the cache's length says it).
        width: Positions filled.
    """

    cache: DynamicCache
    mask: torch.Tensor | None
    position_R: torch.Tensor | None
    width: int

    def select(self, index_R: torch.Tensor) -> None:
        """Keeps the rows `index_R`."""
        self.cache.reorder_cache(index_R)  # type: ignore[arg-type]
        self.mask = None if self.mask is None else self.mask[index_R]
        self.position_R = None if self.position_R is None else self.position_R[index_R]


class CachedModel:
    """Reads prompts and then one token per row at a time. Call it in inference mode, eval mode and autocast.

    Prompts of unequal length are padded on the left, so that all rows write to the same column of the cache.

    Attributes:
        can_pad: Whether padding is exact for this model; if not, give prompts of equal length only.
    """

    def __init__(self, policy: PolicyModel) -> None:
        self._policy = policy
        parameters = forward_parameters(policy.decoder)
        # transformers renamed the argument in 5.x.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._takes_positions = "position_ids" in parameters
        self._adds_mask = self._takes_positions and _attends_to_all(policy)
        self.can_pad = self._probe_padding()

    def prefill(
        self, prompts: Sequence[tuple[int, ...]], index_R: torch.Tensor, room: int
    ) -> tuple[torch.Tensor, DecodeState]:
        """Reads each prompt once and shares it out: row r continues prompt `index_R[r]`.

        Args:
            prompts: Unique prompts.
            index_R: Prompt of each row.
            room: Tokens to come.

        Returns:
            Float32 logits [R, V] of the next token, and the state to go on from.
        """
        device = self._policy.device
        width = max(len(prompt) for prompt in prompts)
        ids_PK = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        length_P = torch.tensor([len(prompt) for prompt in prompts], device=device)
        mask_PK = (torch.arange(width, device=device) >= width - length_P[:, None]).long()
        is_padded = any(len(prompt) != width for prompt in prompts)
        position_PK = (mask_PK.cumsum(-1) - 1).clamp(min=0) if is_padded else None
        cache = DynamicCache(config=self._policy.transformer.config)
        logits_PV = self._forward(ids_PK, cache, mask_PK, position_PK)
        share_out(cache, index_R, room)
        mask = self._decode_mask(mask_PK[index_R], room) if is_padded else None
        position_R = length_P[index_R] if is_padded else None
        return logits_PV[index_R], DecodeState(cache, mask, position_R, width)

    def step(self, state: DecodeState, token_R: torch.Tensor) -> torch.Tensor:
        """Reads one more token per row; float32 logits [R, V] of the next."""
        state.width += 1
        mask = None if state.mask is None else state.mask[..., : state.width]
        position_R1 = None
        if state.position_R is not None:
            position_R1 = state.position_R[:, None]
            state.position_R = state.position_R + 1
        return self._forward(token_R[:, None], state.cache, mask, position_R1)

    def _decode_mask(self, mask_RK: torch.Tensor, room: int) -> torch.Tensor:
        mask_RK = torch.nn.functional.pad(mask_RK, (0, room), value=1)
        if not self._adds_mask:
            return mask_RK
        # Made once and sliced at each step, where transformers would build it anew from the 0s and 1s.
        hidden = torch.finfo(torch.float32).min
        return torch.zeros(mask_RK.shape, device=mask_RK.device).masked_fill_(mask_RK == 0, hidden)[:, None, None, :]

    def _forward(
        self, ids_RK: torch.Tensor, cache: DynamicCache, mask: torch.Tensor | None, position_RK: torch.Tensor | None
    ) -> torch.Tensor:
        inputs: dict[str, Any] = {
            "input_ids": ids_RK,
            "attention_mask": mask,
            "use_cache": True,
            self._cache_name: cache,
        }
        if position_RK is not None and self._takes_positions:
            inputs["position_ids"] = position_RK
        policy = self._policy
        if policy.has_plain_head:
            return policy.head_logits(policy.decoder(**inputs).last_hidden_state[:, -1])
        if "logits_to_keep" in forward_parameters(policy.transformer):
            inputs["logits_to_keep"] = 1
        return policy.transformer(**inputs).logits[:, -1].float()

    def _probe_padding(self) -> bool:
        """Whether a padded prompt, and the token after it, give what they give alone."""
        device = self._policy.device
        token_R = torch.tensor([5, 5], device=device)
        with torch.inference_mode(), self._policy.autocast():
            _, state = self.prefill([_PROBE_PROMPT], torch.tensor([0, 0], device=device), room=1)
            alone_V = self.step(state, token_R)[0]
            prompts = [_PROBE_PROMPT * 2, _PROBE_PROMPT]
            _, state = self.prefill(prompts, torch.tensor([0, 1], device=device), room=1)
            padded_V = self.step(state, token_R)[1]
        difference = (padded_V - alone_V).abs().max()
        return bool(difference <= _PROBE_TOLERANCE[self._policy.compute_dtype] * alone_V.std().clamp(min=1e-3))


def _attends_to_all(policy: PolicyModel) -> bool:
    """Whether each layer sees all earlier tokens by an additive mask alone: no window, no ALiBi, no other kernel."""
    config = policy.transformer.config.get_text_config()
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    has_window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return (
        config._attn_implementation in ("sdpa", "eager")
        and set(layer_types) == {"full_attention"}
        and not has_window
        and not getattr(config, "alibi", False)
    )
