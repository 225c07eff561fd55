"""What trackio shows of a run, read by another process with trackio's own functions."""

from __future__ import annotations

import errno
import itertools
import math
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl.journal import JournalWriter, RunDirectory
from verl.testing.services import Shown
from verl.testing.trackio_service import TrackioService
from verl.tracking import Artifact, Histogram, Moment, TrackedRun, Tracking, drain
from verl.tracking.backends.trackio_logger import TrackioLogger
from verl.tracking.backends.trackio_storage import disk_trouble
from verl.tracking.logger import NewBranchError, StateLostError
from verl.tracking.relay.feed_state import read_states

Inline = Callable[..., Tracking]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackioService]:
    service = TrackioService(tmp_path_factory.mktemp("trackio"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in service.start().items():
            patch.setenv(name, value)
        yield service
    service.stop()


@pytest.fixture
def project(service: TrackioService, tmp_path: Path) -> str:
    """A project of this test alone."""
    return f"p{abs(hash(tmp_path))}"


@pytest.fixture
def inline(project: str, tmp_path: Path) -> Inline:
    """Tracking with trackio fed in each call."""

    def start(**settings: Any) -> Tracking:
        return Tracking(project, "an experiment", "trackio", log_dir=str(tmp_path / "run"), async_log=False, **settings)

    return start


@pytest.fixture
def read(service: TrackioService, tmp_path: Path) -> Callable[[], Shown]:
    return lambda: service.read(tmp_path / "run")


class Driver:
    """Calls a tracker as a feed does: each record has its own moment, and a new process its state."""

    def __init__(self, project: str, directory: Path, experiment: str = "e", run_id: str = "") -> None:
        self.project, self.directory, self.experiment = project, directory, experiment
        self.run_id = run_id or f"r{project}"
        self.state: dict[str, Any] = {}
        self.logger = self.open()

    def open(self, attempt: int = 1, branch: int = 0) -> TrackioLogger:
        """What begins in a new process."""
        self.logger = TrackioLogger()
        run = TrackedRun(self.run_id, self.project, self.experiment, self.directory, attempt, None, self.state, branch)
        self.logger.open(run)
        return self.logger

    def at(self, seq: int, attempt: int = 1) -> TrackioLogger:
        self.logger.moment = Moment(1_700_000_000.25 + seq, attempt, seq)
        return self.logger

    def flush(self) -> None:
        self.logger.flush()
        self.state = self.logger.state()


@pytest.fixture
def driver(project: str, tmp_path: Path) -> Driver:
    return Driver(project, tmp_path)


def test_everything_is_shown(inline: Inline, read: Callable[[], Shown], tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    report.write_text("# fine")
    config = {"trainer": {"lr": 1e-3, "off": None}, "names": ["a"], "api_key": "sk-1234567890abcdefgh"}
    with inline(config=config) as tracking:
        tracking.log_metrics({"loss": 0.5, "val/mean@8": 1.0}, 1)
        tracking.log_metrics({"loss": math.nan, "up": math.inf, "down": -math.inf, "large": 1e300}, 2)
        tracking.log_histogram("reward/dist", [1, 1, 2, 5], 4)
        tracking.log_text("samples/one", "**Prompt:** hi <b>", 4)
        tracking.log_table("val/generations", ["prompt", "score", "score"], [["a|b\n<script>", 0.5, None]], 4)
        tracking.log_image("a/picture", np.zeros((3, 5, 7)), 2)
        tracking.log_artifact(report, "the report")
        tracking.alert("KL", "too high", "error")
        tracking.note("row 3 is empty", "warning")
    shown = read()
    assert shown.points["loss"][0] == (1, 0.5)
    assert math.isnan(shown.points["loss"][1][1])
    assert shown.points["val/mean@8"] == [(1, 1.0)]
    assert (shown.points["up"], shown.points["down"]) == ([(2, math.inf)], [(2, -math.inf)])
    assert shown.points["large"] == [(2, 1e300)]
    assert shown.histograms == {"reward/dist": {4: 4.0}}
    assert shown.texts["samples/one"] == {4: "**Prompt:** hi <b>"}
    assert shown.tables["val/generations"] == {4: [["a|b\n<script>", 0.5, None]]}
    assert shown.images == {("a/picture", 2)}
    assert "the report" in shown.artifacts
    assert shown.alerts[:2] == ["KL: too high", "row 3 is empty"]
    assert shown.config["trainer.lr"] == 1e-3
    assert shown.config["names"] == ["a"]
    assert "sk-1234567890abcdefgh" not in str(shown.config)
    assert shown.status == "finished"


@pytest.mark.parametrize("status", ["failed", "killed", "crashed"])
def test_the_true_status_and_its_reason_are_shown(
    status: str, project: str, read: Callable[[], Shown], tmp_path: Path
) -> None:
    directory = RunDirectory.create(tmp_path / "run", project=project, experiment="e")
    directory.start_attempt()
    with JournalWriter(directory, attempt=1) as journal:
        journal.append("metrics", 1, metrics={"loss": 1.0})
        if status != "crashed":
            journal.append("finish", 1, status=status, error="ValueError: bad batch")
    directory.finish_attempt(status)
    drain(directory, ["trackio"])
    shown = read()
    assert shown.status == status
    if status != "crashed":
        assert [alert for alert in shown.alerts if "ValueError: bad batch" in alert]


def test_rows_have_the_step_and_the_time_of_their_record(driver: Driver, service: TrackioService) -> None:
    driver.at(1).log_metrics({"loss": 1.0}, 2**60)
    driver.at(2).alert("t", "x", "warning")
    driver.flush()
    found = service.read_raw(driver.project, driver.run_id)
    assert [(row["step"], row["timestamp"]) for row in found["rows"] if "loss" in row] == [
        (2**60, "2023-11-14T22:13:21.250000+00:00")
    ]
    assert found["alerts"][0]["timestamp"] == "2023-11-14T22:13:22.250000+00:00"
    assert found["alerts"][0]["level"] == "warn"


def test_names_that_trackio_keeps_to_itself_are_spelled_in_another_way(driver: Driver, service: TrackioService) -> None:
    odd = ["step", "time", "timestamp", "run", "project", "metrics", "__x", "_x", "steps", "a\ud800b", "é/😀 \n@", " "]
    odd += ["a_xd800_b", "val/mean_at_8", "x" * 3000]
    driver.at(1).log_metrics({name: float(number) for number, name in enumerate(odd)}, 7)
    driver.at(2).log_text("step", "hi \ud83d", 7)
    driver.flush()
    renamed = driver.logger.renamed()
    assert set(renamed) == {
        "step",
        "time",
        "timestamp",
        "run",
        "project",
        "metrics",
        "__x",
        *odd[9:10],
        "a_xd800_b",
        "x" * 3000,
    }
    shown = service.read_run(driver.project, driver.run_id, renamed)
    assert shown.points == {name: [(7, float(number))] for number, name in enumerate(odd)}
    assert shown.texts == {"step": {7: "hi \\ud83d"}}
    assert not driver.logger.omissions


def test_ten_thousand_keys_and_a_huge_text_are_taken(driver: Driver, service: TrackioService) -> None:
    driver.at(1).log_metrics({f"group/key {index}": index / 7 for index in range(10_000)}, 1)
    driver.at(2).log_text("huge", "x" * 5_000_000, 1)
    driver.flush()
    shown = service.read_run(driver.project, driver.run_id, {})
    assert shown.points == {f"group/key {index}": [(1, index / 7)] for index in range(10_000)}
    assert len(shown.texts["huge"][1]) == 5_000_000


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kills=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=5))
def test_nothing_is_twice_and_nothing_missing_wherever_it_is_killed(
    kills: list[tuple[int, bool]], service: TrackioService, project: str, tmp_path: Path
) -> None:
    run_id = f"run{next(_numbers)}"
    driver = Driver(project, tmp_path, run_id=run_id)
    acknowledged = 0
    for ahead, was_written in [*kills, (20, True)]:
        # A process that gets some records further than what is acknowledged, and perhaps writes them, before it dies.
        for seq in range(acknowledged + 1, min(acknowledged + ahead, 20) + 1):
            driver.at(seq).log_metrics({"loss": float(seq)}, seq)
            driver.at(seq).alert("alert", str(seq), "info") if seq % 5 == 0 else None
        if was_written:
            driver.logger.flush()
            if ahead % 2 == 0:
                driver.state, acknowledged = driver.logger.state(), min(acknowledged + ahead, 20)
        driver.open()
    found = _in_process(driver)
    assert [(row["step"], row["loss"]) for row in found if "loss" in row] == [(s, float(s)) for s in range(1, 21)]


_numbers = itertools.count()


def _in_process(driver: Driver) -> list[dict[str, Any]]:
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage.get_logs(driver.project, run_id=driver.run_id)


PROGRAM = """
import sys
from pathlib import Path
from verl.tracking import Moment, TrackedRun
from verl.tracking.backends.trackio_logger import TrackioLogger
logger = TrackioLogger()
logger.open(TrackedRun(sys.argv[2], sys.argv[1], "e", Path(".")))
print("open", flush=True)
for seq in range(1, 100_000):
    logger.moment = Moment(1_700_000_000.0 + seq, 1, seq)
    logger.log_metrics({"loss": float(seq)}, seq)
    logger.flush()
"""


def test_what_a_killed_process_wrote_is_not_written_again(driver: Driver, service: TrackioService) -> None:
    driver.at(1).log_metrics({"loss": 1.0}, 1)
    driver.flush()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, driver.project, driver.run_id], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    got = len(_in_process(driver))
    assert got > 2
    driver.state["last_id"] = f"{driver.run_id}.1.1"
    driver.open()
    for seq in range(2, got + 20):
        driver.at(seq).log_metrics({"loss": float(seq)}, seq)
    driver.flush()
    shown = service.read_run(driver.project, driver.run_id, {})
    assert shown.points == {"loss": [(seq, float(seq)) for seq in range(1, got + 20)]}


