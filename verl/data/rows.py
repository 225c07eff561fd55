"""From the mapping that a file gives for a row to a `Row`; and the account of bad rows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from verl.data.prompts import Row
from verl.errors import DataError

ROLES = ("system", "developer", "user", "assistant", "tool")
GROUND_TRUTH_COLUMNS = ("reward_model", "reward_model.ground_truth", "ground_truth", "answer")
"""Where a ground truth may stand, first match wins; `reward_model` is a struct with `ground_truth`."""
OTHER_COLUMNS = ("data_source", "ability", "extra_info")
MEDIA_COLUMNS = ("images", "videos", "audios")

_SPELLED_MESSAGES = re.compile(r"""\s*\[\s*\{\s*["'](role|content)["']\s*:""")
_SHOWN_CHARACTERS = 60
_NAMED_ROWS = 5


class BadRowError(ValueError):
    """A row cannot be used; the text is the reason without file and row."""


@dataclass(slots=True)
class BadRows:
    """Account of the bad rows of one file under `data.bad_rows`.

    Raises from `add` at the first bad row when the policy is `error`.
    """

    file: str
    policy: Literal["error", "skip"]
    _count: int = 0
    _first: list[str] = field(default_factory=list)

    def add(self, place: str, reason: str) -> None:
        """Counts a bad row, or stops.

        Raises:
            DataError: The policy is `error`.
        """
        if self.policy == "error":
            raise DataError(
                f"{self.file}, {place}: {reason}\n"
                "Correct the row, or set data.bad_rows=skip to leave such rows out with a warning."
            )
        self._count += 1
        if len(self._first) < _NAMED_ROWS:
            self._first.append(f"{place}: {reason}")

    def raise_if_all(self, num_rows: int) -> None:
        """Stops when no row is left.

        Raises:
            DataError: All `num_rows` rows are bad.
        """
        if self._count and self._count >= num_rows:
            raise DataError(f"{self.file}: all {num_rows} rows are malformed. The first: {self._first[0]}")

    def warning(self, num_rows: int) -> str | None:
        """Gives the one sentence for this file, or None if all its rows are good."""
        if not self._count:
            return None
        more = self._count - len(self._first)
        tail = f"; and {more} more" if more else ""
        return f"{self.file}: skipped {self._count} of {num_rows} rows as malformed: {'; '.join(self._first)}{tail}"


def parse_row(raw: Mapping[str, Any], *, file: str, place: str, stem: str, prompt_key: str) -> Row:
    """Checks one row and gives it its final form.

    Args:
        raw: Column name to value.
        stem: File name without folder and extension; the data source of rows that name none.

    Raises:
        BadRowError: The row is unusable, with the reason.
    """
    if prompt_key not in raw:
        raise BadRowError(missing_column(prompt_key, list(raw)))
    return Row(
        file=file,
        place=place,
        messages=_messages(raw[prompt_key], prompt_key),
        data_source=_data_source(raw.get("data_source"), stem),
        ground_truth=_ground_truth(raw),
        extra_info=_extra_info(raw),
    )


def missing_column(name: str, columns: Sequence[str]) -> str:
    """Says that a column is missing, which there are, and the one that was perhaps meant."""
    listed = ", ".join(map(repr, columns)) or "none"
    near = difflib.get_close_matches(name, columns, n=1, cutoff=0.4)
    hint = f" Did you mean data.prompt_key={near[0]}?" if near else " Name the right one with data.prompt_key."
    return f"no column {name!r}; found: {listed}.{hint}"


def shorten(value: Any) -> str:
    """Shows a value in at most some 60 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"


def _messages(value: Any, key: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        _check_text(value, f"{key!r}")
        if _SPELLED_MESSAGES.match(value):
            raise BadRowError(
                f"{key!r} is a text that spells a list of messages ({shorten(value)}); store the list itself "
                "(for JSON text: json.loads), or wrap it as one user message if the text is meant"
            )
        return [{"role": "user", "content": value}]
    if value is None:
        raise BadRowError(f"{key!r} is None; give a text or a list of {{role, content}} messages")
    if not isinstance(value, list):
        raise BadRowError(
            f"{key!r} is of type {type(value).__name__} ({shorten(value)}); "
            "allowed are a text or a list of {role, content} messages"
        )
    if not value:
        raise BadRowError(f"{key!r} is an empty list; give at least one message")
    return [_message(item, f"message {number} of {key!r}") for number, item in enumerate(value)]


def _message(item: Any, name: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise BadRowError(f"{name} is of type {type(item).__name__} ({shorten(item)}); it must be {{role, content}}")
    # A Parquet struct has every key in every row: None there means "not given".
    message = {key: value for key, value in item.items() if value is not None}
    if "role" not in message:
        raise BadRowError(f"{name} has no 'role'; it has {', '.join(map(repr, item)) or 'no keys'}")
    if message["role"] not in ROLES:
        raise BadRowError(f"{name} has the role {shorten(message['role'])}; allowed are {', '.join(ROLES)}")
    if "content" not in message:
        if message["role"] == "assistant" and message.get("tool_calls"):
            return message
        raise BadRowError(f"{name} has no 'content'; it has {', '.join(map(repr, message))}")
    if not isinstance(message["content"], str):
        raise BadRowError(
            f"the content of {name} is of type {type(message['content']).__name__} "
            f"({shorten(message['content'])}); it must be text"
        )
    _check_text(message["content"], f"the content of {name}")
    return message


def _check_text(text: str, name: str) -> None:
    if not text.strip():
        raise BadRowError(f"{name} is empty" if not text else f"{name} holds only white space ({shorten(text)})")


def _data_source(value: Any, stem: str) -> str:
    if value is None:
        return stem
    if not isinstance(value, str) or not value.strip():
        raise BadRowError(f"'data_source' is {shorten(value)}; it must be a text that is not empty")
    return value


def _ground_truth(raw: Mapping[str, Any]) -> Any:
    for column in GROUND_TRUTH_COLUMNS:
        value = raw.get(column)
        if column == "reward_model" and value is not None:
            if not isinstance(value, Mapping):
                raise BadRowError(
                    f"'reward_model' is of type {type(value).__name__} ({shorten(value)}); "
                    "it must be a struct with 'ground_truth'"
                )
            value = value.get("ground_truth")
        if value is not None:
            return value
    return None


def _extra_info(raw: Mapping[str, Any]) -> dict[str, Any]:
    value = raw.get("extra_info")
    if value is not None and not isinstance(value, Mapping):
        raise BadRowError(
            f"'extra_info' is of type {type(value).__name__} ({shorten(value)}); it must be a struct (JSON object)"
        )
    extra_info = dict(value or {})
    if raw.get("ability") is not None:
        extra_info.setdefault("ability", raw["ability"])
    return extra_info
