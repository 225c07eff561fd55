"""`PPOConfig(...)` in Python: keywords, objects, assignment, and the one error class."""

from __future__ import annotations

import copy
import pickle

import pytest

from verl.config.problems import InvalidConfigError
from verl.config.schema import (
    ActorConfig,
    ActorRolloutRefConfig,
    AlgorithmConfig,
    CriticConfig,
    DataConfig,
    OptimConfig,
    PPOConfig,
    TrainerConfig,
)
from verl.errors import ConfigError


def test_the_flat_keywords_of_a_minimal_script_work() -> None:
    config = PPOConfig(
        log_dir="./test_logs",
        total_steps=10,
        rollout_batch_size=4,
        actor_model_name_or_path="facebook/opt-125m",
        reward_model_name_or_path="your_reward_model",
        log_interval=10,
    )
    assert config.trainer.log_dir == "./test_logs"
    assert config.trainer.total_steps == 10
    assert config.trainer.log_step_interval == 10
    assert config.data.train_batch_size == 4
    assert config.actor_rollout_ref.model.path == "facebook/opt-125m"
    assert config.reward.model.path == "your_reward_model"


def test_dictionaries_dotted_keys_and_objects_mean_the_same() -> None:
    by_dictionary = PPOConfig(trainer={"seed": 3}, algorithm={"type": "grpo"})
    by_dotted_key = PPOConfig(**{"trainer.seed": 3, "algorithm.type": "grpo"})
    by_object = PPOConfig(trainer=TrainerConfig(seed=3), algorithm=AlgorithmConfig(type="grpo"))
    assert by_dictionary == by_dotted_key == by_object


def test_an_object_leaves_what_was_not_set_in_it_to_the_recipe() -> None:
    config = PPOConfig(
        algorithm=AlgorithmConfig(type="grpo"),
        actor_rollout_ref=ActorRolloutRefConfig(actor=ActorConfig(kl_loss_coef=0.2)),
    )
    assert config.algorithm.adv_estimator == "grpo"
    assert config.actor_rollout_ref.actor.kl_loss_coef == 0.2
    assert config.actor_rollout_ref.actor.use_kl_loss


def test_what_was_set_in_an_object_wins_over_the_recipe_even_if_it_is_the_default() -> None:
    config = PPOConfig(algorithm=AlgorithmConfig(type="grpo", adv_estimator="gae"))
    assert config.algorithm.adv_estimator == "gae"


def test_an_object_changed_in_place_counts() -> None:
    critic = CriticConfig()
    critic.optim.weight_decay = 0.5
    config = PPOConfig(critic=critic)
    assert (config.critic.optim.weight_decay, config.critic.optim.lr) == (0.5, 1e-5)


def test_configurations_share_nothing() -> None:
    first, second = PPOConfig(), PPOConfig()
    first.trainer.logger.append("other")
    first.data.train_files.append("a.parquet")
    assert second.trainer.logger == PPOConfig().trainer.logger == ["console", "tensorboard"]
    assert PPOConfig().data.train_files == []


def test_dump_copy_and_pickle_keep_a_configuration() -> None:
    config = PPOConfig(algorithm={"type": "grpo"}, trainer={"seed": 3}, reward={"functions": ["a.py:f"]})
    assert PPOConfig(**config.model_dump()) == config
    assert PPOConfig.model_validate(config.model_dump()) == config
    assert PPOConfig.model_validate_json(config.model_dump_json()) == config
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({"log_dri": "x"}, "`log_dri` is not a key; did you mean `log_dir` (= `trainer.log_dir`)?"),
        ({"trainer": {"sede": 1}}, "`trainer.sede` is not a key; did you mean `trainer.seed`?"),
        ({"trainer": 3}, "`trainer` is a group of keys, such as `trainer.project_name`; given: 3"),
        ({"data": None}, "`data` is a group of keys"),
        (
            {"rollout_batch_size": 0},
            "`data.train_batch_size` must be a whole number of at least 1; given: 0 (as `rollout_batch_size`)",
        ),
        (
            {"trainer": {"seed": "x"}},
            "`trainer.seed` must be a whole number of at least 0 and at most 9223372036854775807; given: x",
        ),
        ({"algorithm": {"type": None}}, "`algorithm.type` must be a recipe, one of `ppo`, `grpo`; given: null"),
        ({"log_interval": 1, "trainer": {"log_step_interval": 2}}, "`log_interval` sets `trainer.log_step_interval`"),
        ({"trainer": {"seed": 1}, "trainer.seed": 1}, "`trainer.seed` is given twice; keep one"),
    ],
)
def test_a_wrong_keyword_is_a_config_error(keywords: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        PPOConfig(**keywords)
    assert sentence in str(raised.value)
    assert "pydantic" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_validating_a_dictionary_raises_the_same_error() -> None:
    with pytest.raises(ConfigError, match=r"`trainer\.sede` is not a key"):
        PPOConfig.model_validate({"trainer": {"sede": 1}})
    with pytest.raises(ConfigError, match=r"`trainer\.sede` is not a key"):
        PPOConfig.model_validate_json('{"trainer": {"sede": 1}}')


def test_a_wrong_group_keyword_lists_all_problems() -> None:
    with pytest.raises(ConfigError) as raised:
        ActorConfig(clip_ratio_lo=0.1, ppo_epochs=0)
    assert "ActorConfig: `clip_ratio_lo` is not a key; did you mean `clip_ratio_low`?" in str(raised.value)
    assert "ActorConfig: `ppo_epochs` must be a whole number of at least 1; given: 0" in str(raised.value)


def test_a_wrong_assignment_is_a_config_error_and_changes_nothing() -> None:
    config = PPOConfig()
    with pytest.raises(
        ConfigError, match="TrainerConfig: `seed` must be a whole number of at least 0 and at most 9223372036854775807"
    ):
        config.trainer.seed = "x"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="`sede` is not a key; did you mean `seed`"):
        setattr(config.trainer, "sede", 1)  # noqa: B010
    with pytest.raises(ConfigError, match="`log_val_generations` must be a count"):
        config.trainer.log_val_generations = 1.5
    assert config == PPOConfig()


def test_assigning_a_group_is_checked_against_the_others() -> None:
    config = PPOConfig(actor_rollout_ref={"actor": {"ppo_mini_batch_size": 16}})
    with pytest.raises(ConfigError, match=r"must divide `data\.train_batch_size`"):
        config.data = DataConfig(train_batch_size=24)
    assert config.data.train_batch_size == 32


def test_check_finds_contradictions_made_by_single_assignments() -> None:
    config = PPOConfig()
    config.check()
    config.actor_rollout_ref.actor.ppo_mini_batch_size = 5
    with pytest.raises(ConfigError, match="the nearest sizes are 4 and 8"):
        config.check()


def test_the_error_carries_its_problems_and_survives_a_process_border() -> None:
    with pytest.raises(InvalidConfigError) as raised:
        PPOConfig(trainer={"seed": "x"}, critic={"optim": {"lr": -1}})
    assert {problem.key for problem in raised.value.problems} == {"trainer.seed", "critic.optim.lr"}
    copied = pickle.loads(pickle.dumps(raised.value))
    assert str(copied) == str(raised.value)
    assert copied.problems == raised.value.problems


def test_whole_numbers_are_taken_where_numbers_are_asked() -> None:
    assert OptimConfig(lr=1).lr == 1.0
    assert isinstance(OptimConfig(lr=1).lr, float)
