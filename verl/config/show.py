"""A configuration as text: YAML with what differs from the defaults marked, and the list of all keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from verl.config.environment import VARIABLES
from verl.config.keys import groups_of, keys_of
from verl.config.layers import default_values, nested
from verl.config.recipes import RECIPES
from verl.config.schema import PPOConfig
from verl.config.secrets import mask


def plain_values(config: PPOConfig) -> dict[str, Any]:
    """All settings by dotted key, of plain types (tuples and groups in lists become lists and dictionaries)."""
    return {key: _plain(_select(config, key)) for key in default_values(PPOConfig)}


def changed_keys(config: PPOConfig) -> dict[str, Any]:
    """What differs from the schema's defaults (by recipe or by hand), by dotted key, secrets masked."""
    defaults = default_values(PPOConfig)
    changed = {key: value for key, value in plain_values(config).items() if value != _plain(defaults[key])}
    return _flat(mask(nested(changed)), changed)


def render(config: PPOConfig) -> str:
    """The configuration as YAML that `load_config` reads back, secrets masked.

    A key that differs from its default is marked with that default, and with the recipe that set it:

        algorithm:
          type: grpo  # default: ppo
          adv_estimator: grpo  # from recipe grpo; default: gae
    """
    values = plain_values(config)
    masked = _flat(mask(nested(values)), values)
    changed = changed_keys(config)
    lines = [f"# {len(changed)} of {len(values)} settings differ from the defaults; each is marked.\n"]
    open_groups: tuple[str, ...] = ()
    for key, value in masked.items():
        *groups, name = key.split(".")
        lines += _opened(open_groups, tuple(groups))
        open_groups = tuple(groups)
        lines.append(f"{'  ' * len(groups)}{name}: {one_line(_escaped(value))}{_mark(key, values)}\n")
    return "".join(lines)


def _opened(before: tuple[str, ...], groups: tuple[str, ...]) -> list[str]:
    """The headings of the groups that begin here."""
    same = 0
    while same < min(len(before), len(groups)) and before[same] == groups[same]:
        same += 1
    return [f"{'  ' * depth}{groups[depth]}:\n" for depth in range(same, len(groups))]


def _mark(key: str, values: Mapping[str, Any]) -> str:
    value = values[key]
    default = _plain(default_values(PPOConfig)[key])
    recipe = RECIPES[values["algorithm.type"]]
    from_recipe = recipe.values.get(key, default)
    if value == default == from_recipe:
        return ""
    if value == from_recipe:
        return f"  # from recipe {recipe.name}; default: {one_line(default)}"
    if from_recipe != default:
        return f"  # recipe {recipe.name}: {one_line(from_recipe)}; default: {one_line(default)}"
    return f"  # default: {one_line(default)}"


def describe() -> str:
    """Every key with its default, what it allows, and its meaning; and the recipes."""
    lines: list[str] = []
    for group, description in groups_of(PPOConfig).items():
        prefix = f"{group}."
        lines.append(f"{group}: {description}\n")
        for path, key in keys_of(PPOConfig).items():
            if path.startswith(prefix) and path.removeprefix(prefix).replace("[].", "").count(".") == 0:
                default = "must be given" if key.required else f"default {one_line(_plain(key.default))}"
                lines.append(f"  {path}  ({default}; {key.allowed})\n      {key.description}\n")
        lines.append("\n")
    lines.append("Recipes (algorithm.type):\n")
    for recipe in RECIPES.values():
        lines.append(f"  {recipe.name}: {recipe.summary}\n")
        lines += [f"      {paper}\n" for paper in recipe.papers]
        lines += [f"      {key}={one_line(value)}\n" for key, value in recipe.values.items()]
    return "".join(lines)


def describe_environment() -> str:
    """The environment variables that change what the package does, one a line."""
    width = max(len(variable.name) for variable in VARIABLES)
    lines = []
    for variable in VARIABLES:
        reader = "" if variable.reader == "verl" else f" (read by {variable.reader})"
        lines.append(f"{variable.name:<{width}}  {variable.meaning}{reader}\n")
    return "".join(lines)


class _OneLineDumper(yaml.SafeDumper):
    """Writes text so that neither line breaks nor a look like a number change it on the way back."""

    def ignore_aliases(self, data: Any) -> bool:
        """No anchors: equal lists are written out."""
        return True


_PLAIN_TEXT = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NOT_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"}


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = _PLAIN_TEXT.fullmatch(text) is not None and text.lower() not in _NOT_TEXT
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_OneLineDumper.add_representer(str, _represent_text)


def one_line(value: Any) -> str:
    """A plain value as one line of YAML."""
    text = yaml.dump(value, Dumper=_OneLineDumper, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _escaped(value: Any) -> Any:
    """A plain value with `${` in its texts marked as no interpolation, for a file that OmegaConf reads."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value)
    if isinstance(value, list):
        return [_escaped(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _escaped(inner) for name, inner in value.items()}
    return value


def _select(config: PPOConfig, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | float) else repr(value)


def _flat(tree: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `keys` in a tree of groups."""
    values: dict[str, Any] = {}
    for key in keys:
        value: Any = tree
        for name in key.split("."):
            value = value[name]
        values[key] = value
    return values
