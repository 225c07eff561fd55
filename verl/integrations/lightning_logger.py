"""Track a training of Lightning.

logger = VerlLogger("my project", "first try", ["console", "tensorboard"])
Trainer(logger=logger).fit(model)
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verl.tracking.trackers import Tracker
from verl.tracking.tracking import EndStatus, Tracking

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import Logger
    from lightning.pytorch.utilities import rank_zero_only
else:
    try:
        from lightning.pytorch.loggers import Logger
        from lightning.pytorch.utilities import rank_zero_only
    except ImportError:
        try:
            from pytorch_lightning.loggers import Logger
            from pytorch_lightning.utilities import rank_zero_only
        except ImportError as error:
            raise ImportError("verl.integrations.lightning_logger needs Lightning: pip install lightning") from error

_STATUSES: dict[str, EndStatus] = {"success": "finished", "finished": "finished", "failed": "failed"}
"""How Lightning says that it ended; anything else (`aborted`, ...) is killed."""


class VerlLogger(Logger):
    """Logs what Lightning logs, at Lightning's steps, on the process of rank zero.

    Each of `fit`, `validate`, `test` is an attempt of the same run, and ends with its true status. In the `log_dir` of
    an earlier program, `fit(ckpt_path=...)` replaces what was logged after that checkpoint, and `fit` without one all
    that was logged.

    Args:
        project_name: Project.
        experiment_name: Name of the run for people.
        trackers: As in `Tracking`; nothing = console and TensorBoard.
        log_dir: Run directory; nothing = `VERL_LOG_DIR`, else `logs/<YYYYmmdd_HHMMSS>`.
        config: Configuration to record beside the hyperparameters of the module.
    """

    def __init__(
        self,
        project_name: str = "lightning",
        experiment_name: str = "run",
        trackers: Tracker | Sequence[Tracker] | None = None,
        *,
        log_dir: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._project = project_name
        self._experiment = experiment_name
        self._trackers = trackers
        self._log_dir = log_dir
        self._config = dict(config or {})
        self._tracking: Tracking | None = None
        self._run_id: str | None = None
        self._num_attempts = 0
        self._is_resuming = False

    @property
    def experiment(self) -> Tracking:
        """The `Tracking`, opened if it is not open; on other ranks than zero it is silent."""
        if self._tracking is None:
            rank = _rank()
            self._tracking = Tracking(
                self._project,
                self._experiment,
                self._trackers,
                self._config or None,
                log_dir=self._log_dir,
                rank=rank,
            )
            self._num_attempts += 1
            if rank == 0:
                self._log_dir = str(self._tracking.home)
                self._run_id = self._tracking.run_directory.run_id
        return self._tracking

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self._experiment

    @property
    def version(self) -> str:
        """Identifier of the run; empty on other ranks than zero."""
        if self._run_id is None and _rank() == 0:
            _ = self.experiment
        return self._run_id or ""

    @property
    def save_dir(self) -> str | None:
        """The run directory."""
        if self._log_dir is None and _rank() == 0:
            _ = self.experiment
        return self._log_dir

    @property
    def log_dir(self) -> str | None:
        """The run directory."""
        return self.save_dir

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Logs numbers at a step."""
        tracking = self.experiment
        if self._is_resuming and step is not None:
            self._is_resuming = False
            tracking.rewind(step - 1)
        tracking.log(metrics, step)

    @rank_zero_only
    def log_hyperparams(self, params: Mapping[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Records hyperparameters in the configuration (secrets are masked)."""
        self._config |= vars(params) if isinstance(params, Namespace) else params
        self.experiment.log_config(self._config)

    @rank_zero_only
    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Draws nothing: as the one call that Lightning makes with the module before it trains, it tells resumed
        from new trainings."""
        try:
            trainer = model.trainer
        except (AttributeError, RuntimeError):  # a module that no trainer has
            return
        directory = self.experiment.run_directory
        if trainer.state.fn != "fit" or trainer.global_step > 0 or directory.info.last_attempt == 1:
            return
        if trainer.ckpt_path is not None:
            self._is_resuming = True  # where training goes on is known at its first step only
        elif self._num_attempts == 1:
            self.experiment.rewind(-1)

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Notes where the checkpoint lies."""
        path = checkpoint_callback.last_model_path or checkpoint_callback.best_model_path
        if path:
            self.experiment.note(f"checkpoint saved: {path}")

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Ends the attempt: `success` as finished, an error as failed, Ctrl-C as killed."""
        tracking, self._tracking = self._tracking, None
        if tracking is None:
            return
        error = sys.exception()  # Lightning calls this while it handles the error
        if status == "failed" and isinstance(error, KeyboardInterrupt):
            status = "interrupted"
        said = None if error is None else f"{type(error).__name__}: {error}"
        ended = _STATUSES.get(status, "killed")
        tracking.finish(ended, None if ended == "finished" else said)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tracking": None}  # a process that gets a copy opens its own


def _rank() -> int:
    """Number of this process among all, as Lightning knows it."""
    return getattr(rank_zero_only, "rank", 0)
