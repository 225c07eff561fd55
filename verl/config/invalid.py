"""From pydantic's errors to sentences for the user."""

from __future__ import annotations

import re

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from verl.config.keys import Key, keys_of
from verl.config.layers import unknown_key
from verl.config.nearest import nearest_name
from verl.config.problems import Problem, shown


def problems_in(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """One problem per key of `model` that pydantic refused; a union's several errors become one."""
    problems: dict[str, Problem] = {}
    for details in error.errors(include_url=False):
        problem = _problem(details, model)
        problems.setdefault(problem.key, problem)
    return list(problems.values())


def _problem(details: ErrorDetails, model: type[BaseModel]) -> Problem:
    kind, given, location = details["type"], details["input"], details["loc"]
    whole = _spelled(location)
    if kind in ("extra_forbidden", "no_such_attribute"):
        return _unknown_item_key(whole, model) if "[" in whole else unknown_key(whole, given, model)
    spelled, key = _locate(location, model)
    if kind == "value_error":
        return Problem(spelled, f"`{spelled}` {details['msg'].removeprefix('Value error, ')}; given: {shown(given)}")
    if key is None:
        return Problem(spelled, f"`{spelled}` must be a group of keys; given: {shown(given)}")
    if kind == "missing" and spelled == whole:
        return Problem(spelled, f"`{spelled}` must be given: {key.allowed}")
    hint = " (quote it to make it text)" if key.is_text and isinstance(given, int | float) else ""
    return Problem(spelled, f"`{spelled}` must be {key.allowed}; given: {shown(given)}{hint}")


def _locate(location: tuple[int | str, ...], model: type[BaseModel]) -> tuple[str, Key | None]:
    """The longest known key at the start of a location, as messages spell it, with its entry.

    Pydantic appends the branch of a union and the index in a list to the key that is wrong.
    """
    keys = keys_of(model)
    for length in range(len(location), 0, -1):
        spelled = _spelled(location[:length])
        path = re.sub(r"\[\d+\]", "[]", spelled)
        if path in keys:
            return spelled, keys[path]
    return _spelled(location), None


def _spelled(location: tuple[int | str, ...]) -> str:
    """`("reward", "functions", 0, "path")` as `reward.functions[0].path`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def _unknown_item_key(spelled: str, model: type[BaseModel]) -> Problem:
    item, _, name = spelled.rpartition(".")
    prefix = re.sub(r"\[\d+\]", "[]", item) + "."
    names = [path.removeprefix(prefix) for path in keys_of(model) if path.startswith(prefix)]
    near = nearest_name(name, names)
    ending = f"did you mean `{item}.{near}`?" if near else f"`{item}` has the keys {', '.join(names)}"
    return Problem(spelled, f"`{spelled}` is not a key; {ending}")
