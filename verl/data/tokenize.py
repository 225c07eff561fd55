"""From messages to token ids: chat template or plain text, and prompts that are too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import jinja2
import numpy as np

from verl.data.prompts import Row
from verl.data.rows import BadRowError
from verl.errors import DataError, ModelError
from verl.tracing.conversation import ChatTokenizer, RefusedConversationError, render_conversation

_CHUNK_ROWS = 1024


class Tokenizer(ChatTokenizer, Protocol):
    """What is used of a transformers tokenizer."""

    eos_token_id: Any

    def __call__(self, text: list[str], /, **kwargs: Any) -> Any: ...
    def decode(self, token_ids: Any, /, **kwargs: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """A rendered prompt; `error` is set (and `ids` empty) if the row cannot be used.

    Attributes:
        ids: Token ids, int32, shape (length,): a list would take nine times the memory.
    """

    row: Row
    text: str
    ids: np.ndarray
    error: BadRowError | None = None


def encode_rows(rows: Sequence[Row], tokenizer: Tokenizer) -> Iterator[Encoded]:
    """Renders and tokenizes rows in their order.

    With a chat template: the template with the opening of the assistant's turn. Without one: the
    contents joined by blank lines, with the special tokens that the tokenizer puts in front.

    Raises:
        ModelError: The chat template itself is wrong, which no row can help.
    """
    has_template = bool(tokenizer.chat_template)
    for begin in range(0, len(rows), _CHUNK_ROWS):
        chunk = rows[begin : begin + _CHUNK_ROWS]
        rendered = [_render(row, tokenizer) for row in chunk]
        texts = [text for text in rendered if isinstance(text, str)]
        encoded = iter(_encode(texts, tokenizer, add_special_tokens=not has_template))
        for row, text in zip(chunk, rendered, strict=True):
            if isinstance(text, BadRowError):
                yield Encoded(row, "", _as_ids([]), text)
                continue
            ids = _as_ids(next(encoded))
            error = None if len(ids) else BadRowError(f"the prompt {text[:60]!r} gives no tokens with this tokenizer")
            yield Encoded(row, text, ids, error)


def _as_ids(ids: list[int]) -> np.ndarray:
    return np.asarray(ids, dtype=np.int32)


def _render(row: Row, tokenizer: Tokenizer) -> str | BadRowError:
    try:
        return render_conversation(row.messages, tokenizer, add_generation_prompt=True)
    except RefusedConversationError as error:
        if isinstance(error.__cause__, jinja2.TemplateSyntaxError):
            raise _wrong_template(error.__cause__) from error
        return BadRowError(str(error))


def _wrong_template(error: jinja2.TemplateSyntaxError) -> ModelError:
    return ModelError(
        f"the tokenizer's chat template is not valid, line {error.lineno}: {error.message}.\n"
        "Correct it in the model's folder (chat_template.jinja, or `chat_template` in tokenizer_config.json)."
    )


def _encode(texts: list[str], tokenizer: Tokenizer, add_special_tokens: bool) -> list[list[int]]:
    if not texts:
        return []
    batch = tokenizer(texts, add_special_tokens=add_special_tokens, return_attention_mask=False, verbose=False)
    ids: list[list[int]] = batch["input_ids"]
    if not add_special_tokens:
        return ids
    # A prompt must stay open: some tokenizers close every text with the end token.
    end = tokenizer.eos_token_id
    return [i[:-1] if len(i) > 1 and i[-1] == end else i for i in ids]


@dataclass(slots=True)
class LengthRule:
    """Applies `data.overlong_prompts` and counts what it did.

    Attributes:
        limit: `data.max_prompt_length`, in tokens.
        policy: `error`, `drop`, `truncate_left` (the end is kept) or `truncate_right` (the begin is kept).
    """

    limit: int
    policy: Literal["error", "drop", "truncate_left", "truncate_right"]
    _lengths: list[int] = field(default_factory=list)

    def apply(self, encoded: Encoded, tokenizer: Tokenizer) -> Encoded | None:
        """Gives the prompt within the limit, or None if it is dropped.

        Raises:
            DataError: It is too long and the policy is `error`.
        """
        length = len(encoded.ids)
        if length <= self.limit:
            return encoded
        if self.policy == "error":
            raise DataError(
                f"{encoded.row.file}, {encoded.row.place}: the prompt has {length} tokens, "
                f"more than data.max_prompt_length={self.limit}.\n"
                "Raise data.max_prompt_length, or set data.overlong_prompts to drop, truncate_left or truncate_right."
            )
        self._lengths.append(length)
        if self.policy == "drop":
            return None
        ids = encoded.ids[-self.limit :] if self.policy == "truncate_left" else encoded.ids[: self.limit]
        return Encoded(encoded.row, tokenizer.decode(ids.tolist()), ids)

    def notice(self, num_prompts: int) -> str | None:
        """Says how many prompts were dropped or cut, or None."""
        if not self._lengths:
            return None
        verb = "Dropped" if self.policy == "drop" else "Cut"
        return (
            f"{verb} {len(self._lengths)} of {num_prompts} prompts that are longer than "
            f"data.max_prompt_length={self.limit} (the longest has {max(self._lengths)} tokens)."
        )
