"""Names within SwanLab's rules, and what SwanLab has no form for as a chart that its pages draw (ECharts).

The SDK takes anything that can `dump_options()`; the charts here are made directly, without pyecharts.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verl.tracking.logger import Histogram
from verl.tracking.spelling import Spelling

LONGEST_KEY = 512
LONGEST_PROJECT = 100
LONGEST_FILE_NAME = 150
KINDS_WITHOUT_STEPS = ("alerts", "notes")
KINDS = ("text", "histogram", "table", "image", *KINDS_WITHOUT_STEPS)
"""SwanLab has one space of names for all kinds; what is not a number has its kind in brackets behind its name."""

_FORBIDDEN_IN_KEYS = re.compile(
    r"[\x00-\x1f\x7f\ud800-\udfff]"  # not allowed, or not writable
    r"|^[ ./]+|[ ./]+$"  # stripped, by which two names could become one
    r"|^_(?=_swanlab__)"  # the SDK's own
    rf"|\((?=(?:{'|'.join(KINDS)})\)$)"  # this tracker's own
)
_FORBIDDEN_IN_FILES = re.compile(
    r"[\x00-\x1f\x7f\ud800-\udfff\\:]|^[ ./]+|[ ./]+$"
    r"|(?<=/)\.+(?=/)"  # leads out of the folder
)
_FORBIDDEN_IN_PROJECTS = re.compile(r"[^0-9A-Za-z_\-+.]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def key_spelling() -> Spelling:
    """Spelling of metrics and tags; leaves room for a kind in brackets."""
    return Spelling(_FORBIDDEN_IN_KEYS, LONGEST_KEY - max(map(len, KINDS)) - len(" ()"))


def file_spelling() -> Spelling:
    """Spelling of artifacts, which are paths in the folder of files of a run."""
    return Spelling(_FORBIDDEN_IN_FILES, LONGEST_FILE_NAME)


def project_spelling() -> Spelling:
    """Spelling of projects."""
    return Spelling(_FORBIDDEN_IN_PROJECTS, LONGEST_PROJECT)


def of_kind(name: str, kind: str) -> str:
    """Name of something that is not a number."""
    return f"{name} ({kind})"


def writable(text: str) -> str:
    """Text without what UTF-8 cannot hold; not empty, for an empty file would not be shown."""
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text) or " "


@dataclass(frozen=True, slots=True)
class Chart:
    """Options of an ECharts chart."""

    options: dict[str, Any]

    def dump_options(self) -> str:
        """As JSON; what the SDK asks for."""
        return json.dumps(self.options, ensure_ascii=False, allow_nan=False)


def table_chart(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Chart:
    """A table as `swanlab.echarts.Table` writes it."""
    fields = _distinct([writable(str(column)) for column in columns])
    return Chart(
        {
            "_swanLab": "table",
            "colDefs": [{"field": field} for field in fields],
            "rowData": [dict(zip(fields, map(_cell, row), strict=False)) for row in rows],
        }
    )


def histogram_chart(histogram: Histogram) -> Chart:
    """Bars over ranges of values: the counts as they are."""
    mean = histogram.sum / histogram.count if histogram.count else math.nan
    variance = histogram.sum_squares / histogram.count - mean * mean if histogram.count else math.nan
    spread = math.sqrt(max(variance, 0.0)) if math.isfinite(variance) else math.nan
    edges = [histogram.minimum, *histogram.bucket_limits]
    return Chart(
        {
            "animation": False,
            "title": {
                "text": f"{histogram.count} values, mean {mean:.4g} ± {spread:.4g}",
                "subtext": f"from {histogram.minimum:.6g} to {histogram.maximum:.6g}",
            },
            "tooltip": {"trigger": "axis"},
            "xAxis": [{"type": "category", "data": _ranges(edges)}],
            "yAxis": [{"type": "value"}],
            "series": [{"type": "bar", "name": "values", "barWidth": "98%", "data": histogram.bucket_counts}],
        }
    )


def _ranges(edges: Sequence[float]) -> list[str]:
    limits = edges[1:]
    if all(limit % 1 == 0.5 for limit in limits) and limits[-1] - limits[0] == len(limits) - 1:
        return [f"{math.floor(limit)}" for limit in limits]  # one bucket per whole number
    return [f"{low:.4g} … {high:.4g}" for low, high in itertools.pairwise(edges)]


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float) else writable(str(value))


def _distinct(names: Sequence[str]) -> list[str]:
    """Columns are told apart by their names alone."""
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in distinct:
            number += 1
            candidate = f"{name} ({number})"
        distinct.append(candidate)
    return distinct
