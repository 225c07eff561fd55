"""Scores from a sequence classifier with one label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from verl.errors import ModelError


@dataclass(frozen=True, slots=True, eq=False)
class RewardModel:
    """A frozen reward model with its tokenizer.

    Attributes:
        network: Sequence classifier with one label, in eval mode.
        tokenizer: Its own tokenizer.
        max_length: Longest input in tokens; the left side is cut.
        micro_batch_size: Texts scored at once; changes memory and speed, not scores.
    """

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    micro_batch_size: int

    def score_conversations(self, conversations: Sequence[Sequence[dict[str, Any]]]) -> list[float]:
        """Scores conversations (lists of chat messages, the answer last) in the model's own chat template.

        Raises:
            ModelError: The tokenizer has no chat template.
        """
        if self.tokenizer.chat_template is None:
            raise ModelError("the reward model's tokenizer has no chat template; score plain texts instead")
        return self._score_ids(
            [self.tokenizer.apply_chat_template(list(messages), return_dict=False) for messages in conversations]  # type: ignore[misc]
        )

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        """Scores plain texts (prompt and response in one)."""
        return self._score_ids([self.tokenizer(text)["input_ids"] for text in texts])  # type: ignore[misc]

    @torch.inference_mode()
    def _score_ids(self, rows: Sequence[list[int]]) -> list[float]:
        cut = [row[-self.max_length :] for row in rows]
        # Equal lengths together: less padding.
        order = sorted(range(len(cut)), key=lambda index: len(cut[index]))
        scores = [0.0] * len(cut)
        for start in range(0, len(order), self.micro_batch_size):
            chosen = order[start : start + self.micro_batch_size]
            width = max(len(cut[index]) for index in chosen)
            pad = self.tokenizer.pad_token_id
            ids = torch.tensor([cut[index] + [pad] * (width - len(cut[index])) for index in chosen])
            lengths = torch.tensor([len(cut[index]) for index in chosen])
            mask = (torch.arange(width) < lengths[:, None]).long()
            device = self.network.device
            logits = self.network(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
            for index, score in zip(chosen, logits[:, 0].float().tolist(), strict=True):
                scores[index] = score
        return scores
