"""Checkpoints: whole or absent, kept by number and by best metric, random states restored exactly."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from verl.errors import CheckpointError
from verl.trainer.checkpoint import CheckpointStore, random_states, read_info, restore_random_states, seed_everything


def write_weights(folder: Path) -> None:
    (folder / "weights").write_text("content")


def test_saved_checkpoint_can_be_read_back(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=None)
    path = store.save(7, 0.5, write_weights)
    assert path == tmp_path / "checkpoints" / "global_step_7"
    assert (path / "weights").read_text() == "content"
    info = read_info(path)
    assert (info.step, info.metric) == (7, 0.5)
    assert store.latest() == path


def test_steps_are_ordered_as_numbers(tmp_path):
    store = CheckpointStore(tmp_path, keep=None)
    for step in (9, 10, 100):
        store.save(step, None, write_weights)
    assert store.steps() == [9, 10, 100]
    assert store.latest() == tmp_path / "global_step_100"


def test_only_the_newest_and_the_best_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step, metric in ((1, 0.1), (2, 0.9), (3, 0.3), (4, None), (5, 0.4)):
        store.save(step, metric, write_weights)
    assert store.steps() == [2, 4, 5]


def test_the_best_can_be_the_lowest(tmp_path):
    store = CheckpointStore(tmp_path, keep=1, lower_is_better=True)
    for step, metric in ((1, 0.5), (2, 0.1), (3, 0.9)):
        store.save(step, metric, write_weights)
    assert store.steps() == [2, 3]


def test_a_failed_save_leaves_earlier_checkpoints_and_no_half_one(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, None, write_weights)

    def disk_full(folder: Path) -> None:
        write_weights(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"step 2 .*No space left.*Free space"):
        store.save(2, None, disk_full)
    assert [entry.name for entry in tmp_path.iterdir()] == ["global_step_1"]
    assert read_info(tmp_path / "global_step_1").step == 1


def test_what_a_killed_save_left_behind_is_no_checkpoint_and_is_removed(tmp_path):
    half = tmp_path / ".partial_global_step_3"
    half.mkdir()
    (half / "weights").write_text("half")
    store = CheckpointStore(tmp_path, keep=None)
    assert store.latest() is None
    store.save(4, None, write_weights)
    assert [entry.name for entry in tmp_path.iterdir()] == ["global_step_4"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "has no checkpoint.json"), ("{broken", "cannot be read"), ('{"unknown": 1}', "cannot be read")],
)
def test_a_folder_that_is_no_checkpoint_is_refused_with_a_sentence(tmp_path, content, message):
    if content is not None:
        (tmp_path / "checkpoint.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        read_info(tmp_path)


def test_a_checkpoint_of_a_newer_format_is_refused(tmp_path):
    (tmp_path / "checkpoint.json").write_text('{"step": 1, "metric": null, "saved_at": 0.0, "format_version": 99}')
    with pytest.raises(CheckpointError, match="format 99"):
        read_info(tmp_path)


def test_random_states_are_restored_exactly_through_a_file(tmp_path):
    seed_everything(3)
    random.gauss(0, 1)
    np.random.standard_normal()
    torch.save(random_states(), tmp_path / "states.pt")
    expected = draw()
    seed_everything(4)
    restore_random_states(torch.load(tmp_path / "states.pt", weights_only=True))
    assert draw() == expected


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.standard_normal(), torch.rand(()).item()]
