"""What PPO trains with: tokenizer, prompts, models, engine and rewards, built from the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from verl.config import PPOConfig
from verl.config.schema import RewardModelConfig
from verl.data import Prompt, PromptDataset, load_train_prompts, load_val_prompts, num_steps, ordered_batches
from verl.models.loading import (
    context_length,
    load_critic,
    load_policy,
    load_reference,
    load_reward_model,
    load_tokenizer,
)
from verl.models.lora import has_lora, load_adapter, reference_weights
from verl.models.policy import PolicyModel
from verl.models.value_model import ValueModel
from verl.rewards import RewardComputer, RewardInput, TextScorer, build_reward
from verl.rollout.engine import Engine, SamplingParams
from verl.rollout.hf_engine import HfEngine
from verl.rollout.single_turn import derive_seed
from verl.tracing.trajectory import Trajectory
from verl.trainer.estimation import needs_critic
from verl.trainer.optimization import Optimization, torch_device
from verl.trainer.updates import UpdatePlan


@dataclass(frozen=True, slots=True, eq=False)
class PPOParts:
    """The parts of one PPO run.

    Attributes:
        policy: What is trained. reference: Frozen, for the KL; nothing if the KL is off or the policy has an adapter
            (then it is its own reference). critic: Only for GAE.
        notices, warnings: Sentences the user should see once.
    """

    tokenizer: PreTrainedTokenizerBase
    train_prompts: PromptDataset
    val_prompts: PromptDataset | None
    policy: PolicyModel
    reference: PolicyModel | None
    uses_reference: bool
    critic: ValueModel | None
    engine: Engine
    rewards: RewardComputer
    sampling: SamplingParams
    val_sampling: SamplingParams
    notices: tuple[str, ...]
    warnings: tuple[str, ...]

    def reference_policy(self) -> AbstractContextManager[PolicyModel]:
        """The reference, for the duration of a `with` block."""
        return reference_weights(self.policy) if self.reference is None else nullcontext(self.reference)

    def val_batches(self, batch_size: int | None) -> Iterator[Sequence[Prompt]]:
        """The validation prompts, batch by batch."""
        assert self.val_prompts is not None
        for rows in ordered_batches(len(self.val_prompts), batch_size):
            yield [self.val_prompts[row] for row in rows]

    def origin(self, trajectory: Trajectory) -> str:
        """File and row of its prompt, for messages."""
        prompts = self.val_prompts if trajectory.validate else self.train_prompts
        assert prompts is not None
        return prompts.origin(trajectory.sample_index)

    async def score(self, trajectories: Sequence[Trajectory]) -> None:
        """Fills in reward and parts of finished trajectories.

        Raises:
            RewardError: A reward raised or gave something that is not a finite number.
        """
        samples = [
            RewardInput(
                index=trajectory.sample_index,
                data_source=trajectory.data_source,
                messages=trajectory.messages[:-1],
                prompt=trajectory.prompt_text,
                response=trajectory.response_text,
                finish_reason=trajectory.finish_reason,
                ground_truth=trajectory.ground_truth,
                extra_info=trajectory.extra_info,
                origin=self.origin(trajectory),
            )
            for trajectory in trajectories
        ]
        for trajectory, result in zip(trajectories, await self.rewards.compute(samples), strict=True):
            trajectory.reward, trajectory.reward_parts = result.total, result.parts
            trajectory.reward_details = result.details


def build_parts(config: PPOConfig, checkpoint: Path | None) -> PPOParts:
    """Loads everything; policy and critic come from `checkpoint` if there is one.

    Raises:
        DataError: A data file is wrong. ModelError: A model is. ConfigError: A reward is.
    """
    settings, device = config.actor_rollout_ref, torch_device(config.trainer.device)
    model = settings.model
    # Any: transformers declares the special tokens of its tokenizers at run time only.
    tokenizer: Any = load_tokenizer(model.path, trust_remote_code=model.trust_remote_code)
    # Prompts and rewards first: their mistakes should not wait for a large model to load.
    context = context_length(model)
    train_prompts = load_train_prompts(config.data, tokenizer, context)
    val_prompts = load_val_prompts(config.data, tokenizer, context)
    datasets = [train_prompts] if val_prompts is None else [train_prompts, val_prompts]
    has_ground_truth = all(prompts.has_ground_truth for prompts in datasets)
    rewards = build_reward(config.reward, _scorer(config.reward.model, device), has_ground_truth)
    trained = model if checkpoint is None else model.model_copy(update={"path": str(checkpoint / "actor")})
    policy = load_policy(model if model.lora.rank else trained, device, tokenizer=tokenizer)
    if model.lora.rank and checkpoint is not None:
        load_adapter(policy, checkpoint / "actor")
    uses_reference = config.algorithm.use_kl_in_reward or settings.actor.use_kl_loss
    owns_reference = uses_reference and not (has_lora(policy) and settings.ref.path is None)
    critic = None
    if needs_critic(config.algorithm):
        saved = None if checkpoint is None else checkpoint / "critic"
        critic_path = str(saved) if saved is not None and saved.is_dir() else config.critic.path
        critic = load_critic(config.critic.model_copy(update={"path": critic_path}), model, device)
    return PPOParts(
        tokenizer=tokenizer,
        train_prompts=train_prompts,
        val_prompts=val_prompts,
        policy=policy,
        reference=load_reference(model, device, tokenizer=tokenizer, path=settings.ref.path)
        if owns_reference
        else None,
        uses_reference=uses_reference,
        critic=critic,
        engine=HfEngine(policy, tokenizer, max_batch_size=settings.rollout.max_batch_size),
        rewards=rewards,
        sampling=_sampling(config, settings.rollout.temperature, settings.rollout.top_p, settings.rollout.top_k),
        val_sampling=_sampling(
            config,
            settings.rollout.val_kwargs.temperature,
            settings.rollout.val_kwargs.top_p,
            settings.rollout.val_kwargs.top_k,
        ),
        notices=tuple(dict.fromkeys([n for data in datasets for n in data.notices] + list(rewards.notices))),
        warnings=tuple(warning for data in datasets for warning in data.warnings),
    )


def _sampling(config: PPOConfig, temperature: float, top_p: float, top_k: int) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=config.data.max_response_length,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        stop=tuple(config.actor_rollout_ref.rollout.stop),
    )


def _scorer(config: RewardModelConfig, device: torch.device) -> TextScorer | None:
    return None if config.path is None else load_reward_model(config, device)


def build_optimizations(
    config: PPOConfig, parts: PPOParts, total_steps: int
) -> tuple[Optimization, Optimization | None]:
    """Optimizers of the policy, and of the critic if there is one."""
    actor, critic = config.actor_rollout_ref.actor, config.critic
    return (
        Optimization(parts.policy.network, actor.optim, total_steps, actor.grad_clip),
        None if parts.critic is None else Optimization(parts.critic, critic.optim, total_steps, critic.grad_clip),
    )


def total_steps(config: PPOConfig, train_prompts: PromptDataset) -> int:
    """Steps of the whole run: `trainer.total_steps`, else what `total_epochs` (1 if not given) take."""
    if config.trainer.total_steps is not None:
        return config.trainer.total_steps
    return num_steps(len(train_prompts), config.data.train_batch_size, config.trainer.total_epochs or 1)


def epochs_done(config: PPOConfig, train_prompts: PromptDataset, step: int) -> float:
    """Passes over the training prompts after `step` steps."""
    return step * config.data.train_batch_size / len(train_prompts)


def continued_settings(config: PPOConfig, parts: PPOParts) -> dict[str, str | int]:
    """What a continued run must share with the one that saved its checkpoint, by dotted key."""
    return {
        "the training data (its fingerprint)": parts.train_prompts.fingerprint,
        "actor_rollout_ref.model.path": config.actor_rollout_ref.model.path or "",
        "actor_rollout_ref.rollout.n": config.actor_rollout_ref.rollout.n,
        "algorithm.type": config.algorithm.type,
        "data.train_batch_size": config.data.train_batch_size,
        "data.seed": config.data.seed,
        "trainer.seed": config.trainer.seed,
    }


def actor_plan(config: PPOConfig, step: int) -> UpdatePlan:
    """How a step's batch is cut for the policy; orders differ from step to step and are reproducible."""
    actor = config.actor_rollout_ref.actor
    return _plan(config, step, actor.ppo_epochs, actor.ppo_mini_batch_size, actor.micro_batch_size, stream=1)


def critic_plan(config: PPOConfig, step: int) -> UpdatePlan:
    """How a step's batch is cut for the critic; what is not set is as for the policy."""
    actor, critic = config.actor_rollout_ref.actor, config.critic
    return _plan(
        config,
        step,
        critic.ppo_epochs or actor.ppo_epochs,
        critic.ppo_mini_batch_size or actor.ppo_mini_batch_size,
        critic.micro_batch_size or actor.micro_batch_size,
        stream=2,
    )


def _plan(
    config: PPOConfig, step: int, epochs: int, mini_prompts: int | None, micro: int | None, stream: int
) -> UpdatePlan:
    prompts = mini_prompts or config.data.train_batch_size
    return UpdatePlan(
        epochs=epochs,
        mini_batch_size=prompts * config.actor_rollout_ref.rollout.n,
        micro_batch_size=micro,
        shuffle=config.actor_rollout_ref.actor.shuffle,
        # No sample has number -1, so no sample shares this seed.
        seed=derive_seed(config.trainer.seed, step, sample_index=stream, rollout_n=-1, validate=False),
    )
