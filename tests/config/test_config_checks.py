"""Settings that contradict each other, and rules that types cannot say."""

from __future__ import annotations

from typing import Any

import pytest

from verl.config import PPOConfig, load_config
from verl.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def message_of(**values: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        PPOConfig(**values)
    return str(raised.value)


def accepts(**values: Any) -> PPOConfig:
    return PPOConfig(**values)


# Batches.


@pytest.mark.parametrize("group", [ACTOR, "critic"])
def test_a_mini_batch_is_no_larger_than_the_batch(group: str) -> None:
    message = message_of(**{"data.train_batch_size": 8, f"{group}.ppo_mini_batch_size": 9})
    assert f"`{group}.ppo_mini_batch_size` must be at most `data.train_batch_size` (8 prompts)" in message
    assert "given: 9" in message


@pytest.mark.parametrize("group", [ACTOR, "critic"])
def test_a_mini_batch_divides_the_batch(group: str) -> None:
    # Divisors of 12: 1 2 3 4 6 12.
    message = message_of(**{"data.train_batch_size": 12, f"{group}.ppo_mini_batch_size": 5})
    assert f"`{group}.ppo_mini_batch_size` must divide `data.train_batch_size` (12 prompts)" in message
    assert "the nearest sizes are 4 and 6" in message


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 12, None])
def test_every_divisor_is_a_mini_batch(size: int | None) -> None:
    accepts(**{"data.train_batch_size": 12, f"{ACTOR}.ppo_mini_batch_size": size})


# Groups and sampling.


@pytest.mark.parametrize("values", [{"algorithm.type": "grpo"}, {"algorithm.adv_estimator": "grpo"}])
def test_grpo_needs_a_group(values: dict[str, Any]) -> None:
    message = message_of(**values, **{f"{ROLLOUT}.n": 1})
    assert f"`{ROLLOUT}.n` must be at least 2 with `algorithm.adv_estimator=grpo`" in message
    assert "every advantage is zero" in message
    accepts(**values, **{f"{ROLLOUT}.n": 2})


def test_a_single_sample_is_fine_with_a_critic() -> None:
    accepts(**{f"{ROLLOUT}.n": 1})


@pytest.mark.parametrize("prefix", [ROLLOUT, f"{ROLLOUT}.val_kwargs"])
def test_greedy_sampling_gives_one_sample(prefix: str) -> None:
    message = message_of(**{f"{prefix}.n": 4, f"{prefix}.temperature": 0})
    assert f"`{prefix}.temperature` must be above 0 with `{prefix}.n=4`" in message
    accepts(**{f"{prefix}.n": 1, f"{prefix}.temperature": 0})
    accepts(**{f"{prefix}.n": 4, f"{prefix}.temperature": 0.1})


# What this version does not have.


def test_an_unknown_engine_names_those_there_are() -> None:
    message = message_of(**{f"{ROLLOUT}.name": "vllm"})
    assert f"`{ROLLOUT}.name` must be a rollout engine of this version: `hf`; given: vllm" in message
    assert "(did you mean `hf`?)" in message_of(**{f"{ROLLOUT}.name": "HF"})


def test_more_than_one_turn_is_refused() -> None:
    message = message_of(**{f"{ROLLOUT}.max_turns": 3})
    assert f"`{ROLLOUT}.max_turns` must be 1" in message
    assert "single-turn" in message


def test_a_mirror_of_trajectories_is_refused() -> None:
    message = message_of(**{f"{ROLLOUT}.trace.backend": "mlflow"})
    assert f"`{ROLLOUT}.trace.backend` must be null" in message
    assert "given: mlflow" in message


# KL.


@pytest.mark.parametrize("in_reward", [True, False])
@pytest.mark.parametrize("in_loss", [True, False])
def test_kl_may_be_in_reward_and_loss(in_reward: bool, in_loss: bool) -> None:
    config = accepts(**{"algorithm.use_kl_in_reward": in_reward, f"{ACTOR}.use_kl_loss": in_loss})
    assert config.algorithm.use_kl_in_reward is in_reward
    assert config.actor_rollout_ref.actor.use_kl_loss is in_loss


# Validation.


def test_regular_validation_needs_prompts() -> None:
    assert "`trainer.test_freq` asks for validation" in message_of(
        **{"trainer.test_freq": 5, "data.train_files": "a.parquet"}
    )
    accepts(**{"trainer.test_freq": 5, "data.train_files": "a.parquet", "data.val_files": "b.parquet"})
    # The built-in set brings its own held-out prompts.
    accepts(**{"trainer.test_freq": 5})
    accepts(**{"data.train_files": "a.parquet"})


@pytest.mark.parametrize(("value", "kind"), [(0, int), (1, int), (20, int), (0.05, float), (0.999, float)])
def test_generations_are_a_count_or_a_share(value: float, kind: type) -> None:
    assert type(accepts(log_val_generations=value).trainer.log_val_generations) is kind


