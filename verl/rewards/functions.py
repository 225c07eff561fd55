"""Reward functions by name: `path.py:function` or `package.module:function`.

A function has the signature of `compute_score(data_source, solution_str, ground_truth, extra_info)`,
or takes fewer or more of the names in `OFFERED`, in any order; it may be async. It returns a number,
a dict with `score` and further named values, or None where it does not apply.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from verl.config.schema import RewardFunctionConfig
from verl.errors import ConfigError
from verl.rewards.inputs import RewardInput

OFFERED = (
    "data_source",
    "solution_str",
    "ground_truth",
    "extra_info",
    "prompt",
    "messages",
    "finish_reason",
)
"""Arguments that a reward function can ask for by name."""


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A reward function, checked and ready to call.

    Attributes:
        name: Name of its part.
        weight: Weight in the sum.
        function: The callable.
        arguments: Those of `OFFERED` that it takes.
        kwargs: Further keyword arguments from the configuration.
        origin: Where it is defined, `file:line`.
    """

    name: str
    weight: float
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    kwargs: Mapping[str, Any]
    origin: str

    def call(self, sample: RewardInput) -> Any:
        """Calls the function; the result is as the function gives it (perhaps an awaitable)."""
        values = {
            "data_source": sample.data_source,
            "solution_str": sample.response,
            "ground_truth": sample.ground_truth,
            # Copies: samples of a group share these, and functions like to write into them.
            "extra_info": dict(sample.extra_info),
            "prompt": sample.prompt,
            "messages": [dict(message) for message in sample.messages],
            "finish_reason": sample.finish_reason,
        }
        return self.function(**{name: values[name] for name in self.arguments}, **self.kwargs)


def load_reward_functions(configs: Sequence[RewardFunctionConfig]) -> list[RewardFunction]:
    """Loads the functions of `reward.functions`; a file named twice is imported once.

    Raises:
        ConfigError: A file, module or function is missing, cannot be imported, has a signature
            that cannot be served, or two functions have the same name.
    """
    modules: dict[str, ModuleType] = {}
    functions: list[RewardFunction] = []
    for position, config in enumerate(configs):
        setting = f"reward.functions[{position}]"
        source, function_name = _split(config.path, setting)
        if source not in modules:
            modules[source] = _import(source, setting)
        function = _find(modules[source], source, function_name, setting)
        functions.append(
            make_reward_function(function, config.name or function_name, config.weight, config.kwargs, setting)
        )
    _check_names([function.name for function in functions])
    return functions


def make_reward_function(
    function: Callable[..., Any], name: str, weight: float, kwargs: Mapping[str, Any], setting: str
) -> RewardFunction:
    """Checks that a callable can be served, and wraps it.

    Args:
        kwargs: Further keyword arguments for each call.
        setting: What to call it in messages, such as `reward.functions[0]`.

    Raises:
        ConfigError: It is no callable, or asks for what is not offered.
    """
    if inspect.isclass(function) or not callable(function):
        kind = "a class" if inspect.isclass(function) else f"of type {type(function).__name__}"
        raise ConfigError(f"{setting}: {name!r} is {kind}; it must be a function such as {_EXAMPLE}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{setting}: the arguments of {name!r} cannot be read ({error}); wrap it: {_EXAMPLE}"
        ) from error
    arguments = _served(list(parameters), name, kwargs, setting)
    return RewardFunction(name, weight, function, arguments, dict(kwargs), _origin(function))


_EXAMPLE = "def compute_score(data_source, solution_str, ground_truth, extra_info): ..."


