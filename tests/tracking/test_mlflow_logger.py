"""The MLflow tracker on a real server and a real database: nothing lost, nothing twice, names that can be found."""

from __future__ import annotations

import math
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.journal import RunDirectory
from verl.testing.mlflow_service import MlflowService, MlflowSqliteService, read_run
from verl.testing.services import Shown
from verl.tracking.backends.mlflow_alerts import ALERTS_PER_PAGE
from verl.tracking.backends.mlflow_batches import Point, send_metrics
from verl.tracking.backends.mlflow_logger import NOTE, MlflowLogger
from verl.tracking.backends.mlflow_names import image_spelling, metric_spelling, path_spelling
from verl.tracking.backends.mlflow_run import BRANCH, PARENT, RUN_ID, SUPERSEDED_BY
from verl.tracking.backends.mlflow_server import MlflowServer, MlflowTroubleError, set_package_defaults
from verl.tracking.histogram import make_histogram
from verl.tracking.logger import Artifact, Moment, NewBranchError, RunStatus, StateLostError, TrackedRun
from verl.tracking.png_image import encode_png

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own packages
set_package_defaults()

names = st.text(st.one_of(st.sampled_from("./ ab_@:\n\\%#~+"), st.characters()), max_size=300)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> MlflowSqliteService:
    return MlflowSqliteService(tmp_path_factory.mktemp("database"))


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowService]:
    service = MlflowService(tmp_path_factory.mktemp("server"))
    service.start()
    yield service
    service.stop()


@pytest.fixture
def server(running_server: MlflowService, monkeypatch: pytest.MonkeyPatch) -> Iterator[MlflowService]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", running_server.proxy.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield running_server
    running_server.fail(None)
    running_server.proxy.fails, running_server.proxy.lost_answers = None, 0


@pytest.fixture
def sqlite(database: MlflowSqliteService, monkeypatch: pytest.MonkeyPatch) -> MlflowSqliteService:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database.start()["MLFLOW_TRACKING_URI"])
    return database


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., TrackedRun]:
    directory = RunDirectory.create(tmp_path / "run", project="verl tests", experiment="first")
    directory.start_attempt()
    info = directory.info

    def make(**facts: Any) -> TrackedRun:
        return TrackedRun(info.run_id, info.project, info.experiment, directory.path, **facts)

    return make


def opened(run: TrackedRun) -> MlflowLogger:
    logger = MlflowLogger()
    logger.open(run)
    return logger


def shown(service: MlflowSqliteService, logger: MlflowLogger) -> Shown:
    with MlflowServer(service.uri).asked_to("show the run") as client:
        return read_run(client, logger.ids()["run_id"])


def runs_of(service: MlflowSqliteService, run: TrackedRun) -> list[Any]:
    with MlflowServer(service.uri).asked_to("list runs") as client:
        experiment = client.get_experiment_by_name(run.project)
        assert experiment is not None
        return list(client.search_runs([experiment.experiment_id], f"tags.`{RUN_ID}` = '{run.run_id}'"))


def deliver_all(logger: MlflowLogger, folder: Path) -> None:
    """A record of each kind, at frozen times."""
    picture = folder / "map.png"
    picture.write_bytes(encode_png(np.zeros((4, 5, 3), dtype=np.uint8)))
    report = folder / "report.md"
    report.write_text("# Report\n")
    histogram, _ = make_histogram(np.arange(100.0))
    assert histogram is not None
    logger.moment = Moment(1_000_000.0, 1, 1)
    logger.log_config({"data": {"seed": 3, "files": ["a", "b"]}, "name": "é", "none": None})
    for step in (1, 2, 3):
        logger.moment = Moment(1_000_000.0 + step, 1, step + 1)
        logger.log_metrics({"loss": step / 8, "val/mean@8": math.nan, "up": math.inf}, step)
        logger.log_text("val/sample", f"# Answer {step} 文\n\n<b>x</b> \ud800", step)
        logger.log_table("generations", ["prompt", "score"], [["1+1?", 0.5], ["x", math.nan]], step)
        logger.log_histogram("reward/scores", histogram, step)
        logger.log_artifact(Artifact("plots/map@1", picture, "image"), step)
    logger.log_artifact(Artifact("report", report), 3)
    logger.alert("KL", "# 12.5 <KL>\nis high", "warning")
    logger.alert("", "a note", "info")


