"""Rules that types and ranges cannot say, each a function of the values that it compares.

Rules about one setting raise `ValueError` with the end of a sentence that begins with the key. Rules about
several settings return problems, so that one message can list all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from verl.config.nearest import nearest_name
from verl.config.problems import Problem, shown

ENGINES = ("hf",)
"""Rollout engines by their `actor_rollout_ref.rollout.name`."""

MULTI_TURN_ENGINES: tuple[str, ...] = ()
"""Those of them that can play several turns."""

LARGEST_NUMBER = 2**63 - 1
"""The largest whole number of 64 bits, in which seeds and steps are kept."""

LOWEST_TEMPERATURE = 1e-3
"""Lowest temperature above 0: logits divided by less overflow."""

MODEL_PART = "model_score"
"""Name of the reward model's part of the reward, beside the names of the reward functions."""

SHORTEST_SYSTEM_INTERVAL = 0.1
"""Least seconds between two samples of the machine."""

_NOT_A_CHECKPOINT = ("", "auto", "latest", "last", "newest", "true", "yes")


def betas(value: tuple[float, float]) -> tuple[float, float]:
    """AdamW needs both betas in [0, 1)."""
    if not all(0 <= beta < 1 for beta in value):
        raise ValueError("must be 2 numbers of at least 0 and below 1")
    return value


def temperature(value: float) -> float:
    """Greedy, or a temperature that logits can be divided by."""
    if 0 < value < LOWEST_TEMPERATURE:
        raise ValueError(f"must be 0 (greedy) or at least {LOWEST_TEMPERATURE}: logits divided by less overflow")
    return value


def logger(value: list[str]) -> list[str]:
    """Each tracker once."""
    twice = sorted({name for name in value if value.count(name) > 1})
    if twice:
        raise ValueError(f"must name each tracker once; {', '.join(twice)} stands there more than once")
    return value


def log_dir(value: str | None) -> str | None:
    """A folder name whose only placeholder is `{rank}`."""
    if value is None:
        return value
    if not value.strip():
        raise ValueError("must be a folder; null chooses one (VERL_LOG_DIR, else a time stamp)")
    if "\0" in value:
        raise ValueError("must be a folder; no folder has a null character in its name")
    unknown = [name for name in re.findall(r"\{(.*?)\}", value) if name != "rank"]
    if unknown:
        raise ValueError(f"may contain `{{rank}}` but no other placeholder, such as `{{{unknown[0]}}}`")
    return value


def log_val_generations(value: int | float) -> int | float:
    """A whole number is a count, a fraction below 1 is a share."""
    if isinstance(value, float) and value >= 1:
        ending = f"; write {int(value)} for a count" if value.is_integer() else ""
        raise ValueError(f"must be a count (a whole number) or a share of the validation set below 1{ending}")
    return value


def resume_from_checkpoint(value: Any) -> Any:
    """A folder, or `auto`; truth values and other words for the newest checkpoint are refused."""
    word = value.strip().lower() if isinstance(value, str) else None
    if isinstance(value, bool) or (word in _NOT_A_CHECKPOINT and value != "auto"):
        raise ValueError(
            "must be a checkpoint folder, `auto` for the newest one in the run directory, or null to start afresh"
        )
    return value


def system_metrics_interval(value: float | None) -> float | None:
    """Off, or seldom enough for a sample to cost nothing."""
    if value is not None and 0 < value < SHORTEST_SYSTEM_INTERVAL:
        raise ValueError(f"must be 0 or null (no samples), or at least {SHORTEST_SYSTEM_INTERVAL} seconds")
    return value


def health_stop_on(value: list[str], rules: Sequence[str]) -> list[str]:
    """Names of health rules."""
    for name in value:
        if name not in rules:
            nearest = nearest_name(name, rules)
            suggestion = f"; did you mean `{nearest}` instead of {shown(name)}?" if nearest else ""
            known = ", ".join(f"`{rule}`" for rule in rules)
            raise ValueError(f"must be health rules: {known}{suggestion}")
    return value


def mini_batch(key: str, mini_batch_size: int | None, batch_size: int) -> list[Problem]:
    """A mini-batch divides the batch."""
    if mini_batch_size is None or batch_size % mini_batch_size == 0:
        return []
    if mini_batch_size > batch_size:
        return [
            Problem(
                key,
                f"`{key}` must be at most `data.train_batch_size` ({batch_size} prompts), of which it is a part;"
                f" given: {mini_batch_size}",
            )
        ]
    divisors = [size for size in range(1, batch_size + 1) if batch_size % size == 0]
    below = max(size for size in divisors if size <= mini_batch_size)
    above = min(size for size in divisors if size >= mini_batch_size)
    return [
        Problem(
            key,
            f"`{key}` must divide `data.train_batch_size` ({batch_size} prompts), so that all mini-batches are equally"
            f" large (the nearest sizes are {below} and {above}); given: {mini_batch_size}",
        )
    ]


