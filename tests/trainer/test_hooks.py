"""Hooks: known events, order, and what a hook that raises does to a run."""

from __future__ import annotations

import pytest

from verl.errors import ConfigError, HookError
from verl.trainer.hooks import EVENTS, Hooks


def test_hooks_run_in_the_order_in_which_they_were_added():
    hooks, calls = Hooks("stop", warn=calls_nothing), []
    hooks.add("on_step_end", lambda trainer, results: calls.append(("first", trainer, results)))
    hooks.add("on_step_end", lambda trainer, results: calls.append(("second", trainer, results)))
    hooks.run("on_step_end", "trainer", {"step": 3})
    hooks.run("on_train_end", "trainer", {})
    assert calls == [("first", "trainer", {"step": 3}), ("second", "trainer", {"step": 3})]


def test_unknown_event_names_the_nearest_and_all_known_ones():
    with pytest.raises(ConfigError) as raised:
        Hooks("stop", warn=calls_nothing).add("on_rollout_ends", lambda trainer, results: None)
    assert "Did you mean 'on_rollout_end'?" in str(raised.value)
    assert all(event in str(raised.value) for event in EVENTS)


def test_something_that_cannot_be_called_is_refused():
    with pytest.raises(ConfigError, match="must be a function"):
        Hooks("stop", warn=calls_nothing).add("on_step_end", "not a function")  # type: ignore[arg-type]


def test_a_hook_that_raises_stops_the_run_and_is_named():
    hooks = Hooks("stop", warn=calls_nothing)
    hooks.add("on_update_end", broken_hook)
    with pytest.raises(HookError, match=r"'broken_hook'.*'on_update_end'.*ValueError: no such thing"):
        hooks.run("on_update_end", None, {})


def test_a_hook_that_raises_is_a_warning_when_asked_and_the_others_still_run():
    warnings, calls = [], []
    hooks = Hooks("warn", warn=warnings.append)
    hooks.add("on_update_end", broken_hook)
    hooks.add("on_update_end", lambda trainer, results: calls.append(results))
    hooks.run("on_update_end", None, "results")
    assert calls == ["results"]
    assert len(warnings) == 1
    assert "broken_hook" in warnings[0]


def broken_hook(trainer: object, results: object) -> None:
    raise ValueError("no such thing")


def calls_nothing(text: str) -> None:
    raise AssertionError(f"unexpected warning: {text}")
