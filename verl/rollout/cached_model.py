"""Next-token logits of a growing batch, over a key-value cache.

Shapes: P unique prompts, R rows (samples), K cached positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from verl.errors import ModelError
from verl.models.batching import pad_left
from verl.models.policy import PolicyModel
from verl.models.response_outputs import is_close, read_prompts
from verl.rollout.kv_cache import share_out


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

    Raises:
        ModelError: The model does not decode over a cache in the way of transformers.
    """

    def __init__(self, policy: PolicyModel) -> None:
        self._policy = policy
        self._adds_mask = policy.forward.takes_positions and _attends_to_all(policy)
        if not policy.can_pad and not self._can_decode():
            raise ModelError(
                f"{type(policy.transformer).__name__} cannot be sampled in this process: reading on from its cache "
                f"does not give what reading the whole text gives. Choose another model or another engine "
                f"(actor_rollout_ref.rollout.name)"
            )

    def prefill(
        self, prompts: Sequence[tuple[int, ...]], index_R: torch.Tensor, room: int
    ) -> tuple[torch.Tensor, DecodeState]:
        """Reads each prompt once and shares it out: row r continues prompt `index_R[r]`.

        Args:
            prompts: Unique prompts; of equal length if the policy cannot pad.
            index_R: Prompt of each row.
            room: Tokens to come.

        Returns:
            Float32 logits [R, V] of the next token, and the state to go on from.
        """
        ids_PK, mask_PK = (part.to(self._policy.device) for part in pad_left(prompts))
        cache = DynamicCache(config=self._policy.transformer.config)
        logits_PV = self._policy.logits(read_prompts(self._policy.forward, ids_PK, mask_PK, cache))
        share_out(cache, index_R, room)
        width = ids_PK.shape[1]
        if all(len(prompt) == width for prompt in prompts):
            return logits_PV[index_R], DecodeState(cache, None, None, width)
        mask = self._decode_mask(mask_PK[index_R], room)
        return logits_PV[index_R], DecodeState(cache, mask, mask_PK.sum(-1)[index_R], width)

    def step(self, state: DecodeState, token_R: torch.Tensor) -> torch.Tensor:
        """Reads one more token per row; float32 logits [R, V] of the next."""
        state.width += 1
        mask = None if state.mask is None else state.mask[..., : state.width]
        position_R1 = None
        if state.position_R is not None:
            position_R1 = state.position_R[:, None]
            state.position_R = state.position_R + 1
        outputs = self._policy.forward(token_R[:, None], mask, position_ids_BL=position_R1, cache=state.cache, last=1)
        return self._policy.logits(outputs[:, -1])

    def _can_decode(self) -> bool:
        policy, text = self._policy, (1, 2, 3, 4, 5, 6)
        rows_R = torch.zeros(2, dtype=torch.long, device=policy.device)
        try:
            logits_RV, state = self.prefill([text[:4]], rows_R, room=2)
            for token_id in text[4:]:
                logits_RV = self.step(state, torch.full_like(rows_R, token_id))
        # Whatever an architecture that keeps its state in another way may raise.
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError):
            return False
        ids_RK = torch.tensor([text, text], device=policy.device)
        whole_RV = policy.logits(policy.forward(ids_RK, torch.ones_like(ids_RK), last=1)[:, -1])
        return is_close(logits_RV, whole_RV, policy.compute_dtype)

    def _decode_mask(self, mask_RK: torch.Tensor, room: int) -> torch.Tensor:
        mask_RK = torch.nn.functional.pad(mask_RK, (0, room), value=1)
        if not self._adds_mask:
            return mask_RK
        # Made once and sliced at each step, where transformers would build it anew from the 0s and 1s.
        hidden = torch.finfo(torch.float32).min
        return torch.zeros(mask_RK.shape, device=mask_RK.device).masked_fill_(mask_RK == 0, hidden)[:, None, None, :]


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
