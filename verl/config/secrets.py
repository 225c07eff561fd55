"""Keeps secrets out of journals, trackers, traces and the console.

A text is a secret by what it is called (`hf_token: ...`, `--api-key ...`, `PASSWORD=...`), by being
the value of an environment variable with such a name, by its well-known shape (`sk-...`, `hf_...`,
a JWT, a private key), or by its place in a URL (`scheme://user:password@host`, `?api_key=...`).
What is masked becomes `***`; everything else is left exactly as it is. Masking twice changes
nothing more. Cost is linear in the length of the text: each pattern begins with a literal, its
repetitions are bounded or end at a character that it excludes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from verl.config.secret_names import is_secret_name

MASK = "***"

_MIN_ENVIRONMENT_VALUE = 8
_MAX_DEPTH = 100
_LANGUAGE_VALUE = re.compile(r"<.*>|\[.*\]|\s*", re.DOTALL)

def mask(value: Any) -> Any:
    """Copy of nested dictionaries, lists and texts with every secret masked; other values as they are.

    Args:
        value: Anything; under a key that `is_secret_name`, all texts and numbers are masked.
    """
    return _mask(value, _environment_secrets(), 0)


def mask_text(text: str) -> str:
    """The text with every secret in it masked."""
    return _mask_text(text, _environment_secrets())


def mask_command_line(arguments: Sequence[str]) -> list[str]:
    """Arguments of a command with secrets masked, also those in the argument after a flag."""
    return _mask(list(arguments), _environment_secrets(), 0)


def _mask(value: Any, known: tuple[str, ...], depth: int) -> Any:
    if isinstance(value, str):
        return _mask_text(value, known)
    if depth > _MAX_DEPTH:
        return MASK if isinstance(value, (Mapping, list, tuple, set, frozenset)) else value
    if isinstance(value, Mapping):
        return _mask_mapping(value, known, depth)
    if isinstance(value, (list, tuple)):
        items = _mask_items(value, known, depth)
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, (set, frozenset)):
        return type(value)(_mask(item, known, depth + 1) for item in value)
    return value


def _mask_mapping(value: Mapping[Any, Any], known: tuple[str, ...], depth: int) -> dict[Any, Any]:
    masked: dict[Any, Any] = {}
    for key, item in value.items():
        if isinstance(key, str):
            name = _mask_text(key, known)
            while name != key and name in masked:
                name += "*"
            secret = is_secret_name(key)
        else:
            name, secret = key, False
        masked[name] = _mask_whole(item, key, depth + 1) if secret else _mask(item, known, depth + 1)
    return masked


def _mask_whole(value: Any, name: str, depth: int) -> Any:
    """Masks everything under a secret name, except what cannot be a secret."""
    if value is None or isinstance(value, bool) or depth > _MAX_DEPTH:
        return value if value is None or isinstance(value, bool) else MASK
    if isinstance(value, Mapping):
        return {key: _mask_whole(item, name, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_mask_whole(item, name, depth + 1) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if name.lower().endswith("token") and (
        isinstance(value, (int, float)) or (isinstance(value, str) and _LANGUAGE_VALUE.fullmatch(value))
    ):
        return value
    return value if value == "" else MASK


def _mask_items(items: Iterable[Any], known: tuple[str, ...], depth: int) -> list[Any]:
    """Items of a list; one after a flag such as `--api-key` is that flag's value."""
    masked = []
    after_flag = False
    for item in items:
        if isinstance(item, str):
            masked.append(MASK if after_flag and not item.startswith("-") else _mask_text(item, known))
            after_flag = item.startswith("-") and "=" not in item and is_secret_name(item)
        else:
            masked.append(item if isinstance(item, (float, int)) else _mask(item, known, depth + 1))
            after_flag = False
    return masked


def _environment_secrets() -> tuple[str, ...]:
    """Values of secret environment variables, longest first."""
    values = {os.environ.get(name, "") for name in list(os.environ) if is_secret_name(name)}
    return tuple(sorted((value for value in values if _is_telling(value)), key=len, reverse=True))


def _is_telling(value: str) -> bool:
    """Whether a value is long and varied enough to be looked for in texts."""
    return len(value) >= _MIN_ENVIRONMENT_VALUE and len(set(value)) > 3


