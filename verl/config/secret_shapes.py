"""Secrets in running text: by their shape, by their place in a URL, by the name they are assigned to.

Cost is linear in the length of the text: a pattern starts at a literal, repeats only characters
that cannot start it anew (or a bounded number of them), and is tried only if its literal occurs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from verl.config.secret_names import is_secret_name

MASK = "***"

_SHORTEST_BARE_VALUE = 8
_SHORTEST_MIXED_VALUE = 12


def mask_shapes(text: str) -> str:
    """The text with every secret masked that can be told from the text alone."""
    for sign, shapes in _SHAPES.items():
        if sign in text:
            for literal, masked in shapes:
                if literal in text:
                    text = masked(text)
    if not any(sign in text for sign in _SIGNS_OF_HINTS):
        return text
    lowered = _lower(text)
    for literals, find in _HINTS:
        if any(literal in lowered for literal in literals):
            spans = list(find(text, lowered))
            if spans:
                text = _with_masked(text, spans)
                lowered = _lower(text)
    return text


def _lower(text: str) -> str:
    """Lower case with every character at its place (the lower case of a few is longer)."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := character.lower()) == 1 else character for character in text)


def _with_masked(text: str, spans: list[tuple[int, int]]) -> str:
    parts, done = [], 0
    for start, end in spans:
        parts += [text[done:start], MASK]
        done = end
    return "".join((*parts, text[done:]))


# By shape.


def _token(literal: str, rest: str) -> tuple[str, Callable[[str], str]]:
    """Masks `literal` + `rest` where a word begins (not `task-...` for `sk-...`) and a digit is in it."""
    pattern = re.compile(rf"{literal}(?<![A-Za-z0-9_-]{literal}){rest}")

    def masked(text: str) -> str:
        return pattern.sub(lambda match: MASK if _has_digit(match[0]) else match[0], text)

    return literal, masked


def _has_digit(text: str) -> bool:
    return re.search(r"\d", text) is not None


_BEARER = re.compile(r"bearer[ \t]{1,4}([a-z0-9._~+/=-]{8,})")
_AUTHORIZATION = re.compile(
    r"authorization[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?(?:basic|bearer|token|digest|apikey)[ \t]{1,4}([^\s\"',;]{4,})"
)
_HEX_40 = re.compile(r"(?<![0-9a-z])[0-9a-f]{40}(?![0-9a-z])")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(r"[A-Za-z0-9+/=\s\\]*")


Spans = Iterator[tuple[int, int]]


def _find_bearer(_: str, lowered: str) -> Spans:
    for match in _BEARER.finditer(lowered):
        if _has_digit(match[1]) or len(match[1]) >= 24:  # "bearer securities" is prose
            yield match.span(1)


def _find_authorization(_: str, lowered: str) -> Spans:
    for match in _AUTHORIZATION.finditer(lowered):
        if match[1] != MASK:
            yield match.span(1)


def _find_wandb_key(_: str, lowered: str) -> Spans:
    """Forty hexadecimal digits are a W&B key if the words before them say so, else a commit."""
    for match in _HEX_40.finditer(lowered):
        before = lowered[max(0, match.start() - 80) : match.start()]
        if "wandb" in before and ("key" in before or "login" in before):
            yield match.span()


def _mask_private_keys(text: str) -> str:
    """Masks from BEGIN to END; in a cut text without END, as far as base64 goes."""
    parts, position = [], 0
    while (begin := _PRIVATE_KEY.search(text, position)) is not None:
        parts += [text[position : begin.start()], MASK]
        position = _private_key_end(text, begin.end())
    return "".join((*parts, text[position:]))


def _private_key_end(text: str, start: int) -> int:
    end = text.find("-----", start)  # the next dashes are those of END, or of another BEGIN
    if end >= 0 and text.startswith("-----END", end):
        close = text.find("-----", end + 8, end + 80)
        return close + 5 if close >= 0 else end + 8
    body = _KEY_BODY.match(text, start)
    return body.end() if body else start


# By place in a URL.

_URL_LOGIN = re.compile(r"://([^\s/?#:@\"'<>]{0,256}):([^\s/?#\"'<>]{1,1024})@")
_URL_PARAMETER = re.compile(r"([?&;])([A-Za-z][\w.-]{0,63})=([^&;\s#\"'<>]+)")
_SIGNATURES = frozenset({"sig", "signature", "x-amz-signature", "x-amz-credential", "x-goog-signature"})


def _mask_url_login(text: str) -> str:
    return _URL_LOGIN.sub(rf"://\g<1>:{MASK}@", text)


