"""PPO and the GRPO family, from top to bottom.

One step: sample a group of responses per prompt, score them, estimate advantages (GAE with a critic, or relative to
the group), take the optimizer steps, log. Which estimator, loss and KL: `algorithm.type` and the keys of the
configuration. The pieces are pure functions in `verl.algorithms` and the modules beside this one.

    trainer = PPOTrainer(config=PPOConfig(total_steps=100, actor_model_name_or_path="models/tiny"))
    trainer.add_hook("on_rollout_end", lambda trainer, results: print(results["rewards"].mean()))
    trainer.train()
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import torch

from verl.algorithms.kl import build_kl_controller
from verl.config import PPOConfig, process_rank
from verl.data import Prompt, batch_indices
from verl.errors import ConfigError, VerlError
from verl.rollout.engine import SamplingParams
from verl.rollout.single_turn import build_requests, collect
from verl.tracing.trajectory import Trajectory
from verl.tracing.trajectory_store import TrajectoryStore
from verl.tracking import Direction, Tracking, lookup
from verl.tracking.health.monitor import HealthStopError
from verl.tracking.trackers import Tracker
from verl.tracking.tracking import EndStatus
from verl.trainer.batch import RolloutBatch, store_token_facts
from verl.trainer.checkpoint import CheckpointStore, seed_everything
from verl.trainer.coroutines import CoroutineRunner
from verl.trainer.estimation import estimate_advantages
from verl.trainer.hooks import HookFunction, Hooks
from verl.trainer.launch import main
from verl.trainer.phases import PhaseTimer
from verl.trainer.ppo_parts import (
    PPOParts,
    actor_plan,
    build_optimizations,
    build_parts,
    continued_settings,
    critic_plan,
    epochs_done,
    total_steps,
)
from verl.trainer.ppo_state import PPOState, save_models
from verl.trainer.recording import log_embeddings, log_rollouts, record_environment
from verl.trainer.run_opening import open_run, put_earlier_aside
from verl.trainer.scoring import score_logprobs, score_values
from verl.trainer.signals import StopRequested, StopSignals
from verl.trainer.step_metrics import (
    add_actor_metrics,
    add_critic_metrics,
    add_estimate_metrics,
    add_rollout_metrics,
    add_timing_metrics,
    validation_metrics,
)
from verl.trainer.updates import update_actor, update_critic
from verl.trainer.validation import GENERATION_COLUMNS, generation_rows, num_generations

"""Longest time that the end of a run waits for `environment.json` (fingerprints on a disk that hangs)."""


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """How a run ended.

    Attributes:
        status: "finished" or "killed" (a run that fails raises).
        step: Steps done.
        run_directory: Where everything lies.
        checkpoint: The newest checkpoint.
        stopped_by: Name of the signal that stopped the run, if one did.
    """

    status: str
    step: int
    run_directory: Path
    checkpoint: Path | None
    stopped_by: str | None = None


class PPOTrainer:
    """Trains a causal language model with PPO or GRPO.

    Args:
        config: The configuration; nothing = the defaults.
        loggers: Your own trackers (classes or objects), in addition to those of `trainer.logger`.

    Attributes:
        config: The resolved configuration.
        writer: Methods of TensorBoard's `SummaryWriter`; what is written reaches every tracker.
        global_step: The step being done, counted from 1; 0 before the first.
        tracking: The journal and its trackers.
        parts: Tokenizer, models, prompts and rewards.

    Raises:
        VerlError: A setting, data file, model or the run directory is wrong; the message says what to do.
    """

    def __init__(self, config: PPOConfig | None = None, *, loggers: Sequence[Tracker] = ()) -> None:
        self.config = config = PPOConfig() if config is None else config
        config.check()  # again: settings may have been changed one by one since it was made
        self._notices = Tracking.preflight(config.trainer, loggers)
        _refuse_many_processes()
        if config.trainer.num_threads is not None:
            torch.set_num_threads(config.trainer.num_threads)
        self._run = run = open_run(config, datetime.now())
        try:
            seed_everything(config.trainer.seed)
            self.parts: PPOParts = build_parts(config, run.checkpoint)
            self.total_steps = total_steps(config, self.parts.train_prompts)
            self._actor_optimization, self._critic_optimization = build_optimizations(
                config, self.parts, self.total_steps
            )
            self.tracking = Tracking.start(
                run.directory, config, total_steps=self.total_steps, attempt=run.attempt, loggers=loggers
            )
            record_environment(self.tracking, config)
        except BaseException:
            run.directory.finish_attempt("failed")
            raise
        self.writer = self.tracking.writer
        self.global_step = self._done_steps = run.step
        self._hooks = Hooks(config.trainer.hook_errors, warn=self._warn)
        self._coroutines = CoroutineRunner()
        self._trajectories = TrajectoryStore(
            run.directory.trajectories, with_text=config.actor_rollout_ref.rollout.trace.token2text
        )
        self._best_metric = config.trainer.best_metric or "val/reward_mean"
        spec = lookup(self._best_metric)
        self._checkpoints = CheckpointStore(
            run.directory.checkpoints,
            config.trainer.keep_checkpoints,
            lower_is_better=spec is not None and spec.direction is Direction.DOWN,
        )
        self._kl_controller = build_kl_controller(config.algorithm.kl_ctrl)
        self._state = PPOState(
            self._actor_optimization,
            self._critic_optimization,
            self._kl_controller,
            self.tracking.metrics,
            continued_settings(config, self.parts),
        )
        self._step_end = self._state.step_end()
        self._validated: tuple[int, float] | None = None
        self._timer = PhaseTimer()
        self._has_trained = False

    def add_hook(self, event: str, function: HookFunction) -> None:
        """Calls `function(trainer, results)` at each `event`; see `verl.trainer.hooks.EVENTS`.

        Raises:
            ConfigError: The event is unknown.
        """
        self._hooks.add(event, function)

    def train(self) -> TrainingOutcome:
        """Trains to the last step; saves and closes properly on SIGTERM and Ctrl-C.

        Raises:
            VerlError: A reward, a hook, the disk or the data failed; what was recorded before stays.
        """
        if self._has_trained:
            raise ConfigError(
                "This trainer has trained already; make a new PPOTrainer to train again, or to go on from the "
                "checkpoint with trainer.resume_from_checkpoint=auto."
            )
        self._has_trained = True
        status: EndStatus = "failed"
        error: str | None = None
        stopped_by: str | None = None
        with StopSignals(self._warn) as stop:  # until all is closed: a late signal must not cut the closing short
            try:
                try:
                    self._train(stop)
                    status = "finished"
                except StopRequested as request:
                    status, stopped_by = "killed", request.signal_name
                    self._save_checkpoint()
                except HealthStopError:
                    self._save_checkpoint()
                    raise
                self._hooks.run("on_train_end", self, {"status": status, "step": self._done_steps})
            except BaseException as raised:
                status = "killed" if isinstance(raised, KeyboardInterrupt) else "failed"
                error = str(raised) if isinstance(raised, VerlError) else f"{type(raised).__name__}: {raised}"
                raise
            finally:
                self._close(status, error)
        return TrainingOutcome(
            status, self._done_steps, self._run.directory.path, self._checkpoints.latest(), stopped_by
        )

    def _train(self, stop: StopSignals) -> None:
        config, parts, tracking = self.config.trainer, self.parts, self.tracking
        put_earlier_aside(self._run)
        if self._run.rewind_to is not None:
            tracking.rewind(self._run.rewind_to)
        tracking.progress(self._done_steps)
        for notice in (*self._run.notices, *parts.notices):
            tracking.note(notice, level="notice")
        for warning in (*self._notices, *parts.warnings):
            self._warn(warning)
        if self._run.checkpoint is not None:
            for warning in self._state.load(self._run.checkpoint):
                self._warn(warning)
            self._coroutines.run(parts.engine.update_weights(self._done_steps))
        self._step_end = self._state.step_end()
        tracking.wait_until_open()
        self._hooks.run("on_train_start", self, {"total_steps": self.total_steps, "start_step": self._done_steps})
        if self._done_steps == 0:
            if config.log_embeddings:
                log_embeddings(tracking, parts, step=0)
            if config.val_before_train and parts.val_prompts is not None:
                tracking.log_metrics(self.validate(), step=0)
        if self._done_steps >= self.total_steps:
            self._warn(
                f"Nothing to do: the checkpoint is at step {self._done_steps}, total_steps is {self.total_steps}."
            )
        self._timer = PhaseTimer()
        while self._done_steps < self.total_steps:
            stop.check()
            self._step(self._done_steps + 1, stop)
            if self._done_steps < self.total_steps:  # a run that is complete is not ended any more
                tracking.check_health()
        if config.log_embeddings:
            log_embeddings(tracking, parts, step=self.total_steps)
        self._save_checkpoint()

    def _step(self, step: int, stop: StopSignals) -> None:
        config, parts, timer = self.config, self.parts, self._timer
        rollout, actor, critic = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor, config.critic
        self.global_step = step
        self.tracking.progress(step)

        # 1. Sample a group of responses per prompt, and score them.
        with timer.phase("rollout"):
            trajectories = self._sample(self._train_prompts(step), rollout.n, parts.sampling, validate=False)
        stop.check()
        with timer.phase("reward"):
            self._coroutines.run(parts.score(trajectories))
        self._hooks.run("on_rollout_end", self, rollout_results(trajectories))

        # 2. What the policy, the reference and the critic make of them.
        groups = [row // rollout.n for row in range(len(trajectories))]
        batch = RolloutBatch.of(trajectories, groups, parts.policy.device)
        with timer.phase("old_logprob"):
            scored = score_logprobs(parts.policy, batch, rollout.temperature, actor.micro_batch_size)
            batch = replace(batch, old_logprobs_BT=scored.logprobs_BT)
        if parts.uses_reference:
            size = config.actor_rollout_ref.ref.micro_batch_size or actor.micro_batch_size
            with timer.phase("ref_logprob"), parts.reference_policy() as reference:
                ref = score_logprobs(reference, batch, rollout.temperature, size)
                batch = replace(batch, ref_logprobs_BT=ref.logprobs_BT)
        if parts.critic is not None:
            with timer.phase("values"):
                size = critic.micro_batch_size or actor.micro_batch_size
                batch = replace(batch, values_BT=score_values(parts.critic, batch, size))
        with timer.phase("advantage"):
            kl_coef = self._kl_controller.coef
            estimate = estimate_advantages(batch, config.algorithm, kl_coef)
            batch = estimate.batch
        stop.check()  # the last safe point: from here on the weights change

        # 3. The optimizer steps.
        metrics = self.tracking.metrics
        if parts.critic is not None and self._critic_optimization is not None:
            with timer.phase("update_critic"):
                critic_update = update_critic(
                    parts.critic, self._critic_optimization, batch, critic_plan(config, step), critic.cliprange_value
                )
            add_critic_metrics(metrics, critic_update, self._critic_optimization.learning_rate)
            self._note_skipped("critic", critic_update.grad_norms)
            self._critic_optimization.end_step()
        if parts.critic is None or step > critic.warmup_steps:
            with timer.phase("update_actor"):
                scale_length = actor.loss_scale_length or config.data.max_response_length
                actor_update = update_actor(
                    parts.policy,
                    self._actor_optimization,
                    batch,
                    actor_plan(config, step),
                    actor,
                    rollout.temperature,
                    scale_length,
                )
            add_actor_metrics(metrics, actor_update, self._actor_optimization.learning_rate)
            self._note_skipped("policy", actor_update.grad_norms)
        self._actor_optimization.end_step()
        self._coroutines.run(parts.engine.update_weights(step))
        if estimate.penalty_kl is not None and estimate.penalty_kl.count:
            self._kl_controller.update(estimate.penalty_kl.mean, len(batch))
        self._done_steps = step

        # 4. Record all of it.
        with timer.phase("recording"):
            store_token_facts(trajectories, batch, scored.entropy_BT)
            add_rollout_metrics(metrics, batch)
            add_estimate_metrics(metrics, batch, scored.entropy_BT, estimate.penalty_kl, kl_coef)
        self._hooks.run("on_update_end", self, {"trajectories": trajectories, "batch": batch})
        self._end_step(step, batch)

    def _end_step(self, step: int, batch: RolloutBatch) -> None:
        """Validation, the record of the step, and the checkpoint, where they are due."""
        config, timer, metrics = self.config.trainer, self._timer, self.tracking.metrics
        is_last = step == self.total_steps
        record: dict[str, float] = {}
        if self.parts.val_prompts is not None and (is_last or _is_due(step, config.test_freq)):
            with timer.phase("validation"), self.tracking.unwatched():
                record = self.validate()
        seconds = timer.finish()
        self._timer = timer = PhaseTimer()  # the record is made here, so what follows counts to the next step
        with timer.phase("logging"):
            add_timing_metrics(metrics, seconds, batch)
            metrics.add("progress/epoch", epochs_done(self.config, self.parts.train_prompts, step))
            if is_last or _is_due(step, config.log_step_interval):
                record = {**metrics.reduce(), **record}
                log_rollouts(self.tracking, batch, config.log_train_samples, step)
            if record:
                self.tracking.log_metrics(record, step)
            self._trajectories.write(step, batch.trajectories, validate=False)
        self._hooks.run("on_step_end", self, {"step": step, "timings": seconds, "metrics": record, "batch": batch})
        self._step_end = self._state.step_end()
        if _is_due(step, config.save_freq):
            with timer.phase("checkpoint"):
                self._save_checkpoint()

    def validate(self) -> dict[str, float]:
        """Samples and scores the validation prompts, records the generations, and returns the `val/...` metrics."""
        config, parts, step = self.config, self.parts, self.global_step
        assert parts.val_prompts is not None, "there are no validation prompts: set data.val_files"
        trajectories: list[Trajectory] = []
        for prompts in parts.val_batches(config.data.val_batch_size):
            trajectories += self._sample(
                prompts, config.actor_rollout_ref.rollout.val_kwargs.n, parts.val_sampling, validate=True
            )
        self._coroutines.run(parts.score(trajectories))
        values = validation_metrics(trajectories)
        count = num_generations(config.trainer.log_val_generations, len(parts.val_prompts))
        if count:
            rows = generation_rows(trajectories, count, step)
            self.tracking.log_table("val/generations", GENERATION_COLUMNS, rows, step)
        self._trajectories.write(step, trajectories, validate=True)
        if self._best_metric in values:
            self._validated = (step, values[self._best_metric])
        elif self._validated is None:
            raise ConfigError(
                f"trainer.best_metric is {self._best_metric}, which is not among the validation metrics: "
                f"{', '.join(values)}"
            )
        self._hooks.run("on_validation_end", self, {"metrics": values, "trajectories": trajectories})
        return values

    def _train_prompts(self, step: int) -> list[Prompt]:
        data, prompts = self.config.data, self.parts.train_prompts
        _, rows = batch_indices(len(prompts), data.train_batch_size, step - 1, data.seed, data.shuffle)
        return [prompts[row] for row in rows]

    def _sample(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, *, validate: bool
    ) -> list[Trajectory]:
        """`n` trajectories per prompt, group by group."""
        requests = build_requests(
            prompts, n, sampling, seed=self.config.trainer.seed, step=self.global_step, validate=validate
        )
        return self._coroutines.run(collect(self.parts.engine, requests, self.parts.tokenizer))

    def _save_checkpoint(self) -> None:
        """Saves the state after the last whole step, unless that is saved already."""
        step, parts = self._done_steps, self.parts
        if step == 0 or step in self._checkpoints.steps():
            return
        self._trajectories.flush()
        self.tracking.sync()
        metric = self._validated[1] if self._validated is not None and self._validated[0] == step else None

        def write(folder: Path) -> None:
            save_models(folder, parts.policy, parts.critic, parts.tokenizer)
            self._state.save(folder, self._step_end)

        with self.tracking.unwatched():
            path = self._checkpoints.save(step, metric, write)
        self._hooks.run("on_checkpoint_saved", self, {"path": path, "step": step})

    def _note_skipped(self, model: str, grad_norms: Sequence[float]) -> None:
        skipped = sum(not math.isfinite(norm) for norm in grad_norms)
        if skipped:
            self.tracking.warn_once(
                f"skipped {model}",
                f"Step {self.global_step}: the gradient of the {model} is not finite, so {skipped} of {len(grad_norms)}"
                " optimizer steps were left out. It usually means that the learning rate is too high, or that rewards"
                " or log-probs are infinite. (Told once.)",
            )

    def _warn(self, text: str) -> None:
        self.tracking.note(text, level="warning")

    def _close(self, status: EndStatus, error: str | None) -> None:
        """Ends everything, each part whatever the others do; the last in the list is the first to be closed."""
        with ExitStack() as stack:
            stack.callback(self.tracking.finish, status, error)
            stack.callback(self._coroutines.close)
            stack.callback(lambda: self._coroutines.run(self.parts.engine.close()))
            stack.callback(self._close_trajectories)

    def _close_trajectories(self) -> None:
        problem = self._trajectories.close()
        if problem is not None:
            self._warn(str(problem))


def _refuse_many_processes() -> None:
    process = process_rank()
    if process.world_size > 1:
        raise ConfigError(
            f"WORLD_SIZE is {process.world_size}: this version trains in one process. Start it without torchrun (or "
            "unset RANK and WORLD_SIZE)."
        )


def rollout_results(trajectories: Sequence[Trajectory]) -> dict[str, object]:
    """What `on_rollout_end` hooks get: texts, rewards (float array, one per response) and the trajectories."""
    return {
        "prompts": [trajectory.prompt_text for trajectory in trajectories],
        "responses": [trajectory.response_text for trajectory in trajectories],
        "rewards": np.array([trajectory.reward for trajectory in trajectories], dtype=np.float64),
        "reward_parts": [trajectory.reward_parts for trajectory in trajectories],
        "trajectories": trajectories,
    }


def _is_due(step: int, frequency: int | None) -> bool:
    return frequency is not None and step % frequency == 0


if __name__ == "__main__":
    sys.exit(main())
