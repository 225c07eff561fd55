"""What a training loop holds: values in, records out, and an end."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from verl.config import PPOConfig
from verl.errors import JournalError
from verl.journal import JournalReader, Record, RunDirectory
from verl.testing.trackers import RecordingLogger
from verl.tracking import Tracking, TrainerLogger


def records(path: Path, kind: str) -> list[Record]:
    return list(JournalReader(path).records({kind}))


def metrics(path: Path) -> list[tuple[int | None, dict[str, float]]]:
    return [(record.step, record.fields["metrics"]) for record in records(path, "metrics")]


def warnings(path: Path) -> list[str]:
    return [record.fields["text"] for record in records(path, "note") if record.fields["level"] == "warning"]


@pytest.fixture
def tracking(tmp_path: Path):
    with Tracking("p", "e", [], log_dir=str(tmp_path)) as tracking:
        yield tracking


def test_a_run_is_opened_and_ended_in_the_journal_and_in_run_json(tmp_path: Path) -> None:
    with Tracking("stocks", "first", [], {"lr": 0.1}, log_dir=str(tmp_path), total_steps=5) as tracking:
        tracking.log({"loss": 0.5}, step=1)
    (opened,) = records(tmp_path, "run")
    assert opened.fields["project"] == "stocks"
    assert opened.fields["total_steps"] == 5
    assert opened.fields["run_id"] == RunDirectory.open(tmp_path).run_id
    (config,) = records(tmp_path, "config")
    assert config.fields["config"] == {"lr": 0.1}
    assert metrics(tmp_path) == [(1, {"loss": 0.5})]
    assert records(tmp_path, "finish")[0].fields == {"status": "finished", "error": None}
    assert RunDirectory.open(tmp_path).status == "finished"


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no data"), "failed"), (KeyboardInterrupt(), "killed"), (SystemExit(1), "failed")]
)
def test_an_error_ends_the_run_with_its_true_status(error: BaseException, status: str, tmp_path: Path) -> None:
    with pytest.raises(type(error)), Tracking("p", "e", [], log_dir=str(tmp_path)):
        raise error
    fields = records(tmp_path, "finish")[0].fields
    assert fields["status"] == status == RunDirectory.open(tmp_path).status
    assert type(error).__name__ in fields["error"]


def test_a_run_ends_once(tmp_path: Path) -> None:
    tracking = Tracking("p", "e", [], log_dir=str(tmp_path))
    tracking.finish("killed")
    tracking.finish("finished")
    assert [record.fields["status"] for record in records(tmp_path, "finish")] == ["killed"]


def test_nothing_can_be_logged_after_the_end(tmp_path: Path) -> None:
    tracking = Tracking("p", "e", [], log_dir=str(tmp_path))
    tracking.finish("finished")
    with pytest.raises(JournalError, match="closed"):
        tracking.log_metrics({"loss": 1.0}, 1)


def test_numbers_of_all_kinds_are_kept_and_bad_ones_cost_no_others(tracking: Tracking, tmp_path: Path) -> None:
    values = {
        "float": 0.5,
        "int": 3,
        "bool": True,
        "numpy": np.float32(0.5),
        "torch": torch.tensor(2),
        "bf16": torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True),
        "nan": math.nan,
        "inf": -math.inf,
        "text": "0.5",
        "none": None,
        "array": np.ones(3),
        7: 1.0,
        "": 1.0,
    }
    for step in (1, 2):
        tracking.log_metrics(values, step)
    kept = metrics(tmp_path)[1][1]
    assert math.isnan(kept.pop("nan"))
    assert kept == {"float": 0.5, "int": 3, "bool": 1.0, "numpy": 0.5, "torch": 2.0, "bf16": 0.5, "inf": -math.inf}
    told = warnings(tmp_path)
    assert len(told) == 5
    assert any("'text' got a str" in text for text in told)
    assert any("'array' got a numpy.ndarray of shape (3,)" in text for text in told)


def test_a_value_that_turns_bad_later_is_found(tracking: Tracking, tmp_path: Path) -> None:
    tracking.log_metrics({"a": 1.0, "b": 1.0}, 1)
    tracking.log_metrics({"a": "x", "b": 2.0}, 2)
    assert metrics(tmp_path)[1] == (2, {"b": 2.0})


def test_metrics_that_are_all_bad_leave_no_record(tracking: Tracking, tmp_path: Path) -> None:
    tracking.log_metrics({"a": "x"}, 1)
    tracking.log_metrics({}, 2)
    assert metrics(tmp_path) == []


@pytest.mark.parametrize("step", [4, 4.0, np.int64(4), torch.tensor(4)])
def test_a_step_of_any_kind_is_a_whole_number(step: int, tracking: Tracking, tmp_path: Path) -> None:
    tracking.log_metrics({"a": 1.0}, step)
    assert [(type(found), found) for found, _ in metrics(tmp_path)] == [(int, 4)]


@pytest.mark.parametrize("step", [2**63, -(2**70), 1e300], ids=["above", "below", "far above"])
def test_a_step_beyond_64_bits_is_the_current_one_and_one_warning(
    step: int, tracking: Tracking, tmp_path: Path
) -> None:
    tracking.progress(9)
    tracking.log_metrics({"a": 1.0}, step)
    tracking.log_metrics({"a": 2.0}, step)
    assert metrics(tmp_path) == [(9, {"a": 1.0}), (9, {"a": 2.0})]
    assert [text for text in warnings(tmp_path) if "64 bits" in text] == [
        "a step has 64 bits; a larger one was given, and step 9 is used"
    ]


@pytest.mark.parametrize("step", ["x", math.nan, [1]])
def test_a_step_that_is_none_of_these_is_the_current_one_and_a_warning(
    step: object, tracking: Tracking, tmp_path: Path
) -> None:
    tracking.progress(9)
    tracking.log_metrics({"a": 1.0}, step)  # type: ignore[arg-type]
    assert metrics(tmp_path) == [(9, {"a": 1.0})]
    assert "a step is a whole number" in warnings(tmp_path)[0]


def test_the_callers_dictionary_is_not_changed(tracking: Tracking) -> None:
    values = {"a": 1.0, "b": np.float32(2), "c": None}
    tracking.log_metrics(values, 1)
    assert list(values) == ["a", "b", "c"]
    assert type(values["b"]) is np.float32


def test_secrets_reach_neither_journal_nor_tracker(tmp_path: Path) -> None:
    logger = RecordingLogger()
    password = "pw" + "7f3a9c" * 2  # not as it stands in this file, of which a diff may be on record
    config = {"hf_token": "hf_abcdefghijklmnopqrstuvwxyz", "url": f"https://me:{password}@host/x"}
    with Tracking("p", "e", [logger], config, log_dir=str(tmp_path)) as tracking:
        tracking.log_text("t", "key sk-abcdefgh1234567890abcd", 1)
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (b"hf_abcdef", password.encode(), b"sk-abcdefgh"):
        assert secret not in everything
    assert password not in str(logger.calls)


def test_a_configuration_object_is_recorded_with_what_differs(tmp_path: Path) -> None:
    config = PPOConfig.model_validate({"trainer": {"logger": [], "log_dir": str(tmp_path)}, "data": {"seed": 3}})
    directory = RunDirectory.create(tmp_path, project="p", experiment="e")
    with Tracking.start(directory, config, total_steps=10, attempt=directory.start_attempt()) as tracking:
        tracking.log_config(config)  # the same again
    (record,) = records(tmp_path, "config")
    assert record.fields["config"]["data"]["seed"] == 3
    assert record.fields["changed"]["data.seed"] == 3


def test_files_are_kept_in_the_run(
    tracking: Tracking, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("other") / "plan.txt"
    outside.write_text("a")
    inside = tmp_path / "model.bin"
    inside.write_text("b")
    tracking.log_artifact(outside, type="plan", metadata={"x": 1})
    tracking.log_artifact(outside)
    tracking.log_artifact(inside, name="model")
    tracking.log_artifact(tmp_path / "missing")
    found = [(record.fields["name"], record.fields["path"]) for record in records(tmp_path, "artifact")]
    assert found == [
        ("plan.txt", "artifacts/files/plan.txt"),
        ("plan.txt", "artifacts/files/plan-2.txt"),
        ("model", "model.bin"),
    ]
    assert (tmp_path / "artifacts/files/plan.txt").read_text() == "a"
    assert "missing" in warnings(tmp_path)[0]


def test_a_text_too_large_for_a_record_is_a_warning(tracking: Tracking, tmp_path: Path) -> None:
    tracking.log_text("novel", "x" * (65 * 2**20), 1)
    tracking.log_text("note", "short", 1)
    assert [record.fields["tag"] for record in records(tmp_path, "text")] == ["note"]
    assert "too large" in warnings(tmp_path)[0]


def test_a_table_or_path_that_is_none_is_a_warning(tracking: Tracking, tmp_path: Path) -> None:
    tracking.log_table("t", ["a"], [1, 2], 1)  # type: ignore[list-item]
    tracking.log_artifact("a\0b")
    assert len(warnings(tmp_path)) == 2


def test_names_cannot_leave_the_run_directory(tracking: Tracking, tmp_path: Path) -> None:
    tracking.log_image("../../evil\0name", np.zeros((2, 2)), 1, "HW")
    (record,) = records(tmp_path, "artifact")
    assert (tmp_path / record.fields["path"]).resolve().is_relative_to(tmp_path)


def test_a_histogram_with_gaps_warns_once(tracking: Tracking, tmp_path: Path) -> None:
    for step in (1, 2):
        tracking.log_histogram("h", [1.0, math.nan], step)
    assert len(records(tmp_path, "histogram")) == 2
    assert warnings(tmp_path) == ["histogram 'h' shows its finite values only: 1 not finite at step 1"]


def test_many_threads_may_log(tracking: Tracking, tmp_path: Path) -> None:
    def log(number: int) -> None:
        for step in range(50):
            tracking.log_metrics({f"thread/{number}": step}, step)

    threads = [threading.Thread(target=log, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(metrics(tmp_path)) == 200


def test_a_forked_child_cannot_write_into_the_run(tracking: Tracking, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            tracking.log_metrics({"child": 1.0}, 1)
        except JournalError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert metrics(tmp_path) == []


def test_two_processes_cannot_track_one_run(tracking: Tracking, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="already"):
        Tracking("p", "e", [], log_dir=str(tmp_path))


class Minimal(TrainerLogger):
    """Nothing but what must be there."""

    seen: list[tuple[int, dict[str, float]]]

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.seen.append((step, metrics))

    def log_config(self, config: dict[str, object]) -> None:
        self.seen.append((-1, {}))


@pytest.mark.parametrize("async_log", [True, False])
def test_a_tracker_of_two_methods_is_enough(async_log: bool, tmp_path: Path) -> None:
    logger = Minimal()
    logger.seen = []
    with Tracking("p", "e", logger, {"a": 1}, log_dir=str(tmp_path), async_log=async_log) as tracking:
        tracking.log_metrics({"loss": 0.5}, 1)
        tracking.log_text("t", "x", 1)
        tracking.log_histogram("h", [1.0], 1)
        tracking.log_embedding("e", np.ones((2, 2)), None, 1)
        tracking.alert("a", "b")
        tracking.rewind(0)
    assert logger.seen == [(-1, {}), (1, {"loss": 0.5})]


def test_a_class_is_a_tracker_too(tmp_path: Path) -> None:
    class Loud(RecordingLogger):
        made: ClassVar[list[RecordingLogger]] = []

        def __init__(self) -> None:
            super().__init__()
            self.made.append(self)

    with Tracking("p", "e", [Loud, Loud], log_dir=str(tmp_path)) as tracking:
        tracking.log_metrics({"loss": 0.5}, 1)
    assert [logger.points("loss") for logger in Loud.made] == [[(1, 0.5)], [(1, 0.5)]]
    assert records(tmp_path, "run")[0].fields["trackers"] == ["Loud", "Loud-2"]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("pass", "killed"),
        ("raise SystemExit(1)", "killed"),
        ("raise ValueError('no data')", "failed"),
        ("os._exit(1)", "crashed"),
    ],
)
def test_a_program_that_forgets_the_end_gets_one(ending: str, status: str, tmp_path: Path) -> None:
    program = (
        "import os\nfrom verl.tracking import Tracking\n"
        f"Tracking('p', 'e', 'console', log_dir={str(tmp_path)!r}).log({{'loss': 0.5}}, step=1)\n{ending}\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert RunDirectory.open(tmp_path).status == status
    if status != "crashed":
        assert "step 1  loss 0.5" in done.stdout
        assert records(tmp_path, "finish")[0].fields["status"] == status


def test_a_second_attempt_that_begins_anew_supersedes_the_first(tmp_path: Path) -> None:
    """A loop of one's own that is started again in the same folder, without a word about it."""
    logger = RecordingLogger()
    for attempt, steps in ((1, range(1, 6)), (2, range(1, 4))):
        with Tracking("p", "e", [logger], log_dir=str(tmp_path)) as tracking:
            for step in steps:
                tracking.log_metrics({"attempt": float(attempt)}, step)
    shown = [(r.step, r.fields["metrics"]["attempt"]) for r in JournalReader(tmp_path).canonical({"metrics"})]
    assert shown == [(1, 2.0), (2, 2.0), (3, 2.0)]
    assert logger.of("purge") == [(0,)]


def test_a_second_attempt_that_goes_on_supersedes_nothing(tmp_path: Path) -> None:
    for steps in (range(1, 4), range(3, 6)):
        with Tracking("p", "e", [], log_dir=str(tmp_path)) as tracking:
            for step in steps:
                tracking.log_metrics({f"from_{steps.start}": 1.0}, step)
    assert not list(JournalReader(tmp_path).records({"rewind"}))
    assert [record.step for record in JournalReader(tmp_path).canonical({"metrics"})] == [1, 2, 3, 3, 4, 5]
