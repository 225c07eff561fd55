"""What SwanLab has of a run: the real SDK on a server of ours, and its files offline."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import swanlab
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from swanlab.sdk.internal.run.fmt import validate_key

from verl.journal import JournalWriter, RunDirectory
from verl.testing.services import Fault, Shown
from verl.testing.swanlab_files import read_offline_run
from verl.testing.swanlab_server import KEY, USER, Experiment, SwanlabServer
from verl.testing.swanlab_service import SwanlabOfflineService, SwanlabService, shown_online
from verl.tracking import Artifact, Histogram, Moment, TrackedRun, Tracking, drain
from verl.tracking.backends import swanlab_charts as charts
from verl.tracking.backends import swanlab_run
from verl.tracking.backends.swanlab_logger import SwanlabLogger
from verl.tracking.logger import NewBranchError, StateLostError
from verl.tracking.relay.feed_state import read_states

Inline = Callable[..., Tracking]
FAULTS: tuple[Fault, ...] = ("down", 401, 429, 503)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SwanlabService]:
    service = SwanlabService()
    _use(monkeypatch, service.start(), tmp_path)
    yield service
    service.stop()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SwanlabOfflineService:
    service = SwanlabOfflineService()
    _use(monkeypatch, service.start(), tmp_path)
    return service


def _use(monkeypatch: pytest.MonkeyPatch, variables: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SWANLAB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SWANLAB_ROOT", str(tmp_path / "no-login"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def inline(tmp_path: Path) -> Inline:
    """Tracking with SwanLab fed in each call."""

    def start(**settings: Any) -> Tracking:
        return Tracking("p", "an experiment", "swanlab", log_dir=str(tmp_path / "run"), async_log=False, **settings)

    return start


class Driver:
    """Calls a tracker as a feed does: each record has its own moment, and a new process its state."""

    def __init__(self, directory: Path, run_id: str = "k3x9a2bc", project: str = "p") -> None:
        self.directory, self.run_id, self.project = directory, run_id, project
        self.state: dict[str, Any] = {}
        self.branch = 0
        self.logger = SwanlabLogger()

    def open(self, attempt: int = 1) -> SwanlabLogger:
        self.logger.close()
        self.logger = SwanlabLogger()
        run = TrackedRun(self.run_id, self.project, "e", self.directory, attempt, None, self.state, self.branch)
        self.logger.open(run)
        return self.logger

    def at(self, seq: int) -> SwanlabLogger:
        self.logger.moment = Moment(1_700_000_000.25 + seq, 1, seq)
        return self.logger

    def flush(self) -> None:
        self.logger.flush()
        self.state = json.loads(json.dumps(self.logger.state()))

    def begin_again(self, error: StateLostError) -> None:
        """As a feed does."""
        self.state = {}
        self.branch += isinstance(error, NewBranchError)

    @property
    def remote_id(self) -> str:
        return self.run_id if not self.branch else f"{self.run_id}-{self.branch + 1}"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    yield driver
    driver.logger.close()


def only(server: SwanlabServer) -> Experiment:
    (experiment,) = server.experiments.values()
    return experiment


def log_everything(inline: Inline, folder: Path) -> None:
    report = folder / "report.md"
    report.write_text("# fine")
    (folder / "parts" / "inner").mkdir(parents=True)
    (folder / "parts" / "inner" / "a.json").write_text("{}")
    config = {"trainer": {"lr": 1e-3, "off": None}, "names": ["a"], "api_key": "sk-1234567890abcdefgh"}
    with inline(config=config) as tracking:
        tracking.log_metrics({"loss": 0.5, "val/mean@8": 1.0, "ends/": 2.0}, 1)
        tracking.log_metrics({"loss": math.nan, "up": math.inf, "large": 1e300}, 2)
        tracking.log_histogram("loss", [1, 1, 2, 5], 4)
        tracking.log_text("samples/one", "**Prompt:** hi <b> \ud800", 4)
        tracking.log_text("samples/one", "", 5)
        tracking.log_table("val/generations", ["prompt", "score", "score"], [["a|b\n<script>", 0.5, None]], 4)
        tracking.log_image("a/picture", np.zeros((3, 5, 7)), 2)
        tracking.log_artifact(report, "the report")
        tracking.log_artifact(folder / "parts", "../parts")
        tracking.alert("KL", "too high", "error")
        tracking.note("row 3 is empty", "info")


def check_everything(shown: Shown) -> None:
    assert shown.points["loss"][0] == (1, 0.5)
    assert [step for step, _ in shown.points["loss"]] == [1, 2]
    assert math.isnan(shown.points["loss"][1][1])
    assert shown.points["val/mean@8"] == [(1, 1.0)]
    assert shown.points["ends/"] == [(1, 2.0)]
    assert shown.points["large"] == [(2, 1e300)]
    assert shown.histograms == {"loss": {4: 4.0}}
    assert shown.texts["samples/one"] == {4: "**Prompt:** hi <b> \N{REPLACEMENT CHARACTER}", 5: " "}
    assert shown.tables["val/generations"] == {4: [["a|b\n<script>", 0.5, None]]}
    assert shown.images == {("a/picture", 2)}
    assert "the report" in shown.artifacts
    assert shown.alerts[:2] == ["KL: too high", "row 3 is empty"]
    assert shown.config["trainer.lr"] == 1e-3
    assert shown.config["names"] == ["a"]
    assert "sk-1234567890abcdefgh" not in str(shown.config)
    assert shown.status == "finished"


def test_everything_is_shown(service: SwanlabService, inline: Inline, tmp_path: Path) -> None:
    log_everything(inline, tmp_path)
    shown = service.read(tmp_path / "run")
    check_everything(shown)
    assert math.isnan(shown.points["up"][0][1])
    (state,) = read_states(tmp_path / "run")
    assert state.omissions["up"].count == 1
    experiment = only(service.server)
    assert experiment.settings["cluster"] == RunDirectory.open(tmp_path / "run").info.run_id
    assert "_x2e__x2e__x2f_parts/inner/a.json" in experiment.files
    assert experiment.blobs["_x2e__x2e__x2f_parts/inner/a.json"] == b"{}"
    assert service.server.refused == []


def test_everything_is_in_the_files_of_an_offline_run(
    offline: SwanlabOfflineService, inline: Inline, tmp_path: Path
) -> None:
    log_everything(inline, tmp_path)
    shown = offline.read(tmp_path / "run")
    check_everything(shown)


def test_no_thread_of_the_sdk_uploads_and_nothing_of_the_machine_leaves_it(
    service: SwanlabService, driver: Driver
) -> None:
    sent: list[bytes] = []
    answer = service.server.answer
    service.server.answer = lambda *request: (sent.append(request[2]), answer(*request))[1]  # type: ignore[method-assign]
    driver.open().log_metrics({"loss": 1.0}, 1)
    names = {thread.name for thread in threading.enumerate()}
    assert not {name for name in names if name.startswith("SwanLab") and "Heartbeat" not in name}
    driver.flush()
    driver.logger.finish("finished")
    everything = b"".join(sent).decode()
    for secret in (socket.gethostname(), str(Path.cwd()), sys.executable, "numpy", KEY):
        assert secret not in everything


def test_points_keep_the_time_of_their_record(offline: SwanlabOfflineService, driver: Driver) -> None:
    driver.open()
    driver.at(5).log_metrics({"loss": 1.0}, 1)
    driver.flush()
    assert read_offline_run(driver.directory / "swanlog" / "run-k3x9a2bc").times == [1_700_000_005.25]


@pytest.mark.parametrize("status", ["finished", "failed", "killed", "crashed"])
def test_the_status_is_true_and_a_later_attempt_takes_it_back(
    status: Any, service: SwanlabService, driver: Driver
) -> None:
    driver.open()
    driver.at(1).log_config({"a": {"b": 1}})
    driver.logger.log_metrics({"loss": 1.0}, 1)
    driver.flush()
    driver.logger.finish(status)
    driver.state = json.loads(json.dumps(driver.logger.state()))
    experiment = only(service.server)
    assert shown_online(experiment, {}).status == status
    driver.open(attempt=2).flush()
    shown = shown_online(experiment, {})
    assert (shown.status, shown.config) == ("running", {"a.b": 1})
    driver.at(2).log_metrics({"loss": 2.0}, 2)
    driver.logger.finish("finished")
    assert shown_online(experiment, {}).points == {"loss": [(1, 1.0), (2, 2.0)]}
    assert shown_online(experiment, {}).status == "finished"


def test_a_changed_configuration_replaces_the_old_one(service: SwanlabService, driver: Driver) -> None:
    logger = driver.open()
    logger.log_config({"a": 1, "b": {"c": 2}})
    driver.flush()
    logger.log_config({"b": {"d": 3}})
    driver.flush()
    assert shown_online(only(service.server), {}).config == {"b.d": 3}


def test_the_first_value_of_a_step_stays_and_another_one_is_counted(service: SwanlabService, driver: Driver) -> None:
    logger = driver.open()
    logger.log_metrics({"loss": 1.0, "other": 1.0}, 5)
    logger.log_metrics({"loss": 1.0, "other": 2.0}, 5)
    logger.log_metrics({"loss": 3.0}, 3)  # a lower step that was not there yet
    logger.log_text("t", "a", 1)
    logger.log_text("t", "b", 1)
    driver.flush()
    shown = shown_online(only(service.server), {})
    assert shown.points == {"loss": [(5, 1.0), (3, 3.0)], "other": [(5, 1.0)]}
    assert shown.texts == {"t": {1: "a"}}
    assert {name: omission.count for name, omission in logger.omissions.items()} == {"other": 1, "t": 1}


def test_what_swanlab_cannot_take_is_counted_and_loses_nothing_else(
    service: SwanlabService, driver: Driver, tmp_path: Path
) -> None:
    service.server.has_files = False
    logger = driver.open()
    logger.log_metrics({"loss": 1.0}, -1)
    logger.log_metrics({"loss": 2.0}, 1)
    logger.log_text("long", "x" * (10 * 1024 * 1024 + 1), 1)
    logger.log_text("short", "x", 1)
    (tmp_path / "report.html").write_text("hello")
    logger.log_artifact(Artifact("report.html", tmp_path / "report.html"), 0)
    driver.flush()
    shown = shown_online(only(service.server), {})
    assert shown.points == {"loss": [(1, 2.0)]}
    assert shown.texts == {"short": {1: "x"}}
    assert set(logger.omissions) == {"loss", "long", "report.html"}


names = st.text(st.characters(blacklist_categories=[]), min_size=1, max_size=600) | st.sampled_from(
    ["__swanlab__.x", " a", "/a", "a/", "a.", "./", "x (text)", "x_x28_text)", "a\tb", "\ud800", "loss\n"]
)


@given(st.lists(names, min_size=1, max_size=6, unique=True))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_names_are_taken_as_they_are_spelled_and_never_collide(given_names: list[str]) -> None:
    spell = charts.key_spelling()
    spelled = [spell(name) for name in given_names]
    keys = spelled + [charts.of_kind(key, kind) for key in spelled for kind in charts.KINDS]
    assert len(set(keys)) == len(keys)
    for key in keys:
        assert validate_key(key) == key
        assert not key.startswith("__swanlab__")
        key.encode()


def test_projects_are_spelled_within_the_rules(service: SwanlabService, tmp_path: Path) -> None:
    driver = Driver(tmp_path, project="my project/é")
    driver.open().flush()
    assert driver.logger.ids()["project"] == "my_x20_project_x2f__xe9_"
    assert driver.logger.where() == f"{service.server.url}/@{USER}/my_x20_project_x2f__xe9_/runs/k3x9a2bc"
    driver.logger.close()


def test_a_histogram_shows_its_counts() -> None:
    chart = charts.histogram_chart(Histogram(1.0, 3.0, 4, 9.0, 23.0, [1.5, 2.5, 3.5], [1.0, 1.0, 2.0]))
    assert chart.options["xAxis"][0]["data"] == ["1", "2", "3"]
    assert chart.options["series"][0]["data"] == [1.0, 1.0, 2.0]
    json.loads(chart.dump_options())


# --- Faults


def deliver(driver: Driver, records: list[dict[str, Any]], done: int, size: int) -> int:
    """Deliver some records and flush, as a feed does; gives how many are acknowledged then."""
    for seq in range(done, min(done + size, len(records))):
        record = records[seq]
        logger = driver.at(seq)
        if "text" in record:
            logger.log_text("t", record["text"], record["step"])
        elif "alert" in record:
            logger.alert("a", record["alert"], "warning")
        else:
            logger.log_metrics(record["metrics"], record["step"])
    driver.flush()
    return min(done + size, len(records))


def expected(records: list[dict[str, Any]]) -> Shown:
    shown = Shown()
    for record in records:
        if "text" in record:
            shown.texts.setdefault("t", {}).setdefault(record["step"], record["text"])
        elif "alert" in record:
            shown.alerts.append(f"a: {record['alert']}")
        else:
            for key, value in record["metrics"].items():
                points = shown.points.setdefault(key, [])
                if record["step"] not in dict(points):
                    points.append((record["step"], value))
    return shown


def make_records(generator: random.Random, count: int) -> list[dict[str, Any]]:
    """Steps mostly rise; some come late, some twice, and keys come and go."""
    records: list[dict[str, Any]] = []
    for number in range(count):
        step = max(0, number - generator.choice([0, 0, 0, 0, 1, 3]))
        kind = generator.random()
        if kind < 0.1:
            records.append({"text": f"text {number}", "step": number})
        elif kind < 0.15:
            records.append({"alert": f"alert {number}", "step": number})
        else:
            keys = generator.sample(["a", "b", "c", "d/"], generator.randint(1, 4))
            records.append({"metrics": dict.fromkeys(keys, number + 0.5), "step": step})
    return records


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_each_point_arrives_once_whatever_goes_wrong(
    seed: int, service: SwanlabService, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swanlab_run, "REQUEST_SECONDS", 0.3)
    generator = random.Random(seed)
    records = make_records(generator, 40)
    done, is_open, troubles = 0, False, 0
    while done < len(records):
        trouble: Any = generator.choice([None, None, "lost answer", "killed", *FAULTS, "hang"])
        trouble = trouble if troubles < 25 else None
        troubles += trouble is not None
        try:
            if not is_open:
                driver.open()
                is_open = True
            if trouble == "lost answer":
                service.server.lost_answers = 1
            elif trouble not in (None, "killed"):
                service.server.fail(trouble, uploads_only=trouble != "down")
            done = deliver(driver, records, done, generator.randint(1, 8))
            if trouble == "killed":
                raise ConnectionError
        except StateLostError as error:
            driver.begin_again(error)
            done, is_open = 0, False
        except ConnectionError:
            is_open = False
        finally:
            service.server.lost_answers = 0
            service.server.fail(None)
    driver.logger.finish("finished")
    names = {spelled: name for name, spelled in driver.logger.renamed().items()}
    shown = shown_online(service.server.experiments[driver.remote_id], names)
    wanted = expected(records)
    assert {key: sorted(points) for key, points in shown.points.items()} == {
        key: sorted(points) for key, points in wanted.points.items()
    }
    assert (shown.texts, shown.alerts) == (wanted.texts, wanted.alerts)
    assert shown.status == "finished"


@pytest.mark.parametrize("status", [401, 503])
def test_a_text_that_is_refused_among_others_is_not_passed_over(
    status: int, service: SwanlabService, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, refused = service.server.answer, []

    def refuse_one(method: str, path: str, *rest: Any) -> Any:
        if path.startswith("/put/") and "text" in path and len(refused) < 2:
            refused.append(path)
            return ({}, status) if len(refused) == 2 else answer(method, path, *rest)
        return answer(method, path, *rest)

    monkeypatch.setattr(service.server, "answer", refuse_one)
    for attempt in range(2):
        logger = driver.open()
        for step in range(1, 11):
            logger.log_text("t", f"text {step}", step)
        if attempt == 0:
            with pytest.raises(ConnectionError, match=f"answered {status}"):
                driver.flush()
            assert len(refused) == 2
            assert not only(service.server).media, "a later step would stand for the earlier ones"
        else:
            driver.flush()
    assert shown_online(only(service.server), {}).texts == {"t": {step: f"text {step}" for step in range(1, 11)}}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_upload_that_is_refused_raises_in_words_and_comes_once_later(
    fault: Fault, service: SwanlabService, driver: Driver
) -> None:
    driver.open().log_metrics({"loss": 1.0}, 1)
    service.fail(fault)
    with pytest.raises(ConnectionError, match="SwanLab did not take 4 records"):
        driver.flush()
    with pytest.raises(ConnectionError, match="SwanLab at http://127") as caught:
        driver.open()
    assert KEY not in str(caught.value)
    service.fail(None)
    driver.open().log_metrics({"loss": 1.0}, 1)
    driver.flush()
    assert shown_online(only(service.server), {}).points == {"loss": [(1, 1.0)]}


def test_a_hanging_server_is_not_waited_for(
    service: SwanlabService, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swanlab_run, "REQUEST_SECONDS", 0.5)
    driver.open().log_metrics({"loss": 1.0}, 1)
    service.fail("hang")
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="ReadTimeout"):
        driver.flush()
    driver.logger.close()
    assert time.monotonic() - began < 3


def test_a_finish_that_fails_can_be_repeated(service: SwanlabService, driver: Driver) -> None:
    driver.open().log_metrics({"loss": 1.0}, 1)
    driver.flush()
    driver.at(2).log_metrics({"loss": 2.0}, 2)
    service.fail(503)
    with pytest.raises(ConnectionError):
        driver.logger.finish("failed")
    service.fail(None)
    driver.open()
    driver.at(2).log_metrics({"loss": 2.0}, 2)
    driver.logger.finish("failed")
    shown = shown_online(only(service.server), {})
    assert (shown.points, shown.status) == ({"loss": [(1, 1.0), (2, 2.0)]}, "failed")


def test_points_that_the_server_acknowledged_and_lost_are_noticed_and_sent_again(
    service: SwanlabService, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl.tracking.backends.swanlab_logger._LOOKS", (0.0, 0.01))
    driver.open()
    for step in range(3):
        driver.at(step).log_metrics({"loss": step + 0.5, "nan": math.nan}, step)
    driver.flush()
    points = only(service.server).scalars
    points[:] = [point for point in points if point[1] < 2]
    with pytest.raises(ConnectionError, match="'loss' at step 2"):
        driver.logger.finish("finished")
    with pytest.raises(StateLostError, match="'loss' at step 2"):
        driver.open()
    driver.state = {}
    driver.open()
    for step in range(3):
        driver.at(step).log_metrics({"loss": step + 0.5}, step)
    driver.logger.finish("finished")
    assert shown_online(only(service.server), {}).points["loss"] == [(0, 0.5), (1, 1.5), (2, 2.5)]


def test_an_experiment_that_was_deleted_is_built_again(service: SwanlabService, driver: Driver) -> None:
    driver.open().log_metrics({"loss": 1.0}, 1)
    driver.flush()
    service.server.experiments.clear()
    with pytest.raises(StateLostError):
        driver.open()
    driver.state = {}
    driver.open().log_metrics({"loss": 1.0}, 1)
    driver.flush()
    assert shown_online(only(service.server), {}).points == {"loss": [(1, 1.0)]}


def test_a_late_point_of_which_nobody_can_tell_begins_a_new_experiment(service: SwanlabService, driver: Driver) -> None:
    driver.open().log_metrics({"loss": 4.0}, 4)
    driver.flush()
    service.server.lost_answers = 1
    driver.logger.log_metrics({"loss": 3.0}, 3)
    with pytest.raises(ConnectionError):
        driver.flush()
    driver.open()
    with pytest.raises(NewBranchError, match="step 3 after step 4"):
        driver.logger.log_metrics({"loss": 3.0}, 3)


# --- Whole runs, as training feeds them


def test_a_rewind_begins_a_new_experiment_in_the_same_group(
    service: SwanlabService, inline: Inline, tmp_path: Path
) -> None:
    tracking = inline(config={"a": 1})
    for step in range(1, 6):
        tracking.log_metrics({"loss": float(step)}, step)
    tracking.finish("killed")
    with inline(config={"a": 1}) as tracking:
        tracking.rewind(3)
        for step in range(4, 7):
            tracking.log_metrics({"loss": step + 0.5}, step)
    run_id = RunDirectory.open(tmp_path / "run").info.run_id
    old, new = service.server.experiments[run_id], service.server.experiments[f"{run_id}-2"]
    shown = service.read(tmp_path / "run")
    assert shown.points == {"loss": [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.5), (5, 5.5), (6, 6.5)]}
    assert shown.status == "finished"
    assert (old.states[-1], old.config["verl"]["status"]) == ("ABORTED", "superseded")
    assert old.settings["cluster"] == new.settings["cluster"] == run_id
    assert (old.settings["name"], new.settings["name"]) == ("an experiment", "an experiment (2)")


def test_a_rewind_offline_is_written_anew(offline: SwanlabOfflineService, inline: Inline, tmp_path: Path) -> None:
    with inline() as tracking:
        tracking.log_metrics({"loss": 1.0}, 1)
        tracking.log_metrics({"loss": 2.0}, 2)
    with inline() as tracking:
        tracking.rewind(1)
        tracking.log_metrics({"loss": 2.5}, 2)
    shown = offline.read(tmp_path / "run")
    assert (shown.points, shown.status) == ({"loss": [(1, 1.0), (2, 2.5)]}, "finished")
    files, run_id = tmp_path / "run" / "swanlog", RunDirectory.open(tmp_path / "run").info.run_id
    new, old = (read_offline_run(folder / f"run-{run_id}") for folder in (files, files / "superseded"))
    assert (new.identity, new.settings["group"]) == (run_id, run_id)
    assert old.scalars == [("loss", 1, 1.0), ("loss", 2, 2.0)]


def test_a_branch_offline_can_be_finished(offline: SwanlabOfflineService, driver: Driver) -> None:
    driver.branch = 1
    driver.open().log_metrics({"loss": 1.0}, 1)
    driver.logger.finish("killed")
    run = read_offline_run(driver.directory / "swanlog" / "run-k3x9a2bc-2")
    assert (run.identity, run.settings["name"], run.state) == ("k3x9a2bc-2", "e (2)", "ABORTED")


def write_run(folder: Path, steps: int) -> RunDirectory:
    directory = RunDirectory.create(folder, project="p", experiment="e")
    with JournalWriter(directory, attempt=directory.start_attempt()) as writer:
        writer.append("config", config={"a": {"b": 1}})
        for step in range(1, steps + 1):
            writer.append("metrics", step, metrics={f"m{key}": step + key / 100 for key in range(20)})
            if step % 10 == 0:
                writer.append("text", step, tag="t", text=f"text {step}")
        writer.append("finish", steps, status="finished", error=None)
    directory.finish_attempt("finished")
    return directory


PROGRAM = """
import os, sys, threading, time
from pathlib import Path
from verl.journal import RunDirectory
from verl.tracking.relay.feed import Advance, BATCH_BYTES, Feed, FeedSource
import verl.tracking.relay.feed
verl.tracking.relay.feed.BATCH_BYTES = 4000
import verl.tracking.backends.swanlab_run
directory = RunDirectory.open(Path(sys.argv[1]))
feed = Feed.by_name("swanlab", FeedSource(directory, 1))
feed.lock()
feed._budget = 4000
print("ready", flush=True)
while feed.advance() is not Advance.DONE:
    time.sleep(0.002)
