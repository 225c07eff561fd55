"""On every process but the main one `Tracking(...)` takes all calls and leaves no trace."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verl.errors import TrackerError
from verl.journal import JournalReader, RunDirectory
from verl.tracking import Tracking
from verl.tracking.rank_messages import MAX_WAITING
from verl.tracking.silent_tracking import SilentTracking
from verl.tracking.writer import Writer

ARGUMENTS: dict[str, Any] = {
    "bins": None,
    "columns": ["a"],
    "config": {"a": 1},
    "data": {"loss": 1.0, "text": "x", "values": [1, 2, 3]},
    "error": None,
    "hparam_dict": {"lr": 1},
    "image": np.zeros((3, 2, 2)),
    "img_tensor": np.zeros((3, 2, 2)),
    "labels": ["a", "b"],
    "level": "info",
    "main_tag": "t",
    "metadata": None,
    "metric_dict": {"loss": 1.0},
    "metrics": {"loss": 1.0},
    "png": b"",
    "rows": [[1]],
    "status": "finished",
    "step": 3,
    "tag_scalar_dict": {"a": 1.0},
    "to_step": 3,
    "vectors": np.ones((2, 2)),
    "mat": np.ones((2, 2)),
    "values": [1.0, 2.0],
    "box_tensor": np.ones((1, 4)),
}


def call(method: Any) -> None:
    required = [
        parameter
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_POSITIONAL
        and parameter.kind is not parameter.VAR_KEYWORD
    ]
    method(*(ARGUMENTS.get(parameter.name, "x") for parameter in required))


def public_methods(kind: type) -> list[str]:
    return [
        name
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
        and name != "finish"
        and not isinstance(inspect.getattr_static(kind, name), staticmethod)
    ]


@pytest.fixture
def silent(tmp_path: Path):
    tracking = Tracking("p", "e", ["console", "tensorboard"], {"a": 1}, log_dir=str(tmp_path / "run"), rank=3)
    yield tracking
    tracking.rank_messages.clear()
    tracking.finish("finished")


def test_every_call_is_taken_and_nothing_is_written_or_printed(
    silent: Tracking, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(silent, SilentTracking)
    for name in public_methods(Tracking):
        call(getattr(silent, name))
    for name in public_methods(Writer):
        call(getattr(silent.writer, name))
    silent.rank_messages.clear()
    silent.finish("finished")
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_it_keeps_samples_and_the_step(silent: Tracking) -> None:
    silent.metrics.add("loss", 1.0)
    assert silent.metrics.reduce() == {"loss": 1.0}
    for step, method in enumerate([silent.log, silent.log_metrics], 1):
        method({}, step)
        assert silent.step == step
    silent.progress(7)
    assert silent.step == 7


def test_what_it_has_not_is_said(silent: Tracking) -> None:
    with pytest.raises(AttributeError, match="not rank 0, so its Tracking writes nothing"):
        _ = silent.run_directory


def test_an_unknown_tracker_stops_every_rank() -> None:
    with pytest.raises(TrackerError):
        Tracking("p", "e", ["tensorbord"], rank=1)


def test_the_rank_comes_from_torchrun_if_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    silent = Tracking("p", "e", [], log_dir=str(tmp_path / "run"))
    assert isinstance(silent, SilentTracking)
    silent.finish("finished")
    with Tracking("p", "e", [], log_dir=str(tmp_path / "run"), rank=0) as tracking:
        assert not isinstance(tracking, SilentTracking)


@pytest.mark.parametrize("is_variable", [False, True])
def test_each_rank_has_its_own_run_where_the_folder_says_so(
    is_variable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "rank_{rank}")
    if is_variable:
        monkeypatch.setenv("VERL_LOG_DIR", folder)
    for rank in (0, 2):
        with Tracking("p", "e", [], log_dir=None if is_variable else folder, rank=rank) as tracking:
            tracking.log_metrics({"loss": float(rank)}, 1)
    for rank in (0, 2):
        assert JournalReader(tmp_path / f"rank_{rank}").metrics()["loss"].values.tolist() == [rank]
        assert RunDirectory.open(tmp_path / f"rank_{rank}").status == "finished"


def test_warnings_that_never_reached_rank_0_end_up_on_the_standard_error(
    silent: Tracking, capfd: pytest.CaptureFixture[str]
) -> None:
    silent.alert("slow", "the disk is slow")
    for number in range(MAX_WAITING + 5):
        silent.note(f"sample {number} skipped", level="warning")
    silent.finish("failed")
    told = capfd.readouterr().err.splitlines()
    assert told[0] == "verl, warning not logged by rank 0: slow: the disk is slow"
    assert told[-1] == "verl, warning not logged by rank 0: 6 more messages were left out"
    assert len(told) == MAX_WAITING + 1


def test_they_do_so_also_if_the_program_just_ends(tmp_path: Path) -> None:
    program = "from verl.tracking import Tracking\nTracking('p', 'e', []).alert('slow', 'the disk')"
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "verl, warning not logged by rank 0: slow: the disk\n"
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
