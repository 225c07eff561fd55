"""What TensorBoard reads out of the files that are written for it."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from verl.journal import JournalReader, JournalWriter, RunDirectory
from verl.tracking import TrackedRun, Tracking, drain
from verl.tracking.backends.tensorboard_logger import TensorboardLogger

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
    assert [len(event.summary.value) for event in EventFileLoader(str(first)).Load()] == [0, 60]


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
    assert text(accumulator, "alerts") == ["**ERROR** KL\n\ntoo high", "**WARNING**\n\nrow 3 is empty"]
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
        logger.log_metrics({"loss": 1.0}, 1)
        logger.flush()
        acknowledged = logger.state()
        logger.log_metrics({"loss": 2.0}, 2)
    (file,) = event_files(tmp_path)
    before = file.read_bytes()
    with file.open("ab") as torn:  # killed in the middle of a write
        torn.write(b"\x07\x00\x00")
    with logger_at(tmp_path, acknowledged) as again:
        again.log_metrics({"loss": 2.0}, 2)
    assert event_files(tmp_path) == [file]
    assert file.read_bytes() == before


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


@pytest.mark.parametrize("loss", ["tail", "file"])
def test_files_that_lost_acknowledged_bytes_are_written_anew(loss: str, inline: Inline, tmp_path: Path) -> None:
    for attempt in range(2):
        with inline() as tracking:
            for step in range(attempt * 5, attempt * 5 + 5):
                tracking.log_metrics({"loss": float(step)}, step)
    before = [file.read_bytes() for file in event_files(tmp_path)]
    file = event_files(tmp_path)[-1]
    if loss == "tail":
        file.write_bytes(file.read_bytes()[:-5])
    else:
        file.unlink()
    with inline() as tracking:
        tracking.log_metrics({"loss": 10.0}, 10)
    assert [(event.step, event.value) for event in read(tmp_path).Scalars("loss")] == [(s, float(s)) for s in range(11)]
    assert len(event_files(tmp_path)) == 3
    assert event_files(tmp_path)[0].read_bytes() == before[0][: event_files(tmp_path)[0].stat().st_size]


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """The real TensorBoard on the run's folder; a function that gets JSON from it."""
    port = free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path), "--port", str(port)]
    with (tmp_path / "server.log").open("wb") as output:
        process = subprocess.Popen([*command, "--reload_interval", "1"], stdout=output, stderr=output)

    def get(path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/data/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    yield get
    process.terminate()
    process.wait()


def eventually(get: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """The server reads files in its own time."""
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = get()
            if wanted(answer) or time.monotonic() > deadline:
                return answer
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def hparams(server: Callable[..., Any]) -> Any:
    return server("plugin/hparams/experiment", {"hparamsLimit": 10})


def test_the_real_server_shows_everything(inline: Inline, tmp_path: Path, server: Callable[..., Any]) -> None:
    with inline(config={"lr": 0.1, "model": "tiny"}) as tracking:
        for step in range(1, 6):
            tracking.log_metrics({"kl/kl_divergence": step / 10, "my_metric": math.nan}, step)
            tracking.log_histogram("reward/dist", np.arange(10), step)
        tracking.log_text("samples/prompt_response", "**hello** <script>", 5)
        tracking.log_table("val/generations", ["a"], [["x|y"]], 5)
        tracking.log_image("picture", np.zeros((3, 2, 2)), 5)
        tracking.log_embedding("tokens", np.ones((3, 2)), ["a", "b", "c"], 5)
    with inline() as tracking:
        tracking.rewind(3)
        tracking.log_metrics({"kl/kl_divergence": 9.0, "my_metric": 1.0}, 4)
    scalars = eventually(
        lambda: server("plugin/scalars/scalars?run=.&tag=kl/kl_divergence"), lambda points: len(points) == 4
    )
    assert [(step, round(value, 5)) for _, step, value in scalars] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 9.0)]
    tags = server("plugin/scalars/tags")["."]
    assert set(tags) >= {"kl/kl_divergence", "my_metric"}
    histograms = server("plugin/histograms/histograms?run=.&tag=reward/dist")
    assert sum(bucket[2] for bucket in histograms[0][2]) == 10
    shown = server("plugin/text/text?run=.&tag=samples/prompt_response/text_summary")
    assert "<strong>hello</strong>" in shown[0]["text"]
    assert "<script>" not in shown[0]["text"]
    table = server("plugin/text/text?run=.&tag=val/generations/text_summary")
    assert "<td>x&#124;y</td>" in table[0]["text"]
    assert [image["step"] for image in server("plugin/images/images?run=.&tag=picture&sample=0")] == [5]
    assert server("plugin/projector/runs") == ["."]
    assert server("plugin/projector/info?run=.")["embeddings"][0]["tensorShape"] == [3, 2]
    names = {column["name"] for column in hparams(server)["hparamInfos"]}
    assert names == {"lr", "model"}
