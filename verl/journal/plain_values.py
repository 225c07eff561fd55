"""Values as JSON can hold them.

JSON has no NaN, no infinities and no objects: arrays and tensors become lists, anything unknown
becomes its text, and where a number that is not finite stands in for text, it is "NaN",
"Infinity" or "-Infinity".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import date, time
from enum import Enum
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NUMBER_TYPES = frozenset({float, int})
_MAX_DEPTH = 100
_MIN_WHOLE, _MAX_WHOLE = -(2**63), 2**64 - 1


def plain(value: Any) -> Any:
    """Copy of any value in JSON's types.

    Whole numbers beyond 64 bits, unknown objects and what lies deeper than 100 levels become text;
    lone surrogates (which UTF-8 cannot hold) become U+FFFD.
    """
    return _plain(value, 0)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, depth + 1)
    if isinstance(value, str):
        return _valid_text(value)
    if isinstance(value, float):
        return number_as_json(float(value))
    if isinstance(value, int):
        return int(value) if _MIN_WHOLE <= value <= _MAX_WHOLE else str(value)
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        return {_valid_text(str(key)): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if set(map(type, value)) == {float} and math.isfinite(sum(value)):
            return list(value)
        return [_plain(item, depth + 1) for item in value]
    return _plain(_opened(value), depth + 1)


def _opened(value: Any) -> Any:
    """What an object consists of, in simpler types."""
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, BaseModel):
        return value.model_dump()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    # Arrays and tensors of any package, none of which is imported here.
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


def _valid_text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return str(text)


def number_as_json(value: float) -> float | str:
    """The number, or the text that stands for a non-finite one."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def number_from_json(value: Any) -> Any:
    """Inverse of `number_as_json`, also for the items of a list; anything else as it is."""
    if type(value) is str:
        return _NON_FINITE.get(value, value)
    return [number_from_json(item) for item in value] if type(value) is list else value


def are_finite(values: Mapping[str, Any]) -> bool:
    """Whether all values are finite `float`, `int` or `bool`: one C loop, False may be a false alarm.

    Anything non-finite or of another type shows in the sum.
    """
    try:
        total = sum(values.values())
        return type(total) in _NUMBER_TYPES and math.isfinite(total)
    except (TypeError, OverflowError, RuntimeWarning):
        return False


def are_numbers(values: Mapping[str, Any]) -> bool:
    """Whether all values, read from JSON, are numbers (or true and false)."""
    try:
        sum(values.values())
    except TypeError:
        return False
    return True


def metric_number(key: str, value: Any) -> float | int:
    """Value of a metric as a number: whole if it is whole (up to 64 bits), else a float.

    Takes numbers, arrays and tensors with one element, and booleans.

    Raises:
        ValueError: It is no number.
    """
    item = getattr(value, "item", None)  # of an array or tensor, whatever its package
    try:
        number: Any = item() if callable(item) else value
        if isinstance(number, int):
            return int(number) if _MIN_WHOLE <= number <= _MAX_WHOLE else float(number)
        if not isinstance(number, (str, bytes)):
            return float(number)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        pass
    raise ValueError(
        f"Metric {key!r} is {value!r:.200} ({type(value).__name__}); a metric is one number. "
        "Log text as text, and several numbers as a histogram."
    )
