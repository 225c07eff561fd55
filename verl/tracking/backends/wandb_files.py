"""The folders that the W&B SDK writes offline."""

from __future__ import annotations

import re
from pathlib import Path

_SUPERSEDED = "superseded"


def offline_folders(folder: Path, run_id: str) -> list[Path]:
    """Folders of a run that `wandb sync` is to be given, oldest first.

    Args:
        folder: Where the SDK's folder `wandb` is. run_id: Id in W&B.
    """
    return sorted(path.parent for path in _sdk_folder(folder).glob(f"offline-run-*/run-{run_id}.wandb"))


def move_aside(folder: Path, run_id: str, keep: Path) -> None:
    """Move the older folders of a run, in all its branches, to where `wandb sync` does not take them.

    Args:
        folder: Where the SDK's folder `wandb` is. run_id: Id of the run's first branch. keep: The one that is written.

    Raises:
        OSError: A folder cannot be moved.
    """
    aside = _sdk_folder(folder) / _SUPERSEDED
    is_of_run = re.compile(rf"run-{re.escape(run_id)}(-\d+)?\.wandb")
    for file in sorted(_sdk_folder(folder).glob("offline-run-*/run-*.wandb")):
        if is_of_run.fullmatch(file.name) and file.parent.name != keep.name:
            aside.mkdir(exist_ok=True)
            file.parent.rename(_free(aside / file.parent.name))


def _free(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


def _sdk_folder(folder: Path) -> Path:
    hidden = folder / ".wandb"
    return hidden if hidden.is_dir() else folder / "wandb"