def test_after_a_rewind_only_the_new_branch_is_shown(
    inline: Inline, read: Callable[[], Shown], service: TrackioService, tmp_path: Path
) -> None:
    with inline(config={"lr": 1}) as tracking:
        for step in range(1, 11):
            tracking.log_metrics({"loss": float(step)}, step)
        tracking.log_image("picture", np.zeros((3, 2, 2)), 9)
        tracking.note("before")
    with inline(config={"lr": 2}) as tracking:
        tracking.rewind(6)
        for step in range(7, 9):
            tracking.log_metrics({"loss": -float(step)}, step)
    shown = read()
    assert shown.points == {"loss": [*((step, float(step)) for step in range(1, 7)), (7, -7.0), (8, -8.0)]}
    assert shown.images == set()
    assert (shown.config, shown.status) == ({"lr": 2}, "finished")
    folder = Path(service.start()["TRACKIO_DIR"])
    (run,) = {state.own["last_id"].split(".")[0] for state in read_states(tmp_path / "run")}
    assert not list(folder.rglob(f"{run}.*.png"))


def test_a_rewind_within_an_attempt_begins_anew(driver: Driver) -> None:
    driver.at(1).log_metrics({"loss": 1.0}, 1)
    driver.flush()
    driver.at(2)
    with pytest.raises(StateLostError, match="goes on from step 0"):
        driver.logger.purge(0)
    driver.state = {}
    driver.open()
    assert _in_process(driver) == []


