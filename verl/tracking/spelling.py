"""Spell the journal's names within the rules of a tracker: reversibly, and no two names alike.

A character that a tracker does not allow becomes `_x40_` (its code point in hexadecimal), and `@`, which is common in
metrics such as `val/mean@8`, becomes `_at_`. An underscore that would read as the beginning of such a sequence is
spelled out itself (`_x5f_`), so what is read from left to right has one meaning only. Names that are too long keep
their beginning and end with a digest.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

_LOOKS_SPELLED = re.compile(r"_(?:at|x[0-9a-f]+|h[0-9a-f]{16})_")
_DIGEST_LETTERS = 16
_LONGEST_SEQUENCE = _DIGEST_LETTERS + 2


@dataclass(slots=True)
class Spelling:
    """The rules of one tracker.

    Args:
        forbidden: A pattern that matches each single character (or each place) that must be spelled out; matches of
            more characters are spelled out one by one.
        max_length: Longest name, in characters.

    Attributes:
        renamed: Names that had to be changed so far, and what they became.
    """

    forbidden: re.Pattern[str]
    max_length: int
    renamed: dict[str, str] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str) -> str:
        """The name as the tracker can have it; the same one every time."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._spell(name)
            if known != name:
                self.renamed[name] = known
        return known

    def _spell(self, name: str) -> str:
        forbidden = {place for match in self.forbidden.finditer(name) for place in range(*match.span())}
        parts: list[str] = []  # from the last to the first: what follows decides how an underscore reads
        following = ""
        for place in range(len(name) - 1, -1, -1):
            character = name[place]
            is_unclear = character == "_" and _LOOKS_SPELLED.match("_" + following)
            part = _spell_out(character) if place in forbidden or is_unclear else character
            parts.append(part)
            following = (part + following)[:_LONGEST_SEQUENCE]
        spelled = "".join(reversed(parts))
        if len(spelled) <= self.max_length and spelled:
            return spelled
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LETTERS]
        return f"{spelled[: self.max_length - _DIGEST_LETTERS - 3]}_h{digest}_"


def _spell_out(character: str) -> str:
    return "_at_" if character == "@" else f"_x{ord(character):x}_"
