"""Reward functions that come with the package; use them as `verl.rewards.builtin:exact_match`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_THINK_ANSWER = r"\s*<think>.*</think>\s*<answer>.*</answer>\s*"


def exact_match(solution_str: str, ground_truth: Any) -> float:
    """Gives 1.0 if the response equals the ground truth, else 0.0.

    Case, white space at the ends or repeated, and a full stop at the end do not count. A ground
    truth may be a text, a number, or a list of them of which one must match.
    """
    answer = _normalise(solution_str)
    return float(any(answer == _normalise(text) for text in _texts(ground_truth)))


def contains_answer(solution_str: str, ground_truth: Any) -> float:
    """Gives 1.0 if the ground truth stands in the response as whole words or a whole number, else 0.0.

    Case and repeated white space do not count; "4" is not found in "14", "4.5" or "4,000".
    """
    answer = _normalise(solution_str)
    return float(any(_stands_in(_normalise(text), answer) for text in _texts(ground_truth)))


def format(solution_str: str, pattern: str = _THINK_ANSWER) -> float:
    """Gives 1.0 if the whole response matches a regular expression (dot matches line breaks), else 0.0."""
    return float(re.fullmatch(pattern, solution_str, flags=re.DOTALL) is not None)


def default_score(solution_str: str, ground_truth: Any) -> float:
    """Is used when no reward is configured: the rule of a built-in prompt, else `contains_answer`."""
    if isinstance(ground_truth, Mapping) and "rule" in ground_truth:
        return builtin_rule(solution_str, ground_truth)
    return contains_answer(solution_str, ground_truth)


def builtin_rule(solution_str: str, ground_truth: Mapping[str, Any]) -> float:
    """Scores a response to a built-in prompt, in [0, 1]; a response without a letter scores 0.

    Args:
        ground_truth: `{"rule": "max_words", "limit": 8}`, `{"rule": "lower_case"}`,
            `{"rule": "contains", "word": "rain"}` or `{"rule": "ends_with", "text": "."}`.

    Raises:
        ValueError: The rule is unknown.
    """
    rule = ground_truth["rule"]
    if rule not in _RULES:
        raise ValueError(f"unknown rule {rule!r}; there are {', '.join(_RULES)}")
    if not any(character.isalpha() for character in solution_str):
        return 0.0
    return _RULES[rule](solution_str, ground_truth)


def _max_words(response: str, rule: Mapping[str, Any]) -> float:
    """Full score up to the limit, then limit / words."""
    return min(1.0, rule["limit"] / max(len(response.split()), 1))


def _lower_case(response: str, rule: Mapping[str, Any]) -> float:
    """Share of lower-case letters among the letters that have a case."""
    cased = [character for character in response if character.islower() or character.isupper()]
    return sum(character.islower() for character in cased) / len(cased) if cased else 1.0


def _contains(response: str, rule: Mapping[str, Any]) -> float:
    """Full score for the word, otherwise half the share of its letters that occur."""
    word, text = rule["word"].casefold(), response.casefold()
    if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text):
        return 1.0
    return 0.5 * sum(letter in text for letter in set(word)) / len(set(word))


def _ends_with(response: str, rule: Mapping[str, Any]) -> float:
    """Full score at the end; elsewhere half of how far towards the end it stands."""
    text = response.rstrip()
    if text.endswith(rule["text"]):
        return 1.0
    return 0.5 * (text.rfind(rule["text"]) + 1) / len(text)


_RULES: dict[str, Callable[[str, Mapping[str, Any]], float]] = {
    "max_words": _max_words,
    "lower_case": _lower_case,
    "contains": _contains,
    "ends_with": _ends_with,
}


def _texts(ground_truth: Any) -> list[str]:
    if isinstance(ground_truth, str):
        return [ground_truth]
    if isinstance(ground_truth, bool):
        return [str(ground_truth)]
    if isinstance(ground_truth, int | float):
        whole = isinstance(ground_truth, float) and ground_truth.is_integer()
        return [str(ground_truth), str(int(ground_truth))] if whole else [str(ground_truth)]
    if isinstance(ground_truth, list | tuple) and ground_truth:
        return [text for item in ground_truth for text in _texts(item)]
    raise TypeError(
        f"the ground truth is {ground_truth!r}; this reward needs a text, a number, or a list of them that is not empty"
    )


def _normalise(text: str) -> str:
    return " ".join(text.casefold().split()).removesuffix(".").rstrip()


def _stands_in(answer: str, text: str) -> bool:
    if not answer:
        return False
    before = r"(?<![\w.-])(?<!\d,)" if answer[0].isdigit() else r"(?<!\w)"
    after = r"(?!\w|[.,]\d)" if answer[-1].isdigit() else r"(?!\w)"
    return re.search(before + re.escape(answer) + after, text) is not None