def _mask_text(text: str, known: tuple[str, ...]) -> str:
    if len(text) < 5:
        return text
    for secret in known:
        while secret in text:
            text = text.replace(secret, MASK)
    for trigger, masked in _SHAPES:
        if trigger in text:
            text = masked(text)
    lowered = text.lower()
    for trigger, masked in _HINTED:
        if trigger in lowered:
            text = masked(text)
    if any(word in lowered for word in _ASSIGNED_WORDS):
        text = _ASSIGNMENT.sub(_mask_assignment, text)
    return text


# Shapes. Each pattern begins with its literal, then looks back that it begins a word.


def _shape(literal: str, rest: str) -> tuple[str, Callable[[str], str]]:
    pattern = re.compile(rf"{re.escape(literal)}(?<![A-Za-z0-9_-]{re.escape(literal)}){rest}")
    return literal, lambda text: pattern.sub(MASK, text)


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


_OPENAI = re.compile(r"sk-(?<![A-Za-z0-9_-]sk-)[A-Za-z0-9_-]{16,}")
_BEARER = re.compile(r"\b(bearer)([ \t]{1,4})([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_AUTHORIZATION = re.compile(r"(authorization[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?(?:[A-Za-z]{1,16}[ \t]{1,4})?)([^\s\"',;*]{6,})", re.IGNORECASE)
_HEX40 = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
_URL_USER = re.compile(r"://([^\s/?#:@\"'<>]{0,256}):([^\s/?#\"'<>]{1,1024})@")
_URL_QUERY = re.compile(r"([?&;])([A-Za-z][\w.-]{0,63})=([^&;\s#\"'<>]+)")
_SIGNED_QUERY = frozenset({"sig", "signature", "x-amz-signature", "x-amz-credential", "x-goog-signature"})


def _mask_openai(text: str) -> str:
    return _OPENAI.sub(lambda match: MASK if _has_digit(match[0]) else match[0], text)


def _mask_bearer(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        is_credential = _has_digit(match[3]) or len(match[3]) >= 24
        return f"{match[1]}{match[2]}{MASK}" if is_credential else match[0]

    return _BEARER.sub(replace, text)


def _mask_authorization(text: str) -> str:
    return _AUTHORIZATION.sub(rf"\g<1>{MASK}", text)


def _mask_hex(text: str) -> str:
    """Forty hexadecimal digits are a W&B key if the words before them say so, else a commit."""

    def replace(match: re.Match[str]) -> str:
        before = text[max(0, match.start() - 80) : match.start()].lower()
        return MASK if "wandb" in before and ("key" in before or "login" in before) else match[0]

    return _HEX40.sub(replace, text)


def _mask_url(text: str) -> str:
    return _URL_USER.sub(lambda match: f"://{match[1]}:{MASK}@", text)


def _mask_query(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        secret = is_secret_name(match[2]) or match[2].lower() in _SIGNED_QUERY
        return f"{match[1]}{match[2]}={MASK}" if secret else match[0]

    return _URL_QUERY.sub(replace, text)


_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY( BLOCK)?-----")


def _mask_private_keys(text: str) -> str:
    """From BEGIN to END; without an END (a cut text), as far as the base64 goes."""
    parts, position = [], 0
    for begin in _PEM_BEGIN.finditer(text):
        if begin.start() < position:
            continue
        body_end = text.find("-----END", begin.end())
        next_begin = text.find("-----BEGIN", begin.end())
        if body_end >= 0 and (next_begin < 0 or body_end < next_begin):
            close = text.find("-----", body_end + 8)
            end = close + 5 if 0 <= close - body_end <= 80 else body_end
        else:
            end = _base64_end(text, begin.end())
        parts += [text[position : begin.start()], MASK]
        position = end
    return "".join((*parts, text[position:]))


_BASE64_RUN = re.compile(r"[A-Za-z0-9+/=\s\\]*")


def _base64_end(text: str, start: int) -> int:
    match = _BASE64_RUN.match(text, start)
    return match.end() if match else start



# Assignments: NAME=value, NAME = "value", "name": "value", name: value, --name value.

_ASSIGNED_WORDS = ("passw", "passphrase", "pwd", "secret", "key", "token", "credential", "auth")
_ASSIGNMENT = re.compile(
    r"(?P<word>passw(?:or)?d|passphrase|pwd|secrets?|keys?|tokens?|credentials?|auth)(?P<rest>[\w.-]{0,16})"
    r"(?P<separator>[\"']?(?:[ \t]{0,3}[=:][ \t]{0,3}|[ \t]{1,3}))"
    r"(?P<value>\"[^\"\n]{1,4096}\"|'[^'\n]{1,4096}'|[^\s\"'`,;&<>(){}\[\]|]{4,4096}(?![\w(\[]))",
    re.IGNORECASE,
)
_NAME_BEFORE = re.compile(r"[\w.-]*\Z")
_LINE_START = re.compile(r"[\s+\-]*\Z")
_DOTTED = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]+)+")


def _mask_assignment(match: re.Match[str]) -> str:
    text, value, separator = match.string, match["value"], match["separator"]
    before = text[max(0, match.start() - 80) : match.start()]
    found = _NAME_BEFORE.search(before)
    prefix = found[0] if found else ""
    name = prefix + match["word"] + match["rest"]
    if MASK in value or not is_secret_name(name):
        return match[0]
    if separator.strip(" \t\"'"):
        is_line = separator.strip()[:1] == ":" and _is_whole_line(match, before[: len(before) - len(prefix)])
        is_secret = _is_assigned_secret(value, name, separator, is_line)
    else:
        is_secret = prefix.startswith("-") and not value.startswith("-")
    if not is_secret:
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{match['word']}{match['rest']}{separator}{quote}{MASK}{quote}"


def _is_whole_line(match: re.Match[str], before: str) -> bool:
    """Whether the assignment is all there is on its line, as in YAML."""
    line = before.rpartition("\n")[2]
    after = match.string[match.end() : match.end() + 1]
    return _LINE_START.fullmatch(line) is not None and after in ("", "\n", "\r")


def _is_assigned_secret(value: str, name: str, separator: str, is_line: bool) -> bool:
    """Tells a secret from code (`token=hf_token`, `key=settings.api_key`) and prose (`password: choose one`)."""
    word = name.lower().rpartition("_")[2].rpartition("-")[2]
    if value[0] in "\"'":
        return _is_long_and_mixed(value[1:-1]) if name.lower() == "token" else not value[1:].startswith(("$", "{", "<"))
    if len(value) < _MIN_ENVIRONMENT_VALUE or value[0] in "$%*" or word in value.lower() or _DOTTED.fullmatch(value):
        return False
    if name.lower() == "token":
        return _is_long_and_mixed(value)
    return separator == "=" or is_line or _has_digit(value)


def _is_long_and_mixed(value: str) -> bool:
    return len(value) >= 12 and _has_digit(value)


_SHAPES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("PRIVATE KEY", _mask_private_keys),
    ("sk-", _mask_openai),
    ("://", _mask_url),
    ("=", _mask_query),
    _shape("hf_", r"[A-Za-z0-9]{16,}"),
    _shape("ghp_", r"[A-Za-z0-9]{16,}"),
    _shape("gho_", r"[A-Za-z0-9]{16,}"),
    _shape("ghu_", r"[A-Za-z0-9]{16,}"),
    _shape("ghs_", r"[A-Za-z0-9]{16,}"),
    _shape("ghr_", r"[A-Za-z0-9]{16,}"),
    _shape("github_pat_", r"[A-Za-z0-9_]{16,}"),
    _shape("glpat-", r"[A-Za-z0-9_-]{16,}"),
    _shape("AKIA", r"[0-9A-Z]{16}(?![0-9A-Za-z])"),
    _shape("ASIA", r"[0-9A-Z]{16}(?![0-9A-Za-z])"),
    _shape("AIza", r"[0-9A-Za-z_-]{35}"),
    _shape("xox", r"[a-z]-[A-Za-z0-9-]{8,}"),
    _shape("xapp-", r"[A-Za-z0-9-]{8,}"),
    _shape("nvapi-", r"[A-Za-z0-9_-]{16,}"),
    _shape("gsk_", r"[A-Za-z0-9]{16,}"),
    _shape("wandb_v1_", r"[A-Za-z0-9_]{16,}"),
    _shape("eyJ", r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
)

_HINTED: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("authorization", _mask_authorization),
    ("bearer ", _mask_bearer),
    ("wandb", _mask_hex),
)
