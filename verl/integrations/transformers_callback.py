"""Track a training of the transformers `Trainer`, of TRL, or of anything else that takes a `TrainerCallback`.

trainer = Trainer(model, TrainingArguments("out", report_to="none"), train_dataset=data,
                  callbacks=[VerlCallback("my project", "first try", ["console", "tensorboard"])])
trainer.train()
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl.tracking.trackers import Tracker
from verl.tracking.tracking import EndStatus, Tracking

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations.integration_utils import rewrite_logs
except ImportError as error:
    raise ImportError("verl.integrations.transformers_callback needs transformers: pip install transformers") from error


class VerlCallback(TrainerCallback):
    """Logs what the trainer logs, under the names that other callbacks give it: `train/loss`, `eval/loss`, ...

    The main process opens a run when training begins and ends it with training. If `train()` raises, the run is
    failed (interrupted: killed) as soon as the program ends or trains again; if the program goes on after that, pass a
    `Tracking` in a `with` block, which knows at once. Evaluations after the training are logged to the same run.

    A training in the `log_dir` of an earlier one is its next attempt: with `resume_from_checkpoint` it replaces what
    was logged after the checkpoint, else all of it.

    Args:
        project_name: Project.
        experiment_name: Name of the run for people; nothing = `run_name` of the arguments, else their `output_dir`.
        trackers: As in `Tracking`; nothing = console and TensorBoard.
        log_dir: Run directory; nothing = `VERL_LOG_DIR`, else `logs/<YYYYmmdd_HHMMSS>`.
        tracking: Log here instead; whoever opened it ends it.

    Raises:
        ValueError: `tracking` is given together with arguments for a new one.
    """

    def __init__(
        self,
        project_name: str = "transformers",
        experiment_name: str | None = None,
        trackers: Tracker | Sequence[Tracker] | None = None,
        *,
        log_dir: str | None = None,
        tracking: Tracking | None = None,
    ) -> None:
        if tracking is not None and (experiment_name, trackers, log_dir) != (None, None, None):
            raise ValueError("give VerlCallback either a tracking, or what a new one is made of")
        self._names = (project_name, experiment_name)
        self._trackers = trackers
        self._log_dir = log_dir
        self._given = tracking
        self._own: Tracking | None = None
        self._is_training = False
        self._has_trained = False
        self._process = os.getpid()

    @property
    def tracking(self) -> Tracking | None:
        """Where it logs now; nothing before the training, after it, and in processes other than the main one."""
        return self._given or self._own

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Opens the run, or the next attempt of it, and records the configuration."""
        if not state.is_world_process_zero:
            return
        if self._is_training:  # the last `train()` never ended: it raised, and the program went on
            self._finish("failed", "train() ended with an error")
        tracking = self._opened(args, state)
        self._is_training = True
        tracking.log_config(_configuration(args, kwargs.get("model")))
        is_resumed = state.global_step > 0
        if tracking.run_directory.info.last_attempt > 1 and (is_resumed or self._given is None):
            tracking.rewind(state.global_step if is_resumed else -1)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Moves the progress bar."""
        if self.tracking is not None:
            self.tracking.progress(state.global_step + 1)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Logs numbers of training and evaluation at the trainer's step."""
        if state.is_world_process_zero and logs:
            metrics = {**rewrite_logs(logs), "train/global_step": state.global_step}
            self._opened(args, state).log(metrics, state.global_step)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Closes the run again if training is over (the numbers came by `on_log`)."""
        self._close_after_training()

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Logs the numbers of a test set."""
        if state.is_world_process_zero and metrics:
            self._opened(args, state).log(rewrite_logs(metrics), state.global_step)
        self._close_after_training()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Notes where the checkpoint lies."""
        if self.tracking is not None:
            self.tracking.note(f"checkpoint saved: {Path(args.output_dir or '.') / f'checkpoint-{state.global_step}'}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ends the run."""
        self._is_training = False
        self._has_trained = True
        self._finish("finished")

    def _opened(self, args: TrainingArguments, state: TrainerState) -> Tracking:
        if self._given is not None:
            return self._given
        if self._own is None:
            project, experiment = self._names
            name = experiment or args.run_name or Path(args.output_dir or "run").name
            total_steps = state.max_steps if state.max_steps > 0 else None
            self._own = Tracking(project, name, self._trackers, log_dir=self._log_dir, total_steps=total_steps, rank=0)
            self._log_dir = str(self._own.home)
            atexit.register(self._finish_at_exit)  # runs before the one of Tracking, which was registered first
        return self._own

    def _close_after_training(self) -> None:
        if self._has_trained and not self._is_training:
            self._finish("finished")

    def _finish(self, status: EndStatus, error: str | None = None) -> None:
        own, self._own = self._own, None
        if own is not None:
            atexit.unregister(self._finish_at_exit)
            own.finish(status, error)

    def _finish_at_exit(self) -> None:
        if os.getpid() != self._process or getattr(sys, "last_value", None) is not None:
            return  # in a forked child; or Tracking tells which error ended the program
        if self._is_training:
            self._finish("failed", "train() ended with an error")
        else:
            self._finish("finished")


def _configuration(args: TrainingArguments, model: Any) -> dict[str, Any]:
    """Arguments of the trainer and configuration of the model (and of its adapters)."""
    configuration: dict[str, Any] = {"training_arguments": args.to_dict()}
    for name, attribute in (("model", "config"), ("peft", "peft_config")):
        value = getattr(model, attribute, None)
        if value is not None:
            configuration[name] = _as_dict(value)
    return configuration


def _as_dict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_dict(item) for key, item in value.items()}
    return value.to_dict() if hasattr(value, "to_dict") else value
