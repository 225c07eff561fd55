"""Scores of a reward model: a sequence-classification model with one label, given as a loaded object."""

from __future__ import annotations

from typing import Any

import jinja2
import torch

from verl.errors import ModelError, RewardError
from verl.rewards.inputs import ScoredText


class RewardModelScorer:
    """Scores conversations with a reward model.

    The text is rendered with the reward model's own chat template; without one, the contents of the
    messages are joined by blank lines. Longer texts lose their left side (a leading BOS or CLS token
    stays). Batches are padded on the right and masked, so a score depends on its own text only
    (up to the rounding of batched arithmetic).

    Args:
        model: Model whose output has `logits` of shape (batch, 1); it is put into eval mode. If its
            configuration has no padding token, it gets the tokenizer's: pooling needs it.
        tokenizer: The reward model's own transformers tokenizer.
        micro_batch_size: Texts per forward pass; changes memory and speed only.
        max_length: Longest text in tokens; the model's own limit is kept to as well.
        device: Where the model is.

    Raises:
        ModelError: The model has not exactly one label.
    """

    def __init__(
        self, model: Any, tokenizer: Any, micro_batch_size: int, max_length: int, device: torch.device | str
    ) -> None:
        if model.config.num_labels != 1:
            raise ModelError(
                f"The reward model has {model.config.num_labels} labels; it must have one (num_labels=1), "
                "whose logit is the score."
            )
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.device = torch.device(device)
        self.max_length = _usable_length(model, tokenizer, max_length)
        self.pad_id = _pad_id(model, tokenizer)
        # Without any padding token, causal models pool the last position: right for single texts only.
        self.micro_batch_size = 1 if self.pad_id is None else micro_batch_size

    def score(self, texts: list[ScoredText]) -> list[float]:
        """Scores the conversations, in their order.

        Raises:
            RewardError: The chat template refuses a conversation, a text gives no tokens, or the
                tokenizer does not belong to the model.
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
        input_ids_BT = torch.full((len(ids), longest), self.pad_id or 0, dtype=torch.long)
        mask_BT = torch.zeros_like(input_ids_BT)
        for row, row_ids in enumerate(ids):
            input_ids_BT[row, : len(row_ids)] = torch.tensor(row_ids)
            mask_BT[row, : len(row_ids)] = 1
        output = self.model(input_ids=input_ids_BT.to(self.device), attention_mask=mask_BT.to(self.device))
        logits_B1 = output.logits
        if logits_B1.shape != (len(ids), 1):
            raise RewardError(
                f"The reward model gave logits of shape {tuple(logits_B1.shape)} for {len(ids)} texts; "
                f"it must give ({len(ids)}, 1)."
            )
        return logits_B1[:, 0].float().tolist()

    def _encode(self, texts: list[ScoredText]) -> list[list[int]]:
        if not texts:
            return []
        has_template = bool(self.tokenizer.chat_template)
        rendered = [self._template(text) if has_template else _plain(text) for text in texts]
        batch = self.tokenizer(
            rendered, add_special_tokens=not has_template, return_attention_mask=False, verbose=False
        )
        vocabulary_size = self.model.get_input_embeddings().num_embeddings
        for text, row_ids in zip(rendered, batch["input_ids"], strict=True):
            if not row_ids:
                raise RewardError(f"The text {text[:80]!r} gives no tokens with the reward model's tokenizer.")
            if max(row_ids) >= vocabulary_size:
                raise RewardError(
                    f"The reward model's tokenizer gives token {max(row_ids)}, but the model has only "
                    f"{vocabulary_size}: tokenizer and model do not belong together."
                )
        return [self._cut(row_ids) for row_ids in batch["input_ids"]]

    def _template(self, text: ScoredText) -> str:
        try:
            return self.tokenizer.apply_chat_template(text.messages, tokenize=False)
        except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
            roles = ", ".join(message["role"] for message in text.messages)
            raise RewardError(
                f"The chat template of the reward model refuses a conversation with the roles {roles}: {error}\n"
                "Give the prompts without those roles, or use a reward model whose template knows them."
            ) from error

    def _cut(self, ids: list[int]) -> list[int]:
        if len(ids) <= self.max_length:
            return ids
        if ids[0] in (self.tokenizer.bos_token_id, self.tokenizer.cls_token_id) and self.max_length > 1:
            return [ids[0], *ids[-(self.max_length - 1) :]]
        return ids[-self.max_length :]


def _plain(text: ScoredText) -> str:
    return "\n\n".join(message.get("content") or "" for message in text.messages)


def _usable_length(model: Any, tokenizer: Any, max_length: int) -> int:
    # Not every model has a limit on positions, so the attribute may be missing.
    positions = getattr(model.config, "max_position_embeddings", None)
    return min(limit for limit in (max_length, tokenizer.model_max_length, positions) if limit)


def _pad_id(model: Any, tokenizer: Any) -> int | None:
    """Gives the token that the model's pooling takes as padding."""
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    return config.pad_token_id
