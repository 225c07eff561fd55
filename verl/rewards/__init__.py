"""Rewards: functions by name, a reward model, and their weighted sum with every part kept.

`verl.rewards.model_scorer` is apart: it needs torch, reward functions do not.
"""

from __future__ import annotations

from verl.rewards.building import build_reward
from verl.rewards.functions import RewardFunction, load_reward_functions, make_reward_function
from verl.rewards.inputs import RewardInput, RewardResult, ScoredText, TextScorer
from verl.rewards.reward import MODEL_PART, RewardComputer

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