def test_what_was_lost_is_written_anew(inline: Inline, read: Callable[[], Shown], project: str) -> None:
    with inline() as tracking:
        tracking.log_metrics({"loss": 1.0}, 1)
        tracking.log_metrics({"loss": 2.0}, 2)
    from trackio import Api

    (run,) = Api().runs(project)
    assert run.delete()
    with inline() as tracking:
        tracking.log_metrics({"loss": 3.0}, 3)
    assert read().points == {"loss": [(1, 1.0), (2, 2.0), (3, 3.0)]}


def test_a_later_attempt_continues_the_same_run_under_its_new_name(
    inline: Inline, read: Callable[[], Shown], project: str
) -> None:
    from trackio import Api

    with inline() as tracking:
        tracking.log_metrics({"loss": 1.0}, 1)
        assert read().status == "running"
    assert read().status == "finished"
    (run,) = Api().runs(project)
    run.rename("a better name")
    with inline() as tracking:
        tracking.log_metrics({"loss": 2.0}, 2)
        assert read().status == "running"
    assert [(run.name, run.id) for run in Api().runs(project)] == [("a better name", run.id)]
    assert read().points == {"loss": [(1, 1.0), (2, 2.0)]}


def test_runs_of_the_same_name_and_branches_stay_apart(project: str, service: TrackioService, tmp_path: Path) -> None:
    first, second = (Driver(project, tmp_path, run_id=run_id) for run_id in ("aa", "bb"))
    for number, driver in enumerate((first, second)):
        driver.at(5).log_metrics({"loss": float(number)}, 1)
        driver.flush()
    first.state = {}
    first.open(branch=1)
    first.at(5).log_metrics({"loss": 2.0}, 1)
    first.flush()
    ids = ("aa", "bb", "aa-2")
    assert [service.read_run(project, run_id, {}).points["loss"] for run_id in ids] == [
        [(1, 0.0)],
        [(1, 1.0)],
        [(1, 2.0)],
    ]


