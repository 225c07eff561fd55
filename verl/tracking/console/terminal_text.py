"""Short, safe text for a terminal: numbers, durations, sparklines, and other people's text."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"
_LONGEST_SCANNED = 20_000
_SPACE = re.compile(r"\s+")


def one_line(text: str, longest: int = 500) -> str:
    """Make any text harmless: one line, no control, escape or direction characters, at most so long.

    Args:
        text: Text from anywhere.
        longest: Most characters kept; what is cut is shown as "…".
    """
    head = _SPACE.sub(" ", text[:_LONGEST_SCANNED]).strip()
    # Categories C*: control, format (direction overrides, zero width), surrogate, private, unassigned.
    safe = "".join(char if unicodedata.category(char)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for char in head)
    return safe if len(safe) <= longest and len(text) <= _LONGEST_SCANNED else f"{safe[: longest - 1]}…"


def number(value: float) -> str:
    """Four significant digits, at most eight characters: 0.5312, 12.3k, 1.2e-05, NaN, inf."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    size = abs(value)
    if size >= 9_999.5:
        for limit, divisor, suffix in ((999_950, 1e3, "k"), (999.95e6, 1e6, "M"), (999.95e9, 1e9, "G")):
            if size < limit:
                return f"{value / divisor:.1f}{suffix}"
        return f"{value:.1e}"
    if size == 0:
        return "0"
    if size < 1e-3:
        return f"{value:.1e}"
    decimals = 4 if size < 1 else 3 - math.floor(math.log10(size))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def duration(seconds: float) -> str:
    """Two units at most: 12s, 3m 24s, 2h 05m, 4d 03h."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def pace(seconds_per_step: float) -> str:
    """How fast steps go: 2.1 s/step, or 14 steps/s where they are quick."""
    if seconds_per_step <= 0:
        return ""
    if seconds_per_step < 0.5:
        return f"{number(round(1 / seconds_per_step, 1))} steps/s"
    return f"{seconds_per_step:.1f} s/step"


def sparkline(values: Sequence[float], width: int) -> str:
    """A curve of one character per value or per mean of neighbours; "×" for a value that is not finite."""
    if not values or width < 1:
        return ""
    points = list(values) if len(values) <= width else _shortened(values, width)
    finite = [point for point in points if math.isfinite(point)]
    low, span = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)
    return "".join(_bar(point, low, span) for point in points)


def _bar(point: float, low: float, span: float) -> str:
    if not math.isfinite(point):
        return "×"
    if span <= 0 or not math.isfinite(span):
        return _BARS[3]
    return _BARS[min(len(_BARS) - 1, int((point - low) / span * len(_BARS)))]


def _shortened(values: Sequence[float], width: int) -> list[float]:
    edges = [index * len(values) // width for index in range(width + 1)]
    return [math.fsum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
