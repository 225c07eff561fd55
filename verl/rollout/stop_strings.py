"""Finding stop strings in what is being sampled, across token boundaries and at little cost."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

# Tokens before the longest possible match that are decoded too, so that a character or a leading space split
# between tokens comes out as in the full text.
_CONTEXT_TOKENS = 4


class StopStringMatcher:
    """Says whether the text of sampled tokens contains a stop string.

    Text is decoded only when the newest token could complete a match: its own text holds the last character of a
    stop string, or is not whole (part of a character). Token texts are remembered, so that costs one look-up.

    Special tokens are part of the text here, so a stop string may name one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._token_texts: dict[int, str] = {}

    def could_complete(self, token_id: int, stop: Sequence[str]) -> bool:
        """Whether a match may end in this token (a cheap test with false alarms, never a miss)."""
        text = self._token_text(token_id)
        return not text or "\ufffd" in text or any(string[-1] in text for string in stop)

    def contains(self, token_ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Whether the text at the end of `token_ids` contains a stop string.

        Call it after each token: only the tail that can hold a match ending in the newest token is decoded. Every
        token adds at least one byte, save for empty ones, which are skipped.
        """
        wanted = max(len(string.encode()) for string in stop) + _CONTEXT_TOKENS
        start, kept = len(token_ids), 0
        while start > 0 and kept < wanted:
            start -= 1
            kept += bool(self._token_text(token_ids[start]))
        text = self._decode(token_ids[start:])
        return any(string in text for string in stop)

    def _token_text(self, token_id: int) -> str:
        if token_id not in self._token_texts:
            # After another token: alone, some tokenizers would strip a leading space.
            alone, pair = self._decode([token_id]), self._decode([token_id, token_id])
            self._token_texts[token_id] = pair[len(alone) :] if pair.startswith(alone) else pair
        return self._token_texts[token_id]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(  # type: ignore[return-value]
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