def test_the_end_is_told_once_though_it_is_told_again(driver: Driver, service: TrackioService) -> None:
    driver.at(1).log_metrics({"loss": 1.0}, 1)
    driver.flush()
    for _process in range(2):
        driver.logger.alert("The run failed", "ValueError", "error")
        driver.logger.finish("failed")
        driver.open()
    shown = service.read_run(driver.project, driver.run_id, {})
    assert (shown.alerts, shown.status) == (["The run failed: ValueError"], "failed")


def test_artifacts_are_kept_once_and_what_trackio_cannot_have_is_counted(
    driver: Driver, service: TrackioService, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.txt").write_text("a")
    (tmp_path / "empty").mkdir()
    for _time in range(2):
        driver.at(1).log_artifact(Artifact("my report", folder, "report", {"score": math.nan}), 1)
        driver.at(2).log_artifact(Artifact("weights", folder, "checkpoint"), 1)
        driver.flush()
        driver.open()
    driver.at(3).log_artifact(Artifact("empty", tmp_path / "empty", "report"), 1)
    driver.at(4).log_artifact(Artifact("gone", tmp_path / "gone", "report"), 2)
    driver.at(5).log_artifact(Artifact("my report", folder, "another type"), 3)
    driver.flush()
    shown = service.read_run(driver.project, driver.run_id, {"my report": "my_x20_report"})
    assert shown.artifacts == {"my report", "weights"}
    artifacts = {item["name"]: item for item in service.read_raw(driver.project, driver.run_id)["artifacts"]}
    assert [item["version"] for item in artifacts.values()] == [0, 0]
    assert set(driver.logger.omissions) == {"empty", "gone", "my report"}
    from trackio.sqlite_storage import SQLiteStorage

    weights = SQLiteStorage.get_artifact_manifest(driver.project, f"run-{driver.run_id}-weights", None)
    assert weights is not None
    assert [entry["ref"] for entry in weights["manifest"]] == [(folder / "sub" / "a.txt").as_uri()]


@pytest.mark.parametrize("name", ["model_artifacts", "registry-x", "a.b c", "é" * 300, "///"])
def test_any_project_and_experiment_name_will_do(name: str, service: TrackioService, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"png")
    driver = Driver(name, tmp_path, experiment=f"../{name}", run_id=f"run{abs(hash(name))}")
    driver.at(1).log_metrics({"loss": 1.0}, 1)
    driver.at(2).log_artifact(Artifact("picture", tmp_path / "image", "image"), 1)
    driver.flush()
    ids = driver.logger.ids()
    shown = service.read_run(ids["project"], ids["run_id"], {})
    assert shown.points == {"loss": [(1, 1.0)]}
    (image,) = [row["picture"] for row in _rows_of(service, ids) if "picture" in row]
    media = Path(service.start()["TRACKIO_DIR"]) / "media"
    assert (media / image["file_path"]).read_bytes() == b"png"
    assert (media / image["file_path"]).resolve().is_relative_to(media)


def _rows_of(service: TrackioService, ids: dict[str, Any]) -> list[dict[str, Any]]:
    return service.read_raw(ids["project"], ids["run_id"])["rows"]


def test_on_a_network_disk_rows_go_through_the_inbox(
    driver: Driver, service: TrackioService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_STORAGE_MODE", "jsonl")
    driver.open()
    for _time in range(2):
        driver.at(1).log_config({"lr": 1})
        driver.at(2).log_metrics({"loss": math.nan}, 1)
        driver.at(3).alert("t", "x", "error")
        driver.flush()
        driver.open()
    driver.at(4)
    with pytest.raises(NewBranchError):
        driver.logger.purge(0)
    driver.state = {}
    driver.open(branch=1)
    driver.at(2, attempt=2).log_metrics({"loss": 2.0}, 1)
    driver.logger.finish("finished")
    from trackio import fragments

    fragments.import_inbox_dir()
    old = service.read_run(driver.project, driver.run_id, {})
    assert [step for step, _ in old.points["loss"]] == [1]
    assert (old.alerts, old.config, old.status) == (["t: x"], {"lr": 1}, "superseded")
    new = service.read_run(driver.project, f"{driver.run_id}-2", {})
    assert (new.points, new.status) == ({"loss": [(1, 2.0)]}, "finished")


def test_a_full_database_is_no_records_fault() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("PRAGMA max_page_count = 2")
    database.execute("CREATE TABLE t (x)")
    with pytest.raises(OSError, match="full") as caught, disk_trouble():
        database.execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert caught.value.errno == errno.ENOSPC
    database.close()


OFFLINE = """
import socket, sys, threading
def refuse(*arguments, **options):
    raise AssertionError(f"asked the network: {arguments}")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from pathlib import Path
from verl.tracking import Moment, TrackedRun
from verl.tracking.backends.trackio_logger import TrackioLogger
assert TrackioLogger.preflight(None)[0].result == "ok"
assert "trackio" not in sys.modules
logger = TrackioLogger()
logger.open(TrackedRun("offline", sys.argv[1], "e", Path(".")))
logger.moment = Moment(1.0, 1, 1)
logger.log_metrics({"loss": 1.0}, 1)
logger.alert("a", "b", "info")
logger.finish("finished")
assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
"""


def test_there_is_no_network_no_thread_and_no_early_import(project: str) -> None:
    done = subprocess.run([sys.executable, "-c", OFFLINE, project], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_diagnosis_knows_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "file" / "below"))
    (check,) = TrackioLogger.preflight(None)
    assert (check.result, check.question) == ("error", "folder")
    assert "TRACKIO_DIR" in check.advice
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "new" / "folder"))
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/space")
    assert [check.result for check in TrackioLogger.preflight(None)] == ["ok", "warning"]


