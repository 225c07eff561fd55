"""Hooks: user functions called at fixed points of a run, `fn(trainer, results)`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from verl.errors import ConfigError, HookError

HookFunction = Callable[[Any, Any], object]

EVENTS: Mapping[str, str] = {
    "on_train_start": "Before the first step; results: `total_steps`, `start_step`.",
    "on_rollout_end": "After sampling and rewards; results: `prompts`, `responses` (lists of text), `rewards` "
    "(float array, one per response), `reward_parts`, `trajectories`.",
    "on_update_end": "After the models were updated; results: `trajectories`, `batch` (a `RolloutBatch`).",
    "on_step_end": "After a step; results: `step`, `timings` (seconds per phase), `metrics` (what was logged, "
    "empty between log intervals), `batch` (a `RolloutBatch`).",
    "on_validation_end": "After a validation; results: `metrics`, `trajectories`.",
    "on_checkpoint_saved": "After a checkpoint was saved; results: `path`, `step`.",
    "on_train_end": "After the last step, while trackers are still open; results: `status`, `step`.",
}


class Hooks:
    """The hooks of one trainer, called in the order in which they were added."""

    def __init__(self, on_error: Literal["stop", "warn"], warn: Callable[[str], None]) -> None:
        self._on_error = on_error
        self._warn = warn
        self._functions: dict[str, list[HookFunction]] = {event: [] for event in EVENTS}

    def add(self, event: str, function: HookFunction) -> None:
        """Adds a hook.

        Raises:
            ConfigError: The event is unknown, or `function` cannot be called.
        """
        if event not in EVENTS:
            near = difflib.get_close_matches(event, EVENTS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"Unknown hook event {event!r}.{hint} Known events: {', '.join(EVENTS)}.")
        if not callable(function):
            raise ConfigError(f"A hook must be a function `fn(trainer, results)`; {event!r} was given {function!r}.")
        self._functions[event].append(function)

    def run(self, event: str, trainer: Any, results: Any) -> None:
        """Calls the hooks of an event.

        Raises:
            HookError: A hook raised and `trainer.hook_errors` is `stop`; names hook and event.
        """
        for function in self._functions[event]:
            try:
                function(trainer, results)
            except (Exception, SystemExit) as error:  # a hook must not end the program behind the run's back
                name = getattr(function, "__qualname__", repr(function))
                text = f"Hook {name!r} failed in event {event!r}: {type(error).__name__}: {error}"
                if self._on_error == "stop":
                    raise HookError(f"{text} (trainer.hook_errors=warn goes on without it)") from error
                self._warn(text)
