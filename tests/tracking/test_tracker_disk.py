"""A disk that is full for a while: in the end each tracker of files has the canonical journal, nothing twice."""

from __future__ import annotations

import importlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import SERVICES
from tracker_runs import assert_complete, is_fed, log, start, until

from verl.errors import JournalError
from verl.journal import RunDirectory
from verl.testing.services import Shown, TrackerService
from verl.testing.wandb_service import WandbOfflineService, renamed, tracked_id
from verl.tracking import Tracking

pytestmark = pytest.mark.slow

FOLDER_VARIABLES = {"wandb-offline": "WANDB_DIR", "swanlab-offline": "SWANLAB_LOG_DIR"}
OWN_FOLDER = ["mlflow-sqlite", "trackio", *FOLDER_VARIABLES]
FILES = ["tensorboard", *OWN_FOLDER]


class WandbElsewhere(WandbOfflineService):
    """Its files are not in the run directory."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._elsewhere = folder

    def read(self, run_directory: Path) -> Shown:
        return self.read_folder(self._elsewhere, tracked_id(run_directory), renamed(run_directory))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk may not be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all free blocks, whatever else writes at the same time."""
    path = place / "ballast"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    assert os.statvfs(place).f_bavail == 0
    return path


def begun(kind: str, disk: Path, patch: pytest.MonkeyPatch) -> TrackerService:
    """The tracker, with its files on the disk."""
    module, _, name = SERVICES[kind].partition(":")
    made: Callable[[Path], TrackerService] = getattr(importlib.import_module(module), name)
    service = WandbElsewhere(disk) if kind == "wandb-offline" else made(disk / "tracker")
    own = {FOLDER_VARIABLES[kind]: str(disk)} if kind in FOLDER_VARIABLES else {}
    for key, value in {**service.start(), **own}.items():
        patch.setenv(key, value)
    return service


@pytest.mark.parametrize("kind", OWN_FOLDER)
@pytest.mark.parametrize("when", ["start", "middle", "end"])
def test_the_disk_of_a_tracker_is_full_for_a_while(
    kind: str, when: str, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, run = begun(kind, small_disk, monkeypatch), tmp_path / "run"
    ballast = fill(small_disk) if when == "start" else None
    tracking = start(service, run)
    log(tracking, 1, 20)
    if ballast is None:
        until(lambda: is_fed(run))
        ballast = fill(small_disk)
    log(tracking, 21, 40)
    tracking.log_text("large", "x" * 500_000, 40)
    time.sleep(3)  # writing meets the full disk
    if when == "end":
        tracking.finish("finished", seconds=3)
    ballast.unlink()
    if when != "end":
        log(tracking, 41, 60)
        tracking.finish("finished")
    try:
        assert_complete(service, run)
    finally:
        service.stop()


@pytest.mark.parametrize("kind", FILES)
def test_the_disk_of_the_run_is_full_for_a_while(kind: str, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_disk / "run"
    service = begun(kind, small_disk, monkeypatch)
    tracking = start(service, run)
    log(tracking, 1, 20)
    until(lambda: is_fed(run))
    ballast = fill(small_disk)
    done = log_until_refused(tracking, 21)
    time.sleep(3)
    ballast.unlink()
    log(tracking, done, done + 20)
    tracking.finish("finished")
    try:
        assert_complete(service, run)
        assert RunDirectory.open(run).status == "finished"
    finally:
        service.stop()


def log_until_refused(tracking: Tracking, step: int) -> int:
    """Log metrics until the journal has no room for more; gives the step that it did not take."""
    while True:
        try:
            tracking.log_metrics({"loss": step / 64, "length": float(step)}, step)
        except JournalError:
            return step
        step += 1
