"""Names, paths and values as MLflow can have them."""

from __future__ import annotations

import re
from typing import Any

import orjson

from verl.tracking.spelling import Spelling

LONGEST_NAME = 220
"""MLflow has 250 characters; the rest is for the prefix of a tag that is named after a metric or setting."""

LONGEST_PATH = 80
"""Characters of a name that becomes folders: a part of a path has at most 255 bytes, three for a character."""

LONGEST_PARAM = 500
"""What every server takes; newer ones take 6000, but their charts show the whole of each param."""

LONGEST_TAG = 5000
LONGEST_TITLE = 230

# A name must read the same as a normalised path. Letters beyond 16 bits are letters to MLflow, but not to every
# database behind it.
_NO_PATH = r"^/|/$|/(?=/)|(?:^|(?<=/))\.(?=/|$)|(?:^|(?<=/))\.\.(?=/|$)|^\.\."
_IN_NAMES = re.compile(rf"[^\w./ :-]|[\U00010000-\U0010ffff]|{_NO_PATH}")
_IN_PATHS = re.compile(rf"[^\w./ -]|[\U00010000-\U0010ffff]|{_NO_PATH}|(?:^|(?<=/))s(?=tep_\d)")
_IN_IMAGE_KEYS = re.compile(rf"[^A-Za-z0-9_./ -]|{_NO_PATH}")


def metric_spelling() -> Spelling:
    """Names of metrics and params."""
    return Spelling(_IN_NAMES, LONGEST_NAME)


def path_spelling() -> Spelling:
    """Names that become the path of an artifact; none looks like the file of a step."""
    return Spelling(_IN_PATHS, LONGEST_PATH)


def image_spelling() -> Spelling:
    """Names of MLflow's images over time, which have ASCII letters only."""
    return Spelling(_IN_IMAGE_KEYS, LONGEST_PATH)


def storable(text: str) -> str:
    """The text without what no database or UTF-8 file can hold: lone surrogates and the zero character."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", r"\x00")


def cut(text: str, longest: int) -> str:
    """The text, storable; if it is too long, its beginning and `…`."""
    text = storable(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def title(text: str) -> str:
    """One line that MLflow can have as the name of a run or experiment; never empty."""
    return cut(" ".join(text.split()), LONGEST_TITLE) or "unnamed"


def param_text(value: Any) -> str:
    """A setting as the text of a param: texts as they are, all else as JSON, both cut."""
    return cut(value if isinstance(value, str) else json_text(value), LONGEST_PARAM)


def json_text(value: Any) -> str:
    """JSON of anything; what has no JSON form is written as text."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(value, default=str, option=options).decode()
    except (TypeError, ValueError):  # a lone surrogate, an integer beyond 64 bits
        return orjson.dumps(_plain(value), default=str, option=options).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value
