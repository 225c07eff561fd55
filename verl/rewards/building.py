"""From the configuration to a `RewardComputer`."""

from __future__ import annotations

from verl.config.schema import RewardConfig, RewardFunctionConfig
from verl.errors import ConfigError
from verl.rewards.functions import load_reward_functions
from verl.rewards.inputs import TextScorer
from verl.rewards.reward import RewardComputer

DEFAULT_FUNCTION = RewardFunctionConfig.model_validate(
    {"path": "verl.rewards.builtin:default_score", "name": "default"}
)


def build_reward(config: RewardConfig, scorer: TextScorer | None, has_ground_truth: bool) -> RewardComputer:
    """Builds the reward of a run: `reward.functions`, the reward model, or the default for both.

    Args:
        scorer: The loaded reward model of `reward.model.path`, or None.
        has_ground_truth: Whether every training prompt has a ground truth; the default needs it.

    Raises:
        ConfigError: A function cannot be loaded, or there is nothing to compute a reward from.
    """
    functions = load_reward_functions(config.functions)
    notices: list[str] = []
    if not functions and scorer is None:
        if not has_ground_truth:
            raise ConfigError(
                "There is no reward: neither reward.functions nor reward.model.path is set, and not every prompt has a "
                "ground truth to compare with.\n"
                "Set reward.functions to 'file.py:function', reward.model.path to a reward model, or give each row "
                "a reward_model.ground_truth."
            )
        functions = load_reward_functions([DEFAULT_FUNCTION])
        notices.append(
            "No reward.functions and no reward.model.path given: a response scores 1 if it contains the ground truth, "
            "else 0 (built-in prompts: by their own rule)."
        )
    return RewardComputer(functions, scorer, config.model.weight, config.num_workers, notices)