def assert_all(found: Shown) -> None:
    assert found.points["loss"] == [(1, 0.125), (2, 0.25), (3, 0.375)]
    assert [step for step, value in found.points["val/mean@8"] if math.isnan(value)] == [1, 2, 3]
    assert found.points["up"] == [(1, math.inf), (2, math.inf), (3, math.inf)]
    assert found.config == {"data.seed": 3, "data.files": ["a", "b"], "name": "é", "none": None}
    assert found.texts == {"val/sample": {step: f"# Answer {step} 文\n\n<b>x</b> \\ud800" for step in (1, 2, 3)}}
    assert found.tables == {"generations": {step: [["1+1?", 0.5], ["x", "nan"]] for step in (1, 2, 3)}}
    assert found.histograms == {"reward/scores": {1: 100, 2: 100, 3: 100}}
    assert found.images == {("plots/map@1", 1), ("plots/map@1", 2), ("plots/map@1", 3)}
    assert found.artifacts == {"report", "config.yaml"}
    assert found.alerts == ["KL: # 12.5 <KL>\nis high", "a note"]


@settings(deadline=None)
@given(name=names, other=names)
def test_every_name_becomes_one_that_mlflow_takes_and_no_two_the_same(name: str, other: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    for spelling in (metric_spelling(), path_spelling(), image_spelling()):
        spelled = spelling(name)
        _validate_metric_name(spelled)
        assert (spelled == spelling(other)) == (name == other)
    assert not re.search(r"[#%:\\]|(^|/)step_\d", path_spelling()(name))
    assert all(len(part.encode()) <= 255 for part in path_spelling()(name).split("/"))


def test_neither_its_module_nor_the_preflight_loads_the_package() -> None:
    program = (
        "import sys; from verl.tracking.backends.mlflow_logger import MlflowLogger;"
        "print(MlflowLogger.preflight(None)); assert 'mlflow' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize("kind", [pytest.param("server", marks=pytest.mark.slow), "sqlite"])
def test_what_is_delivered_again_is_there_once(
    kind: str, request: pytest.FixtureRequest, make_run: Callable[..., TrackedRun], tmp_path: Path
) -> None:
    service: MlflowSqliteService = request.getfixturevalue(kind)
    interrupted = opened(make_run())
    deliver_all(interrupted, tmp_path)
    interrupted.flush()
    interrupted.close()  # and its state was not stored
    again = opened(make_run())
    deliver_all(again, tmp_path)
    again.flush()
    state = again.state()
    again.close()
    last = opened(make_run(state=state))
    last.finish("finished")
    assert len(runs_of(service, make_run())) == 1
    found = shown(service, last)
    assert_all(found)
    assert found.status == "finished"
    assert not again.omissions


def test_a_lost_answer_makes_neither_a_second_run_nor_a_second_point(
    server: MlflowService, make_run: Callable[..., TrackedRun], tmp_path: Path
) -> None:
    for words in ("runs/create", "runs/log-batch", "artifacts/"):
        server.proxy.fails = lambda method, path, words=words: words in path and method != "GET"
        server.proxy.lost_answers = 1
        with pytest.raises(MlflowTroubleError):
            deliver_and_flush(make_run(), tmp_path)
        assert server.proxy.lost_answers == 0
    logger = deliver_and_flush(make_run(), tmp_path)
    assert len(runs_of(server, make_run())) == 1
    assert_all(shown(server, logger))


def deliver_and_flush(run: TrackedRun, folder: Path) -> MlflowLogger:
    logger = opened(run)
    deliver_all(logger, folder)
    logger.flush()
    return logger


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("down", "it takes no connection"),
        (503, "answers 503"),
        pytest.param(429, "answers 429", marks=pytest.mark.slow),
        pytest.param(401, "refuses the login", marks=pytest.mark.slow),
    ],
)
def test_a_fault_raises_soon_in_words_and_afterwards_all_is_there(
    server: MlflowService, make_run: Callable[..., TrackedRun], tmp_path: Path, fault: Any, words: str
) -> None:
    run = make_run()
    logger = opened(run)
    deliver_all(logger, tmp_path)
    server.fail(fault)
    start = time.monotonic()
    for attempt in (logger.flush, lambda: logger.log_text("t", "text", 1), lambda: opened(run)):
        with pytest.raises(MlflowTroubleError, match=words):
            attempt()
    assert time.monotonic() - start < 10
    server.fail(None)
    assert_all(shown(server, deliver_and_flush(run, tmp_path)))


