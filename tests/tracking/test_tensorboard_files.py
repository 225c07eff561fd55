"""What TensorBoard reads out of the files that are written for it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from verl.journal import JournalReader, JournalWriter, RunDirectory
from verl.testing.tensorboard_service import TensorboardService, read_events
from verl.tracking import Artifact, Embedding, Moment, TrackedRun, Tracking, drain
from verl.tracking.backends.tensorboard_logger import TensorboardLogger
from verl.tracking.logger import StateLostError
from verl.tracking.relay.feed_state import read_states

Inline = Callable[..., Tracking]


@pytest.fixture
def inline(tmp_path: Path) -> Inline:
    """Tracking with TensorBoard fed in each call."""

    def start(**settings: Any) -> Tracking:
        return Tracking("p", "e", "tensorboard", log_dir=str(tmp_path), async_log=False, **settings)

    return start


def read(path: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0, "images": 0})
    return accumulator.Reload()


def event_files(path: Path) -> list[Path]:
    return sorted(path.glob("events.out.tfevents.*"))


def text(accumulator: EventAccumulator, tag: str) -> list[str]:
    return [event.tensor_proto.string_val[0].decode() for event in accumulator.Tensors(f"{tag}/text_summary")]


def test_scalars_keep_step_value_and_the_time_of_their_record(inline: Inline, tmp_path: Path) -> None:
    with inline() as tracking:
        for step in (1, 2, 3):
            tracking.log_metrics({"reward/episode_reward_mean": step / 10, "my_metric": 1}, step)
    times = [record.t for record in JournalReader(tmp_path).records({"metrics"})]
    scalars = read(tmp_path).Scalars("reward/episode_reward_mean")
    assert [(event.step, event.value) for event in scalars] == [
        (1, np.float32(0.1)),
        (2, np.float32(0.2)),
        (3, np.float32(0.3)),
    ]
    assert [event.wall_time for event in scalars] == times
    assert read(tmp_path).Tags()["scalars"] == ["reward/episode_reward_mean", "my_metric"]


def test_there_is_one_event_per_step_and_one_file_per_attempt(inline: Inline, tmp_path: Path) -> None:
    for _attempt in range(2):
        with inline() as tracking:
            tracking.log_metrics({f"m{index}": index for index in range(60)}, 1)
    first, second = event_files(tmp_path)
    assert first.name.endswith(".0")
    assert second.name.endswith(".1")
    sizes = [len(event.summary.value) for event in EventFileLoader(str(first)).Load()]
    assert [size for size in sizes if size > 1] == [60]


def test_values_that_are_not_finite_or_large_are_kept(inline: Inline, tmp_path: Path) -> None:
    with inline() as tracking:
        tracking.log_metrics({"nan": math.nan, "inf": math.inf, "large": 1e300, "whole": 2**60}, 0)
    accumulator = read(tmp_path)
    assert math.isnan(accumulator.Scalars("nan")[0].value)
    assert accumulator.Scalars("inf")[0].value == math.inf
    assert accumulator.Scalars("large")[0].value == math.inf  # TensorBoard keeps 32-bit floats; the journal has it
    assert accumulator.Scalars("whole")[0].value == 2.0**60


def test_histogram_text_table_and_alerts(inline: Inline, tmp_path: Path) -> None:
    with inline() as tracking:
        tracking.log_histogram("reward/dist", [1, 1, 2, 5], 4)
        tracking.log_text("samples/prompt_response", "**Prompt:** hi", 4)
        tracking.log_table("val/generations", ["prompt", "score"], [["a|b\n<script>", 0.5]], 4)
        tracking.alert("KL", "too high", "error")
        tracking.note("row 3 is empty", "warning")
        tracking.note("by the way")
    accumulator = read(tmp_path)
    histogram = accumulator.Histograms("reward/dist")[0]
    assert histogram.step == 4
    assert list(histogram.histogram_value.bucket) == [2.0, 1.0, 0.0, 0.0, 1.0]
    assert (histogram.histogram_value.min, histogram.histogram_value.max) == (1.0, 5.0)
    assert text(accumulator, "samples/prompt_response") == ["**Prompt:** hi"]
    (table,) = text(accumulator, "val/generations")
    assert table.splitlines()[0] == "| prompt | score |"
    assert "a&#124;b<br>&lt;script&gt;" in table
    assert text(accumulator, "alerts") == ["**ERROR** KL\n\ntoo high"]
    assert text(accumulator, "alerts/2") == ["**WARNING**\n\nrow 3 is empty"]
    assert text(accumulator, "notes") == ["**INFO**\n\nby the way"]
    assert accumulator.SummaryMetadata("alerts/text_summary").plugin_data.plugin_name == "text"


def test_the_configuration_is_shown_as_text_and_as_hyperparameters(inline: Inline, tmp_path: Path) -> None:
    config = {"trainer": {"lr": 1e-3, "name": "a", "off": None}, "flag": True, "api_key": "sk-1234567890abcdefgh"}
    with inline(config=config):
        pass
    accumulator = read(tmp_path)
    assert "    trainer.lr: 0.001\n" in text(accumulator, "config")[0]
    assert "sk-1234567890abcdefgh" not in event_files(tmp_path)[0].read_bytes().decode("latin-1")
    content = accumulator.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["trainer.lr"].number_value == 1e-3
    assert hparams["flag"].bool_value is True
    assert "trainer.off" not in hparams
    content = accumulator.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
    assert plugin_data_pb2.HParamsPluginData.FromString(content).session_end_info.status == 1  # success


def test_an_image_is_shown_with_its_size(inline: Inline, tmp_path: Path) -> None:
    with inline() as tracking:
        tracking.log_image("a/picture", np.zeros((3, 5, 7)), 2)
    image = read(tmp_path).Images("a/picture")[0]
    assert (image.step, image.width, image.height) == (2, 7, 5)
    assert image.encoded_image_string.startswith(b"\x89PNG")


def test_embeddings_are_files_of_the_projector(inline: Inline, tmp_path: Path) -> None:
    with inline() as tracking:
        tracking.log_embedding("tokens", np.arange(6).reshape(3, 2) / 4, ["a\tb", "", "c"], 1)
        tracking.log_embedding("tokens", np.ones((2, 2)), [["x", 1], ["y", 2]], 2, header=["word", "count"])
        tracking.log_embedding("tokens", np.ones((2, 2)), None, 3, images=np.zeros((2, 3, 4, 4)))
    config = text_format.Parse((tmp_path / "projector_config.pbtxt").read_text(), ProjectorConfig())
    assert [entry.tensor_name for entry in config.embeddings] == ["tokens:00001", "tokens:00002", "tokens:00003"]
    assert (tmp_path / config.embeddings[0].tensor_path).read_text() == "0\t0.25\n0.5\t0.75\n1\t1.25\n"
    assert (tmp_path / config.embeddings[0].metadata_path).read_text() == "a b\n␣\nc\n"
    assert (tmp_path / config.embeddings[1].metadata_path).read_text() == "word\tcount\nx\t1\ny\t2\n"
    assert (tmp_path / config.embeddings[2].sprite.image_path).read_bytes().startswith(b"\x89PNG")
    assert list(config.embeddings[2].sprite.single_image_dim) == [4, 4]


def test_hyperparameters_with_results_are_a_run_below(inline: Inline, tmp_path: Path) -> None:
    with inline() as tracking:
        tracking.writer.add_hparams({"lr": 0.1, "name": "x"}, {"score": 0.5}, run_name="../trial 1")
    (folder,) = [path.parent for path in tmp_path.glob("*/events.out.tfevents.*")]
    assert folder.parent == tmp_path
    assert read(folder).Scalars("score")[0].value == 0.5
    assert "_hparams_/session_start_info" in read(folder).summary_metadata


def test_a_rewind_hides_what_came_after_it(inline: Inline, tmp_path: Path) -> None:
    with inline() as tracking:
        for step in range(1, 11):
            tracking.log_metrics({"loss": float(step)}, step)
    with inline() as tracking:
        tracking.rewind(6)
        for step in range(7, 9):
            tracking.log_metrics({"loss": -float(step)}, step)
    points = [(event.step, event.value) for event in read(tmp_path).Scalars("loss")]
    assert points == [*((step, float(step)) for step in range(1, 7)), (7, -7.0), (8, -8.0)]


@contextmanager
def logger_at(directory: Path, state: dict[str, Any]) -> Iterator[TensorboardLogger]:
    """A tracker that is let go without an end, as if its process had died after the last flush."""
    logger = TensorboardLogger()
    logger.open(TrackedRun("abc", "p", "e", directory, state=state))
    yield logger
    logger.flush()
    logger.close()


def test_what_was_not_acknowledged_is_taken_back_and_written_again_alike(tmp_path: Path) -> None:
    with logger_at(tmp_path, {}) as logger:
        at(logger, 1).log_metrics({"loss": 1.0}, 1)
        logger.flush()
        acknowledged = logger.state()
        at(logger, 2).log_metrics({"loss": 2.0}, 2)
    (file,) = event_files(tmp_path)
    before = file.read_bytes()
    with file.open("ab") as torn:  # killed in the middle of a write
        torn.write(b"\x07\x00\x00")
    with logger_at(tmp_path, acknowledged) as again:
        at(again, 2).log_metrics({"loss": 2.0}, 2)
    assert event_files(tmp_path) == [file]
    assert file.read_bytes() == before


@settings(max_examples=25, deadline=None)
@given(kills=st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 60)), max_size=6))
def test_nothing_is_twice_and_nothing_missing_wherever_it_is_killed(kills: list[tuple[int, bool, int]]) -> None:
    with TemporaryDirectory() as folder:
        directory, state, acknowledged = Path(folder), {}, 0
        for ahead, is_acknowledged, lost in [*kills, (20, True, 0)]:
            # A process that gets further than what is acknowledged, and dies in the middle of a write.
            reached = min(acknowledged + ahead, 20)
            with logger_at(directory, state) as logger:
                for seq in range(acknowledged + 1, reached + 1):
                    at(logger, seq, attempt=1 + seq // 8).log_metrics({"loss": float(seq)}, seq)
                if is_acknowledged:
                    logger.flush()
                    state, acknowledged = logger.state(), reached
            if not is_acknowledged and (files := event_files(directory)):
                size = files[-1].stat().st_size
                is_known = files[-1].name in state.get("files", [])
                os.truncate(files[-1], max(size - lost, state["size"] if is_known else 0))
        points = read_events(directory, {}).points
    assert points == {"loss": [(step, float(step)) for step in range(1, 21)]}


def test_a_file_of_which_nothing_was_acknowledged_is_started_over(tmp_path: Path) -> None:
    for _attempt in range(2):
        with logger_at(tmp_path, {}) as logger:
            logger.log_metrics({"loss": 1.0}, 1)
    assert len(event_files(tmp_path)) == 1
    assert [event.value for event in read(tmp_path).Scalars("loss")] == [1.0]


def test_files_of_other_writers_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "events.out.tfevents.1000.host.1.0"
    other.write_bytes(b"theirs")
    with logger_at(tmp_path, {}) as logger:
        logger.log_metrics({"loss": 1.0}, 1)
    assert other.read_bytes() == b"theirs"
    assert len(event_files(tmp_path)) == 2


@pytest.mark.parametrize("loss", ["tail", "file", "first file"])
def test_files_that_lost_acknowledged_bytes_are_written_anew(loss: str, inline: Inline, tmp_path: Path) -> None:
    for attempt in range(2):
        with inline() as tracking:
            for step in range(attempt * 5, attempt * 5 + 5):
                tracking.log_metrics({"loss": float(step)}, step)
    first, file = event_files(tmp_path)
    if loss == "tail":
        file.write_bytes(file.read_bytes()[:-5])
    else:
        (file if loss == "file" else first).unlink()
    with inline() as tracking:
        tracking.log_metrics({"loss": 10.0}, 10)
    assert [(event.step, event.value) for event in read(tmp_path).Scalars("loss")] == [(s, float(s)) for s in range(11)]
    assert len(event_files(tmp_path)) == 3
    assert not {first, file} & set(event_files(tmp_path))  # a server that runs sees new files


def at(logger: TensorboardLogger, seq: int, attempt: int = 1) -> TensorboardLogger:
    logger.moment = Moment(1_700_000_000.5 + seq, attempt, seq)
    return logger


def test_a_file_of_another_attempt_that_was_not_acknowledged_is_removed(tmp_path: Path) -> None:
    with logger_at(tmp_path, {}) as logger:
        at(logger, 1).log_metrics({"loss": 1.0}, 1)
        logger.flush()
        acknowledged = logger.state()
        at(logger, 2, attempt=2).log_metrics({"loss": 2.0}, 2)
    assert len(event_files(tmp_path)) == 2
    with logger_at(tmp_path, acknowledged) as again:
        assert len(event_files(tmp_path)) == 1
        at(again, 2, attempt=2).log_metrics({"loss": 2.0}, 2)
    assert [(event.step, event.value) for event in read(tmp_path).Scalars("loss")] == [(1, 1.0), (2, 2.0)]


def test_the_end_of_a_later_attempt_is_told_without_a_record_of_it(tmp_path: Path) -> None:
    with logger_at(tmp_path, {}) as logger:
        at(logger, 1).log_metrics({"loss": 1.0}, 1)
        at(logger, 2, attempt=2).log_metrics({"loss": 2.0}, 2)
        logger.flush()
        acknowledged = logger.state()
    again = TensorboardLogger()
    again.open(TrackedRun("abc", "p", "e", tmp_path, 2, state=acknowledged))
    again.finish("killed")
    shown = read_events(tmp_path, {})
    assert (shown.status, shown.points) == ("killed", {"loss": [(1, 1.0), (2, 2.0)]})


def test_purge_forgets_only_what_there_is(tmp_path: Path) -> None:
    with logger_at(tmp_path, {}) as logger:
        at(logger, 1).log_metrics({"loss": 1.0}, 5)
        logger.purge(5)
        with pytest.raises(StateLostError):
            logger.purge(4)


def test_a_rewind_takes_back_embeddings_and_runs_below(inline: Inline, tmp_path: Path) -> None:
    with inline() as tracking:
        tracking.log_embedding("kept", np.ones((2, 2)), None, 1)
        tracking.log_embedding("superseded", np.ones((2, 2)), None, 9)
        tracking.writer.add_hparams({"lr": 0.1}, {"score": 0.5}, run_name="trial", global_step=9)
        tracking.log_metrics({"loss": 1.0}, 10)
    with inline() as tracking:
        tracking.rewind(6)
        tracking.log_metrics({"loss": 2.0}, 7)
    assert [path.name for path in (tmp_path / "projector").iterdir()] == ["kept"]
    assert "superseded" not in (tmp_path / "projector_config.pbtxt").read_text()
    assert not (tmp_path / "trial").exists()
    assert read_events(tmp_path, {}).points == {"loss": [(7, 2.0)]}


@pytest.mark.parametrize("status", ["finished", "failed", "killed", "crashed"])
def test_the_true_status_is_shown(status: Any, tmp_path: Path) -> None:
    logger = TensorboardLogger()
    logger.open(TrackedRun("abc", "p", "e", tmp_path))
    at(logger, 1).log_metrics({"loss": 1.0}, 3)
    logger.flush()
    assert read_events(tmp_path, {}).status == "running"
    logger.finish(status)
    state = logger.state()
    assert read_events(tmp_path, {}).status == status
    with logger_at(tmp_path, state) as logger:
        at(logger, 2, attempt=2).log_metrics({"loss": 1.0}, 4)
    assert read_events(tmp_path, {}).status == "running"


def test_artifacts_are_shown_as_text_or_by_their_place(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "folder").mkdir(parents=True)
    (run / "folder" / "big").write_bytes(bytes(300_000))
    (run / "environment.json").write_text('{"a": "<b>"}')
    (run / "report.md").write_text("# Title")
    with logger_at(run, {}) as logger:
        for seq, name in enumerate(["environment.json", "report.md", "folder", "folder/big", "gone"]):
            at(logger, seq).log_artifact(Artifact(name, run / name), 2)
        at(logger, 9).log_artifact(Artifact("no picture", run / "report.md", "image"), 2)
    accumulator = read(run)
    assert text(accumulator, "artifacts/environment.json") == ['    {"a": "<b>"}']
    assert text(accumulator, "artifacts/report.md") == ["# Title"]
    assert text(accumulator, "artifacts/folder") == ["    folder/  (1 files, 300000 bytes)"]
    assert text(accumulator, "artifacts/folder/big") == ["    folder/big  (300000 bytes)"]
    assert set(logger.omissions) == {"gone", "no picture"}
    assert read_events(run, {}).artifacts == {"environment.json", "report.md", "folder", "folder/big"}


def test_odd_tags_and_texts_are_spelled_so_that_they_stay_apart(tmp_path: Path) -> None:
    odd = ["a\ud800b", "a_xd800_b", "a_x5f_xd800_b", "é/😀 \n@", " ", "val/mean_at_8", "\x00", "x" * 5000]
    with logger_at(tmp_path, {}) as logger:
        at(logger, 1).log_metrics({name: float(number) for number, name in enumerate(odd)}, 7)
        at(logger, 2).log_text("t\udfff", "hi \ud83d", 7)
        at(logger, 3).log_table("table", ["c\udfff"], [["\ud83d"]], 7)
        at(logger, 4).alert("\ud83d", "\ud83d", "error")
        at(logger, 5).log_config({"a\ud800": "\ud83d", "nan": math.nan})
        at(logger, 6).log_embedding(Embedding("e\ud800", np.ones((2, 2))), 1)
    renamed = logger.renamed()
    assert set(renamed) == {"a\ud800b", "a_xd800_b", "a_x5f_xd800_b", "t\udfff", "e\ud800"}
    shown = read_events(tmp_path, renamed)
    assert shown.points == {name: [(7, float(number))] for number, name in enumerate(odd)}
    assert shown.texts == {"t\udfff": {7: "hi \\ud83d"}}
    assert shown.alerts == ["\\ud83d: \\ud83d"]
    config = text_format.Parse((tmp_path / "projector_config.pbtxt").read_text(), ProjectorConfig())
    assert [entry.tensor_name for entry in config.embeddings] == ["e_xd800_:00001"]


def test_ten_thousand_keys_in_one_record(tmp_path: Path) -> None:
    with logger_at(tmp_path, {}) as logger:
        at(logger, 1).log_metrics({f"group/key {index}": float(index) for index in range(10_000)}, 1)
    assert read_events(tmp_path, {}).points == {f"group/key {index}": [(1, float(index))] for index in range(10_000)}


def test_a_huge_text_is_cut_and_counted(tmp_path: Path) -> None:
    with logger_at(tmp_path, {}) as logger:
        at(logger, 1).log_text("huge", "x" * 1_000_005, 1)
    shown = read_events(tmp_path, {}).texts["huge"][1]
    assert shown == "x" * 1_000_000 + " … (5 more characters)"
    assert logger.omissions["huge"].count == 1


def test_alerts_keep_their_step_and_each_is_shown(tmp_path: Path) -> None:
    with logger_at(tmp_path, {}) as logger:
        at(logger, 1).log_metrics({"loss": 1.0}, 10)
        at(logger, 2).alert("a", "1", "error")
        at(logger, 3).alert("", "2", "warning")
        logger.flush()
        state = logger.state()
    with logger_at(tmp_path, state) as logger:
        at(logger, 4).alert("c", "3", "warning")
        at(logger, 5).log_metrics({"loss": 1.0}, 11)
        at(logger, 6).alert("", "4", "error")
    assert read_events(tmp_path, {}).alerts == ["a: 1", "2", "c: 3", "4"]
    tags = [tag for tag in read(tmp_path).Tags()["tensors"] if tag.startswith("alerts")]
    steps = {tag.removesuffix("/text_summary"): [e.step for e in read(tmp_path).Tensors(tag)] for tag in tags}
    assert steps == {"alerts": [10, 11], "alerts/2": [10], "alerts/3": [10]}


def test_it_tells_the_names_of_its_files(inline: Inline, tmp_path: Path) -> None:
    with inline() as tracking:
        tracking.log_metrics({"loss": 1.0}, 1)
    ids = RunDirectory.open(tmp_path).info.trackers["tensorboard"]
    assert ids["files"] == [path.name for path in event_files(tmp_path)]
    assert not read_states(tmp_path)[0].omissions


def test_a_tracker_added_later_gets_the_whole_run(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, project="p", experiment="e")
    for attempt, first in ((1, 1), (2, 3)):
        directory.start_attempt(resumed_from=None if attempt == 1 else "x")
        with JournalWriter(directory, attempt=attempt) as journal:
            if attempt == 2:
                journal.append("rewind", 2, to=2)
            for step in range(first, first + 3):
                journal.append("metrics", step, metrics={"loss": attempt + step / 10})
        directory.finish_attempt("finished")
    (state,) = drain(directory, ["tensorboard"])
    assert (state.failures, state.status) == (0, "finished")
    assert len(event_files(tmp_path)) == 2
    points = [(event.step, round(event.value, 3)) for event in read(tmp_path).Scalars("loss")]
    assert points == [(1, 1.1), (2, 1.2), (3, 2.3), (4, 2.4), (5, 2.5)]


@pytest.fixture(scope="module")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def server(server_folder: Path) -> Iterator[TensorboardService]:
    """The real TensorBoard, on a folder in which each run of a test is a folder."""
    service = TensorboardService()
    service.serve(server_folder)
    yield service
    service.stop()


@pytest.fixture
def served(server_folder: Path, tmp_path: Path) -> Path:
    """A run directory that the server looks at."""
    return server_folder / tmp_path.name


def test_the_real_server_shows_everything(served: Path, server: TensorboardService) -> None:
    def tracking_here(**settings: Any) -> Tracking:
        return Tracking("p", "e", "tensorboard", log_dir=str(served), async_log=False, **settings)

    with tracking_here(config={"lr": 0.1, "model": "tiny", "odd": math.nan}) as tracking:
        for step in range(1, 6):
            tracking.log_metrics({"kl/kl_divergence": step / 10, "my_metric": math.nan}, step)
            tracking.log_histogram("reward/dist", np.arange(10), step)
        tracking.log_text("samples/prompt_response", "**hello** <script>", 5)
        tracking.log_table("val/generations", ["a"], [["x|y"]], 5)
        tracking.log_image("picture", np.zeros((3, 2, 2)), 5)
        tracking.log_embedding("tokens", np.ones((3, 2)), ["a", "b", "c"], 5)
    run = served.name
    points = server.eventually(lambda: server.curve("kl/kl_divergence", run), lambda points: len(points) == 5)
    assert [(step, round(value, 5)) for step, value in points] == [(s, s / 10) for s in range(1, 6)]
    assert set(server.ask("plugin/scalars/tags")[run]) >= {"kl/kl_divergence", "my_metric"}
    histograms = server.ask(f"plugin/histograms/histograms?run={run}&tag=reward/dist")
    assert sum(bucket[2] for bucket in histograms[0][2]) == 10
    shown = server.ask(f"plugin/text/text?run={run}&tag=samples/prompt_response/text_summary")
    assert "<strong>hello</strong>" in shown[0]["text"]
    assert "<script>" not in shown[0]["text"]
    table = server.ask(f"plugin/text/text?run={run}&tag=val/generations/text_summary")
    assert "<td>x&#124;y</td>" in table[0]["text"]
    assert [image["step"] for image in server.ask(f"plugin/images/images?run={run}&tag=picture&sample=0")] == [5]
    assert run in server.ask("plugin/projector/runs")
    assert server.ask(f"plugin/projector/info?run={run}")["embeddings"][0]["tensorShape"] == [3, 2]
    hparams = server.ask("plugin/hparams/experiment", {"hparamsLimit": 10})
    assert {column["name"] for column in hparams["hparamInfos"]} >= {"lr", "model", "odd"}
    status = server.ask(f"plugin/text/text?run={run}&tag=status/text_summary")
    assert "finished" in status[-1]["text"]


@pytest.mark.parametrize("is_read_before", [False, True])
def test_the_real_server_shows_the_new_curve_after_a_rewind(
    is_read_before: bool, served: Path, server: TensorboardService
) -> None:
    directory = RunDirectory.create(served, project="p", experiment="e")
    run = served.name
    directory.start_attempt()
    with JournalWriter(directory, attempt=1) as journal:
        for step in range(1, 951):
            journal.append("metrics", step, metrics={"loss": float(step)})
            if step % 100 == 0:
                journal.append("metrics", step, metrics={"val": float(step)})
    directory.finish_attempt("killed")
    drain(directory, ["tensorboard"])
    if is_read_before:
        assert len(server.eventually(lambda: server.curve("loss", run), lambda points: len(points) == 950)) == 950
    directory.start_attempt(resumed_from="checkpoints/global_step_800")
    with JournalWriter(directory, attempt=2) as journal:
        journal.append("rewind", 800, to=800)
        for step in range(801, 991):
            journal.append("metrics", step, metrics={"loss": -float(step)})
        journal.append("metrics", 900, metrics={"val": -900.0})
        journal.append("finish", 990, status="finished", error=None)
    directory.finish_attempt("finished")
    drain(directory, ["tensorboard"])
    wanted = [*((step, float(step)) for step in range(1, 801)), *((step, -float(step)) for step in range(801, 991))]
    assert server.eventually(lambda: server.curve("loss", run), lambda points: points == wanted) == wanted
    values = [*((step, float(step)) for step in range(100, 801, 100)), (900, -900.0)]
    assert server.eventually(lambda: server.curve("val", run), lambda points: points == values) == values
    assert TensorboardService().read(served).points == {"loss": wanted, "val": values}
    assert len(event_files(served)) == 2
