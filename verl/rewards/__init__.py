"""Rewards: functions by name, a reward model, and their weighted sum with every part kept.

Nothing here needs torch: the reward model is any `TextScorer`, such as `verl.models.loading.load_reward_model` gives.
"""

from __future__ import annotations

from verl.config.checks import MODEL_PART
from verl.rewards.building import build_reward
from verl.rewards.functions import RewardFunction, load_reward_functions, make_reward_function
from verl.rewards.inputs import RewardInput, RewardResult, ScoredText, TextScorer
from verl.rewards.reward import RewardComputer

__all__ = [
    "MODEL_PART",
    "RewardComputer",
    "RewardFunction",
    "RewardInput",
    "RewardResult",
    "ScoredText",
    "TextScorer",
    "build_reward",
    "load_reward_functions",
    "make_reward_function",
]
