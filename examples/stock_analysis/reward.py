"""The reward of the stock questions: 1 for the exact answer, a little for an answer of the right form."""

from __future__ import annotations

import re
from typing import Any

FORMAT_SHARE = 0.05
"""What an answer of the right form gets when it is wrong."""
FORMS = {
    "stock/highest": re.compile(r"[A-D]"),
    "stock/lookup": re.compile(r"\d{2}"),
    "stock/trend": re.compile(r"rise|fall"),
}


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]
) -> dict[str, float]:
    """Scores an answer.

        >>> compute_score("stock/highest", "B", "C", {})
        {'score': 0.05, 'exact': 0.0, 'format': 1.0}

    Args:
        data_source: Which form the answer must have; a key of `FORMS`.
        solution_str: The response; white space around it does not matter.
        ground_truth: The right answer.
        extra_info: Not used.

    Returns:
        `score` (0 to 1) and its parts: `exact` and `format`, each 0 or 1.

    Raises:
        ValueError: The data source is not one of this example.
    """
    if data_source not in FORMS:
        raise ValueError(f"unknown data source {data_source!r}; this reward knows {', '.join(FORMS)}")
    answer = solution_str.strip()
    exact = float(answer == ground_truth)
    well_formed = float(FORMS[data_source].fullmatch(answer) is not None)
    score = (1 - FORMAT_SHARE) * exact + FORMAT_SHARE * well_formed
    return {"score": score, "exact": exact, "format": well_formed}
