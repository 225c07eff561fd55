"""Markdown for trackers that show text but no tables: nothing a model writes can break the page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

_SPECIAL = re.compile(r"[\\`*_{}\[\]()#+\-.!|~$]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
LONGEST_CELL = 4000


def table_markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Write a table; every cell is shown literally.

    Args:
        columns: Titles.
        rows: Cells; a cell longer than 4000 characters is cut with a note of how many are missing.
    """
    lines = ["| " + " | ".join(_cell(column) for column in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
    missing = len(text) - LONGEST_CELL
    if missing > 0:
        text = f"{text[:LONGEST_CELL]} … ({missing} more characters)"
    text = html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n")), quote=False)
    # Entities are text to Markdown; backslash escapes would not do for `|` and inside of words.
    return _SPECIAL.sub(lambda match: f"&#{ord(match.group())};", text).replace("\n", "<br>")


def code_markdown(text: str) -> str:
    """Write text as a code block: by indentation, for a fence could be closed by the text itself."""
    return "\n".join(f"    {line}" for line in text.splitlines())
