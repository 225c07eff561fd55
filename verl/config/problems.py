"""What is wrong with a configuration: problems, and the one error that lists them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from verl.config.secrets import mask, mask_text
from verl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, as a sentence; `key` is the dotted key it belongs to, or empty.

    Example: `Problem("trainer.seed", "`trainer.seed` must be a whole number; given: abc")`.
    """

    key: str
    sentence: str


class InvalidConfigError(ConfigError):
    """A `ConfigError` that carries its problems one by one.

    Attributes:
        problems: Everything that is wrong, in the order of the message.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(_message(self.problems))

    def __reduce__(self) -> tuple[type[InvalidConfigError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


def first_of_each_key(problems: Sequence[Problem]) -> list[Problem]:
    """`problems` without those whose key has another one before them: what follows from the first says no more."""
    distinct: dict[str, Problem] = {}
    for problem in problems:
        distinct.setdefault(problem.key, problem)
    return list(distinct.values())


def shown(value: Any) -> str:
    """`value` in one line of YAML as a message shows it, secrets masked and cut at 200 characters."""
    masked = mask(value)
    try:
        text = yaml.safe_dump(masked, default_flow_style=True, width=float("inf"), allow_unicode=True)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a number of thousands of digits
        text = _repr(masked)
    text = text.removesuffix("\n...\n").strip()
    return mask_text(text if len(text) <= 200 else text[:197] + "...")


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__} too large to be shown"


def _message(problems: Sequence[Problem]) -> str:
    if len(problems) == 1:
        return mask_text(problems[0].sentence)
    lines = [f"{len(problems)} problems in the configuration:"]
    lines += [f"  - {problem.sentence}" for problem in problems]
    return mask_text("\n".join(lines))
