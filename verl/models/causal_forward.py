"""One way to call any causal transformers module, whatever its arguments are called.

Shapes: B rows, L tokens, X outputs (hidden width, or vocabulary for logits).
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
from torch import nn
from transformers import DynamicCache


class CausalForward:
    """Calls a transformers module and returns one of its outputs.

    Args:
        module: A decoder, a backbone, or a whole causal LM.
        output: What to return: `last_hidden_state`, or `logits` of a causal LM.
    """

    def __init__(self, module: nn.Module, output: Literal["last_hidden_state", "logits"]) -> None:
        self.module = module
        self._output = output
        parameters = inspect.signature(module.forward).parameters
        # transformers renamed the argument in 5.x.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters
        self.takes_positions = "position_ids" in parameters

    def __call__(
        self,
        input_ids_BL: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        position_ids_BL: torch.Tensor | None = None,
        cache: DynamicCache | None = None,
        last: int | None = None,
    ) -> torch.Tensor:
        """Outputs [B, L, X], or [B, last, X] at the last `last` columns.

        Args:
            input_ids_BL: New tokens.
            attention_mask: 0 and 1 over cached and new tokens, or a mask to add to the scores.
            position_ids_BL: Positions; not needed without padding, left out for modules that take none.
            cache: What was read before; grows by L.
            last: Columns wanted; nothing = all.
        """
        inputs: dict[str, Any] = {"input_ids": input_ids_BL, "attention_mask": attention_mask}
        inputs["use_cache"] = cache is not None
        if cache is not None:
            inputs[self._cache_name] = cache
        if position_ids_BL is not None and self.takes_positions:
            inputs["position_ids"] = position_ids_BL
        if last is not None and self._keeps_logits:
            inputs["logits_to_keep"] = last
        outputs_BLX = getattr(self.module(**inputs), self._output)
        return outputs_BLX if last is None else outputs_BLX[:, -last:]
