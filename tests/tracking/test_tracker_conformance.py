"""One suite over all trackers, on real parts: what each shows, read back in its own way, is what the journal has."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SERVICES

from verl.journal import RunDirectory
from verl.testing.expectation import differences, expected
from verl.testing.services import Shown, TrackerService
from verl.tracking import Tracking, drain, load_tracker
from verl.tracking.relay.feed_state import read_states
from verl.tracking.table import BUILTIN, IN_TRAINING_PROCESS

PROGRAM = Path(__file__).with_name("training_program.py")
SECONDS = 120.0

pytestmark = pytest.mark.parametrize("running_service", SERVICES, indirect=True)

NUMBERS = {
    "loss/policy_loss": 0.125,
    "val/stock/reward/mean@8": 0.1,
    "nan": math.nan,
    "inf": math.inf,
    "minus_inf": -math.inf,
    "large": 1.5e300,
    "whole": 2**53 + 2,
    "small": 5e-324,
}

ODD_NAMES = {
    "a b (c) [d], 100 % #1 + x | y = z": 1.0,
    "émoji 😀 文": 2.0,
    "/leading": 3.0,
    "trailing/": 4.0,
    "a//b": 5.0,
    "../up": 6.0,
    "x.y": 7.0,
    "x": 8.0,
    "_private": 9.0,
    "__double": 10.0,
    "step": 11.0,
    "_step": 12.0,
    "time": 13.0,
    " spaced ": 14.0,
    "tab\there": 15.0,
    "mean_at_8": 16.0,
    "mean@8": 17.0,
    "mean_x40_8": 18.0,
    "n" * 600: 19.0,
    "n" * 599 + "m": 20.0,
    "__swanlab__/x": 21.0,
    "global_step": 22.0,
}

CONFIG = {"algorithm": {"type": "grpo", "gamma": 1.0}, "data": {"train_files": ["a", "b"], "seed": None}, "x": True}


def start(service: TrackerService, path: Path, **options: Any) -> Tracking:
    return Tracking("verl tests", "an experiment", [service.tracker], CONFIG, log_dir=str(path), **options)


def log_everything(tracking: Tracking, step: int) -> None:
    tracking.progress(step)
    tracking.log_histogram("reward/dist", np.arange(10 * step), step)
    tracking.log_text("samples/prompt_response", f"**Prompt** {step} <b>&amp;</b> 文", step)
    columns = ["prompt", "output", "reference", "score", "parts", "step"]
    rows = [[f"What is {n}+{n}?", f"{2 * n} <|end|>", str(2 * n), n / 2, {"exact": 1.0}, step] for n in range(3)]
    tracking.log_table("val/generations", columns, rows, step)
    tracking.log_image("images/map", np.full((3, 4, 5), step * 20, dtype=np.uint8), step)
    tracking.log_metrics({key: value * (step if math.isfinite(value) else 1) for key, value in NUMBERS.items()}, step)


def complete(path: Path, service: TrackerService) -> None:
    """What the end of training did not wait for."""
    deadline = time.monotonic() + SECONDS
    while True:
        states = read_states(path)
        if [state.status for state in states] == [RunDirectory.open(path).status]:
            return
        assert time.monotonic() < deadline, f"not delivered in time: {states}"
        time.sleep(0.1)


def assert_shows(service: TrackerService, path: Path) -> Shown:
    """Value for value, nothing twice; kinds that the tracker has no form for are not looked at."""
    wanted, found = expected(path, service.as_shown), service.read(path)
    shows = load_tracker(service.tracker).shows
    assert not differences(wanted.points, found.points)
    for key, value in wanted.config.items():
        assert found.config[key] == value or str(found.config[key]) == str(value), key
    if found.status is not None:
        assert found.status == wanted.status
    for kind, ours, theirs in (("text", wanted.texts, found.texts), ("histogram", wanted.histograms, found.histograms)):
        if kind in shows:
            assert theirs == ours
    if "table" in shows:
        assert {name: sorted(steps) for name, steps in found.tables.items()} == {
            name: sorted(steps) for name, steps in wanted.tables.items()
        }
        for name, steps in wanted.tables.items():
            for step, rows in steps.items():
                assert len(found.tables[name][step]) == len(rows)
                text = str(found.tables[name][step])
                assert all(str(row[1]) in text for row in rows)
    if "image" in shows:
        assert found.images == wanted.images
    if "artifact" in shows:
        assert wanted.artifacts <= found.artifacts
    if "alert" in shows:
        assert all(any(text.partition(": ")[2] in told for told in found.alerts) for text in wanted.alerts)
    return found


def test_everything_that_is_logged_is_shown(service: TrackerService, tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("# Report\n")
    with start(service, tmp_path, total_steps=3) as tracking:
        for step in (1, 2, 3):
            log_everything(tracking, step)
        tracking.log_artifact(tmp_path / "report.md", "report.md")
        tracking.alert("KL blow-up", "kl/kl_divergence is 12.5", "error")
    complete(tmp_path, service)
    assert_shows(service, tmp_path)
    state = read_states(tmp_path)[0]
    assert (state.num_skipped, state.failures) == (0, 0), state
    assert state.where
    assert RunDirectory.open(tmp_path).info.trackers.get(service.tracker), "its ids are in run.json"


def test_odd_names_and_many_keys_cost_nothing_else(service: TrackerService, tmp_path: Path) -> None:
    with start(service, tmp_path) as tracking:
        tracking.log_metrics(ODD_NAMES, 1)
        tracking.log_metrics({f"many/key_{number}": float(number) for number in range(1000)}, 2)
        tracking.log_text("long", "x" * 300_000, 3)
        tracking.log_metrics({"after": 1.0}, 4)
    complete(tmp_path, service)
    wanted, found = expected(tmp_path, service.as_shown), service.read(tmp_path)
    assert not differences(wanted.points, found.points)
    assert read_states(tmp_path)[0].num_skipped == 0


def test_values_of_many_types_arrive_as_numbers(service: TrackerService, tmp_path: Path) -> None:
    with start(service, tmp_path) as tracking:
        values = {"np": np.float32(0.5), "np_int": np.int64(7), "bool": True, "array": np.array([2.5]), "none": None}
        tracking.log_metrics({**values, "good": 1.0}, np.int64(4))  # type: ignore[arg-type]
        tracking.log_metrics({"good": 2.0}, 5.0)  # type: ignore[arg-type]
    complete(tmp_path, service)
    found = service.read(tmp_path)
    assert found.points["good"] == [(4, 1.0), (5, 2.0)]
    assert {key: found.points[key][0][1] for key in ("np", "np_int", "bool", "array")} == {
        "np": 0.5, "np_int": 7.0, "bool": 1.0, "array": 2.5
    }  # fmt: skip


def test_after_a_rewind_the_curve_is_the_new_one(service: TrackerService, tmp_path: Path) -> None:
    with start(service, tmp_path) as tracking:
        for step in range(1, 96):
            tracking.log_metrics({"loss": step / 128}, step)
    complete(tmp_path, service)
    assert_shows(service, tmp_path)
    with start(service, tmp_path) as tracking:
        tracking.rewind(80)
        for step in range(81, 101):
            tracking.log_metrics({"loss": -step / 128}, step)
    complete(tmp_path, service)
    found = assert_shows(service, tmp_path)
    assert [step for step, _ in found.points["loss"]] == list(range(1, 101))
    assert all((value < 0) == (step > 80) for step, value in found.points["loss"])


def test_a_run_that_stopped_at_a_checkpoint_goes_on_in_the_same_place(service: TrackerService, tmp_path: Path) -> None:
    with start(service, tmp_path) as tracking:
        for step in range(1, 6):
            tracking.log_metrics({"loss": step / 8}, step)
        tracking.finish("killed")
    complete(tmp_path, service)
    before = RunDirectory.open(tmp_path).info.trackers[service.tracker]
    with start(service, tmp_path) as tracking:
        tracking.rewind(5)
        for step in range(6, 9):
            tracking.log_metrics({"loss": step / 8}, step)
    complete(tmp_path, service)
    assert_shows(service, tmp_path)
    if service.tracker != "tensorboard":  # it has a file for each attempt
        assert RunDirectory.open(tmp_path).info.trackers[service.tracker].get("run_id") == before.get("run_id")


def test_a_tracker_that_the_run_never_had_is_built_from_the_journal(service: TrackerService, tmp_path: Path) -> None:
    with Tracking("verl tests", "late", [], CONFIG, log_dir=str(tmp_path)) as tracking:
        for step in (1, 2):
            log_everything(tracking, step)
    with Tracking("verl tests", "late", [], CONFIG, log_dir=str(tmp_path)) as tracking:
        tracking.rewind(1)
        for step in (2, 3):
            log_everything(tracking, step)
    directory = RunDirectory.open(tmp_path)
    (state,) = drain(directory, [service.tracker], SECONDS)
    assert (state.status, state.failures, state.num_skipped) == ("finished", 0, 0), state
    assert_shows(service, tmp_path)
    drain(directory, [service.tracker], SECONDS)
    assert_shows(service, tmp_path)
    (state,) = drain(directory, [service.tracker], SECONDS, is_fresh=True)
    assert (state.status, state.branch) == ("finished", 1)
    assert_shows(service, tmp_path)


def test_a_killed_training_is_complete_and_marked_as_crashed(service: TrackerService, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path), "1", service.tracker]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if int(line) >= 40:
                break
        os.kill(process.pid, signal.SIGKILL)
    complete(tmp_path, service)
    found = assert_shows(service, tmp_path)
    assert len(found.points["loss"]) >= 40
    assert RunDirectory.open(tmp_path).status == "crashed"


def test_an_exception_is_shown_as_a_failure(service: TrackerService, tmp_path: Path) -> None:
    def train() -> None:
        with start(service, tmp_path) as tracking:
            tracking.log_metrics({"loss": 1.0}, 1)
            raise ZeroDivisionError("of the loss")

    with pytest.raises(ZeroDivisionError):
        train()
    complete(tmp_path, service)
    found = assert_shows(service, tmp_path)
    assert any("of the loss" in text for text in found.alerts)


def test_fed_in_the_training_process_it_shows_the_same(service: TrackerService, tmp_path: Path) -> None:
    with start(service, tmp_path, async_log=False) as tracking:
        for step in (1, 2, 3):
            tracking.log_metrics({"loss": step / 8}, step)
        tracking.log_text("note", "inline", 3)
    complete(tmp_path, service)
    assert_shows(service, tmp_path)


def test_no_planted_key_reaches_a_tracker(
    service: TrackerService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hf_" + "Qz7Wx2Lp9Rt4Vb6Nm1Kc8Jd3Fg5Hs0Ya2"
    monkeypatch.setenv("MY_SERVICE_TOKEN", secret)
    run = tmp_path / "run"
    config = {**CONFIG, "api_key": secret, "command": f"train --token {secret}"}
    with Tracking("verl tests", "secrets", [service.tracker], config, log_dir=str(run)) as tracking:
        tracking.log_text("prompt", f"my key is {secret}", 1)
        tracking.log_table("val/generations", ["prompt"], [[f"metadata {secret}"]], 1)
        tracking.alert("token", f"used {secret}")
        tracking.log_metrics({"loss": 1.0}, 1)
    complete(run, service)
    assert secret not in str(service.read(run))
    for path in run.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def test_every_built_in_tracker_is_in_the_suite(running_service: TrackerService) -> None:
    names = {name.partition("-")[0] for name in SERVICES} | set(IN_TRAINING_PROCESS)
    assert names == set(BUILTIN)
