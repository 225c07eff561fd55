"""W&B on the real SDK: exactly once online through every fault, whole offline after every kill, honest before a run."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.journal import JournalWriter, RunDirectory
from verl.testing.expectation import differences, expected
from verl.testing.services import Fault, Shown
from verl.testing.wandb_files import read_offline_run
from verl.testing.wandb_server import WandbServer
from verl.testing.wandb_service import WandbOfflineService, WandbService
from verl.tracking.backends import wandb_remote, wandb_session, wandb_upload
from verl.tracking.backends.wandb_files import is_whole
from verl.tracking.backends.wandb_logger import WandbLogger
from verl.tracking.backends.wandb_login import find_login
from verl.tracking.backends.wandb_remote import WandbRemote
from verl.tracking.backends.wandb_rows import Row, Rows
from verl.tracking.histogram import make_histogram
from verl.tracking.logger import Artifact, Check, Moment, NewBranchError, StateLostError, TrackedRun
from verl.tracking.relay.feed import Advance, Feed, FeedSource
from verl.tracking.relay.patience import Patience

QUICK = Patience(first_seconds=0.1, longest_seconds=0.4, tries=50)
SECONDS = 60.0
FEEDER = """
import sys, time
from verl.journal import RunDirectory
from verl.tracking.backends import wandb_session
from verl.tracking.relay.feed import Advance, Feed, FeedSource
wandb_session.UPLOAD_SECONDS = 0.1
feed = Feed.by_name("wandb", FeedSource(RunDirectory.open(sys.argv[1]), 1))
feed.lock()
while feed.advance() is not Advance.DONE:
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_session, "UPLOAD_SECONDS", 0.1)
    monkeypatch.setattr(wandb_session, "FINISH_SECONDS", 8.0)
    monkeypatch.setattr(wandb_session, "INIT_SECONDS", 6.0)
    monkeypatch.setattr(wandb_remote, "REQUEST_SECONDS", 1.0)
    monkeypatch.setattr(wandb_upload, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(wandb_upload, "STALL_SECONDS", 1.5)
    monkeypatch.setattr(wandb_upload, "SETTLE_SECONDS", 3.0)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbService]:
    service = WandbService()
    for name, value in service.start().items():
        monkeypatch.setenv(name, value)
    yield service
    service.stop()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> WandbOfflineService:
    service = WandbOfflineService()
    for name, value in service.start().items():
        monkeypatch.setenv(name, value)
    return service