print("done", flush=True)
"""


def feed_and_kill(run: Path, generator: random.Random, most: int) -> int:
    """Feed in processes that are killed at random moments until one gets to the end; gives how many were killed."""
    for killed in range(most):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(run)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(generator.uniform(0.05, 0.6))
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.wait()
        process.stdout.close()
        if "done" in rest:
            return killed
    return most


@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 2), pytest.param(1, 8, marks=pytest.mark.slow), pytest.param(2, 8, marks=pytest.mark.slow)]
)
def test_each_point_arrives_once_though_the_feeder_is_killed_again_and_again(
    seed: int, kills: int, service: SwanlabService, tmp_path: Path
) -> None:
    directory = write_run(tmp_path / "run", 300)
    feed_and_kill(tmp_path / "run", random.Random(seed), kills)
    (state,) = drain(directory, ["swanlab"], seconds=60)
    assert state.status == "finished", state.last_error
    shown = service.read(tmp_path / "run")
    steps = range(1, 301)
    assert shown.points == {f"m{key}": [(step, step + key / 100) for step in steps] for key in range(20)}
    assert shown.texts["t"] == {step: f"text {step}" for step in range(10, 301, 10)}
    assert shown.status == "finished"


def test_a_killed_offline_run_is_written_anew_and_syncs_to_the_same(
    offline: SwanlabOfflineService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_run(tmp_path / "run", 200)
    feed_and_kill(tmp_path / "run", random.Random(0), 1)
    (state,) = drain(directory, ["swanlab"], seconds=60)
    assert state.status == "finished", state.last_error
    shown = offline.read(tmp_path / "run")
    assert shown.points["m3"] == [(step, step + 0.03) for step in range(1, 201)]
    assert shown.status == "finished"
    files = tmp_path / "run" / "swanlog"
    run_id = directory.info.run_id
    assert [path.name for path in files.glob("run-*")] == [f"run-{run_id}"]
    command = state.where.split()
    assert command == ["swanlab", "sync", "--id", run_id, str(files / f"run-{run_id}")]
    online = SwanlabService()
    for name, value in online.start().items():
        monkeypatch.setenv(name, value)
    sync = "import sys; from swanlab.cli import cli; sys.exit(cli())"
    try:
        subprocess.run([sys.executable, "-c", sync, *command[1:]], check=True, timeout=60, stdout=subprocess.DEVNULL)
        synced = online.read(tmp_path / "run")
    finally:
        online.stop()
    assert {key: sorted(points) for key, points in synced.points.items()} == shown.points
    assert (synced.texts, synced.config, synced.status) == (shown.texts, shown.config, "finished")


def test_what_was_acknowledged_offline_is_on_the_disk(offline: SwanlabOfflineService, driver: Driver) -> None:
    driver.open().log_metrics({"loss": 1.0}, 1)
    driver.flush()
    files = driver.directory / "swanlog"
    assert read_offline_run(files / "run-k3x9a2bc").scalars == [("loss", 1, 1.0)]
    with pytest.raises(StateLostError):
        driver.open(attempt=2)
    driver.state = {}
    driver.open(attempt=2)
    driver.flush()
    assert read_offline_run(files / "run-k3x9a2bc").scalars == []
    assert read_offline_run(files / "superseded" / "run-k3x9a2bc").scalars == [("loss", 1, 1.0)]


def test_disabled_does_nothing(service: SwanlabService, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWANLAB_MODE", "disabled")
    logger = driver.open()
    logger.log_metrics({"loss": 1.0}, 1)
    logger.log_text("t", "x", 1)
    driver.flush()
    logger.finish("finished")
    assert service.server.experiments == {}


# --- Before training


def preflight() -> dict[str, str]:
    return {check.question: check.result for check in SwanlabLogger.preflight(None)}


def test_preflight_names_the_login_and_the_server(service: SwanlabService, monkeypatch: pytest.MonkeyPatch) -> None:
    assert preflight() == {"login": "ok", "server": "ok"}
    service.fail("down")
    assert preflight() == {"login": "ok", "server": "warning"}
    monkeypatch.delenv("SWANLAB_API_KEY")
    login, server = SwanlabLogger.preflight(None)
    assert (login.result, server.result) == ("error", "warning")
    assert "SWANLAB_MODE=offline" in login.advice
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    assert preflight() == {"mode": "ok"}
    monkeypatch.setenv("SWANLAB_MODE", "of-line")
    assert preflight() == {"mode": "error"}


def test_preflight_reads_where_the_sdk_reads(
    service: SwanlabService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWANLAB_API_KEY")
    monkeypatch.delenv("SWANLAB_API_HOST")
    folder = tmp_path / "no-login"
    folder.mkdir()
    netrc = folder / ".netrc"
    netrc.write_text(f"machine {service.server.url}\n\tlogin {service.server.url}\n\tpassword {KEY}\n")
    netrc.chmod(0o600)
    assert preflight() == {"login": "ok", "server": "ok"}
    assert swanlab.Settings().api_key == KEY
    monkeypatch.setenv("SWANLAB_API_HOST", "http://127.0.0.1:9")
    assert preflight() == {"login": "error", "server": "warning"}
    assert swanlab.Settings().api_key is None
    Path(".env").write_text("SWANLAB_MODE=offline\n")
    assert preflight() == {"mode": "ok"}
    assert swanlab.Settings().mode == "offline"
