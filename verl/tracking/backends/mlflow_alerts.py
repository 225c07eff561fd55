"""Alerts of a run as pages of Markdown: `alerts.md`, then `alerts_2.md`, ...

Only the page that is being filled is kept, so the state stays small however many alerts there are.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from verl.tracking.backends.mlflow_names import cut
from verl.tracking.logger import AlertLevel

ALERTS_PER_PAGE = 50
_LONGEST_TITLE, _LONGEST_TEXT = 300, 3000
_HEADING = re.compile(r"^### \d+\. \w+(?:: (?P<title>.*))?\n\n\*.*\*\n\n(?P<text>(?:(?!### ).*\n?)*)", re.MULTILINE)


@dataclass(slots=True)
class AlertPages:
    """The page that is being filled, and the count of all.

    Attributes:
        page: Its number, from 1.
        entries: Its alerts, as Markdown.
        warnings: How many warnings and errors there were so far, on all pages.
        last: The last of these, in one line.
    """

    page: int = 1
    entries: list[str] = field(default_factory=list)
    warnings: int = 0
    last: str = ""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> AlertPages:
        return cls(**state)

    def to_state(self) -> dict[str, Any]:
        return {"page": self.page, "entries": list(self.entries), "warnings": self.warnings, "last": self.last}

    @property
    def file(self) -> str:
        """Name of the page's file."""
        return "alerts.md" if self.page == 1 else f"alerts_{self.page}.md"

    @property
    def text(self) -> str:
        """Content of the page's file."""
        return "\n".join(self.entries)

    @property
    def is_full(self) -> bool:
        return len(self.entries) >= ALERTS_PER_PAGE

    def turn(self) -> None:
        """Begin the next page."""
        self.page, self.entries = self.page + 1, []

    def add(self, title: str, text: str, level: AlertLevel, time: float) -> None:
        """Add an alert or (without a title) a note."""
        title, text = cut(" ".join(title.split()), _LONGEST_TITLE), cut(text.strip(), _LONGEST_TEXT)
        number = (self.page - 1) * ALERTS_PER_PAGE + len(self.entries) + 1
        heading = f"{level}: {literal(title)}" if title else level
        when = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        self.entries.append(f"### {number}. {heading}\n\n*{when}*\n\n{literal(text)}\n")
        if level != "info":
            self.warnings += 1
            self.last = cut(" ".join(f"{title}: {text}".removeprefix(": ").split()), _LONGEST_TITLE)


def read_alerts(page: str) -> list[str]:
    """The alerts on a page: `title: text`."""
    found = []
    for entry in _HEADING.finditer(page):
        parts = (html.unescape(part or "").strip() for part in (entry["title"], entry["text"]))
        found.append(": ".join(filter(None, parts)))
    return found


def literal(text: str) -> str:
    """Text as Markdown in which no line is a heading and no `<` begins HTML."""
    return re.sub(r"^#", "&#35;", html.escape(text, quote=False), flags=re.MULTILINE)
