"""Which known name somebody probably meant."""

from __future__ import annotations

import os.path
from collections.abc import Iterable


def edit_distance(left: str, right: str) -> int:
    """Fewest insertions, deletions, replacements and swaps of neighbours that turn `left` into `right`.

    Optimal string alignment distance (Damerau 1964): `edit_distance("dri", "dir") == 1`.
    """
    before_last: list[int] = []
    last = list(range(len(right) + 1))
    for row, left_char in enumerate(left, start=1):
        current = [row]
        for column, right_char in enumerate(right, start=1):
            cost = min(last[column] + 1, current[-1] + 1, last[column - 1] + (left_char != right_char))
            swapped = row > 1 and column > 1 and left_char == right[column - 2] and left[row - 2] == right_char
            current.append(min(cost, before_last[column - 2] + 1) if swapped else cost)
        before_last, last = last, current
    return last[-1]


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name nearest to `name`, or nothing if even that one needs too many edits.

    Dotted groups that both begin with do not make names more alike.
    """
    candidates = sorted((edit_distance(name.lower(), candidate.lower()), candidate) for candidate in known)
    if not candidates:
        return None
    distance, nearest = candidates[0]
    # Character by character is what is wanted here: these are names, not paths.
    shared = os.path.commonprefix([name, nearest]).rpartition(".")[0]  # noqa: RUF071
    return nearest if distance <= max(2, (len(name) - len(shared)) // 3) else None


def nearest_keys(key: str, known: Iterable[str]) -> list[str]:
    """Up to three known dotted keys that `key` probably stands for, the likeliest first.

    A key in the wrong group (`data.seed` for `trainer.seed`) counts as near, however long its group is.
    """
    known = list(known)
    last_part = key.rpartition(".")[2]
    same_ending = [candidate for candidate in known if candidate.rpartition(".")[2] == last_part]
    if not same_ending:
        nearest = nearest_name(key, known)
        return [] if nearest is None else [nearest]
    distances = {candidate: edit_distance(key, candidate) for candidate in same_ending}
    same_ending.sort(key=lambda candidate: (not candidate.endswith(f".{key}"), distances[candidate]))
    return same_ending[: 1 if distances[same_ending[0]] <= 2 else 3]