@dataclass
class Training:
    """A run whose journal is written, and fed to W&B, by the test itself."""

    path: Path
    attempt: int = 0

    def __post_init__(self) -> None:
        self.directory = RunDirectory.create(self.path, project="p", experiment="e")
        self.begin()

    def begin(self) -> None:
        """Start an attempt."""
        self.attempt = self.directory.start_attempt()
        self.journal = JournalWriter(self.directory, attempt=self.attempt)
        self.feed = self.new_feed()

    def new_feed(self) -> Feed:
        feed = Feed("wandb", WandbLogger, FeedSource(self.directory, self.attempt), QUICK)
        feed.lock()
        return feed

    def log(self, first: int, last: int, scale: float = 1.0) -> None:
        """Steps with a distribution, a text every third, and metrics."""
        for step in range(first, last + 1):
            counts, _ = make_histogram(np.arange(step + 1.0))
            assert counts is not None
            histogram = {
                "min": counts.minimum, "max": counts.maximum, "num": counts.count, "sum": counts.sum,
                "sum_squares": counts.sum_squares, "bucket_limits": counts.bucket_limits,
                "bucket_counts": counts.bucket_counts,
            }  # fmt: skip
            self.journal.append("histogram", step, tag="dist", histogram=histogram)
            if step % 3 == 0:
                self.journal.append("text", step, tag="sample", text=f"step {step}\n{scale} <b>&")
            self.journal.append("metrics", step, metrics={"loss": scale * step, "nan": float("nan")})

    def pump(self, seconds: float = SECONDS) -> None:
        """Feed until everything is delivered, or for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.feed.advance() is not Advance.MORE:
                if self.feed.is_up_to_date:
                    return
                time.sleep(0.02)

    def end(self) -> None:
        """Write the end and feed until W&B has it."""
        self.journal.append("finish", 0, status="finished", error=None)
        self.journal.close()
        deadline = time.monotonic() + SECONDS
        while self.feed.advance() is not Advance.DONE:
            assert time.monotonic() < deadline, self.feed.state
            time.sleep(0.02)
        self.directory.finish_attempt("finished", self.attempt)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path / "run")
    yield made
    made.feed.leave()
    made.journal.close()


def assert_exact(service: WandbService | WandbOfflineService, training: Training) -> Shown:
    wanted, found = expected(training.path), service.read(training.path)
    assert not differences(wanted.points, found.points)
    assert (found.texts, found.histograms, found.status) == (wanted.texts, wanted.histograms, "finished")
    return found


def kill_helper() -> None:
    (core,) = [child for child in psutil.Process().children() if child.name() == "wandb-core"]
    core.kill()
    core.wait()


def test_one_row_per_step_under_its_number_and_time(online: WandbService, training: Training) -> None:
    training.log(1, 6)
    training.end()
    assert_exact(online, training)
    rows = online.server.run(training.directory.info.run_id).history
    assert [(row["_step"], row["global_step"]) for row in rows] == [(step, step) for step in range(1, 7)]
    assert not online.server.unknown
    assert not list(training.path.glob("wandb/*")), "what the server has is not kept twice"


def test_late_points_of_an_earlier_step_are_not_dropped(online: WandbService, training: Training) -> None:
    for step, key in [(1, "loss"), (2, "loss"), (1, "val"), (3, "loss"), (2, "val"), (10, "loss")]:
        training.journal.append("metrics", step, metrics={key: float(step)})
    training.end()
    rows = online.server.run(training.directory.info.run_id).history
    assert [(row["_step"], row["global_step"]) for row in rows] == [(1, 1), (2, 2), (3, 1), (4, 3), (5, 2), (10, 10)]
    assert_exact(online, training)


def test_helper_killed_in_the_middle_loses_and_doubles_nothing(online: WandbService, training: Training) -> None:
    training.log(1, 10)
    training.pump()
    kill_helper()
    training.log(11, 20)
    training.pump()
    kill_helper()
    training.end()
    assert_exact(online, training)


@pytest.mark.parametrize("fault", ["down", "hang", 401, 429, 503])
def test_server_away_in_the_middle(online: WandbService, training: Training, fault: Fault) -> None:
    training.log(1, 5)
    training.pump()
    online.fail(fault)
    training.log(6, 10)
    training.pump(2.5)
    online.fail(None)
    training.log(11, 15)
    training.end()
    assert_exact(online, training)


@pytest.mark.parametrize("fault", ["down", 401])
def test_server_away_at_the_start_and_at_the_end(online: WandbService, training: Training, fault: Fault) -> None:
    online.fail(fault)
    training.log(1, 3)
    training.pump(1.0)
    assert training.feed.state.failures
    online.fail(None)
    training.pump()
    training.log(4, 6)
    training.pump()
    online.fail(fault)
    training.journal.append("finish", 0, status="finished", error=None)
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        assert training.feed.advance() is not Advance.DONE
        time.sleep(0.05)
    online.fail(None)
    while training.feed.advance() is not Advance.DONE:
        time.sleep(0.02)
    training.directory.finish_attempt("finished", 1)
    assert_exact(online, training)


def only_once(matches: Callable[[str, str], bool], status: int) -> Callable[[str, str], Fault | None]:
    left = [status]
    return lambda path, operation: left.pop() if left and matches(path, operation) else None


def test_sdk_that_silently_stopped_uploading_is_found_out(online: WandbService, training: Training) -> None:
    training.log(1, 5)
    training.pump()
    online.server.fault_rule = only_once(lambda path, _: "file_stream" in path, 403)
    deadline = time.monotonic() + SECONDS
    step = 6
    while training.feed.state.failures == 0 and time.monotonic() < deadline:
        training.log(step, step)
        training.pump()
        step += 1
        time.sleep(0.1)
    assert "uploaded nothing" in training.feed.state.last_error
    training.end()
    assert_exact(online, training)


def test_media_file_that_was_refused_is_sent_again_without_its_row(online: WandbService, training: Training) -> None:
    online.server.fault_rule = only_once(lambda path, _: "media/html" in path, 403)
    training.log(1, 7)
    training.end()
    assert_exact(online, training)
    assert online.server.run(training.directory.info.run_id).rows_sent == 7


@pytest.mark.slow
def test_feeder_killed_at_any_moment_loses_and_doubles_nothing(online: WandbService, training: Training) -> None:
    training.feed.leave()
    chance = random.Random(0)
    run_id, step, seen = training.directory.info.run_id, 0, []
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", FEEDER, str(training.path)]) as feeder:
            began, life = None, 0.2 + chance.random()
            while began is None or time.monotonic() < began + life:
                step += 1
                training.log(step, step)
                time.sleep(0.02)
                if began is None and len(online.server.served(None, "p", run_id).history) > sum(seen[-1:]):
                    began = time.monotonic()
            feeder.send_signal(signal.SIGKILL)
        seen.append(len(online.server.run(run_id).history))
    training.feed = training.new_feed()
    training.end()
    assert_exact(online, training)
    assert training.feed.state.branch == 0
    assert 0 < seen[0] < seen[-1] < step, "they were killed in the middle"


def test_what_a_later_attempt_supersedes_is_cut_from_the_run(online: WandbService, training: Training) -> None:
    training.log(1, 10)
    training.end()
    training.begin()
    training.journal.append("rewind", 6, to=6)
    training.log(7, 12, scale=-1.0)
    training.end()
    assert_exact(online, training)
    assert len(online.server.runs) == 1


def test_rewind_while_the_tracker_is_open(online: WandbService, tmp_path: Path) -> None:
    def logged(logger: WandbLogger, first: int, last: int, attempt: int) -> None:
        for step in range(first, last + 1):
            logger.moment = Moment(float(step), attempt, step)
            logger.log_metrics({"loss": float(attempt)}, step)

    run = TrackedRun("r1", "p", "e", tmp_path)
    logger = WandbLogger()
    logger.open(run)
    logged(logger, 1, 10, 1)
    logger.flush()
    logger.moment = Moment(11.0, 2, 0)
    with pytest.raises(StateLostError, match="went back"):
        logger.purge(4)
    logger.close()
    logger = WandbLogger()
    logger.open(run)
    logged(logger, 1, 4, 1)
    logged(logger, 5, 8, 2)
    logger.finish("finished")
    assert online.read_run("r1", {}).points["loss"] == [(step, 1.0 if step < 5 else 2.0) for step in range(1, 9)]
    assert [row["_step"] for row in online.server.run("r1").history] == list(range(1, 9))


def test_server_that_cannot_rewind_gets_a_new_run_and_the_old_one_is_marked(
    online: WandbService, training: Training
) -> None:
    online.server.can_rewind = False
    training.log(1, 10)
    training.end()
    training.begin()
    training.journal.append("rewind", 6, to=6)
    training.log(7, 12, scale=-1.0)
    training.end()
    assert_exact(online, training)
    run_id = training.directory.info.run_id
    old, new = online.server.run(run_id), online.server.run(f"{run_id}-2")
    assert (old.tags, old.notes) == (["superseded"], f"Superseded by the run {run_id}-2: training went back.")
    assert (new.group, len(old.history), len(new.history)) == (run_id, 10, 12)


def test_rows_of_somebody_else_are_never_continued(online: WandbService, training: Training) -> None:
    run_id = training.directory.info.run_id
    stranger = online.server.served(None, "p", run_id)
    stranger.lines["wandb-history.jsonl"] = {0: '{"loss": 1.0, "_step": 0}'}
    training.log(1, 3)
    training.end()
    assert_exact(online, training)
    assert len(stranger.history) == 1


def test_offline_after_a_kill_everything_is_written_anew(offline: WandbOfflineService, training: Training) -> None:
    training.log(1, 10)
    training.pump()
    kill_helper()
    training.log(11, 15)
    training.end()
    assert_exact(offline, training)
    assert len(list(training.path.glob("wandb/offline-run-*"))) == 1
    assert len(list(training.path.glob("wandb/superseded/offline-run-*"))) == 1
    where = training.feed.state.where.split()
    assert where[:2] == ["wandb", "sync"]
    assert [Path(folder) for folder in where[2:]] == list(training.path.glob("wandb/offline-run-*"))


def test_offline_run_that_ended_is_continued_beside_and_rewound_anew(
    offline: WandbOfflineService, training: Training
) -> None:
    training.log(1, 4)
    training.end()
    training.begin()
    training.log(5, 6)
    training.end()
    assert_exact(offline, training)
    assert len(list(training.path.glob("wandb/offline-run-*"))) == 2
    training.begin()
    training.journal.append("rewind", 5, to=5)
    training.log(6, 7, scale=-1.0)
    training.end()
    assert_exact(offline, training)
    assert len(list(training.path.glob("wandb/offline-run-*"))) == 1


def test_offline_files_reach_the_server_with_wandb_sync(
    offline: WandbOfflineService, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.log(1, 4)
    training.pump()
    kill_helper()
    training.log(5, 7)
    training.end()
    service = WandbService()
    for name, value in service.start().items():
        monkeypatch.setenv(name, value)
    command = training.feed.state.where.split()
    subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, timeout=SECONDS)
    assert not differences(expected(training.path).points, service.read(training.path).points)
    service.stop()


class ForwardProxy:
    """A proxy for plain http on this machine; notes where it was asked to."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://user:hidden@127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(client,), daemon=True).start()

    def _one(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as asked:
            head = asked.readline()
            self.requests.append(head)
            method, url, version = head.split()
            lines = []
            while (line := asked.readline()) not in (b"\r\n", b""):
                lines.append(line)
            length = next((int(line.split()[1]) for line in lines if line.lower().startswith(b"content-length")), 0)
            body = asked.read(length)
            place = url.split(b"/", 3)
            host, port = place[2].split(b":")
            kept = [line for line in lines if not line.lower().startswith((b"proxy-", b"connection"))]
            with socket.create_connection((host.decode(), int(port))) as server:
                path = b"/" + (place[3] if len(place) > 3 else b"")
                server.sendall(b" ".join([method, path, version]) + b"\r\nConnection: close\r\n" + b"".join(kept))
                server.sendall(b"\r\n" + body)
                while data := server.recv(65536):
                    client.sendall(data)


def test_proxy_is_for_wandb_alone(online: WandbService, tmp_path: Path) -> None:
    proxy = ForwardProxy()
    before = dict(os.environ)
    logger = WandbLogger()
    logger.open(TrackedRun("r1", "p", "e", tmp_path, proxy=proxy.url))
    assert dict(os.environ) == before
    logger.moment = Moment(1.0, 1, 1)
    logger.log_metrics({"loss": 1.0}, 1)
    logger.finish("finished")
    logger.close()
    assert dict(os.environ) == before
    proxy.close()
    assert any(b"file_stream" in request for request in proxy.requests), "the SDK's own requests go through it"
    assert len([path for _, path, _ in online.server.requests if path == "/graphql"]) == len(
        [request for request in proxy.requests if b"/graphql" in request]
    )


def test_nothing_of_the_machine_and_no_login_is_sent_or_written(online: WandbService, training: Training) -> None:
    training.journal.append("config", 0, config={"lr": 1e-3})
    training.log(1, 2)
    training.end()
    run = online.server.run(training.directory.info.run_id)
    assert set(run.config) == {"_wandb", "lr"}
    assert not {"requirements.txt", "wandb-metadata.json", "diff.patch"} & set(run.files)
    assert not run.stream("wandb-events.jsonl"), "no system metrics of the SDK"
    key = online.server.environment()["WANDB_API_KEY"].encode()
    assert not [path for path in training.path.rglob("*") if path.is_file() and key in path.read_bytes()]


def test_missing_picture_and_artifact_cost_only_themselves(online: WandbService, tmp_path: Path) -> None:
    logger = WandbLogger()
    logger.open(TrackedRun("r1", "p", "e", tmp_path))
    logger.moment = Moment(1.0, 1, 1)
    logger.log_artifact(Artifact("picture", tmp_path / "gone.png", "image"), 1)
    logger.moment = Moment(2.0, 1, 2)
    logger.log_artifact(Artifact("config.yaml", tmp_path / "gone.yaml"), 1)
    logger.moment = Moment(3.0, 1, 3)
    logger.log_metrics({"loss": 1.0}, 1)
    logger.finish("failed")
    assert set(logger.omissions) == {"picture", "config.yaml"}
    shown = online.read_run("r1", logger.renamed())
    assert (shown.points["loss"], shown.status) == ([(1, 1.0)], "failed")


def test_huge_row_leaves_out_what_does_not_fit(online: WandbService, tmp_path: Path) -> None:
    logger = WandbLogger()
    logger.open(TrackedRun("r1", "p", "e", tmp_path))
    logger.log_metrics({f"{number}-{'k' * 900}": float(number) for number in range(5000)}, 1)
    logger.finish("finished")
    shown = online.read_run("r1", logger.renamed())
    assert len(shown.points) + len(logger.omissions) == 5000
    assert len(shown.points) > 3000


def test_state_of_another_mode_is_not_continued(offline: WandbOfflineService, tmp_path: Path) -> None:
    saved = {"mode": "online", "url": "", **Rows().to_json(), "pending": False, "files": [], "uploads": []}
    with pytest.raises(NewBranchError, match="online"):
        WandbLogger().open(TrackedRun("r1", "p", "e", tmp_path, state={**saved, "finished": True}))
    with pytest.raises(StateLostError):
        WandbLogger().open(TrackedRun("r1", "p", "e", tmp_path, state={**saved, "mode": "offline", "finished": False}))


def test_torn_file_is_not_taken_for_whole(offline: WandbOfflineService, training: Training) -> None:
    training.log(1, 5)
    training.end()
    (file,) = training.path.glob("wandb/offline-run-*/run-*.wandb")
    last = read_offline_run(file).rows[-1][1]["_journal"]
    assert is_whole(file, last)
    assert not is_whole(file, last + 1)
    file.write_bytes(file.read_bytes()[:-20])
    assert not is_whole(file, last)


def test_disabled_mode_takes_everything_and_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    logger = WandbLogger()
    logger.open(TrackedRun("r1", "p", "e", tmp_path))
    logger.log_metrics({"loss": 1.0}, 1)
    logger.log_text("t", "text", 1)
    logger.purge(0)
    logger.flush()
    logger.finish("finished")
    logger.close()
    assert not list(tmp_path.iterdir())


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 40))
def test_numbers_of_rows_rise_and_can_be_found_again(steps: list[int], to_step: int) -> None:
    rows = Rows()
    natives = []
    for index, step in enumerate(steps):
        row = Row(1, step)
        row.add_record(Moment(0.0, 1, index))
        natives.append(rows.close(row))
    assert natives == sorted(set(natives))
    assert all(native >= step for native, step in zip(natives, steps, strict=True))
    assert list(rows.steps) == steps
    kept = next((index for index, step in enumerate(steps) if step > to_step), len(steps))
    again = Rows.from_json(rows.to_json())
    assert again.before(to_step) == (kept, natives[kept - 1] if kept else -1)


def checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, proxy: str | None = None, **variables: str) -> list[Check]:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings of nobody"))
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return WandbLogger.preflight(proxy)


def test_preflight_without_a_key_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login, server = checks(monkeypatch, tmp_path, WANDB_BASE_URL="http://127.0.0.1:9")
    assert (login.question, login.result) == ("login", "error")
    assert all(word in login.advice for word in ("wandb login", "WANDB_API_KEY", "WANDB_MODE=offline"))
    assert (server.question, server.result) == ("server", "warning")
    assert "trainer.wandb_proxy" in server.advice


def test_preflight_names_the_proxy_and_hides_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = {"WANDB_BASE_URL": "http://wandb.example.invalid", "WANDB_API_KEY": "k" * 40}
    (_, own) = checks(monkeypatch, tmp_path, "http://me:hunter2@127.0.0.1:9", **url)
    assert "http://127.0.0.1:9 (trainer.wandb_proxy)" in own.found
    (_, general) = checks(monkeypatch, tmp_path, HTTP_PROXY="http://me:hunter2@127.0.0.1:9", **url)
    assert "http://127.0.0.1:9 (HTTP_PROXY)" in general.found
    assert "hunter2" not in f"{own}{general}"


@pytest.mark.parametrize("mode", ["offline", "disabled", "dryrun"])
def test_preflight_without_a_server_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    (check,) = checks(monkeypatch, tmp_path, WANDB_MODE=mode)
    assert (check.question, check.result) == ("mode", "ok")
    assert f"WANDB_MODE={mode}" in check.found


def test_preflight_refuses_a_mode_that_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = checks(monkeypatch, tmp_path, WANDB_MODE="ofline")
    assert (check.result, "offline" in check.advice) == ("error", True)


@pytest.mark.parametrize("host", ["api.wandb.ai", "api.forge.coreweave.com"])
def test_key_is_found_where_wandb_login_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    checks(monkeypatch, tmp_path, WANDB_MODE="offline")
    (tmp_path / ".netrc").write_text(f"machine {host}\n  login user\n  password {'k' * 40}\n")
    assert find_login().key == "k" * 40
    assert str(tmp_path) in find_login().source


def test_settings_file_of_wandb_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks(monkeypatch, tmp_path, WANDB_API_KEY="k" * 40)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nmode = offline\nbase_url = http://wandb.here/\n")
    login = find_login()
    assert (login.mode, login.base_url) == ("offline", "http://wandb.here")


def test_all_files_of_a_run_are_found_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    server = WandbServer()
    server.start()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    server.served(None, "p", "r").files.update({f"media/{number}": b"x" for number in range(250)} | {"empty": b""})
    assert len(WandbRemote(find_login(), "p", "r", None).files()) == 250
    server.stop()
