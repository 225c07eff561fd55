"""Layers of settings: schema defaults < recipe < file < command line, as flat tables of dotted keys.

A flat table makes layering a dictionary union, so a nested group is never replaced as a whole: giving
`critic.optim.betas` keeps the critic's own learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from verl.config.aliases import ALIAS_TARGETS, ALIASES, translated
from verl.config.keys import children_of, groups_of, keys_of
from verl.config.nearest import nearest_keys
from verl.config.problems import Problem, shown
from verl.config.recipes import RECIPES


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one place.

    Attributes:
        values: Value by dotted key.
        origin: Where they come from, as messages say it ("in config/a.yaml"); empty for Python.
        spelled: The spelling that was given, for keys that were given by another name.
        problems: What could not be read.
    """

    values: Mapping[str, Any]
    origin: str = ""
    spelled: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def source_of(self, key: str) -> str:
        """ " (as `spelling`, in file)" for a key of this layer, or nothing if there is no more to say."""
        words = [f"as `{self.spelled[key]}`"] if key in self.spelled else []
        words += [self.origin] if self.origin else []
        return f" ({', '.join(words)})" if words else ""


def source_of(key: str, layers: Sequence[Layer]) -> str:
    """Where `key`, or the list that it is in, was given, for the end of a sentence: its last layer counts."""
    key = key.partition("[")[0]
    for layer in reversed(layers):
        if key in layer.values:
            return layer.source_of(key)
    return ""


def flatten(tree: Mapping[Any, Any], model: type[BaseModel]) -> list[tuple[str, Any]]:
    """The settings in `tree` as (dotted key, value), in order, groups of settings opened.

    Group objects count with what was set in them, so an object leaves room for recipes as a dictionary does.
    Dotted keys may stand anywhere in the tree; the same key may then come twice.
    """
    leaves = keys_of(model).keys() | ALIAS_TARGETS.keys()
    settings: list[tuple[str, Any]] = []

    def visit(value: Any, path: str) -> None:
        if isinstance(value, BaseModel) and path not in leaves:
            value = _set_in(value)
        if isinstance(value, Mapping) and path not in leaves:
            for name, inner in value.items():
                visit(inner, f"{path}.{name}" if path else str(name))
        else:
            settings.append((path, value))

    visit(tree, "")
    return settings


def _set_in(group: BaseModel) -> dict[str, Any]:
    set_values: dict[str, Any] = {}
    for name, definition in type(group).model_fields.items():
        value = getattr(group, name)
        changed = name in group.model_fields_set or value != definition.get_default(call_default_factory=True)
        if changed or isinstance(value, BaseModel):
            set_values[name] = value
    return set_values


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of groups of a flat table; the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *groups, name = key.split(".")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[name] = value
    return tree


def layer_of(settings: Sequence[tuple[str, Any]], origin: str, model: type[BaseModel]) -> Layer:
    """A layer with known keys only; aliases are replaced, everything else becomes a problem.

    The same setting given by two spellings is a problem; so is the same key given twice.
    """
    problems: list[Problem] = []
    given: dict[str, Any] = {}
    known = keys_of(model)
    for key, value in settings:
        if key in given:
            problems.append(Problem(key, f"`{key}` is given twice{_suffix(origin)}; keep one"))
        elif key in ALIAS_TARGETS or (key in known and not known[key].in_list):
            given[key] = value
        else:
            problems.append(unknown_key(key, value, model, origin))
    values = {key: value for key, value in given.items() if key in known}
    spelled = _replace_aliases(given, values, problems, origin)
    values = {key: translated(key, value) for key, value in values.items()}
    return Layer(values, origin, spelled, tuple(problems))


def _replace_aliases(
    given: Mapping[str, Any], values: dict[str, Any], problems: list[Problem], origin: str
) -> dict[str, str]:
    """Moves what was given by other spellings into `values`; returns the spelling by key."""
    spelled: dict[str, str] = {}
    for alias in ALIASES:
        used = {name: given[name] for name in alias.names if name in given}
        if not used:
            continue
        first = next(iter(used))
        try:
            converted = alias.convert(used)
        except ValueError as error:
            problems.append(Problem(first, f"`{first}` {error}; given: {shown(used[first])}{_suffix(origin)}"))
            continue
        for key, value in converted.items():
            if key in values:
                other = f"`{spelled[key]}`" if key in spelled else "that key"
                problems.append(
                    Problem(key, f"`{first}` sets `{key}`, and {other} is given too{_suffix(origin)}; keep one of them")
                )
                continue
            values[key] = value
            spelled[key] = first
    return spelled


def _suffix(origin: str) -> str:
    return f" ({origin})" if origin else ""


def unknown_key(key: str, value: Any, model: type[BaseModel], origin: str = "") -> Problem:
    """The problem with a key that the schema does not have, naming what was probably meant."""
    where = _suffix(origin)
    known = keys_of(model)
    groups = groups_of(model)
    if key in groups:
        example = next(path for path in known if path.startswith(f"{key}."))
        return Problem(key, f"`{key}` is a group of keys, such as `{example}`; given: {shown(value)}{where}")
    if "[" in key and key.partition("[")[0] in known:
        whole = key.partition("[")[0]
        return Problem(key, f"`{key}`: items of a list cannot be set one by one{where}; give the whole list `{whole}`")
    settable = [path for path, entry in known.items() if not entry.in_list]
    near = nearest_keys(key, [*settable, *ALIAS_TARGETS])
    if near:
        names = ", ".join(_with_target(name) for name in near)
        return Problem(key, f"`{key}` is not a key{where}; did you mean {'one of ' if len(near) > 1 else ''}{names}?")
    parts = key.split(".")[:-1]
    while parts and ".".join(parts) not in groups:
        parts.pop()
    group = ".".join(parts)
    owner = f"`{group}` has the keys" if group else "the groups are"
    children = ", ".join(children_of(model, group))
    return Problem(key, f"`{key}` is not a key{where}; {owner} {children}")


def _with_target(name: str) -> str:
    if name not in ALIAS_TARGETS:
        return f"`{name}`"
    return f"`{name}` (= " + ", ".join(f"`{key}`" for key in ALIAS_TARGETS[name]) + ")"


def default_values(model: type[BaseModel]) -> dict[str, Any]:
    """The schema's defaults as a flat table."""
    return {path: key.default for path, key in keys_of(model).items() if not key.in_list}


def layered(recipe: Any, layers: Sequence[Layer], model: type[BaseModel]) -> dict[str, Any]:
    """All settings: defaults, then the recipe (none if its name is unknown), then `layers`, later ones win."""
    values = default_values(model)
    if isinstance(recipe, str) and recipe in RECIPES:
        values |= RECIPES[recipe].values
    for layer in layers:
        values |= layer.values
    return values
