"""A configuration as text: one dotted key a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn a nested configuration into one of dotted keys; lists stay as they are.

    Example: `flatten({"data": {"seed": 0}})` is `{"data.seed": 0}`.
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def config_text(config: Mapping[str, Any]) -> str:
    """Write one `dotted.key: value` a line, in the order of the configuration, values as JSON."""
    return "\n".join(f"{key}: {_json(value)}" for key, value in flatten(config).items())


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()
