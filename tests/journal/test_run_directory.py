from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from verl.errors import JournalError
from verl.journal import JournalReader, JournalWriter, RunDirectory


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def edit(run: RunDirectory, **attempt: object) -> None:
    """Changes the last attempt in run.json, as another process's death or another host would."""
    raw = json.loads(run.run_json.read_text())
    raw["attempts"][-1].update(attempt)
    run.run_json.write_text(json.dumps(raw))


def new_run(path: Path) -> RunDirectory:
    return RunDirectory.create(path, project="stocks", experiment="ppo-1")


def test_a_new_run_has_an_identity_and_a_journal_folder(tmp_path: Path) -> None:
    run = new_run(tmp_path / "logs" / "a")
    info = run.info
    assert re.fullmatch("[a-z0-9]{8}", info.run_id)
    assert (info.project, info.experiment, info.status, info.attempts) == ("stocks", "ppo-1", "created", ())
    assert run.journal.is_dir()
    assert RunDirectory.open(tmp_path / "logs" / "a").run_id == info.run_id
    assert new_run(tmp_path / "b").run_id != info.run_id


def test_run_json_holds_what_the_design_says(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.start_attempt()
    run.set_tracker_id("mlflow", run_id="r1", experiment_id="2")
    raw = json.loads(run.run_json.read_text())
    assert raw.keys() == {"run_id", "project", "experiment", "created", "status", "attempts", "trackers"}
    assert raw["attempts"][0].keys() == {"number", "started", "pid", "host", "ended", "status", "resumed_from"}
    assert raw["status"] == "running"
    assert raw["attempts"][0]["pid"] == os.getpid()
    assert raw["attempts"][0]["host"] == socket.gethostname()
    assert raw["trackers"] == {"mlflow": {"run_id": "r1", "experiment_id": "2"}}


def test_where_things_lie(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    relative = [
        path.relative_to(tmp_path).as_posix()
        for path in (
            run.run_json, run.config_yaml, run.environment_json, run.journal, run.trajectory_wal("rank0"),
            run.trajectory_steps, run.trajectory_index, run.relay_cursor("wandb"), run.relay_log, run.checkpoint(7),
        )
    ]  # fmt: skip
    assert relative == [
        "run.json", "config.yaml", "environment.json", "journal", "trajectories/wal/rank0", "trajectories/steps",
        "trajectories/index", "relay/wandb.json", "relay/relay.log", "checkpoints/global_step_7",
    ]  # fmt: skip
    assert os.fspath(run) == str(tmp_path)
    with JournalWriter(run, attempt=1) as journal:
        journal.append("note", text="x", level="info")
    assert len(list(JournalReader(run).records())) == 1


def test_a_run_directory_keeps_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "journal").mkdir()
    new_run(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_start_from_scratch_goes_on_with_the_run_under_its_new_names(tmp_path: Path) -> None:
    first = new_run(tmp_path)
    first.set_tracker_id("wandb", id="w1")
    second = RunDirectory.create(tmp_path, project="bonds", experiment="ppo-2")
    assert second.run_id == first.run_id
    assert (second.info.project, second.info.experiment) == ("stocks", "ppo-1")
    second.start_attempt()
    assert (second.info.project, second.info.experiment) == ("bonds", "ppo-2")
    assert second.info.trackers == {"wandb": {"id": "w1"}}


def test_a_resumed_run_keeps_its_names(tmp_path: Path) -> None:
    first = new_run(tmp_path)
    first.start_attempt()
    first.finish_attempt("killed")
    second = RunDirectory.create(tmp_path, project="stocks", experiment="a default name of another day")
    second.start_attempt(resumed_from=second.checkpoint(5))
    assert second.info.experiment == "ppo-1"


def test_a_refused_start_does_not_change_the_run_that_is_going_on(tmp_path: Path) -> None:
    first = new_run(tmp_path)
    first.start_attempt()
    before = first.run_json.read_bytes()
    second = RunDirectory.create(tmp_path, project="other", experiment="other")
    with pytest.raises(JournalError, match="already trains in"):
        second.start_attempt()
    assert first.run_json.read_bytes() == before


def test_an_opened_run_keeps_its_names_whatever_starts(tmp_path: Path) -> None:
    new_run(tmp_path)
    run = RunDirectory.open(tmp_path)
    run.start_attempt()
    assert (run.info.project, run.info.experiment) == ("stocks", "ppo-1")


def test_attempts_are_numbered_and_finished(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert run.start_attempt() == 1
    assert run.status == "running"
    run.finish_attempt("failed")
    assert run.start_attempt(resumed_from=Path("checkpoints/global_step_5")) == 2
    run.finish_attempt("finished")
    first, second = run.info.attempts
    assert (first.status, second.status, run.status) == ("failed", "finished", "finished")
    assert first.ended is not None
    assert first.started <= first.ended <= second.started
    assert (first.resumed_from, second.resumed_from) == (None, "checkpoints/global_step_5")


def test_a_run_whose_process_is_gone_has_crashed(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.start_attempt()
    edit(run, pid=dead_pid())
    assert run.status == "crashed"
    assert RunDirectory.open(tmp_path).info.attempts[0].status == "crashed"
    edit(run, pid=os.getpid())
    assert run.status == "running"


def test_a_reused_process_number_does_not_look_alive(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.start_attempt()
    edit(run, started=1_000_000.0)  # long before this process was created
    assert run.status == "crashed"


def test_a_run_on_another_host_is_taken_at_its_word(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.start_attempt()
    edit(run, pid=dead_pid(), host="elsewhere")
    assert run.status == "running"


def test_a_crash_is_kept_in_the_file_by_the_next_attempt(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.start_attempt()
    edit(run, pid=dead_pid())
    run.finish_attempt("finished", number=1)
    edit(run, pid=dead_pid(), status="running", ended=None)
    RunDirectory.open(tmp_path).start_attempt(resumed_from="x")
    assert [item["status"] for item in json.loads(run.run_json.read_text())["attempts"]] == ["crashed", "running"]


def test_another_process_can_close_the_attempt_of_a_dead_one(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.start_attempt()
    edit(run, pid=dead_pid())
    RunDirectory.open(tmp_path).finish_attempt("crashed")
    assert json.loads(run.run_json.read_text())["status"] == "crashed"


@pytest.mark.parametrize("status", ["running", "done", ""])
def test_an_attempt_ends_in_one_of_four_ways(tmp_path: Path, status: str) -> None:
    run = new_run(tmp_path)
    run.start_attempt()
    with pytest.raises(ValueError, match="finished, failed, killed or crashed"):
        run.finish_attempt(status)


def test_only_attempts_that_exist_can_be_finished(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    with pytest.raises(JournalError, match="has no attempt 1"):
        run.finish_attempt("finished")
    run.start_attempt()
    with pytest.raises(JournalError, match=r"has no attempt 3; it has \[1\]"):
        run.finish_attempt("finished", number=3)


def test_attempts_go_on_where_the_journal_is_if_run_json_was_lost(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.start_attempt()
    run.finish_attempt("finished")
    with JournalWriter(run, attempt=run.start_attempt()) as journal:
        journal.append("note", text="x", level="info")
    run.finish_attempt("finished")
    run.run_json.unlink()
    again = new_run(tmp_path)
    assert again.start_attempt() == 3
    again.finish_attempt("finished")
    assert [(attempt.number, attempt.status) for attempt in again.info.attempts] == [(3, "finished")]


def test_two_trainings_in_one_directory_are_refused(tmp_path: Path) -> None:
    first = new_run(tmp_path)
    first.start_attempt()
    second = new_run(tmp_path)
    with pytest.raises(JournalError, match=rf"This same process \({os.getpid()}\) already trains in: {tmp_path}"):
        second.start_attempt()
    assert len(first.info.attempts) == 1
    first.finish_attempt("finished")
    assert second.start_attempt() == 2


def test_superseding_puts_the_earlier_files_aside(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.start_attempt()
    run.checkpoint(5).mkdir(parents=True)
    (run.checkpoint(5) / "model").write_text("weights 1")
    run.trajectory_steps.mkdir(parents=True)
    (run.trajectory_steps / "step_1").write_text("rollouts 1")
    run.finish_attempt("finished")
    run.supersede(run.start_attempt() - 1)
    aside = run.superseded / "attempt_1"
    assert (aside / "checkpoints" / "global_step_5" / "model").read_text() == "weights 1"
    assert (aside / "trajectories" / "steps" / "step_1").read_text() == "rollouts 1"
    assert not run.checkpoints.exists()
    assert not run.trajectories.exists()


@pytest.mark.parametrize("resumed_from", [None, "checkpoints/global_step_5"])
def test_a_start_moves_no_files_by_itself(tmp_path: Path, resumed_from: str | None) -> None:
    run = new_run(tmp_path)
    run.start_attempt()
    run.checkpoint(5).mkdir(parents=True)
    run.finish_attempt("killed")
    run.start_attempt(resumed_from)
    assert run.checkpoint(5).is_dir()
    assert not run.superseded.exists()


def test_putting_aside_twice_loses_nothing(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for number in (1, 2):
        run.checkpoints.mkdir()
        (run.checkpoints / "file").write_text(str(number))
        run.supersede(1)
    aside = run.superseded / "attempt_1"
    assert [(aside / name / "file").read_text() for name in ("checkpoints", "checkpoints.2")] == ["1", "2"]
    run.supersede(1)
    assert len(list(aside.iterdir())) == 2


def test_tracker_ids_are_added_and_secrets_in_them_masked(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.set_tracker_id("wandb", id="w1")
    run.set_tracker_id("wandb", url="https://me:pass@host/x", api_key="abc")
    run.set_tracker_id("mlflow", run_id="m1")
    assert run.info.trackers == {
        "wandb": {"id": "w1", "url": "https://me:***@host/x", "api_key": "***"},
        "mlflow": {"run_id": "m1"},
    }


def test_changes_by_several_processes_at_once_are_all_kept(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    script = "import sys; from verl.journal import RunDirectory; run = RunDirectory.open(sys.argv[1])\n"
    script += "for number in range(20): run.set_tracker_id(sys.argv[2], **{f'id{number}': number})"
    processes = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), name]) for name in ("a", "b")]
    threads = [
        threading.Thread(
            target=lambda: [RunDirectory.open(tmp_path).set_tracker_id("c", **{f"id{n}": n}) for n in range(20)]
        )
    ]
    for thread in threads:
        thread.start()
    for waiting in (*threads, *processes):
        waiting.join() if isinstance(waiting, threading.Thread) else waiting.wait()
    assert {name: len(ids) for name, ids in run.info.trackers.items()} == {"a": 20, "b": 20, "c": 20}


def test_a_reader_never_sees_half_a_run_json(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            run.set_tracker_id("t", **{f"id{number % 50}": "x" * 1000})

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(300):
            assert run.info.project == "stocks"
    finally:
        stop.set()
        thread.join()
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_a_damaged_run_json_says_what_to_do(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for content in (
        "",
        "{",
        "[]",
        '{"run_id": "x"}',
        '{"run_id":"x","project":"p","experiment":"e","created":1,"attempts":[1]}',
    ):
        run.run_json.write_text(content)
        with pytest.raises(JournalError, match=r"is damaged .* the journal beside it stays readable"):
            RunDirectory.open(tmp_path)
        with pytest.raises(JournalError, match="is damaged"):
            new_run(tmp_path)


def test_fields_of_a_later_version_of_run_json_are_tolerated(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.start_attempt()
    edit(run, mood="good")
    assert run.info.attempts[0].number == 1


def test_opening_what_is_no_run_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"There is no run directory"):
        RunDirectory.open(tmp_path / "nothing")
    with pytest.raises(JournalError, match=r"a folder with run\.json and journal/ in it"):
        RunDirectory.open(tmp_path)
    new_run(tmp_path / "20260101_120000")
    with pytest.raises(JournalError, match="has some in it: 20260101_120000"):
        RunDirectory.open(tmp_path)


def test_a_file_in_the_way_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(JournalError, match=r"is a file, not a folder. Choose another trainer.log_dir or VERL_LOG_DIR"):
        new_run(tmp_path / "file")
    with pytest.raises(JournalError, match="Cannot create the run directory at"):
        new_run(tmp_path / "file" / "run")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write, not even root")
def test_a_folder_that_cannot_be_written_says_what_to_do() -> None:
    with pytest.raises(JournalError, match="Cannot create the run directory at /proc"):
        new_run(Path("/proc/verl-run"))
    with pytest.raises(JournalError, match="Cannot create the run directory at /proc/self"):
        new_run(Path("/proc/self"))


def test_a_start_that_fails_gives_the_run_free_again(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    content = run.run_json.read_bytes()
    run.run_json.write_text("{")
    with pytest.raises(JournalError, match="is damaged"):
        run.start_attempt()
    run.run_json.write_bytes(content)
    assert run.start_attempt() == 1


def test_files_that_cannot_be_put_aside_are_an_error(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    run.checkpoint(5).mkdir(parents=True)
    run.superseded.write_text("a file in the way")
    with pytest.raises(JournalError, match=r"Cannot move checkpoints/ of the earlier run to .*attempt_1"):
        run.supersede(1)
    assert run.checkpoint(5).is_dir()


def test_a_run_json_that_is_gone_or_unreadable_is_an_error(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    content = run.run_json.read_bytes()
    run.run_json.unlink()
    with pytest.raises(JournalError, match="is not a run directory"):
        run.status  # noqa: B018
    run.run_json.mkdir()
    with pytest.raises(JournalError, match=r"Cannot read run\.json"):
        run.status  # noqa: B018
    run.run_json.rmdir()
    run.run_json.write_bytes(content)
    assert run.status == "created"
    assert repr(run) == f"RunDirectory({str(tmp_path)!r})"


def test_secrets_in_the_names_of_a_run_are_masked(tmp_path: Path) -> None:
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz123456"
    run = RunDirectory.create(tmp_path / "run", project=secret, experiment=f"https://me:hunter22@host/{secret}")
    run.start_attempt()
    assert secret not in run.run_json.read_text()
    assert "hunter22" not in run.run_json.read_text()
    assert secret not in run.info.project
    run.finish_attempt("finished")


def test_a_name_that_is_too_long_for_the_disk_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="name too long"):
        RunDirectory.create(tmp_path / ("x" * 300), project="p", experiment="e")
