"""Recipes of `algorithm.type`."""

from __future__ import annotations

import pytest

from verl.config import PPOConfig
from verl.config.layers import default_values
from verl.config.recipes import RECIPES
from verl.config.show import plain_values
from verl.errors import ConfigError


def test_ppo_is_the_default_and_that_of_its_papers() -> None:
    config = PPOConfig()
    assert config.algorithm.type == "ppo"
    assert config.algorithm.adv_estimator == "gae"
    assert (config.algorithm.gamma, config.algorithm.lam) == (1.0, 0.95)
    assert config.algorithm.use_kl_in_reward
    assert (config.algorithm.kl_penalty, config.algorithm.kl_ctrl.kl_coef) == ("k1", 0.001)
    assert not config.actor_rollout_ref.actor.use_kl_loss
    assert config.actor_rollout_ref.actor.loss_agg_mode == "token-mean"


def test_grpo_is_that_of_its_paper() -> None:
    config = PPOConfig(algorithm={"type": "grpo"})
    actor = config.actor_rollout_ref.actor
    assert config.algorithm.adv_estimator == "grpo"
    assert config.algorithm.norm_adv_by_std
    assert not config.algorithm.use_kl_in_reward
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.04, "k3")
    assert actor.loss_agg_mode == "seq-mean-token-mean"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_holds_only_what_differs_from_the_defaults(name: str) -> None:
    recipe = RECIPES[name]
    defaults = default_values(PPOConfig)
    assert recipe.values.keys() <= defaults.keys()
    assert not [key for key, value in recipe.values.items() if defaults[key] == value]
    assert "algorithm.type" not in recipe.values
    assert recipe.papers
    assert recipe.name == name


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_of_a_recipe_can_be_overridden(name: str) -> None:
    defaults = default_values(PPOConfig)
    values = plain_values(PPOConfig(**{"algorithm.type": name} | {key: defaults[key] for key in RECIPES[name].values}))
    assert {key: values[key] for key in RECIPES[name].values} == {key: defaults[key] for key in RECIPES[name].values}


@pytest.mark.parametrize(("name", "suggestion"), [("grop", "(did you mean `grpo`?)"), ("reinforce", None)])
def test_an_unknown_recipe_names_the_nearest_and_all(name: str, suggestion: str | None) -> None:
    with pytest.raises(ConfigError) as raised:
        PPOConfig(algorithm={"type": name})
    assert "`algorithm.type` must be a recipe, one of `ppo`, `grpo`" in str(raised.value)
    assert f"given: {name}" in str(raised.value)
    if suggestion:
        assert suggestion in str(raised.value)
    else:
        assert "did you mean" not in str(raised.value)
