"""Opening the run directory: a new run, a new attempt, or the continuation of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from verl.config import PPOConfig, resolve_log_dir
from verl.config.environment import variable
from verl.config.naming import experiment_name
from verl.errors import CheckpointError, ConfigError, JournalError
from verl.journal import RunDirectory
from verl.tracing.trajectory_store import step_files
from verl.trainer.checkpoint import CheckpointStore, read_info


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run directory that this process may write to.

    Attributes:
        directory: Its paths and identity.
        attempt: Number of this start of the run.
        checkpoint: Checkpoint to continue from, if any.
        step: Steps already done (0 without a checkpoint).
        rewind_to: Step after which what an earlier attempt logged is superseded (-1: all of it); nothing if
            none logged here.
        notices: Sentences the user should see once.
    """

    directory: RunDirectory
    attempt: int
    checkpoint: Path | None
    step: int
    rewind_to: int | None
    notices: tuple[str, ...]


def open_run(config: PPOConfig, now: datetime) -> OpenedRun:
    """Decides where the run lives and what it continues, and takes the directory for this process.

    A fresh start in a directory that holds an earlier run is a new attempt. Nothing of the earlier one is touched
    yet: that is for `put_earlier_aside`, once this run is known to be able to start.

    Raises:
        ConfigError: `resume_from_checkpoint=auto` without a run directory to look in.
        CheckpointError: The checkpoint is missing or not one.
        JournalError: The directory cannot be written, or another process trains in it.
    """
    path, checkpoint, notices = _locate(config, now)
    step = read_info(checkpoint).step if checkpoint else 0
    directory = RunDirectory.create(path, project=config.trainer.project_name, experiment=experiment_name(config, now))
    continues = checkpoint is not None and checkpoint.parent == directory.checkpoints.resolve()
    attempt = directory.start_attempt(resumed_from=checkpoint if continues else None)
    if attempt > 1 and not continues:
        notices.append(
            f"{path} holds an earlier run: this is attempt {attempt}, from the beginning. Checkpoints and trajectories "
            f"of the earlier one are moved to {directory.superseded}; to continue a run, set "
            "trainer.resume_from_checkpoint=auto."
        )
    if continues:
        notices.append(f"Continuing from {checkpoint} (step {step}): attempt {attempt}.")
    rewind_to = None if attempt == 1 else step if continues else -1
    return OpenedRun(directory, attempt, checkpoint, step, rewind_to, tuple(notices))


def _locate(config: PPOConfig, now: datetime) -> tuple[Path, Path | None, list[str]]:
    resume = config.trainer.resume_from_checkpoint
    path = resolve_log_dir(config, now)
    if resume is None:
        return path, None, []
    if resume == "auto":
        if not is_log_dir_given(config):
            raise ConfigError(
                "trainer.resume_from_checkpoint=auto looks for the newest checkpoint of the run directory, but none "
                "is given. Set trainer.log_dir (or VERL_LOG_DIR), or give the checkpoint folder itself."
            )
        checkpoint = CheckpointStore(path / "checkpoints", keep=None).latest()
        notices = [] if checkpoint else [f"No checkpoint in {path} to resume from: starting from the beginning."]
        return path, checkpoint.resolve() if checkpoint else None, notices
    checkpoint = Path(resume).expanduser().resolve()
    read_info(checkpoint)
    home = checkpoint.parent.parent
    if not is_log_dir_given(config):
        if not (home / "run.json").exists():
            raise CheckpointError(f"{checkpoint} is not inside a run directory: say with trainer.log_dir where to log.")
        return home, checkpoint, []
    if home == path.resolve():
        return path, checkpoint, []
    return path, checkpoint, [f"A new run in {path} starts from {checkpoint} of another run."]


def is_log_dir_given(config: PPOConfig) -> bool:
    """Whether the user named the run directory, by setting or environment variable."""
    return config.trainer.log_dir is not None or variable("VERL_LOG_DIR") is not None


def put_earlier_aside(run: OpenedRun) -> None:
    """Moves to `superseded/` what an earlier attempt left and this one replaces.

    That is all its checkpoints and trajectories for a fresh start, and those after the checkpoint for a continued
    run: they belong to another branch.

    Raises:
        JournalError: They cannot be moved.
    """
    if run.rewind_to is None:
        return
    if run.rewind_to < 0:
        run.directory.supersede(run.attempt - 1)
        return
    try:
        _move_later_aside(run.directory, run.rewind_to, run.directory.superseded / f"attempt_{run.attempt - 1}")
    except OSError as error:
        raise JournalError(
            f"What lies after step {run.rewind_to} in {run.directory.path} cannot be moved to "
            f"{run.directory.superseded}: {error}. Move or delete it by hand, then resume again."
        ) from error


def _move_later_aside(directory: RunDirectory, step: int, aside: Path) -> None:
    store = CheckpointStore(directory.checkpoints, keep=None)
    later = [store.path(other) for other in store.steps() if other > step]
    later += [path for path, other in step_files(directory.trajectories) if other > step]
    for path in later:
        target = aside / path.relative_to(directory.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
