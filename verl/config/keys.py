"""The keys of a schema: their paths, defaults, and what they allow, read from the pydantic models.

Messages, the docs table, `verl config --describe` and the layering all read the schema through here.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    Attributes:
        path: Dotted path, such as `trainer.seed`; a key of a list item reads `reward.functions[].path`.
        default: Its default, `None` too where it must be given.
        required: It has no default (only within list items).
        allowed: What it accepts, in words: "a whole number of at least 1, or null".
        kinds: The types that it accepts, such as `(int, NoneType)`.
        description: The sentence of the schema.
    """

    path: str
    default: Any
    required: bool
    allowed: str
    kinds: tuple[Any, ...]
    description: str

    @property
    def in_list(self) -> bool:
        """Whether it is a key of list items, which cannot be set one by one."""
        return "[]" in self.path

    @property
    def is_text(self) -> bool:
        """Whether it takes text and no number or truth value."""
        return set(self.kinds) <= {str, types.NoneType}

    @property
    def is_number(self) -> bool:
        """Whether it takes a number and no truth value."""
        return bool(set(self.kinds) & {int, float}) and bool not in self.kinds


@lru_cache(maxsize=64)
def keys_of(model: type[BaseModel]) -> dict[str, Key]:
    """All keys of `model` by path, in the order of the schema."""
    return {key.path: key for key in _walk(model, None, "")}


@lru_cache(maxsize=64)
def groups_of(model: type[BaseModel]) -> dict[str, str]:
    """The description of each group of `model` by dotted path, in the order of the schema."""
    groups: dict[str, str] = {}

    def visit(group: type[BaseModel], prefix: str) -> None:
        for name, field in group.model_fields.items():
            if _is_model(field.annotation):
                groups[prefix + name] = field.description or ""
                visit(field.annotation, f"{prefix}{name}.")

    visit(model, "")
    return groups


@lru_cache(maxsize=64)
def children_of(model: type[BaseModel], group: str) -> tuple[str, ...]:
    """Names directly in `group` of `model` ("" = the top)."""
    prefix = f"{group}." if group else ""
    names = [path.removeprefix(prefix) for path in (*groups_of(model), *keys_of(model)) if path.startswith(prefix)]
    return tuple(dict.fromkeys(name for name in names if "." not in name and "[]" not in name))


def _walk(model: type[BaseModel], defaults: BaseModel | None, prefix: str) -> list[Key]:
    # Defaults come from the instance where there is one: a group may set another default for a nested
    # group than that group's own class (critic.optim.lr).
    keys: list[Key] = []
    for name, field in model.model_fields.items():
        path = prefix + name
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if defaults is not None:
            default = getattr(defaults, name)
        if _is_model(field.annotation):
            keys += _walk(field.annotation, default, f"{path}.")
            continue
        keys.append(_key(path, field, default))
        item = _item_model(field.annotation)
        if item is not None:
            keys += _walk(item, None, f"{path}[].")
    return keys


def _key(path: str, field: FieldInfo, default: Any) -> Key:
    return Key(
        path=path,
        default=default,
        required=field.is_required(),
        allowed=_allowed(field),
        kinds=_options(field.annotation),
        description=field.description or "",
    )


def _is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _item_model(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) is not list:
        return None
    item = get_args(annotation)[0]
    return item if _is_model(item) else None


def _options(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _allowed(field: FieldInfo) -> str:
    options = _options(field.annotation)
    kinds = list(dict.fromkeys(_kind(option, field.metadata) for option in options if option is not types.NoneType))
    if {int, float} <= set(options):
        kinds = [_kind(float, field.metadata)]
    if types.NoneType in options:
        return " or ".join(kinds) + ", or null"
    return " or ".join(kinds)


def _kind(option: Any, metadata: list[Any]) -> str:
    origin = get_origin(option)
    if origin is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in get_args(option))
    if option is int:
        return "a whole number" + _bounds(metadata)
    if option is float:
        return "a number" + _bounds(metadata)
    if option is str:
        return "non-empty text" if any(isinstance(rule, MinLen) for rule in metadata) else "text"
    if origin is tuple:
        return f"a list of {len(get_args(option))} numbers"
    if origin is list:
        item = _item_model(option)
        if item is not None:
            names = ", ".join(f"`{name}`" for name in item.model_fields)
            return f"text, a list of texts, or a list of groups with the keys {names}"
        return "text or a list of texts"
    return {bool: "true or false"}.get(option, "a group of any keys")


def _bounds(metadata: list[Any]) -> str:
    words: list[str] = []
    for rule in metadata:
        match rule:
            case Ge(ge=bound):
                words.append(f"of at least {bound}")
            case Gt(gt=bound):
                words.append(f"above {bound}")
            case Le(le=bound):
                words.append(f"at most {bound}")
            case Lt(lt=bound):
                words.append(f"below {bound}")
    return " " + " and ".join(words) if words else ""