def _served(
    parameters: Sequence[inspect.Parameter], name: str, kwargs: Mapping[str, Any], setting: str
) -> tuple[str, ...]:
    """Gives the offered names that a signature takes."""
    clash = sorted(set(kwargs) & set(OFFERED))
    if clash:
        raise ConfigError(f"{setting}.kwargs: {', '.join(clash)} is filled by the trainer for each sample; remove it.")
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"{setting}: {name!r} has the positional-only argument {parameter.name!r}; arguments are passed by "
                f"name. Write it as {_EXAMPLE}"
            )
    unknown = [key for key in kwargs if key not in named and not takes_any]
    if unknown:
        near = difflib.get_close_matches(unknown[0], named, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{setting}.kwargs: {name!r} takes no argument {unknown[0]!r}.{hint}")
    unfilled = [n for n, p in named.items() if p.default is p.empty and n not in OFFERED and n not in kwargs]
    if unfilled:
        raise ConfigError(
            f"{setting}: {name!r} needs {', '.join(map(repr, unfilled))}, which is not offered. "
            f"Offered by name are {', '.join(OFFERED)}; give others a default or set them in {setting}.kwargs."
        )
    return OFFERED if takes_any else tuple(n for n in OFFERED if n in named)


def _split(path: str, setting: str) -> tuple[str, str]:
    source, _, function_name = path.rpartition(":")
    if not source or not function_name or "/" in function_name:
        raise ConfigError(
            f"{setting}.path is {path!r}; allowed are 'file.py:function' and 'package.module:function', "
            "with the function after a colon."
        )
    return source, function_name


def _import(source: str, setting: str) -> ModuleType:
    if source.endswith(".py"):
        return _import_file(source, setting)
    if "/" in source:
        raise ConfigError(f"{setting}.path: {source!r} does not end in .py; give 'file.py:function'.")
    _allow_imports_from(Path.cwd())
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise ConfigError(_import_failed(source, setting, error)) from error
        raise ConfigError(
            f"{setting}.path: there is no module {error.name!r} (for {source!r}). Install its package, start from the "
            "folder that holds it, or give 'file.py:function'."
        ) from error
    except (Exception, SystemExit) as error:  # the user's code may raise anything; it is shown in the message
        raise ConfigError(_import_failed(source, setting, error)) from error


def _import_file(source: str, setting: str) -> ModuleType:
    path = Path(source).expanduser()
    if not path.is_file():
        raise ConfigError(f"{setting}.path: no such file: {source!r}.{_near_files(path)}")
    path = path.resolve()
    _allow_imports_from(path.parent)
    # Not under its own name: a file called json.py must not replace that module for everybody.
    name = f"verl_reward_file_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{setting}.path: {source!r} cannot be imported as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's code may raise anything; it is shown in the message
        del sys.modules[name]
        raise ConfigError(_import_failed(source, setting, error)) from error
    return module


def _allow_imports_from(folder: Path) -> None:
    """Lets the user's file import its neighbours; at the end of the path, so that it shadows nothing."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _near_files(path: Path) -> str:
    if not path.parent.is_dir():
        return f" The folder {str(path.parent)!r} does not exist."
    names = sorted(entry.name for entry in path.parent.glob("*.py"))
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        return f" Did you mean {near[0]!r}?"
    return f" Python files in {str(path.parent)!r}: {', '.join(names[:5]) or 'none'}."


def _import_failed(source: str, setting: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        where, reason = f"{error.filename}:{error.lineno}", error.msg
    else:
        frame = blamed_frame(error, source)
        where = f"{frame.filename}:{frame.lineno}" if frame else source
        reason = str(error)
    return f"{setting}.path: importing {source!r} failed with {type(error).__name__} at {where}: {reason}"


def blamed_frame(error: BaseException, file: str) -> traceback.FrameSummary | None:
    """Finds the innermost line of the traceback that is in `file`, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_same_file(frame.filename, file)]
    return (own or frames or [None])[-1]


def _is_same_file(first: str, second: str) -> bool:
    return os.path.realpath(first) == os.path.realpath(os.path.expanduser(second))


def _find(module: ModuleType, source: str, function_name: str, setting: str) -> Any:
    members = vars(module)
    if function_name in members:
        return members[function_name]
    names = [n for n, value in members.items() if callable(value) and not n.startswith("_")]
    near = difflib.get_close_matches(function_name, names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(names) or 'no functions'}."
    raise ConfigError(f"{setting}.path: {source!r} has no function {function_name!r}. {hint}")


def _check_names(names: Sequence[str]) -> None:
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ConfigError(
                f"reward.functions[{position}] has the same name as reward.functions[{names.index(name)}]: {name!r}. "
                f"Set reward.functions[{position}].name."
            )


def _origin(function: Callable[..., Any]) -> str:
    target = inspect.unwrap(function)
    if not inspect.isroutine(target):
        target = type(target)
    try:
        return f"{inspect.getsourcefile(target)}:{inspect.getsourcelines(target)[1]}"
    except (OSError, TypeError):  # made at run time or in C: no source to point at
        return "no source file"
