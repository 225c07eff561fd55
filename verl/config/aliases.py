"""Other spellings of keys: the flat keywords of `PPOConfig(...)` and names that mean the same upstream.

One table. Every entry is accepted by `PPOConfig(...)`, in YAML files and as an override, and is listed in
`docs/configuration.md`. To add one, append a line to `ALIASES` (or to `VALUE_ALIASES` for a value): the
docs test reminds you to regenerate the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Alias:
    """Spellings that are read together and become one or more keys.

    Attributes:
        names: The accepted spellings, dotted or flat.
        targets: The keys that they can set.
        convert: From the spellings that were given, with their values, to the keys to set. Raises
            `ValueError` with the end of a sentence ("must be ...") for a value that it cannot translate.
        meaning: How values are translated, for the docs; empty = as they are.
    """

    names: tuple[str, ...]
    targets: tuple[str, ...]
    convert: Callable[[Values], Values]
    meaning: str = ""


def _same(names: str, *targets: str) -> Alias:
    """Spellings (separated by blanks) whose value goes unchanged to every target."""

    def convert(given: Values) -> Values:
        # Upstream files write down all spellings of a setting and leave the unused ones null.
        used = [name for name, value in given.items() if value is not None]
        if len(used) > 1:
            raise ValueError("means the same as " + ", ".join(f"`{name}`" for name in used[1:]) + "; keep one of them")
        return dict.fromkeys(targets, given[used[0]] if used else None)

    return Alias(tuple(names.split()), targets, convert)


_TRUNCATION = {"left": "truncate_left", "right": "truncate_right", "error": "error"}


def _overlong_prompts(given: Values) -> Values:
    truncation = given.get("data.truncation")
    if truncation is not None and truncation not in _TRUNCATION:
        raise ValueError("must be one of " + ", ".join(f"`{name}`" for name in _TRUNCATION))
    if given.get("data.filter_overlong_prompts"):
        return {"data.overlong_prompts": "drop"}
    return {} if truncation is None else {"data.overlong_prompts": _TRUNCATION[truncation]}


def _reward_functions(given: Values) -> Values:
    if "custom_reward_function.path" not in given:
        raise ValueError("needs `custom_reward_function.path` beside it")
    path = given["custom_reward_function.path"]
    if path is None:
        return {}
    function = given.get("custom_reward_function.name") or "compute_score"
    kwargs = given.get("custom_reward_function.reward_kwargs") or {}
    return {"reward.functions": [{"path": f"{path}:{function}", "kwargs": kwargs}]}


def _reward_model(given: Values) -> Values:
    if given.get("reward_model.enable") is False:
        return {"reward.model.path": None}
    return {"reward.model.path": given["reward_model.model.path"]} if "reward_model.model.path" in given else {}


def _resume(given: Values) -> Values:
    mode = given.get("trainer.resume_mode")
    path = given.get("trainer.resume_from_path")
    match mode:
        case "auto":
            return {"trainer.resume_from_checkpoint": "auto"}
        case "disable":
            return {"trainer.resume_from_checkpoint": None}
        case "resume_path" if isinstance(path, str):
            return {"trainer.resume_from_checkpoint": path}
        case "resume_path":
            raise ValueError("set to `resume_path` needs `trainer.resume_from_path` with a checkpoint folder")
        case None:
            return {"trainer.resume_from_checkpoint": path if isinstance(path, str) else None}
    raise ValueError("must be one of `auto`, `disable`, `resume_path`")


_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"

ALIASES: tuple[Alias, ...] = (
    # Flat keywords.
    _same("log_dir trainer.default_local_dir", "trainer.log_dir"),
    _same("total_steps trainer.total_training_steps", "trainer.total_steps"),
    _same("rollout_batch_size", "data.train_batch_size"),
    _same("actor_model_name_or_path", f"{_MODEL}.path"),
    _same("reward_model_name_or_path", "reward.model.path"),
    _same("ref_model_name_or_path", "actor_rollout_ref.ref.path"),
    _same("critic_model_name_or_path critic.model.path", "critic.path"),
    _same("log_interval trainer.log_interval log_step_interval", "trainer.log_step_interval"),
    _same("project_name", "trainer.project_name"),
    _same("experiment_name", "trainer.experiment_name"),
    _same("logger", "trainer.logger"),
    _same("resume_from_checkpoint", "trainer.resume_from_checkpoint"),
    _same("log_val_generations trainer.val_generations_to_log_to_wandb", "trainer.log_val_generations"),
    # Names upstream.
    _same("data.val_max_samples", "data.max_val_samples"),
    _same(f"{_ROLLOUT}.prompt_length", "data.max_prompt_length"),
    _same(f"{_ROLLOUT}.response_length", "data.max_response_length"),
    Alias(
        ("data.filter_overlong_prompts", "data.truncation"),
        ("data.overlong_prompts",),
        _overlong_prompts,
        "filter true: `drop`; else truncation left: `truncate_left`, right: `truncate_right`, error: `error`",
    ),
    _same(f"{_MODEL}.enable_gradient_checkpointing", f"{_MODEL}.gradient_checkpointing"),
    _same(f"{_MODEL}.lora_rank", f"{_MODEL}.lora.rank"),
    _same(f"{_MODEL}.lora_alpha", f"{_MODEL}.lora.alpha"),
    _same(f"{_MODEL}.target_modules", f"{_MODEL}.lora.target_modules"),
    _same(f"{_MODEL}.override_config.attn_implementation", f"{_MODEL}.attn_implementation"),
    _same(f"{_ACTOR}.clip_ratio", f"{_ACTOR}.clip_ratio_low", f"{_ACTOR}.clip_ratio_high"),
    _same(
        f"{_ACTOR}.ppo_micro_batch_size {_ACTOR}.ppo_micro_batch_size_per_gpu",
        f"{_ACTOR}.micro_batch_size",
    ),
    _same(f"{_ACTOR}.loss_scale_factor", f"{_ACTOR}.loss_scale_length"),
    _same(f"{_ACTOR}.optim.warmup_style {_ACTOR}.optim.lr_scheduler_type", f"{_ACTOR}.optim.lr_scheduler"),
    _same(
        "actor_rollout_ref.ref.log_prob_micro_batch_size actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.ref.micro_batch_size",
    ),
    _same("critic.ppo_micro_batch_size critic.ppo_micro_batch_size_per_gpu", "critic.micro_batch_size"),
    _same("critic.optim.warmup_style critic.optim.lr_scheduler_type", "critic.optim.lr_scheduler"),
    _same("trainer.critic_warmup", "critic.warmup_steps"),
    Alias(
        ("custom_reward_function.path", "custom_reward_function.name", "custom_reward_function.reward_kwargs"),
        ("reward.functions",),
        _reward_functions,
        "one function `<path>:<name>`; name defaults to `compute_score`; path null: no function",
    ),
    Alias(
        ("reward_model.enable", "reward_model.model.path"),
        ("reward.model.path",),
        _reward_model,
        "enable false: null, whatever the path",
    ),
    _same("reward_model.max_length", "reward.model.max_length"),
    _same("reward_model.micro_batch_size reward_model.micro_batch_size_per_gpu", "reward.model.micro_batch_size"),
    _same("algorithm.norm_adv_by_std_in_grpo", "algorithm.norm_adv_by_std"),
    _same("trainer.max_actor_ckpt_to_keep", "trainer.keep_checkpoints"),
    Alias(
        ("trainer.resume_mode", "trainer.resume_from_path"),
        ("trainer.resume_from_checkpoint",),
        _resume,
        "auto: `auto`; disable: null; resume_path: the path of `trainer.resume_from_path`",
    ),
)

_KL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}

VALUE_ALIASES: Mapping[str, Mapping[Any, Any]] = MappingProxyType(
    {
        "trainer.save_freq": {-1: None},
        "trainer.test_freq": {-1: None},
        f"{_ROLLOUT}.top_k": {-1: 0},
        f"{_ROLLOUT}.val_kwargs.top_k": {-1: 0},
        f"{_ACTOR}.kl_loss_type": _KL_NAMES,
        "algorithm.kl_penalty": _KL_NAMES,
    }
)
"""Values upstream that mean the same as a value here, by key."""

ALIAS_TARGETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: alias.targets for alias in ALIASES for name in alias.names}
)
"""The keys that each spelling sets."""


def translated(key: str, value: Any) -> Any:
    """`value` of `key`, or the value here that an upstream spelling of it means."""
    known = VALUE_ALIASES.get(key, {})
    # A truth value is no number here, though True == 1 in Python; unhashable values have no other spelling.
    if isinstance(value, str | int) and not isinstance(value, bool) and value in known:
        return known[value]
    return value
