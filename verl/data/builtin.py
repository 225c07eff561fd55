"""The built-in prompts: short instructions with a rule that a program can check.

They exist so that a first run needs no data: any causal model can read them, and the scores are
graded (see `verl.rewards.builtin:builtin_rule`), so even an untrained model has something to learn.
"""

from __future__ import annotations

from typing import Any

from verl.data.prompts import Row

TRAIN_SUBJECTS = (
    "rain", "a river", "the moon", "bread", "a garden", "winter", "a train", "the sea", "a library", "music",
    "a bicycle", "coffee", "a mountain", "the desert", "a market", "birds", "a bridge", "chess", "a lighthouse",
    "clouds", "a bakery", "the forest", "a clock", "paper", "a harbour", "honey", "a teacher", "snow", "a violin",
    "the night sky", "a ship", "soup", "a farm", "the wind", "a painter", "apples", "a museum", "glass", "a castle",
    "trees",
)  # fmt: skip
HELDOUT_SUBJECTS = ("a volcano", "tea", "a kite", "the autumn", "an island", "a doctor", "maps", "a candle")

_OPENINGS = ("Write a sentence about {subject}", "Tell me something about {subject}")


def train_rows() -> list[Row]:
    """Makes the training rows, the same at every call."""
    return _rows(TRAIN_SUBJECTS, "built-in set")


def heldout_rows() -> list[Row]:
    """Makes the validation rows; their subjects do not occur in training."""
    return _rows(HELDOUT_SUBJECTS, "built-in held-out set")


def _rules(subject: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Pairs the ending of the instruction with the rule that checks it."""
    word = subject.split()[-1]
    return (
        ("in at most 8 words.", {"rule": "max_words", "limit": 8}),
        ("in lower-case letters only.", {"rule": "lower_case"}),
        (f"and use the word {word}.", {"rule": "contains", "word": word}),
        ("and end with a full stop.", {"rule": "ends_with", "text": "."}),
    )


def _rows(subjects: tuple[str, ...], name: str) -> list[Row]:
    rows: list[Row] = []
    for subject in subjects:
        for opening in _OPENINGS:
            for ending, rule in _rules(subject):
                content = f"{opening.format(subject=subject)} {ending}"
                rows.append(
                    Row(
                        file=name,
                        place=f"row {len(rows)} (counted from 0)",
                        messages=[{"role": "user", "content": content}],
                        data_source=f"builtin_{rule['rule']}",
                        ground_truth=rule,
                        extra_info={},
                    )
                )
    return rows
