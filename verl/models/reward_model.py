"""A reward model: a sequence classifier with one label, whose logit is the score of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from verl.errors import RewardError
from verl.models.policy import max_positions
from verl.tracing.conversation import RefusedConversationError, render_conversation


class Conversation(Protocol):
    """What is scored: its messages; the response is the last (role assistant)."""

    @property
    def messages(self) -> list[dict[str, Any]]: ...


class RewardModel:
    """Scores conversations.

    The text is rendered with the reward model's own chat template; without one, the contents of the
    messages are joined by blank lines. Longer texts lose their left side (a leading BOS or CLS token
    stays). Batches are padded on the right and masked, so a score depends on its own text only
    (up to the rounding of batched arithmetic).

    Args:
        network: Model whose output has `logits` of shape (batch, 1), frozen, in eval mode, as `load_reward_model`
            prepares it: its configuration names the token that its pooling takes as padding.
        tokenizer: Its own tokenizer.
        micro_batch_size: Texts per forward pass; changes memory and speed only.
        max_length: Longest text in tokens; the limits of model and tokenizer are kept to as well.
    """

    def __init__(
        self, network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, micro_batch_size: int, max_length: int
    ) -> None:
        self.network = network
        # Any: transformers declares the special tokens of its tokenizers at run time only.
        self.tokenizer: Any = tokenizer
        self.micro_batch_size = micro_batch_size
        limits = (max_length, tokenizer.model_max_length, max_positions(network.config))
        self.max_length = min(limit for limit in limits if limit)

    def score(self, texts: Sequence[Conversation]) -> list[float]:
        """Scores the conversations, in their order.

        Raises:
            RewardError: The chat template refuses a conversation, a text gives no tokens, or the
                model gives more than one number per text.
        """
        ids = self._encode(texts)
        scores = [0.0] * len(texts)
        by_length = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        for begin in range(0, len(by_length), self.micro_batch_size):
            chosen = by_length[begin : begin + self.micro_batch_size]
            for position, value in zip(chosen, self._forward([ids[i] for i in chosen]), strict=True):
                scores[position] = value
        return scores

    @torch.inference_mode()
    def _forward(self, ids: list[list[int]]) -> list[float]:
        longest = max(len(row) for row in ids)
        pad_id = self.network.config.get_text_config().pad_token_id
        input_ids_BT = torch.full((len(ids), longest), pad_id, dtype=torch.long)
        mask_BT = torch.zeros_like(input_ids_BT)
        for row, row_ids in enumerate(ids):
            input_ids_BT[row, : len(row_ids)] = torch.tensor(row_ids)
            mask_BT[row, : len(row_ids)] = 1
        device = self.network.device
        logits_B1 = self.network(input_ids=input_ids_BT.to(device), attention_mask=mask_BT.to(device)).logits
        if logits_B1.shape != (len(ids), 1):
            raise RewardError(
                f"The reward model gave logits of shape {tuple(logits_B1.shape)} for {len(ids)} texts; "
                f"it must give ({len(ids)}, 1)."
            )
        return logits_B1[:, 0].float().tolist()

    def _encode(self, texts: Sequence[Conversation]) -> list[list[int]]:
        if not texts:
            return []
        rendered = [self._render(text) for text in texts]
        batch = self.tokenizer(
            rendered,
            add_special_tokens=not self.tokenizer.chat_template,
            return_attention_mask=False,
            verbose=False,
        )
        for text, row_ids in zip(rendered, batch["input_ids"], strict=True):
            if not row_ids:
                raise RewardError(f"The text {text[:80]!r} gives no tokens with the reward model's tokenizer.")
        return [self._cut(row_ids) for row_ids in batch["input_ids"]]

    def _render(self, text: Conversation) -> str:
        try:
            return render_conversation(text.messages, self.tokenizer, add_generation_prompt=False)
        except RefusedConversationError as error:
            raise RewardError(
                f"The reward model cannot score a conversation: {error}\n"
                "Give the prompts without those roles, or use a reward model whose template knows them."
            ) from error

    def _cut(self, ids: list[int]) -> list[int]:
        if len(ids) <= self.max_length:
            return ids
        if ids[0] in (self.tokenizer.bos_token_id, self.tokenizer.cls_token_id) and self.max_length > 1:
            return [ids[0], *ids[-(self.max_length - 1) :]]
        return ids[-self.max_length :]
