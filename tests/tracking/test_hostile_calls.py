"""Nothing that a user gives to Tracking raises into the training loop, leaks a key, or damages the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from verl.journal import JournalReader, JournalWriter, RunDirectory
from verl.testing.trackers import RecordingLogger
from verl.tracking import Tracking, drain
from verl.tracking.relay.feed_state import read_states

KEY = "hf_" + "Qz7Wx2Lp9Rt4Vb6Nm1Kc8Jd3Fg5Hs0Ya2B"


class Breaking:
    """Raises whatever is asked of it."""

    def _fail(self, *_: Any) -> Any:
        raise KeyError("broken")

    __float__ = __int__ = __str__ = __repr__ = __iter__ = __len__ = __array__ = _fail


CALLS: list[Callable[[Tracking], object]] = [
    lambda t: t.log_metrics(None, 1),  # type: ignore[arg-type]
    lambda t: t.log_metrics([1, 2], 1),  # type: ignore[arg-type]
    lambda t: t.log_metrics({"a": Breaking()}, 1),
    lambda t: t.log({"a": Breaking(), "b": torch.zeros(3, device="meta")}, 1),
    lambda t: t.log_histogram("a", torch.zeros(3, device="meta"), 1),
    lambda t: t.log_histogram(Breaking(), [1.0], 1),  # type: ignore[arg-type]
    lambda t: t.log_text("a", Breaking(), 1),
    lambda t: t.log_table("a", ["x"], [[Breaking()]], 1),
    lambda t: t.log_table("a", 5, None, 1),  # type: ignore[arg-type]
    lambda t: t.log_image(7, np.zeros((3, 2, 2)), 1),  # type: ignore[arg-type]
    lambda t: t.log_image("a", np.zeros((3, 2, 2)), 1, dataformats=None),  # type: ignore[arg-type]
    lambda t: t.log_embedding(None, np.zeros((3, 2)), step=1),  # type: ignore[arg-type]
    lambda t: t.log_artifact("no such file"),
    lambda t: t.log_artifact(Path(__file__), metadata=5),  # type: ignore[arg-type]
    lambda t: t.alert(Breaking(), Breaking()),  # type: ignore[arg-type]
    lambda t: t.note(Breaking()),  # type: ignore[arg-type]
    lambda t: t.writer.add_scalar("a", 1.0, 1, walltime="now"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("call", CALLS)
def test_what_cannot_be_logged_is_a_warning(call: Callable[[Tracking], object], tmp_path: Path) -> None:
    logger = RecordingLogger()
    with Tracking("p", "e", [logger], log_dir=str(tmp_path)) as tracking:
        call(tracking)
        tracking.log_metrics({"good": 1.0}, 2)
    assert logger.points("good") == [(2, 1.0)]
    assert read_states(tmp_path)[0].failures == 0


def test_a_folder_with_the_run_in_it_is_not_copied_into_itself(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("x")
    with Tracking("p", "e", [], log_dir=str(tmp_path / "logs" / "run")) as tracking:
        tracking.log_artifact(tmp_path)
    assert not list((tmp_path / "logs").rglob("data.txt"))
    notes = [record.fields["text"] for record in JournalReader(tmp_path / "logs" / "run").records({"note"})]
    assert any("has the run directory in it" in note for note in notes)


def test_a_journal_from_elsewhere_cannot_send_files_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("private words")
    directory = RunDirectory.create(tmp_path / "run", project="p", experiment="e")
    with JournalWriter(directory, attempt=directory.start_attempt()) as journal:
        journal.append("artifact", 1, name="a", path="../outside.txt", type="file", metadata={})
        journal.append("artifact", 1, name="b", path=str(tmp_path / "outside.txt"), type="file", metadata={})
    directory.finish_attempt("finished")
    (state,) = drain(directory, ["tensorboard"])
    assert {name: omission.reason for name, omission in state.omissions.items()} == dict.fromkeys(
        ("a", "b"), "its path leads out of the run directory"
    )
    assert all(b"private words" not in path.read_bytes() for path in directory.path.glob("events*"))


def test_keys_in_errors_labels_columns_hyperparameters_and_names_are_masked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    password = "pw" + "7f3a9c" * 2

    def train() -> None:
        with Tracking("p", "e", ["console", "tensorboard"], log_dir=str(tmp_path), async_log=False) as tracking:
            tracking.log_embedding("e", np.zeros((2, 2)), [KEY, "b"], 1)
            tracking.log_table("t", ["prompt", "api_key"], [["x", password]], 1)
            tracking.writer.add_hparams({"api_key": password}, {"score": 1.0})
            tracking.log_image(f"image/{KEY}", np.zeros((3, 2, 2)), 1)
            raise RuntimeError(f"401 for token {KEY}")

    with pytest.raises(RuntimeError, match="401"):
        train()
    out = capsys.readouterr()
    assert KEY not in out.out + out.err
    for path in tmp_path.rglob("*"):
        assert KEY not in path.name
        if path.is_file() and path.name != "environment.json":
            content = path.read_bytes()
            assert KEY.encode() not in content, path
            assert password.encode() not in content, path


def test_a_forked_child_does_not_end_the_run_of_its_parent(tmp_path: Path) -> None:
    with Tracking("p", "e", [], log_dir=str(tmp_path)) as tracking:
        child = os.fork()
        if child == 0:
            try:
                tracking.finish("failed", "the child's own")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert RunDirectory.open(tmp_path).status == "running"
        tracking.log_metrics({"a": 1.0}, 1)
    assert RunDirectory.open(tmp_path).status == "finished"


def test_an_unknown_end_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    tracking = Tracking("p", "e", [], log_dir=str(tmp_path))
    with pytest.raises(ValueError, match="finished, failed, killed; given: 'success'"):
        tracking.finish("success")  # type: ignore[arg-type]
    tracking.finish("finished")
    assert [record.fields["status"] for record in JournalReader(tmp_path).records({"finish"})] == ["finished"]


def test_a_program_that_ends_itself_well_has_finished(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), Tracking("p", "e", [], log_dir=str(tmp_path)):
        raise SystemExit(0)
    assert RunDirectory.open(tmp_path).status == "finished"


def test_a_note_of_a_step_that_was_begun_is_nothing_to_take_back(tmp_path: Path) -> None:
    """Ctrl-C in the rollout of step 6: the checkpoint is of step 5, and the resumed run goes on from there."""
    logger = RecordingLogger()
    with Tracking("p", "e", [logger], log_dir=str(tmp_path)) as tracking:
        tracking.log_metrics({"a": 1.0}, 5)
        tracking.progress(6)
        tracking.note("stopped by Ctrl-C", "warning")
        tracking.finish("killed")
    with Tracking("p", "e", [logger], log_dir=str(tmp_path)) as tracking:
        tracking.rewind(5)
        tracking.log_metrics({"a": 2.0}, 6)
    assert logger.of("purge") == []
    assert logger.points("a") == [(5, 1.0), (6, 2.0)]


def test_a_run_directory_whose_name_is_no_text_is_fed(tmp_path: Path) -> None:
    run = tmp_path / os.fsdecode(b"bad\xff")
    with Tracking("p", "e", ["tensorboard"], log_dir=str(run)) as tracking:
        tracking.log_metrics({"a": 1.0}, 1)
    assert read_states(run)[0].status == "finished"