def test_a_server_that_hangs_is_given_up_after_the_time_for_a_request(
    server: MlflowService, make_run: Callable[..., TrackedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = opened(make_run())
    logger.log_metrics({"loss": 1.0}, 1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    server.fail("hang")
    with pytest.raises(MlflowTroubleError, match="does not answer"):
        logger.flush()


def test_one_metric_that_the_server_refuses_costs_no_other(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun]
) -> None:
    from mlflow.entities import Metric

    logger = opened(make_run())
    points = [Point(f"k{n}", Metric(f"k{n}" if n not in (3, 40) else f"k@{n}", 1.0, 1000, 7)) for n in range(50)]
    left_out: list[tuple[str, int | None]] = []
    connection, run_id = MlflowServer(sqlite.uri), logger.ids()["run_id"]
    send_metrics(connection, run_id, points, lambda name, step, reason: left_out.append((name, step)))
    assert left_out == [("k3", 7), ("k40", 7)]
    assert len(shown(sqlite, logger).points) == 48
    with pytest.raises(MlflowTroubleError):  # none is taken: that is not the fault of the metrics
        send_metrics(connection, run_id, points[3:4], lambda *_: pytest.fail("left out"))
    with connection.asked_to("delete the run") as client:
        client.delete_run(run_id)
    with pytest.raises(MlflowTroubleError, match="is deleted"):
        send_metrics(connection, run_id, points, lambda *_: pytest.fail("left out"))


def test_ten_thousand_keys_in_one_record(sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun]) -> None:
    logger = opened(make_run())
    logger.log_metrics({f"many/{'文' * 40}{n}": float(n) for n in range(10_000)}, 1)
    logger.flush()
    with MlflowServer(sqlite.uri).asked_to("show the run") as client:
        assert len(client.get_run(logger.ids()["run_id"]).data.metrics) == 10_000


def test_a_setting_that_changed_is_told_and_refuses_nothing(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun]
) -> None:
    first = opened(make_run())
    first.log_config({"trainer": {"total_steps": 10, "lr@x": 0.5}, "long": "x" * 7000})
    first.flush()
    second = opened(make_run(state=first.state(), attempt=2))
    second.log_config({"trainer": {"total_steps": 20, "lr@x": 0.5}, "long": "x" * 7000, "new": True})
    second.flush()
    with MlflowServer(sqlite.uri).asked_to("show the run") as client:
        data = client.get_run(second.ids()["run_id"]).data
    assert data.params == {
        "trainer.total_steps": "10", "trainer.lr_at_x": "0.5", "long": "x" * 499 + "…", "new": "true"
    }  # fmt: skip
    changed = {key: value for key, value in data.tags.items() if key.startswith("config_changed.")}
    assert changed == {"config_changed.trainer.total_steps": "20"}
    found = shown(sqlite, second).config
    assert (found["trainer.total_steps"], found["trainer.lr@x"], len(found["long"])) == (20, 0.5, 7000)


def test_what_cannot_be_forgotten_becomes_a_run_below_the_new_one(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun]
) -> None:
    old = opened(make_run())
    old.log_metrics({"loss": 1.0}, 5)
    old.flush()
    with pytest.raises(NewBranchError):
        old.purge(3)
    for _ in range(2):  # as if the first had died
        new = opened(make_run(branch=1))
    newest = opened(make_run(branch=2))
    newest.finish("killed")
    found = {run.data.tags[BRANCH]: run for run in runs_of(sqlite, make_run())}
    assert sorted(found) == ["0", "1", "2"]
    ids = newest.ids()["run_id"]
    for branch in ("0", "1"):
        tags, info = found[branch].data.tags, found[branch].info
        assert (tags[PARENT], tags[SUPERSEDED_BY]) == (ids, ids)
        assert (info.run_name, info.status) == ("first (superseded)", "KILLED")
    assert found["1"].info.run_id == new.ids()["run_id"]
    assert (found["2"].info.run_name, PARENT in found["2"].data.tags) == ("first", False)


@pytest.mark.parametrize(
    ("status", "remote"), [("finished", "FINISHED"), ("failed", "FAILED"), ("killed", "KILLED"), ("crashed", "FAILED")]
)
def test_the_end_is_the_true_one_and_a_later_attempt_runs_again(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun], status: RunStatus, remote: str
) -> None:
    logger = opened(make_run())
    logger.moment = Moment(2_000_000.0, 1, 1)
    logger.finish(status)
    (run,) = runs_of(sqlite, make_run())
    assert (run.info.status, run.info.end_time, run.data.tags["verl.status"]) == (remote, 2_000_000_000, status)
    opened(make_run(state=logger.state(), attempt=2))
    (run,) = runs_of(sqlite, make_run())
    assert (run.info.status, run.data.tags["verl.status"], run.data.tags["verl.attempt"]) == ("RUNNING", "running", "2")


