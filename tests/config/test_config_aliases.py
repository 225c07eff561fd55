"""Other spellings of keys and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl.config import PPOConfig, load_config
from verl.config.aliases import ALIAS_TARGETS, ALIASES, VALUE_ALIASES
from verl.config.keys import groups_of, keys_of
from verl.config.show import plain_values
from verl.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"log_dir": "a"}, {"trainer.log_dir": "a"}),
        ({"trainer.default_local_dir": "a"}, {"trainer.log_dir": "a"}),
        ({"total_steps": 7}, {"trainer.total_steps": 7}),
        ({"trainer.total_training_steps": 7}, {"trainer.total_steps": 7}),
        ({"rollout_batch_size": 8}, {"data.train_batch_size": 8}),
        ({"actor_model_name_or_path": "m"}, {"actor_rollout_ref.model.path": "m"}),
        ({"reward_model_name_or_path": "m"}, {"reward.model.path": "m"}),
        ({"reward_model.model.path": "m"}, {"reward.model.path": "m"}),
        ({"reward_model.enable": True, "reward_model.model.path": "m"}, {"reward.model.path": "m"}),
        ({"reward_model.enable": False, "reward_model.model.path": "m"}, {"reward.model.path": None}),
        ({"critic.model.path": "m"}, {"critic.path": "m"}),
        ({"log_interval": 5}, {"trainer.log_step_interval": 5}),
        ({"trainer.log_interval": 5}, {"trainer.log_step_interval": 5}),
        ({f"{ACTOR}.clip_ratio": 0.3}, {f"{ACTOR}.clip_ratio_low": 0.3, f"{ACTOR}.clip_ratio_high": 0.3}),
        ({f"{ACTOR}.ppo_micro_batch_size": 2}, {f"{ACTOR}.micro_batch_size": 2}),
        ({f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2}, {f"{ACTOR}.micro_batch_size": 2}),
        (
            {f"{ACTOR}.ppo_micro_batch_size": None, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2},
            {f"{ACTOR}.micro_batch_size": 2},
        ),
        (
            {"actor_rollout_ref.model.enable_gradient_checkpointing": True},
            {"actor_rollout_ref.model.gradient_checkpointing": True},
        ),
        ({"actor_rollout_ref.model.lora_rank": 8}, {"actor_rollout_ref.model.lora.rank": 8}),
        ({f"{ROLLOUT}.response_length": 64}, {"data.max_response_length": 64}),
        ({f"{ROLLOUT}.prompt_length": 64}, {"data.max_prompt_length": 64}),
        ({"data.truncation": "left"}, {"data.overlong_prompts": "truncate_left"}),
        ({"data.truncation": "right"}, {"data.overlong_prompts": "truncate_right"}),
        ({"data.truncation": "error"}, {"data.overlong_prompts": "error"}),
        ({"data.filter_overlong_prompts": True}, {"data.overlong_prompts": "drop"}),
        (
            {"data.filter_overlong_prompts": True, "data.truncation": "error"},
            {"data.overlong_prompts": "drop"},
        ),
        (
            {"data.filter_overlong_prompts": False, "data.truncation": "left"},
            {"data.overlong_prompts": "truncate_left"},
        ),
        ({"algorithm.norm_adv_by_std_in_grpo": False}, {"algorithm.norm_adv_by_std": False}),
        ({"trainer.resume_mode": "auto"}, {"trainer.resume_from_checkpoint": "auto"}),
        ({"trainer.resume_mode": "disable"}, {"trainer.resume_from_checkpoint": None}),
        (
            {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "runs/a/global_step_1"},
            {"trainer.resume_from_checkpoint": "runs/a/global_step_1"},
        ),
        ({"trainer.max_actor_ckpt_to_keep": 3}, {"trainer.keep_checkpoints": 3}),
        ({"trainer.save_freq": -1}, {"trainer.save_freq": None}),
        ({"trainer.test_freq": -1}, {"trainer.test_freq": None}),
        ({f"{ROLLOUT}.top_k": -1}, {f"{ROLLOUT}.top_k": 0}),
        ({f"{ACTOR}.kl_loss_type": "low_var_kl"}, {f"{ACTOR}.kl_loss_type": "k3"}),
        ({"algorithm.kl_penalty": "kl"}, {"algorithm.kl_penalty": "k1"}),
        (
            {"custom_reward_function.path": "r.py"},
            {"reward.functions": [{"path": "r.py:compute_score", "name": None, "weight": 1.0, "kwargs": {}}]},
        ),
        (
            {
                "custom_reward_function.path": "r.py",
                "custom_reward_function.name": "f",
                "custom_reward_function.reward_kwargs": {"a": 1},
            },
            {"reward.functions": [{"path": "r.py:f", "name": None, "weight": 1.0, "kwargs": {"a": 1}}]},
        ),
        (
            {"custom_reward_function.path": None, "custom_reward_function.name": "compute_score"},
            {"reward.functions": []},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_a_spelling_sets_its_keys_and_nothing_else(given: dict[str, Any], expected: dict[str, Any]) -> None:
    values = plain_values(PPOConfig(**given))
    assert values == plain_values(PPOConfig()) | expected


def test_spellings_work_in_files_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "log_interval: 10\n"
        "data: {truncation: left}\n"
        "custom_reward_function: {path: r.py, name: f, reward_kwargs: {a: {b: 1}}}\n"
        "reward_model: {model: {path: rm}}\n",
        encoding="utf-8",
    )
    config = load_config(file, ["total_steps=3", "data.filter_overlong_prompts=True"])
    assert config.trainer.log_step_interval == 10
    assert config.trainer.total_steps == 3
    # The command line is a later layer than the file.
    assert config.data.overlong_prompts == "drop"
    assert config.reward.functions[0].path == "r.py:f"
    assert config.reward.functions[0].kwargs == {"a": {"b": 1}}
    assert config.reward.model.path == "rm"


def test_a_later_layer_may_use_another_spelling(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("trainer: {log_step_interval: 10}\n", encoding="utf-8")
    assert load_config(file, ["log_interval=5"]).trainer.log_step_interval == 5


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"log_interval": 5, "trainer.log_step_interval": 5},
            "`log_interval` sets `trainer.log_step_interval`, and that key is given too; keep one of them",
        ),
        (
            {"log_interval": 5, "trainer.log_interval": 6},
            "`log_interval` means the same as `trainer.log_interval`; keep one of them",
        ),
        (
            {f"{ACTOR}.clip_ratio": 0.2, f"{ACTOR}.clip_ratio_high": 0.28},
            f"`{ACTOR}.clip_ratio` sets `{ACTOR}.clip_ratio_high`, and that key is given too",
        ),
        (
            {"reward_model_name_or_path": "a", "reward_model.model.path": "b"},
            "`reward_model.model.path` sets `reward.model.path`, and `reward_model_name_or_path` is given too",
        ),
        ({"data.truncation": "middle"}, "`data.truncation` must be one of `left`, `right`, `error`; given: middle"),
        ({"trainer.resume_mode": "always"}, "`trainer.resume_mode` must be one of `auto`, `disable`, `resume_path`"),
        ({"trainer.resume_mode": "resume_path"}, "`trainer.resume_mode` set to `resume_path` needs"),
        ({"custom_reward_function.name": "f"}, "`custom_reward_function.name` needs `custom_reward_function.path`"),
        (
            {"total_steps": 0},
            "`trainer.total_steps` must be a whole number of at least 1, or null; given: 0 (as `total_",
        ),
        ({"trainer.save_freq": 0}, "`trainer.save_freq` must be a whole number of at least 1, or null; given: 0"),
        ({"trainer.save_freq": -2}, "`trainer.save_freq` must be a whole number of at least 1, or null; given: -2"),
    ],
)
def test_contradicting_and_untranslatable_spellings_are_errors(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PPOConfig(**given)
    assert sentence in str(raised.value)
    overrides = [f"{key}={'null' if value is None else value}" for key, value in given.items()]
    with pytest.raises(ConfigError) as raised:
        load_config(None, overrides)
    assert "on the command line" in str(raised.value)


# The table itself.


def test_every_spelling_is_new_and_leads_to_a_key() -> None:
    keys = keys_of(PPOConfig)
    names = [name for alias in ALIASES for name in alias.names]
    assert len(names) == len(set(names))
    assert not set(names) & (keys.keys() | groups_of(PPOConfig).keys())
    for targets in ALIAS_TARGETS.values():
        assert set(targets) <= keys.keys()
    assert set(VALUE_ALIASES) <= keys.keys()


def test_no_spelling_is_the_beginning_of_another_key() -> None:
    # Else the keys below it could not be given in a nested file.
    everything = [*keys_of(PPOConfig), *ALIAS_TARGETS]
    for name in ALIAS_TARGETS:
        assert not [other for other in everything if other.startswith(f"{name}.")]


def test_the_values_of_value_aliases_are_allowed() -> None:
    for key, values in VALUE_ALIASES.items():
        for value in values.values():
            assert plain_values(PPOConfig(**{key: value}))[key] == value
