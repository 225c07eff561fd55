"""The one table of trackers, and how a name becomes a tracker.

A new built-in tracker is one file in `backends/` and one line here. Another package adds its own through the
entry-point group `verl.loggers`:

    [project.entry-points."verl.loggers"]
    mytracker = "my_package.my_logger:MyLogger"
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec

from verl.config.environment import variable
from verl.config.nearest import nearest_name
from verl.config.secrets import MASK
from verl.errors import TrackerError
from verl.tracking.logger import SHOWABLE, TrainerLogger


@dataclass(frozen=True, slots=True)
class BuiltinTracker:
    """A tracker of this package.

    Attributes:
        location: `module:Class`. package: The installed package that it cannot do without.
        is_remote: Whether its ids may come from a server: the start of training waits for them a moment.
        proxy_variable: Environment variable with a proxy for this tracker alone.
        has_preflight: Whether its class has checks to make before a run; its module is then importable without the
            package.
    """

    location: str
    package: str
    is_remote: bool = False
    proxy_variable: str | None = None
    has_preflight: bool = True


_BACKENDS = "verl.tracking.backends"

BUILTIN = {
    "console": BuiltinTracker(f"{_BACKENDS}.console_logger:ConsoleLogger", "rich", has_preflight=False),
    "tensorboard": BuiltinTracker(
        f"{_BACKENDS}.tensorboard_logger:TensorboardLogger", "tensorboard", has_preflight=False
    ),
    "wandb": BuiltinTracker(f"{_BACKENDS}.wandb_logger:WandbLogger", "wandb", True, "VERL_WANDB_PROXY"),
    "mlflow": BuiltinTracker(f"{_BACKENDS}.mlflow_logger:MlflowLogger", "mlflow", is_remote=True),
    "swanlab": BuiltinTracker(f"{_BACKENDS}.swanlab_logger:SwanlabLogger", "swanlab", is_remote=True),
    "trackio": BuiltinTracker(f"{_BACKENDS}.trackio_logger:TrackioLogger", "trackio"),
}

IN_TRAINING_PROCESS = ("console",)
"""Those drawn by the training process itself, on the user's own screen; all others are fed by the relay."""

ENTRY_POINT_GROUP = "verl.loggers"


def tracker_locations() -> dict[str, str]:
    """All trackers by name, with the `module:Class` that each is; a built-in name cannot be taken over."""
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return installed | {name: tracker.location for name, tracker in BUILTIN.items()}


def proxies_of_environment() -> dict[str, str]:
    """Proxies for single trackers, by their names."""
    return {name: value for name, key in _proxy_variables().items() if (value := variable(key))}


def chosen_proxies(trainer: object) -> dict[str, str]:
    """Proxies for single trackers, by their names: those of a configuration, else those of the environment.

    Args:
        trainer: The group `trainer` as a dictionary, in which `<tracker>_proxy` counts; anything else names none. One
            whose password is masked, as in what is kept of a run, does not count.
    """
    given = _proxies_in(trainer)
    return proxies_of_environment() | {name: proxy for name, proxy in given.items() if MASK not in proxy}


def masked_proxies(trainer: object) -> dict[str, str]:
    """Trackers whose proxy in a configuration is of no use, for its password is masked, with what is used instead."""
    variables = _proxy_variables()
    return {name: variables[name] for name, proxy in _proxies_in(trainer).items() if MASK in proxy}


def _proxies_in(trainer: object) -> dict[str, str]:
    if not isinstance(trainer, Mapping):
        return {}
    given = {name: trainer.get(f"{name}_proxy") for name in _proxy_variables()}
    return {name: proxy for name, proxy in given.items() if isinstance(proxy, str) and proxy}


def _proxy_variables() -> dict[str, str]:
    return {name: tracker.proxy_variable for name, tracker in BUILTIN.items() if tracker.proxy_variable}


