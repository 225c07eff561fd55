"""Recipes: what `algorithm.type` changes in the schema's defaults, each with its paper.

A recipe holds only what differs from the defaults, by dotted key, so everything that it does is visible
and can be overridden one by one. To add one, append it to `RECIPES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from verl.config.nearest import nearest_name
from verl.config.problems import Problem, shown


@dataclass(frozen=True, slots=True)
class Recipe:
    """A published algorithm as settings.

    Attributes:
        name: Value of `algorithm.type`.
        summary: One sentence.
        papers: Where it was published.
        values: What differs from the schema's defaults, by dotted key.
    """

    name: str
    summary: str
    papers: tuple[str, ...]
    values: Mapping[str, Any]


def _table(*recipes: Recipe) -> Mapping[str, Recipe]:
    return MappingProxyType({recipe.name: recipe for recipe in recipes})


RECIPES: Mapping[str, Recipe] = _table(
    Recipe(
        name="ppo",
        summary="Clipped surrogate with a critic (GAE); the KL to the reference is subtracted from the token rewards.",
        papers=(
            "Schulman et al. 2017, arXiv:1707.06347 (PPO)",
            "Ouyang et al. 2022, arXiv:2203.02155 (InstructGPT: KL in the reward)",
        ),
        values={
            "algorithm.lam": 0.95,
            "algorithm.use_kl_in_reward": True,
        },
    ),
    Recipe(
        name="grpo",
        summary="Advantages relative to the samples of the same prompt, no critic; the KL (k3) is a term of the loss.",
        papers=("Shao et al. 2024, arXiv:2402.03300 (DeepSeekMath)",),
        values={
            "algorithm.adv_estimator": "grpo",
            "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
            "actor_rollout_ref.actor.use_kl_loss": True,
            "actor_rollout_ref.actor.kl_loss_coef": 0.04,
        },
    ),
)


def recipe_problem(name: Any) -> Problem | None:
    """What is wrong with `name` as a value of `algorithm.type`, or nothing."""
    if isinstance(name, str) and name in RECIPES:
        return None
    nearest = nearest_name(name, RECIPES) if isinstance(name, str) else None
    suggestion = f" (did you mean `{nearest}`?)" if nearest else ""
    names = ", ".join(f"`{recipe}`" for recipe in RECIPES)
    return Problem(
        "algorithm.type", f"`algorithm.type` must be a recipe, one of {names}{suggestion}; given: {shown(name)}"
    )