@pytest.mark.parametrize(
    ("value", "part"),
    [(1.0, "write 1 for a count"), (20.0, "write 20 for a count"), (1.5, "given: 1.5"), (-1, "of at least 0")],
)
def test_a_share_of_generations_is_below_one(value: float, part: str) -> None:
    message = message_of(log_val_generations=value)
    assert "`trainer.log_val_generations` must be a" in message
    assert part in message


# Trainer.


@pytest.mark.parametrize("value", ["auto", "runs/a/checkpoints/global_step_10", "automatic", None])
def test_resuming_from_a_folder_or_auto(value: str | None) -> None:
    assert accepts(resume_from_checkpoint=value).trainer.resume_from_checkpoint == value


@pytest.mark.parametrize("value", [True, False, "", " ", "Auto", "latest", "true"])
def test_resuming_from_another_word_says_what_there_is(value: Any) -> None:
    message = message_of(resume_from_checkpoint=value)
    assert "must be a checkpoint folder, `auto` for the newest one in the run directory, or null" in message


def test_a_tracker_is_named_once() -> None:
    assert "`trainer.logger` must name each tracker once; console" in message_of(logger=["console", "console"])


@pytest.mark.parametrize("value", ["logs/{date}", "logs/{rank}/{}"])
def test_rank_is_the_only_placeholder_of_the_run_directory(value: str) -> None:
    assert "`trainer.log_dir` may contain `{rank}` but no other placeholder" in message_of(log_dir=value)


def test_an_empty_run_directory_is_refused() -> None:
    assert "`trainer.log_dir` must be a folder" in message_of(log_dir="")
    accepts(log_dir="logs/{rank}")


def test_reward_functions_have_different_names() -> None:
    message = message_of(**{"reward.functions": ["a.py:score", "b.py:score", "c.py:other"]})
    assert "`reward.functions` must have different names" in message
    assert "; score stands there" in message
    accepts(**{"reward.functions": ["a.py:score", {"path": "b.py:score", "name": "second"}]})


@pytest.mark.parametrize("function", ["a.py:model_score", {"path": "a.py:score", "name": "model_score"}])
def test_no_reward_function_has_the_name_of_the_reward_models_score(function: Any) -> None:
    message = message_of(**{"reward.functions": [function], "reward.model.path": "models/rm"})
    assert "`reward.functions` must not have the name `model_score` with `reward.model.path`" in message
    accepts(**{"reward.functions": [function]})
    accepts(**{"reward.functions": ["a.py:score"], "reward.model.path": "models/rm"})


@pytest.mark.parametrize("betas", [(0.9, 1.0), (-0.1, 0.9), (1.5, 0.9)])
def test_betas_are_below_one(betas: tuple[float, float]) -> None:
    assert "`critic.optim.betas` must be 2 numbers of at least 0 and below 1" in message_of(
        **{"critic.optim.betas": betas}
    )


def test_all_contradictions_are_told_at_once() -> None:
    message = message_of(
        **{
            "algorithm.type": "grpo",
            f"{ROLLOUT}.n": 1,
            f"{ROLLOUT}.trace.backend": "weave",
            f"{ACTOR}.ppo_mini_batch_size": 5,
        }
    )
    assert message.startswith("3 problems in the configuration:\n  - ")


@pytest.mark.parametrize(
    ("override", "allowed"),
    [
        ("trainer.num_threads=100000", "a whole number of at least 1 and at most 1024, or null"),
        ("trainer.seed=-1", "a whole number of at least 0 and at most 9223372036854775807"),
        ("data.seed=9223372036854775808", "a whole number of at least 0 and at most 9223372036854775807"),
        ("actor_rollout_ref.rollout.top_k=2147483648", "a whole number of at least 0 and at most 2147483647"),
        (
            "actor_rollout_ref.rollout.val_kwargs.top_k=2147483648",
            "a whole number of at least 0 and at most 2147483647",
        ),
        (
            "actor_rollout_ref.rollout.temperature=1.0e-09",
            "0 (greedy) or at least 0.001: logits divided by less overflow",
        ),
        (
            "actor_rollout_ref.rollout.val_kwargs.temperature=0.0009",
            "0 (greedy) or at least 0.001: logits divided by less overflow",
        ),
        ('trainer.log_dir="a\\0b"', "a folder; no folder has a null character in its name"),
    ],
)
def test_what_a_machine_cannot_take_is_refused(override: str, allowed: str) -> None:
    key, _, value = override.partition("=")
    with pytest.raises(ConfigError) as raised:
        load_config(None, [override])
    assert str(raised.value).startswith(f"`{key}` must be {allowed}; given: {value}")


def test_the_ends_of_the_ranges_are_allowed() -> None:
    config = load_config(
        None,
        [
            "trainer.num_threads=1024",
            "trainer.seed=9223372036854775807",
            "actor_rollout_ref.rollout.top_k=2147483647",
            "actor_rollout_ref.rollout.temperature=0.001",
            "actor_rollout_ref.rollout.val_kwargs.temperature=0",
        ],
    )
    assert config.trainer.seed == 2**63 - 1