def check_tracker(name: str) -> str:
    """Check that a tracker exists, without importing it (its package may be large).

    Args:
        name: A name of the table, an entry point's, or `package.module:Class` of your own.

    Returns:
        Its `module:Class`.

    Raises:
        TrackerError: There is no such tracker, or its module is not installed.
    """
    locations = tracker_locations()
    location = locations.get(name, name)
    if ":" not in location:
        raise _unknown(name, sorted(locations))
    if lack := missing_package(name):
        raise TrackerError(f"tracker {name!r} {': '.join(lack)}")
    module = location.partition(":")[0]
    if not _is_installed(module):
        raise TrackerError(f"tracker {name!r} is {location}, but there is no module {module!r}: install its package")
    return location


def missing_package(name: str) -> tuple[str, str] | None:
    """That a built-in tracker needs a package, and the command that installs it; nothing if it is there."""
    package = BUILTIN[name].package if name in BUILTIN else None
    if package is None or _is_installed(package):
        return None
    return f"needs the package {package!r}", f"pip install {package}"


def _is_installed(module: str) -> bool:
    try:
        return _lies_there(module) or find_spec(module) is not None  # imports the package that the module is in
    except (ModuleNotFoundError, ValueError):  # ValueError: loaded, but by no means that could tell
        return False


def _lies_there(module: str) -> bool:
    """Whether a module is where its package has its modules, unless the package itself decides on that."""
    name, *rest = module.split(".")
    spec = find_spec(name)
    for part in rest:
        places = spec.submodule_search_locations if spec else None
        if places is None:
            return False
        name = f"{name}.{part}"
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        try:
            spec = next(filter(None, (finder.find_spec(name, places) for finder in finders)), None)
        except KeyError:  # a folder without __init__.py can be looked into only after its package is imported
            return False
    return spec is not None


def load_tracker(name: str) -> type[TrainerLogger]:
    """Import the class of a tracker.

    Args:
        name: As for `check_tracker`.

    Raises:
        TrackerError: There is no such tracker, its package is missing, or it is not a `TrainerLogger`.
    """
    location = check_tracker(name)
    module_name, _, class_name = location.partition(":")
    try:
        loaded = getattr(importlib.import_module(module_name), class_name)
    except ImportError as error:
        raise TrackerError(f"tracker {name!r} ({location}) cannot be imported: {error}; install its package") from error
    except AttributeError:
        raise TrackerError(f"tracker {name!r}: module {module_name!r} has no {class_name!r}") from None
    return check_class(loaded, name)


def check_class(candidate: object, name: str) -> type[TrainerLogger]:
    """Make sure that something is a usable tracker class.

    Raises:
        TrackerError: It is not a `TrainerLogger`, or lacks one of the two abstract methods.
    """
    if not (isinstance(candidate, type) and issubclass(candidate, TrainerLogger)):
        raise TrackerError(f"tracker {name!r} is {candidate!r}; a tracker is a subclass of verl.tracking.TrainerLogger")
    missing = sorted(candidate.__abstractmethods__)
    if missing:
        raise TrackerError(f"tracker {name!r} ({candidate.__qualname__}) lacks the method(s) {', '.join(missing)}")
    return candidate


def _unknown(name: str, available: list[str]) -> TrackerError:
    names = ", ".join(available)
    nearest = nearest_name(name, available)
    hint = f"Did you mean {nearest!r}? " if nearest else ""
    return TrackerError(
        f"unknown tracker {name!r} in trainer.logger. {hint}Available: {names}, or package.module:Class of your own"
    )


def support_matrix() -> str:
    """Write which built-in tracker shows which kind of record, as a Markdown table for the docs."""
    classes = {name: load_tracker(name) for name in BUILTIN}
    kinds = [kind for kind in SHOWABLE if any(kind in tracker.shows for tracker in classes.values())]
    lines = ["| shows | " + " | ".join(classes) + " |", "|---|" + "---|" * len(classes)]
    lines += [
        f"| {kind} | " + " | ".join("yes" if kind in tracker.shows else "" for tracker in classes.values()) + " |"
        for kind in kinds
    ]
    return "\n".join(lines)