def test_it_says_where_to_look(driver: Driver, service: TrackioService) -> None:
    folder = service.start()["TRACKIO_DIR"]
    assert driver.logger.where() == f"TRACKIO_DIR={folder} trackio show --project {shlex.quote(driver.project)}"
    assert driver.logger.ids() == {"run_id": driver.run_id, "project": driver.project, "run_name": "e"}


def test_the_real_server_shows_it_while_it_is_written(driver: Driver, service: TrackioService) -> None:
    histogram = Histogram(1.0, 5.0, 4, 9.0, 31.0, [3.0, 5.0], [3.0, 1.0])
    for step in range(1, 51):
        driver.at(2 * step).log_metrics({"loss": float(step)}, step)
        driver.at(2 * step + 1).log_histogram("dist", histogram, step)
        driver.flush()
        if step == 25:
            assert driver.project in service.ask_server("get_all_projects")
    logs = service.ask_server("get_logs", project=driver.project, run_id=driver.run_id)
    assert [(row["step"], row["loss"]) for row in logs if "loss" in row] == [(s, float(s)) for s in range(1, 51)]
    assert [row["dist"]["bins"] for row in logs if "dist" in row] == [[1.0, 3.0, 5.0]] * 50
    summary = service.ask_server("get_run_summary", project=driver.project, run_id=driver.run_id)
    assert (summary["last_step"], summary["config"]["verl_status"]) == (50, "running")
