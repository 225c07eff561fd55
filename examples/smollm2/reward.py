"""The reward of the reasoning-gym questions: the task's own score, and something on the way there.

A small instruct model answers in sentences, so an exact answer alone would be rewarded almost never and teach
nothing. Naming the right number gives a part, and so does a reply that is only a number.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import reasoning_gym

EXACT_SHARE, NAMED_SHARE, BARE_SHARE = 0.6, 0.25, 0.15

_NUMBER = re.compile(r"-?\d+")


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]
) -> dict[str, float]:
    """Scores a reply.

    Args:
        data_source: `reasoning_gym/<task>`.
        solution_str: The reply; white space and a full stop around it do not matter.
        ground_truth: The right number.
        extra_info: `question` and `metadata` (JSON) of the entry, for the task's own scorer.

    Returns:
        `score` from 0 to 1 and its parts: `exact` (reasoning-gym scores the reply 1), `named` (the right number is in
        it) and `bare` (it is only a number), each 0 or 1.
    """
    reply = solution_str.strip().rstrip(".")
    entry = {"question": extra_info["question"], "answer": ground_truth, "metadata": json.loads(extra_info["metadata"])}
    is_bare = _NUMBER.fullmatch(reply) is not None
    # The task also gives a part for "12" when "2" is right; that would teach to append digits.
    exact = float(is_bare and _task(data_source.partition("/")[2]).score_answer(reply, entry) == 1.0)
    named = float(ground_truth in _NUMBER.findall(reply))
    score = EXACT_SHARE * exact + NAMED_SHARE * named + BARE_SHARE * is_bare
    return {"score": score, "exact": exact, "named": named, "bare": float(is_bare)}


@cache
def _task(name: str) -> Any:
    return reasoning_gym.create_dataset(name, size=1, seed=0)