def _mask_url_parameters(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        is_secret = is_secret_name(match[2]) or match[2].lower() in _SIGNATURES
        return f"{match[1]}{match[2]}={MASK}" if is_secret else match[0]

    return _URL_PARAMETER.sub(replaced, text)


# A text without the sign, one character, is not looked through for its shapes.
_SHAPES: dict[str, tuple[tuple[str, Callable[[str], str]], ...]] = {
    "-": (
        ("PRIVATE KEY", _mask_private_keys),
        _token("sk-", r"[A-Za-z0-9_-]{16,}"),
        _token("glpat-", r"[A-Za-z0-9_-]{16,}"),
        _token("xox", r"[a-z]-[A-Za-z0-9-]{8,}"),
        _token("nvapi-", r"[A-Za-z0-9_-]{16,}"),
    ),
    "_": (
        _token("hf_", r"[A-Za-z0-9]{16,}"),
        _token("gh", r"[pousr]_[A-Za-z0-9]{16,}"),
        _token("github_pat_", r"[A-Za-z0-9_]{16,}"),
        _token("gsk_", r"[A-Za-z0-9]{16,}"),
        _token("wandb_v1_", r"[A-Za-z0-9_]{16,}"),
    ),
    "A": (
        _token("AKIA", r"[0-9A-Z]{16}(?![0-9A-Za-z])"),
        _token("ASIA", r"[0-9A-Z]{16}(?![0-9A-Za-z])"),
        _token("AIza", r"[0-9A-Za-z_-]{35}"),
    ),
    ".": (_token("eyJ", r"[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}"),),
    "@": (("://", _mask_url_login),),
    "=": (("=", _mask_url_parameters),),
}

# By the name they are assigned to: NAME=value, name = "value", "name": "value", name: value, --name value.

_ASSIGNMENT = re.compile(
    r"(?:passw(?:or)?d|passphrase|pwd|secret|key|token|credential|auth|bearer)"
    r"([\w.-]{0,24})([\"']?[ \t]{0,3}[=:][ \t]{0,3}|[ \t]{1,3})"
)
_VALUE = re.compile(r"\"[^\"\n]{1,4096}\"|'[^'\n]{1,4096}'|[^\s\"'`,;&<>(){}\[\]|=]{1,4096}={0,2}")
_REST_OF_VALUE = re.compile(r"[^\s\"'`,;&<>(){}\[\]|]*")
_LINE_START = re.compile(r"[\s+-]*")
_REFERENCE = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]+)+")
_LONGEST_PREFIX = 64


@dataclass(frozen=True, slots=True)
class _Assignment:
    """A secret name with what follows it: `--hf-token` ` ` `abc`."""

    name: str
    separator: str
    value: str
    is_whole_line: bool
    after: str


def _find_assigned(text: str, lowered: str) -> Spans:
    done = 0
    for match in _ASSIGNMENT.finditer(lowered):
        if match.start() < done:
            continue
        start = _name_start(text, match.start())
        name = text[start : match.end(1)]
        is_flag = name.startswith("-")
        if not (is_flag or match[2].strip(" \t\"'")) or not is_secret_name(name):
            continue
        value = _VALUE.match(text, match.end())
        if value is None:
            continue
        after = text[value.end() : value.end() + 1]
        line = text[max(0, start - 80) : start].rpartition("\n")[2]
        is_whole_line = after in ("", "\n", "\r") and _LINE_START.fullmatch(line) is not None
        if _is_secret_value(_Assignment(name, match[2].strip(" \t\"'"), value[0], is_whole_line, after)):
            done = _value_end(text, value)
            is_quoted = value[0][0] in "\"'"
            yield (value.start() + 1, value.end() - 1) if is_quoted else (value.start(), done)


def _value_end(text: str, value: re.Match[str]) -> int:
    """End of a secret value: what hangs on to it (`abc=def`, `***def`) goes with it."""
    rest = _REST_OF_VALUE.match(text, value.end()) if value[0][0] not in "\"'" else None
    return rest.end() if rest else value.end()


def _name_start(text: str, end: int) -> int:
    start = end
    while start > max(0, end - _LONGEST_PREFIX) and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
        start -= 1
    return start


def _is_secret_value(found: _Assignment) -> bool:
    """Tells a secret from prose, code, placeholders and what is masked already."""
    value = found.value
    if value.strip("\"'") == MASK:
        return False
    if not found.separator:
        return not value.startswith("-")
    is_bare_token = found.name.lower() == "token"  # also a word of text: `"token": "hello"`
    if value[0] in "\"'":
        return _is_mixed(value[1:-1]) if is_bare_token else value[1] not in "${<%"
    if len(value) < _SHORTEST_BARE_VALUE or _is_code(found):
        return False
    if is_bare_token:
        return _is_mixed(value)
    return found.separator == "=" or found.is_whole_line or _has_digit(value)


def _is_code(found: _Assignment) -> bool:
    """`token=hf_token`, `api_key=settings.api_key`, `key=os.environ[...]`, `PASSWORD=$1`."""
    word = re.split(r"[_.-]", found.name.lower())[-1]
    return (
        found.after in ("(", "[")
        or found.value[0] in "$%*"
        or word in found.value.lower()
        or _REFERENCE.fullmatch(found.value) is not None
    )


def _is_mixed(value: str) -> bool:
    return len(value) >= _SHORTEST_MIXED_VALUE and _has_digit(value)


_SIGNS_OF_HINTS = ("=", ":", "--", "earer", "EARER", "wandb", "WANDB")
_HINTS: tuple[tuple[tuple[str, ...], Callable[[str, str], Spans]], ...] = (
    (("authorization",), _find_authorization),
    (("bearer",), _find_bearer),
    (("wandb",), _find_wandb_key),
    (("passw", "passphrase", "pwd", "secret", "key", "token", "credential", "auth"), _find_assigned),
)