def test_a_run_that_is_opened_once_more_after_its_end_ends_in_the_same_way_again(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun]
) -> None:
    logger = opened(make_run())
    for _ in range(2):
        logger.finish("finished")
        (run,) = runs_of(sqlite, make_run())
        assert (run.info.status, run.data.tags["verl.status"]) == ("FINISHED", "finished")
        logger = opened(make_run(state=logger.state()))  # such as for a note that came after the end


def test_an_end_that_something_else_takes_back_is_no_end(
    server: MlflowService, make_run: Callable[..., TrackedRun]
) -> None:
    logger = opened(make_run())
    run_id = logger.ids()["run_id"]

    def late_request(method: str, path: str) -> bool:
        """Of a process that was ended, just before the answer to the next request."""
        if "/runs/get?" in path:
            with MlflowServer(server.uri).asked_to("go on with the run") as client:
                client.update_run(run_id, status="RUNNING")
        return False

    server.proxy.fault, server.proxy.fails = 503, late_request
    with pytest.raises(MlflowTroubleError, match="ended as finished, and is shown as"):
        logger.finish("finished")
    server.proxy.fails, server.proxy.fault = None, None
    again = opened(make_run(state=logger.state()))
    again.finish("finished")
    (run,) = runs_of(server, make_run())
    assert (run.info.status, run.data.tags["verl.status"]) == ("FINISHED", "finished")


def test_a_deleted_run_is_restored_and_one_that_is_gone_is_built_again(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun]
) -> None:
    logger = opened(make_run())
    state = logger.state()
    with MlflowServer(sqlite.uri).asked_to("delete the run") as client:
        client.delete_run(state["run_id"])
    assert opened(make_run(state=state)).ids() == logger.ids()
    with pytest.raises(StateLostError, match="does not exist"):
        opened(make_run(state={**state, "run_id": "0" * 32}))


def test_a_deleted_experiment_is_told_with_what_to_do(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "to be deleted")
    logger = opened(make_run())
    with MlflowServer(sqlite.uri).asked_to("delete the experiment") as client:
        client.delete_experiment(logger.ids()["experiment_id"])
    for state in ({}, logger.state()):
        with pytest.raises(MlflowTroubleError, match="mlflow experiments restore --experiment-id"):
            opened(make_run(state=state))


def test_what_people_wrote_into_the_description_stays(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun]
) -> None:
    logger = opened(make_run())
    connection, run_id = MlflowServer(sqlite.uri), logger.ids()["run_id"]

    def description() -> str:
        with connection.asked_to("read") as client:
            return client.get_run(run_id).data.tags[NOTE]

    assert "in the run directory `run`" in description()
    with connection.asked_to("write") as client:
        client.set_tag(run_id, NOTE, f"Mine before.\n{description()}\nMine after.")
    logger.alert("KL", "is <b>high", "error")
    logger.flush()
    assert description().startswith("Mine before.\n")
    assert description().endswith("\nMine after.")
    assert "**1 alert(s)**, see `alerts.md`; the last: KL: is &lt;b&gt;high" in description()
    with connection.asked_to("write") as client:
        client.set_tag(run_id, NOTE, "Mine alone.")
    logger.alert("KL", "again", "error")
    logger.flush()
    assert description() == "Mine alone."


def test_alerts_fill_pages_and_none_is_lost_by_a_restart(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun]
) -> None:
    logger, state = opened(make_run()), {}
    wanted = [f"title {n}: ### text\n\n# {n}" for n in range(2 * ALERTS_PER_PAGE + 5)]
    for number in range(len(wanted)):
        logger.alert(f"title {number}", f"### text\n\n# {number}", "warning")
        if number == ALERTS_PER_PAGE + 2:
            logger.flush()
            state = logger.state()
        if number == ALERTS_PER_PAGE + 10:
            break
    logger = opened(make_run(state=state))
    for number in range(ALERTS_PER_PAGE + 3, len(wanted)):
        logger.alert(f"title {number}", f"### text\n\n# {number}", "warning")
    logger.flush()
    assert shown(sqlite, logger).alerts == wanted
    assert len(str(logger.state())) < 10_000


def test_renamed_names_are_all_listed_after_a_restart(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun]
) -> None:
    first = opened(make_run())
    first.log_metrics({"a@1": 1.0}, 1)
    first.flush()
    second = opened(make_run(state=first.state()))
    second.log_metrics({"b@2": 2.0, "plain": 3.0}, 2)
    second.flush()
    assert shown(sqlite, second).points == {"a@1": [(1, 1.0)], "b@2": [(2, 2.0)], "plain": [(2, 3.0)]}
    assert second.renamed() == {"b@2": "b_at_2"}


