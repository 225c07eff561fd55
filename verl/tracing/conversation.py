"""A conversation as the one text that a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jinja2

_SEPARATOR = "\n\n"


class ChatTokenizer(Protocol):
    """What rendering uses of a transformers tokenizer."""

    chat_template: Any

    def apply_chat_template(self, conversation: Any, /, **kwargs: Any) -> Any: ...


class RefusedConversationError(ValueError):
    """A chat template refuses a conversation; the text says which roles it has and why."""


def render_conversation(
    messages: Sequence[dict[str, Any]], tokenizer: ChatTokenizer, *, add_generation_prompt: bool
) -> str:
    """Renders messages with the tokenizer's chat template; without one, joins their contents by blank lines.

    A template writes special tokens of its own: its text is to be tokenized with `add_special_tokens=False`.

    Args:
        add_generation_prompt: Whether the template opens the assistant's turn at the end.

    Raises:
        RefusedConversationError: The template refuses the messages.
    """
    if not tokenizer.chat_template:
        return _SEPARATOR.join(message.get("content") or "" for message in messages)
    try:
        return tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=add_generation_prompt, tokenize=False
        )
    except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
        # What a template raises depends on the template: an own message, or a missing key.
        roles = ", ".join(message["role"] for message in messages)
        raise RefusedConversationError(
            f"the tokenizer's chat template refuses the messages (roles: {roles}): {error}"
        ) from error
