"""`verl sync`: whatever is missing is completed, nothing is shown twice, and what cannot be is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from file_tracker import NAME, OTHER, shown, steps

from verl.cli.main import main
from verl.journal import Cursor, JournalWriter, Kind, RunDirectory
from verl.journal.run_listing import count_after
from verl.testing.trackers import RecordingLogger
from verl.tracking import Tracking, TrainerLogger

ROOT = Path(__file__).parents[2]


def make_run(path: Path, trackers: list[Any] | None = None, *, last: int = 5, first: int = 1) -> Path:
    """A run of some steps, without a relay of its own."""
    with Tracking("p", "e", trackers or [], log_dir=str(path), async_log=False) as tracking:
        if first > 1:
            tracking.rewind(first - 1)
        for step in range(first, last + 1):
            tracking.log_metrics({"loss": 1.0 / step}, step)
    return path


def missed_run(path: Path, trackers: list[str], *, last: int = 5) -> Path:
    """A run whose trackers were told of, but never fed: its machine had no network."""
    directory = RunDirectory.create(path, project="p", experiment="e")
    attempt = directory.start_attempt()
    with JournalWriter(directory, attempt=attempt) as writer:
        writer.append(Kind.RUN, None, run_id=directory.run_id, project="p", experiment="e", trackers=trackers)
        for step in range(1, last + 1):
            writer.append(Kind.METRICS, step, metrics={"loss": 1.0 / step})
        writer.append(Kind.FINISH, last, status="finished", error=None)
    directory.finish_attempt("finished")
    return path


@pytest.fixture
def sync(capsys: pytest.CaptureFixture[str]):
    """Runs the command: exit code, stdout, stderr."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = main(["sync", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