def test_what_is_too_large_or_gone_is_left_out_with_the_reason(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun], tmp_path: Path
) -> None:
    large = tmp_path / "checkpoint.bin"
    with large.open("wb") as file:
        file.truncate(300 * 2**20)
    logger = opened(make_run())
    logger.log_artifact(Artifact("checkpoint", large, "checkpoint"), 5)
    logger.log_artifact(Artifact("gone", tmp_path / "gone.txt"), 6)
    logger.flush()
    assert {name: (left.step, left.count) for name, left in logger.omissions.items()} == {
        "checkpoint": (5, 1), "gone": (6, 1)
    }  # fmt: skip
    assert "200 MiB" in logger.omissions["checkpoint"].reason
    assert shown(sqlite, logger).artifacts == set()


@pytest.mark.slow
def test_a_database_that_another_process_holds_is_told_in_words(
    sqlite: MlflowSqliteService, make_run: Callable[..., TrackedRun]
) -> None:
    logger = opened(make_run())
    logger.log_metrics({"loss": 1.0}, 1)
    with sqlite3.connect(sqlite.folder / "mlflow.db", isolation_level=None) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(MlflowTroubleError, match="another process holds the database"):
            logger.flush()
        connection.execute("ROLLBACK")
    connection.close()
    again = opened(make_run())
    again.log_metrics({"loss": 1.0}, 1)
    again.flush()
    assert shown(sqlite, again).points == {"loss": [(1, 1.0)]}


def test_no_login_is_shown_or_stored(
    server: MlflowService, make_run: Callable[..., TrackedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.proxy.url.replace("://", "://me:Geh3im4Wort@"))
    logger = opened(make_run())
    logger.log_metrics({"loss": 1.0}, 1)
    logger.flush()
    server.fail(503)
    with pytest.raises(MlflowTroubleError) as raised:
        opened(make_run())
    server.fail(None)
    (run,) = runs_of(server, make_run())
    told = [logger.state(), logger.ids(), logger.where(), run.data.tags, raised.value, MlflowLogger.preflight(None)]
    assert "Geh3im4Wort" not in str(told)
    assert logger.where() == logger.ids()["url"]


@pytest.mark.slow
def test_the_database_of_the_first_attempt_is_found_from_another_folder(
    make_run: Callable[..., TrackedRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    logger = opened(make_run())
    assert logger.where() == f"mlflow ui --backend-store-uri sqlite:///{tmp_path / 'here' / 'mlflow.db'}"
    monkeypatch.chdir(tmp_path)
    assert opened(make_run(state=logger.state())).ids() == logger.ids()
    assert not (tmp_path / "mlflow.db").exists()


def test_preflight_tells_of_a_server_that_is_there_away_or_refuses(
    server: MlflowService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def results() -> dict[str, str]:
        return {check.question: check.result for check in MlflowLogger.preflight(None)}

    assert results() == {"login": "ok", "server": "ok"}
    server.fail(401)
    assert results() == {"login": "error"}
    server.fail("hang")
    start = time.monotonic()
    assert results() == {"login": "ok", "server": "warning"}
    assert time.monotonic() - start < 3
    server.fail("down")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    assert results() == {"login": "warning", "server": "warning"}


def test_preflight_tells_of_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def result(uri: str) -> str:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        (check,) = MlflowLogger.preflight(None)
        assert check.result == "ok" or check.advice
        return check.result

    (tmp_path / "file").touch()
    assert result(f"sqlite:///{tmp_path}/new/folder/x.db") == "ok"
    assert result(f"sqlite:///{tmp_path}") == "error"
    assert result("sqlite://") == "error"
    assert result("ftp://host/x") == "error"
    assert result("./mlruns") == "warning"
    assert result("databricks") == "ok"
    assert result("postgresql+psycopg://me:secret@host/db") == "ok"
    if os.getuid():
        tmp_path.chmod(0o500)
        assert result(f"sqlite:///{tmp_path}/x.db") == "error"


@pytest.mark.slow
def test_a_server_that_was_killed_and_came_back_has_everything(
    server: MlflowService, make_run: Callable[..., TrackedRun], tmp_path: Path
) -> None:
    run = make_run()
    logger = deliver_and_flush(run, tmp_path)
    server.kill_server()
    logger.log_metrics({"late": 1.0}, 4)
    with pytest.raises(MlflowTroubleError):
        logger.flush()
    server.start_server()
    again = opened(make_run(state=logger.state()))
    again.log_metrics({"late": 1.0}, 4)
    again.finish("finished")
    found = shown(server, again)
    assert found.points.pop("late") == [(4, 1.0)]
    assert_all(found)
