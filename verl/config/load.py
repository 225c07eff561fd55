"""From a YAML file and overrides to a configuration: schema defaults < recipe < file < overrides."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from verl.config.aliases import ALIAS_TARGETS
from verl.config.keys import groups_of, keys_of
from verl.config.layers import Layer, flatten, layer_of, layered, nested, source_of
from verl.config.problems import InvalidConfigError, Problem, first_of_each_key, shown
from verl.config.recipes import recipe_problem
from verl.config.schema import PPOConfig
from verl.errors import ConfigError


def load_config(file: str | Path | None, overrides: Sequence[str] = ()) -> PPOConfig:
    """Reads a configuration.

    Values are YAML; `${other.key}` refers to another setting and `${oc.env:NAME,default}` to the environment.

    Args:
        file: YAML file; nothing = the defaults.
        overrides: `key=value` each, the value in YAML: `data.train_files=[a.parquet,b.parquet]`, `critic.path=null`.

    Raises:
        ConfigError: The file cannot be read, or settings are wrong; the message lists everything that is.
    """
    layers = [_file_layer(Path(file))] if file is not None else []
    layers.append(_override_layer(overrides))
    problems = [problem for layer in layers for problem in layer.problems]
    recipe = _recipe(layers, problems)
    settings = layered(recipe, layers, PPOConfig)
    unresolved = [key for key, value in settings.items() if _is_unresolved(value)]
    settings = _resolved(settings, unresolved, layers, problems)
    try:
        config = PPOConfig(**nested(settings))
    except InvalidConfigError as error:
        problems += [
            Problem(problem.key, problem.sentence + source_of(problem.key, layers)) for problem in error.problems
        ]
    else:
        if not problems:
            return config
    raise InvalidConfigError(first_of_each_key(problems))


def _file_layer(file: Path) -> Layer:
    origin = f"in {file}"
    tree = _without_empty_groups(read_yaml(file))
    return layer_of(flatten(tree, PPOConfig), origin, PPOConfig)


def read_yaml(file: Path) -> dict[Any, Any]:
    """The mapping in a YAML file, interpolations unresolved.

    Raises:
        ConfigError: There is no such file, it cannot be read, is not YAML, or holds no mapping.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(_missing_file(file)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not a text file in UTF-8 (byte {error.start}): {error.reason}") from None
    except OSError as error:
        raise ConfigError(f"the configuration file {file} cannot be read: {error.strerror}") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None and not isinstance(root, yaml.MappingNode):
            groups = ", ".join(group for group in groups_of(PPOConfig) if "." not in group)
            raise ConfigError(f"{file} must hold groups of keys ({groups}) at its top")
        return OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)  # type: ignore[return-value]
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_error(file, error)) from None
    except RecursionError:
        raise ConfigError(f"{file}: brackets or groups are nested too deeply to be read as YAML") from None
    except (OmegaConfBaseException, ValueError) as error:  # ValueError: a number of thousands of digits
        raise ConfigError(f"{file}: {_first_line(error)}") from None


def _missing_file(file: Path) -> str:
    folder = file.parent
    if not folder.is_dir():
        return f"the configuration file {file} does not exist; nor does its folder {folder}"
    others = sorted(path.name for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))[:8]
    found = f"; YAML files in {folder}: {', '.join(others)}" if others else f"; there is no YAML file in {folder}"
    return f"the configuration file {file} does not exist{found}"


def _syntax_error(file: Path, error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        context = f" {error.context}" if error.context else ""
        return f"{file}, line {mark.line + 1}, column {mark.column + 1}: not valid YAML: {error.problem}{context}"
    return f"{file}: not valid YAML: {_first_line(error)}"


def _without_empty_groups(tree: Mapping[Any, Any], path: str = "") -> dict[Any, Any]:
    """`tree` without groups whose keys are all commented out, which YAML reads as null."""
    groups = groups_of(PPOConfig)
    kept: dict[Any, Any] = {}
    for name, value in tree.items():
        inner = f"{path}.{name}" if path else str(name)
        if inner in groups and value is None:
            continue
        kept[name] = _without_empty_groups(value, inner) if inner in groups and isinstance(value, Mapping) else value
    return kept


def _override_layer(overrides: Sequence[str]) -> Layer:
    settings: dict[str, Any] = {}
    problems: list[Problem] = []
    for override in overrides:
        if not _is_utf8(override):
            problems.append(Problem(override, f"`{shown(override)}` is not text in UTF-8"))
            continue
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key or key.startswith("-"):
            problems.append(_no_override(override))
            continue
        try:
            value = _value(key, text)
        except (yaml.YAMLError, OmegaConfBaseException, ValueError, RecursionError) as error:
            problems.append(_unreadable_value(key, text, error))
            continue
        # Flat first, so that a mapping sets single keys; then the last of equal keys wins, as in a shell
        # script that passes its own arguments on.
        opened = flatten({key: value}, PPOConfig) if isinstance(value, Mapping) else [(key, value)]
        settings |= dict(opened)
    layer = layer_of(list(settings.items()), "on the command line", PPOConfig)
    return Layer(layer.values, layer.origin, layer.spelled, (*problems, *layer.problems))


def _value(key: str, text: str) -> Any:
    """The value that `text` is as YAML; what a key that takes text was given stays as it was typed."""
    value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]), resolve=False)["value"]  # type: ignore[index,call-overload]
    keys = keys_of(PPOConfig)
    targets = ALIAS_TARGETS.get(key, (key,))
    is_text = all(target in keys and keys[target].is_text for target in targets)
    return text.strip() if is_text and isinstance(value, int | float) else value