def test_a_run_is_built_in_a_tracker_that_it_never_had_and_only_once(sync, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    code, out, _ = sync(run, "--to", NAME)
    assert code == 0
    assert f"{NAME}: complete ({count_after(run / 'journal', Cursor())} records, finished)\n" in out
    assert "run_id shown-FileLogger-" in out
    assert "less shown-FileLogger-" in out
    lines = shown(run)
    assert steps(lines) == [1, 2, 3, 4, 5]
    assert lines[-1] == {"status": "finished"}
    assert sync(run, "--to", NAME)[0] == 0
    assert shown(run) == lines


def test_trackers_of_the_run_are_the_default(sync, tmp_path: Path) -> None:
    run = missed_run(tmp_path, ["console", NAME, OTHER])
    code, out, _ = sync(run)
    assert code == 0
    assert [line.split(": ")[0] for line in out.splitlines() if ": complete" in line] == [NAME, OTHER]
    assert steps(shown(run)) == steps(shown(run, tracker="OtherLogger")) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_delivery_goes_on_where_it_stopped(number: signal.Signals, sync, tmp_path: Path) -> None:
    run = missed_run(tmp_path, [NAME], last=300)
    (run / "fault").write_text("slow")
    command = [sys.executable, "-m", "verl.cli.main", "sync", str(run)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: any(run.glob("shown-*")))
    time.sleep(0.3)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    if number == signal.SIGINT:
        assert err == "verl: interrupted; what was delivered stays, and the same command goes on from there\n"
    until(lambda: not feeders(run))
    (run / "fault").unlink()
    assert sync(run)[0] == 0
    assert steps(shown(run)) == list(range(1, 301))


def test_a_tracker_that_fails_is_given_up_with_the_reason(sync, tmp_path: Path) -> None:
    run = missed_run(tmp_path, [NAME, OTHER])
    (run / "fault").write_text("timed out")
    began = time.monotonic()
    code, out, err = sync(run, "--seconds", "1")
    assert code == 1
    assert time.monotonic() - began < 30
    assert f"{NAME}: " in out
    assert "of 7 records are missing" in out
    assert "timed out; check that the server answers, and the proxy" in out
    assert "geheim123" not in out + err
    (run / "fault").unlink()
    assert sync(run)[0] == 0
    assert steps(shown(run)) == [1, 2, 3, 4, 5]


def test_fresh_builds_the_canonical_run_beside_the_old_one(sync, tmp_path: Path) -> None:
    run = make_run(tmp_path, [NAME], last=6)
    make_run(tmp_path, [NAME], first=4, last=5)
    before = shown(run)
    code, out, err = sync(run, "--fresh")
    assert code == 0, out + err
    assert "built anew from the journal; what it shows already stays beside it" in err
    assert shown(run)[: len(before)] == before
    assert steps(before) == [1, 2, 3, 4, 5, 6, 4, 5]  # this tracker cannot forget
    assert steps(shown(run, "-2")) == [1, 2, 3, 4, 5]
    assert sync(run, "--fresh")[0] == 0
    assert steps(shown(run, "-3")) == [1, 2, 3, 4, 5]


def test_fresh_for_a_tracker_that_has_nothing_is_its_first_branch(sync, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert sync(run, "--to", NAME, "--fresh")[0] == 0
    assert steps(shown(run)) == [1, 2, 3, 4, 5]


def test_a_run_that_is_being_trained_is_left_to_its_relay(sync, tmp_path: Path) -> None:
    with Tracking("p", "e", [NAME], log_dir=str(tmp_path)) as tracking:
        tracking.log_metrics({"loss": 1.0}, 1)
        until(lambda: any(tmp_path.glob("shown-*")))
        code, out, _ = sync(tmp_path)
        assert code == 1
        assert "the run is being trained, and its relay feeds this tracker (process " in out
        assert "nothing is to be done here" in out
        code, out, _ = sync(tmp_path, "--fresh")
        assert code == 1
        assert "refused: end the run first" in out
        code, out, _ = sync(tmp_path, "--to", OTHER, "--fresh")
        assert code == 1
        assert "still being trained, so nothing is built anew" in out
        code, out, _ = sync(tmp_path, "--to", OTHER)
        assert code == 1
        assert "has everything so far; the run goes on, so complete it once it has ended" in out
        assert steps(shown(tmp_path, tracker="OtherLogger")) == [1]
    assert sync(tmp_path, "--to", OTHER)[0] == 0
    assert shown(tmp_path, tracker="OtherLogger")[-1] == {"status": "finished"}


def test_a_run_that_died_is_shown_as_crashed(sync, tmp_path: Path) -> None:
    run = missed_run(tmp_path, [NAME])
    raw = json.loads((run / "run.json").read_text())
    raw["attempts"][0].update(status="running", ended=None, pid=2**22 - 1)
    (run / "run.json").write_text(json.dumps(raw))
    events = run / "journal/events-rank0.jsonl"
    events.write_bytes(b"".join(line for line in events.read_bytes().splitlines(True) if b'"finish"' not in line))
    code, out, _ = sync(run)
    assert code == 0
    assert "complete (6 records, crashed)" in out
    assert shown(run)[-1] == {"status": "crashed"}


# What is wrong is said, and the rest goes on.


def test_a_tracker_without_a_login_does_not_keep_others_from_going_on(
    sync, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = missed_run(tmp_path, [NAME, OTHER])
    monkeypatch.setenv("FILE_TRACKER_LOGIN", "FileLogger")
    code, out, _ = sync(run)
    assert code == 1
    assert f"{NAME}: not complete: there is no key: set FILE_TRACKER_KEY\n" in out
    assert f"{OTHER}: complete" in out
    assert not list(run.glob("shown-FileLogger*"))
    monkeypatch.setenv("FILE_TRACKER_LOGIN", "OtherLogger")  # complete already: nobody needs to look
    assert sync(run)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--to", "wanbd"], 2, "Did you mean 'wandb'?"),
        (["--to", "console"], 2, "drawn while training and keeps nothing; trackers to complete are"),
        (["--to", "no_such_module:Logger"], 2, "there is no module"),
        (["--seconds", "0"], 2, "--seconds is a time above 0"),
        (["--seconds", "soon"], 2, "invalid float value: 'soon'"),
        (["--frehs"], 2, "--frehs"),
    ],
)
def test_arguments_that_make_no_sense(sync, arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    run = missed_run(tmp_path, [NAME])
    found, out, err = sync(run, *arguments)
    assert (found, out) == (code, "")
    assert message in err


def test_no_run_is_a_sentence(sync, tmp_path: Path) -> None:
    assert sync(tmp_path / "none")[::2] == (1, f"verl: error: There is no run directory {tmp_path / 'none'}.\n")
    assert "There is no run in" in sync(tmp_path)[2]
    (tmp_path / "file").write_text("")
    assert "is a file; a run is a folder" in sync(tmp_path / "file")[2]


def test_a_run_without_trackers_says_how_to_name_one(sync, tmp_path: Path) -> None:
    code, out, _ = sync(make_run(tmp_path))
    assert code == 0
    assert "verl sync RUN --to TRACKER" in out


def test_all_runs_of_a_folder_and_a_damaged_one_among_them(sync, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        missed_run(tmp_path / name, [NAME])
    (tmp_path / "b/run.json").write_text("{")
    code, out, err = sync(tmp_path)
    assert code == 1
    assert out.count(": complete") == 2
    assert "b/run.json is damaged" in err
    assert steps(shown(tmp_path / "c")) == [1, 2, 3, 4, 5]
    code, _, err = sync(tmp_path / "b")
    assert code == 1
    assert err.startswith("verl: error: ")


def test_a_run_whose_journal_cannot_be_read_keeps_no_other_from_going_on(sync, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        missed_run(tmp_path / name, [NAME])
    replace_by_a_folder(tmp_path / "b/journal/events-rank0.jsonl")  # stops `Completion`
    make_run(tmp_path / "c", [NAME])
    (state,) = (tmp_path / "c/relay").glob("*.json")
    replace_by_a_folder(state)  # cannot be put aside for --fresh
    code, out, err = sync(tmp_path)
    assert code == 1
    assert out.count(": complete") == 2, out
    assert str(tmp_path / "b") in err
    code, out, err = sync(tmp_path, "--fresh")
    assert code == 1
    assert out.count(": complete") == 2, out + err
    assert steps(shown(tmp_path / "d", "-2")) == [1, 2, 3, 4, 5]


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def test_a_proxy_whose_password_was_not_kept_is_told(sync, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_WANDB_PROXY", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    run = missed_run(tmp_path / "run", ["wandb"])
    with JournalWriter(RunDirectory.open(run), attempt=1) as writer:
        writer.append(Kind.CONFIG, None, config={"trainer": {"wandb_proxy": "http://me:***@127.0.0.1:7"}})
    code, _, err = sync(run)
    assert code == 1
    assert (
        "wandb: trainer.wandb_proxy stands here without its password, and cannot be used; no other is given: set" in err
    )


def test_a_damaged_state_is_told_and_can_be_left_behind(sync, tmp_path: Path) -> None:
    run = make_run(tmp_path, [NAME])
    (state,) = (run / "relay").glob("*.json")
    state.write_text(state.read_text().replace('"branch": 0', '"branch": 3')[:-20])
    code, out, _ = sync(run)
    assert code == 1
    assert "is damaged" in out
    assert "--fresh" in out
    code, _, err = sync(run, "--fresh")
    assert code == 0
    assert "its damaged state file is kept as" in err
    assert len(list((run / "relay").glob("*.damaged"))) == 1
    assert steps(shown(run, "-5")) == [1, 2, 3, 4, 5]


def test_damaged_lines_of_a_journal_cost_no_others(sync, tmp_path: Path) -> None:
    run = missed_run(tmp_path, [NAME])
    metrics = run / "journal/metrics-rank0.jsonl"
    lines = metrics.read_bytes().splitlines(True)
    metrics.write_bytes(b"".join([lines[0], b"\xff garbage\n", *lines[1:], b'{"v":1,"se']))
    code, out, _ = sync(run)
    assert code == 0, out
    assert steps(shown(run)) == [1, 2, 3, 4, 5]


def test_a_tracker_given_as_an_object_can_only_be_fed_by_its_program(sync, tmp_path: Path) -> None:
    class Refusing(RecordingLogger):
        def finish(self, status: str) -> None:
            raise ConnectionError("no")

    complete = make_run(tmp_path / "a", [RecordingLogger()])
    assert sync(complete)[0] == 0
    trackers: list[TrainerLogger] = [Refusing()]
    with Tracking("p", "e", trackers, log_dir=str(tmp_path / "b"), async_log=False) as tracking:
        tracking.log_metrics({"loss": 1.0}, 1)
        tracking.finish("finished", seconds=0.1)
    code, out, _ = sync(tmp_path / "b")
    assert code == 1
    assert "Refusing: not complete: it was given to the run as an object or a class" in out
    code, out, _ = sync(complete, "--fresh")
    assert code == 1
    assert "RecordingLogger: not complete: it was given to the run as an object or a class" in out


def test_output_to_a_pipe_is_plain(tmp_path: Path) -> None:
    run = missed_run(tmp_path, ["tensorboard"])
    done = subprocess.run(
        [sys.executable, "-m", "verl.cli.main", "sync", str(run)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "tensorboard: complete (7 records, finished)"
    assert lines[-1] == f"  tensorboard --logdir {run}"
    assert "\x1b" not in done.stderr


def until(condition: Any, seconds: float = 30) -> None:
    """Other processes act in their own time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def feeders(run: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "verl.tracking.relay" in command and str(run) in command:
            found.append(process)
    return found
