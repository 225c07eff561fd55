"""Checkpoints on disk: written aside, renamed when whole, kept by number and by best metric.

    checkpoints/global_step_N/
      checkpoint.json    step, metric, format version, time
      actor/  critic/    model folders
      trainer_state.pt   optimizers, schedules, RNG, controllers, unlogged metrics

A folder named `global_step_N` is always whole: the rename is the commit.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from verl.errors import CheckpointError

FORMAT_VERSION = 1
_NAME = re.compile(r"global_step_(\d+)")
_ASIDE = ".partial_"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What `checkpoint.json` says.

    Example: `CheckpointInfo(step=200, metric=0.91, saved_at=1764547200.0, format_version=1)`.
    """

    step: int
    metric: float | None
    saved_at: float
    format_version: int = FORMAT_VERSION


def read_info(checkpoint: Path) -> CheckpointInfo:
    """Reads `checkpoint.json`.

    Raises:
        CheckpointError: The folder is missing, is no checkpoint, or has a newer format.
    """
    path = checkpoint / "checkpoint.json"
    if not checkpoint.is_dir():
        raise CheckpointError(f"No checkpoint at {checkpoint}: there is no such folder.")
    try:
        info = CheckpointInfo(**json.loads(path.read_text()))
        if not isinstance(info.step, int) or not isinstance(info.format_version, int):
            raise ValueError(f"step and format_version must be whole numbers: {info}")
    except FileNotFoundError:
        raise CheckpointError(
            f"{checkpoint} is not a checkpoint: it has no checkpoint.json. Give a folder such as "
            f"<run>/checkpoints/global_step_100, or resume_from_checkpoint=auto for the newest one."
        ) from None
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}. Use an older checkpoint.") from error
    if info.format_version > FORMAT_VERSION:
        raise CheckpointError(
            f"{checkpoint} has format {info.format_version}, this version reads up to {FORMAT_VERSION}: update verl."
        )
    return info


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: `<run>/checkpoints`.
        keep: Newest checkpoints to keep (the one with the best metric stays too); nothing keeps all.
        lower_is_better: Whether the best metric is the lowest.
    """

    def __init__(self, folder: Path, keep: int | None, *, lower_is_better: bool = False) -> None:
        self._folder = folder
        self._keep = keep
        self._sign = -1.0 if lower_is_better else 1.0

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        if not self._folder.is_dir():
            return []
        found = (_NAME.fullmatch(entry.name) for entry in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        """Folder of the checkpoint of `step`."""
        return self._folder / f"global_step_{step}"

    def latest(self) -> Path | None:
        """The newest whole checkpoint, if there is one."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def save(self, step: int, metric: float | None, write: Callable[[Path], None]) -> Path:
        """Writes a checkpoint aside with `write(folder)`, renames it, and removes what need not be kept.

        Raises:
            CheckpointError: The disk is full or cannot be written; earlier checkpoints stay as they are.
        """
        final, aside = self.path(step), self._folder / f"{_ASIDE}global_step_{step}"
        try:
            self._clear_aside()
            aside.mkdir(parents=True)
            write(aside)
            info = CheckpointInfo(step=step, metric=metric, saved_at=time.time())
            (aside / "checkpoint.json").write_text(json.dumps(asdict(info)))
            _sync_tree(aside)
            if final.exists():
                self._put_aside(final)
            aside.rename(final)
            _sync(self._folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(
                f"The checkpoint of step {step} could not be written to {self._folder}: {error}. "
                f"Free space there or set another trainer.log_dir; "
                f"earlier checkpoints ({len(self.steps())}) and the journal are untouched."
            ) from error
        self._prune()
        return final

    def _prune(self) -> None:
        if self._keep is None:
            return
        steps = self.steps()
        metrics = {step: read_info(self.path(step)).metric for step in steps}
        scored = {step: metric for step, metric in metrics.items() if metric is not None}
        best = max(scored, key=lambda step: (self._sign * scored[step], step), default=None)
        for step in steps[: -self._keep]:
            if step != best:
                self._put_aside(self.path(step))
        self._clear_aside()

    def _put_aside(self, checkpoint: Path) -> None:
        """Takes a checkpoint out in one rename: one that is half deleted must not look whole."""
        checkpoint.rename(self._folder / f"{_ASIDE}old_{checkpoint.name}")

    def _clear_aside(self) -> None:
        for stale in self._folder.glob(f"{_ASIDE}*"):
            if stale.is_dir():
                shutil.rmtree(stale)
            else:
                stale.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def random_states() -> dict[str, Any]:
    """State of every random generator of this process (Python, NumPy, torch, CUDA), in plain types and tensors."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Puts back what `random_states` gave."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if states["cuda"] and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])


def seed_everything(seed: int) -> None:
    """Seeds the random generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