def _is_utf8(text: str) -> bool:
    """Whether `text` came in as UTF-8: Python turns other bytes of a command line into lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _no_override(override: str) -> Problem:
    if override.startswith("-"):
        return Problem(override, f"`{shown(override)}` is not an option; settings are key=value, without dashes")
    return Problem(override, f"`{shown(override)}` is not a setting: write key=value, such as trainer.total_steps=100")


def _unreadable_value(key: str, text: str, error: Exception) -> Problem:
    if isinstance(error, GrammarParseError):
        return Problem(
            key,
            f"the value of `{key}` holds a `${{` that refers to nothing ({_first_line(error)}); given: {shown(text)}."
            " Write ${other.key} or ${oc.env:NAME,default}, and `\\${` for the characters themselves",
        )
    if isinstance(error, RecursionError):
        return Problem(key, f"the value of `{key}` is nested too deeply; given: {shown(text)}")
    reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else _first_line(error)
    return Problem(
        key,
        f"the value of `{key}` is not valid YAML ({reason}); given: {shown(text)}."
        f" Text with special characters needs quotes that the shell leaves in place: {key}='\"...\"'",
    )


def _recipe(layers: Sequence[Layer], problems: list[Problem]) -> Any:
    """The name of the recipe, resolved before all else, for its values are settings that others may refer to."""
    key = "algorithm.type"
    settings = layered(None, layers, PPOConfig)
    # Only this one: what else cannot be resolved is told once, with the recipe's values in place.
    unresolved = [key] if _is_unresolved(settings[key]) else []
    name = _resolved(settings, unresolved, layers, problems)[key]
    problem = recipe_problem(name)
    if problem is not None:
        problems.append(Problem(key, problem.sentence + source_of(key, layers)))
    return name


def _is_unresolved(value: Any) -> bool:
    """Whether there is an interpolation, or an escaped one, or a mandatory value in `value`."""
    if isinstance(value, str):
        return "${" in value or value == "???"
    if isinstance(value, Mapping):
        return any(_is_unresolved(inner) for inner in value.values())
    return isinstance(value, list) and any(_is_unresolved(inner) for inner in value)


def _resolved(
    settings: Mapping[str, Any], unresolved: Sequence[str], layers: Sequence[Layer], problems: list[Problem]
) -> dict[str, Any]:
    """`settings` with the values of `unresolved` keys replaced; those that fail fall back to their defaults."""
    resolved = dict(settings)
    # Most configurations refer to nothing, and OmegaConf's tree is the dear part of loading one.
    tree = OmegaConf.create(nested(settings)) if unresolved else None
    for key in unresolved:
        try:
            value = OmegaConf.select(tree, key, throw_on_resolution_failure=True, throw_on_missing=True)  # type: ignore[arg-type]
            resolved[key] = _plain(value)
        except OmegaConfBaseException as error:
            problems.append(_unresolved(key, settings[key], error, layers))
            resolved[key] = keys_of(PPOConfig)[key].default
    return resolved


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True, throw_on_missing=True) if OmegaConf.is_config(value) else value


def _unresolved(key: str, value: Any, error: OmegaConfBaseException, layers: Sequence[Layer]) -> Problem:
    where = source_of(key, layers)
    if value == "???":
        return Problem(key, f"`{key}` must be given: its value is `???`{where}")
    return Problem(key, f"`{key}` cannot be resolved: {_first_line(error)}; given: {shown(value)}{where}")


def _first_line(error: Exception) -> str:
    # Python's advice on long numbers is for programmers.
    return str(error).strip().partition("\n")[0].partition("; use sys.")[0]
