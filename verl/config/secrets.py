"""Keeps secrets out of journals, trackers, traces and the console.

A text is a secret by what it is called (`hf_token: ...`, `--api-key ...`, `PASSWORD=...`), by being
the value of an environment variable with such a name, by its well-known shape (`sk-...`, `hf_...`,
a JWT, a private key), or by its place in a URL (`scheme://user:password@host`, `?api_key=...`).
What is masked becomes `***`; everything else is left exactly as it is. Masking twice changes
nothing more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl.config.secret_names import is_secret_name
from verl.config.secret_shapes import MASK, mask_shapes

__all__ = ["MASK", "is_secret_name", "mask", "mask_command_line", "mask_text", "masked_keys"]

_SHORTEST_SECRET = 5
_SHORTEST_ENVIRONMENT_VALUE = 8
_MAX_DEPTH = 100
_WORKING_FOLDERS = frozenset({"PWD", "OLDPWD"})  # a shell's folders, not passwords
_TOKEN_OF_TEXT = re.compile(r"<.*>|\[.*\]|\s*", re.DOTALL)


def mask(value: Any) -> Any:
    """Copy of nested dictionaries, lists and texts with every secret masked; other values as they are.

    Under a key that `is_secret_name`, every text and number is masked whatever it looks like. In a
    list, the item after a flag such as `--api-key` is that flag's value. What lies deeper than 100
    levels is masked whole.
    """
    return _masked(value, _environment_secrets(), 0)


def mask_text(text: str) -> str:
    """The text with every secret in it masked."""
    return _masked_text(text, _environment_secrets())


def masked_keys(keys: Iterable[str]) -> dict[str, str]:
    """Key -> the key with secrets masked; different keys stay different."""
    return _masked_keys(keys, _environment_secrets())


def mask_command_line(arguments: Sequence[str]) -> list[str]:
    """Arguments of a command with secrets masked, also those that follow their flag."""
    return _masked_items(arguments, _environment_secrets(), 0)


def _masked(value: Any, known: tuple[str, ...], depth: int) -> Any:
    if isinstance(value, str):
        return _masked_text(value, known)
    if depth > _MAX_DEPTH:
        return MASK if isinstance(value, (Mapping, list, tuple)) else value
    if isinstance(value, Mapping):
        return _masked_mapping(value, known, depth)
    if isinstance(value, list):
        return _masked_items(value, known, depth)
    if isinstance(value, tuple):
        return tuple(_masked_items(value, known, depth))
    return value


def _masked_mapping(value: Mapping[Any, Any], known: tuple[str, ...], depth: int) -> dict[Any, Any]:
    names = _masked_keys(value, known)
    return {
        names[key]: _masked_whole(item, key, depth + 1)
        if isinstance(key, str) and is_secret_name(key)
        else _masked(item, known, depth + 1)
        for key, item in value.items()
    }


def _masked_keys(keys: Iterable[Any], known: tuple[str, ...]) -> dict[Any, Any]:
    names: dict[Any, Any] = {}
    taken = set()
    for key in keys:
        name = _masked_text(key, known) if isinstance(key, str) else key
        while name in taken:  # two keys that are both secrets
            name += "*"
        taken.add(name)
        names[key] = name
    return names


def _masked_items(items: Sequence[Any], known: tuple[str, ...], depth: int) -> list[Any]:
    if set(map(type, items)) <= {float, int}:
        return list(items)
    masked = []
    is_after_flag = False
    for item in items:
        if isinstance(item, str):
            is_value = is_after_flag and not item.startswith("-")
            masked.append(MASK if is_value else _masked_text(item, known))
            is_after_flag = item.startswith("-") and "=" not in item and is_secret_name(item)
        else:
            masked.append(_masked(item, known, depth + 1))
            is_after_flag = False
    return masked


def _masked_whole(value: Any, name: str, depth: int) -> Any:
    """Masks everything under a secret name except what cannot be a secret."""
    if value is None or isinstance(value, bool) or value == "":
        return value
    if depth > _MAX_DEPTH:
        return MASK
    if isinstance(value, Mapping):
        return {key: _masked_whole(item, name, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked_whole(item, name, depth + 1) for item in value]
    if isinstance(value, tuple):
        return tuple(_masked_whole(item, name, depth + 1) for item in value)
    if name.lower().endswith("token"):  # `image_token: "<image>"`, `cost_of_token: 0.1`
        is_text = isinstance(value, str) and _TOKEN_OF_TEXT.fullmatch(value) is not None
        return value if is_text or isinstance(value, (int, float)) else MASK
    return MASK


def _environment_secrets() -> tuple[str, ...]:
    """Values of secret environment variables, longest first."""
    values = {os.environ[name] for name in list(os.environ) if is_secret_name(name) and name not in _WORKING_FOLDERS}
    return tuple(sorted(filter(_is_telling, values), key=len, reverse=True))


def _is_telling(value: str) -> bool:
    """Whether a value is long and varied enough to be looked for in texts."""
    return len(value) >= _SHORTEST_ENVIRONMENT_VALUE and len(set(value)) > 3


def _masked_text(text: str, known: tuple[str, ...]) -> str:
    if len(text) < _SHORTEST_SECRET:
        return text
    text = _without(text, known)
    masked = mask_shapes(text)
    return masked if masked == text else _without(masked, known)


def _without(text: str, known: tuple[str, ...]) -> str:
    while any(secret in text for secret in known):  # again, should the parts left over form one anew
        for secret in known:
            text = text.replace(secret, MASK)
    return text