def group_size(adv_estimator: str, samples: int) -> list[Problem]:
    """GRPO compares the samples of one prompt, so it needs two at least."""
    if adv_estimator != "grpo" or samples > 1:
        return []
    return [
        Problem(
            "actor_rollout_ref.rollout.n",
            "`actor_rollout_ref.rollout.n` must be at least 2 with `algorithm.adv_estimator=grpo`, which compares the"
            " samples of one prompt with each other: with a single sample there is no group and every advantage is"
            f" zero; given: {samples}",
        )
    ]


def sampling(prefix: str, temperature: float, samples: int) -> list[Problem]:
    """At temperature 0 all samples of a prompt are equal."""
    if temperature > 0 or samples == 1:
        return []
    return [
        Problem(
            f"{prefix}.temperature",
            f"`{prefix}.temperature` must be above 0 with `{prefix}.n={samples}`: at 0 sampling is greedy and all"
            f" {samples} samples of a prompt are the same; given: {temperature}",
        )
    ]


def engine(name: str, max_turns: int) -> list[Problem]:
    """A known engine, and turns that it can play."""
    problems: list[Problem] = []
    known = ", ".join(f"`{engine_name}`" for engine_name in ENGINES)
    if name not in ENGINES:
        nearest = nearest_name(name, ENGINES)
        suggestion = f" (did you mean `{nearest}`?)" if nearest else ""
        key = "actor_rollout_ref.rollout.name"
        problems.append(
            Problem(key, f"`{key}` must be a rollout engine of this version: {known}{suggestion}; given: {shown(name)}")
        )
    elif max_turns > 1 and name not in MULTI_TURN_ENGINES:
        key = "actor_rollout_ref.rollout.max_turns"
        problems.append(
            Problem(
                key,
                f"`{key}` must be 1: the `{name}` engine plays single-turn rollouts only, and this version has no"
                f" multi-turn loop; given: {max_turns}",
            )
        )
    return problems


def trace_backend(name: str | None) -> list[Problem]:
    """No tracker mirrors trajectories in this version."""
    if name is None:
        return []
    key = "actor_rollout_ref.rollout.trace.backend"
    return [
        Problem(
            key,
            f"`{key}` must be null: this version has no mirrors of trajectories in trackers. They are all in the run"
            f" directory, under `trajectories/`; given: {shown(name)}",
        )
    ]


def validation(test_freq: int | None, train_files: Sequence[str], val_files: Sequence[str]) -> list[Problem]:
    """Regular validation needs prompts; the built-in held-out set belongs to the built-in training set."""
    if test_freq is None or val_files or not train_files:
        return []
    return [
        Problem(
            "trainer.test_freq",
            "`trainer.test_freq` asks for validation, but there are no validation prompts: give `data.val_files`, or"
            f" leave `trainer.test_freq` out; given: {test_freq}",
        )
    ]


def health_rules_off(stop_on: Sequence[str], rules_off: Sequence[str]) -> list[Problem]:
    """A rule that is to stop the run must be watched."""
    key = "trainer.health.stop_on"
    return [
        Problem(
            key,
            f"`{key}` names the rule `{name}`, which is off: turn `trainer.health.{name}.enabled` and"
            f" `trainer.health.enabled` on, or leave it out; given: {shown(list(stop_on))}",
        )
        for name in stop_on
        if name in rules_off
    ]


def reward_names(names: Sequence[str], model_path: str | None) -> list[Problem]:
    """Each reward function has its own name, the part after the colon unless it is given one; so has the model."""
    key = "reward.functions"
    short = [name.rpartition(":")[2] for name in names]
    twice = sorted({name for name in short if short.count(name) > 1})
    problems = [
        Problem(
            key,
            f"`{key}` must have different names, for the metrics `reward/parts/<name>` bear them;"
            f" {shown(name)} stands there more than once: give each a `name`",
        )
        for name in twice
    ]
    if model_path is not None and MODEL_PART in short:
        problems.append(
            Problem(
                key,
                f"`{key}` must not have the name `{MODEL_PART}` with `reward.model.path`: the score of the reward model"
                " has it; give the function another `name`",
            )
        )
    return problems
