"""`trainer.writer` has the methods of SummaryWriter, and reaches every tracker."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from verl.testing.trackers import RecordingLogger
from verl.tracking import Tracking, Writer
from verl.tracking.png_image import png_size


@pytest.fixture
def logger() -> RecordingLogger:
    return RecordingLogger()


@pytest.fixture
def tracking(logger: RecordingLogger, tmp_path: Path) -> Iterator[Tracking]:
    with Tracking("p", "e", [logger], log_dir=str(tmp_path), async_log=False) as tracking:
        yield tracking


@pytest.fixture
def writer(tracking: Tracking) -> Writer:
    return tracking.writer


def public_methods(kind: type) -> dict[str, inspect.Signature]:
    found = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(method) for name, method in found if not name.startswith("_")}


def test_every_method_of_summary_writer_is_there() -> None:
    assert public_methods(SummaryWriter).keys() <= public_methods(Writer).keys()


def test_arguments_have_the_same_names_and_order() -> None:
    ours = public_methods(Writer)
    for name, signature in public_methods(SummaryWriter).items():
        parameters = list(ours[name].parameters.values())
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            continue  # not shown: takes anything, and warns
        theirs = list(signature.parameters)
        assert [parameter.name for parameter in parameters] == theirs, name


def test_a_scalar_reaches_the_tracker_with_its_own_step(writer: Writer, logger: RecordingLogger) -> None:
    writer.add_scalar("custom/metric", torch.tensor(0.5), 17)
    writer.add_scalar("my_metric", np.float32(2), global_step=np.int64(18))
    assert logger.points("custom/metric") == [(17, 0.5)]
    assert logger.points("my_metric") == [(18, 2.0)]


def test_without_a_step_the_current_one_is_meant(tracking: Tracking, logger: RecordingLogger) -> None:
    tracking.progress(4)
    tracking.writer.add_scalar("own/counter", 1.0, 12345)
    tracking.writer.add_scalar("x", 1.0)
    assert logger.points("x") == [(4, 1.0)]


def test_a_wall_time_is_shown_instead_of_now(writer: Writer, logger: RecordingLogger) -> None:
    writer.add_scalar("x", 1.0, 1, walltime=1234.5)
    writer.add_text("t", "hi", 1, walltime=99.0)
    assert [call.moment.time for call in logger.calls if call.method.startswith("log_")] == [1234.5, 99.0]


def test_several_scalars_are_one_record(writer: Writer, logger: RecordingLogger) -> None:
    writer.add_scalars("loss", {"a": 1, "b": math.nan}, 3)
    ((metrics, step),) = logger.of("log_metrics")
    assert step == 3
    assert metrics["loss/a"] == 1
    assert math.isnan(metrics["loss/b"])


def test_histograms(writer: Writer, logger: RecordingLogger) -> None:
    writer.add_histogram("h", torch.tensor([1.0, 2.0, 2.0]), 1)
    writer.add_histogram("h", [0.1, 0.2, 0.9], 2, bins="auto")
    writer.add_histogram("h", np.array([[0.5]]), 3, bins=[0.0, 1.0])
    writer.add_histogram_raw("h", 0.0, 2.0, 3, 4.0, 5.0, torch.tensor([1.0, 2.0]), np.array([1, 2]), 4)
    histograms = [(step, histogram) for _, histogram, step in logger.of("log_histogram")]
    assert [(step, sum(histogram.bucket_counts)) for step, histogram in histograms] == [(1, 3), (2, 3), (3, 1), (4, 3)]
    assert histograms[3][1].bucket_limits == [1.0, 2.0]


def test_text_and_images(writer: Writer, logger: RecordingLogger) -> None:
    writer.add_text("samples/prompt_response", "**Prompt:** a", 1)
    writer.add_image("i", torch.zeros(3, 4, 6), 1)
    writer.add_images("i", np.zeros((4, 1, 4, 6)), 1)
    writer.add_image_with_boxes("b", torch.zeros(3, 4, 6), torch.tensor([[0, 0, 2, 2]]), 1)
    assert logger.of("log_text") == [("samples/prompt_response", "**Prompt:** a", 1)]
    artifacts = [artifact for artifact, _ in logger.of("log_artifact") if artifact.type == "image"]
    assert [(artifact.type, artifact.name) for artifact in artifacts] == [
        ("image", "i"),
        ("image", "i"),
        ("image", "b"),
    ]
    assert [png_size(artifact.path) for artifact in artifacts] == [(6, 4), (12, 8), (6, 4)]


class Drawing:
    """As much of a matplotlib figure as is needed."""

    def savefig(self, target, *, format):
        target.write(b"\x89PNG of " + format.encode())


def test_figures(writer: Writer, logger: RecordingLogger) -> None:
    writer.add_figure("plot", Drawing(), 1)
    writer.add_figure("plots", [Drawing(), Drawing()], 1)
    assert images(logger) == ["plot", "plots/0", "plots/1"]


def test_a_figure_of_pyplot_is_closed_when_it_is_logged(writer: Writer, logger: RecordingLogger) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    kept, figure = pyplot.figure(), pyplot.figure()
    writer.add_figure("kept", kept, 1, close=False)
    writer.add_figure("plot", figure, 1)
    assert images(logger) == ["kept", "plot"]
    assert pyplot.get_fignums() == [kept.number]
    pyplot.close(kept)


def images(logger: RecordingLogger) -> list[str]:
    return [artifact.name for artifact, _ in logger.of("log_artifact") if artifact.type == "image"]


def test_embeddings(writer: Writer, logger: RecordingLogger) -> None:
    writer.add_embedding(torch.ones(2, 3), ["a", "b"], torch.zeros(2, 3, 4, 4), global_step=5, tag="tokens")
    ((embedding, step),) = logger.of("log_embedding")
    assert (embedding.tag, step) == ("tokens", 5)
    assert embedding.vectors.shape == (2, 3)
    assert embedding.labels == [["a"], ["b"]]
    assert embedding.sprite_size == (4, 4)


def test_hyperparameters(writer: Writer, logger: RecordingLogger) -> None:
    writer.add_hparams({"lr": 0.1, "model": Path("a/b")}, {"score": torch.tensor(0.5)}, run_name="trial")
    (artifact,) = [artifact for artifact, _ in logger.of("log_artifact") if artifact.type == "hparams"]
    assert artifact.metadata == {"hparams": {"lr": 0.1, "model": "a/b"}, "metrics": {"score": 0.5}}


NOT_SHOWN = [
    "add_tensor",
    "add_video",
    "add_audio",
    "add_graph",
    "add_onnx_graph",
    "add_pr_curve",
    "add_pr_curve_raw",
    "add_custom_scalars",
    "add_custom_scalars_multilinechart",
    "add_custom_scalars_marginchart",
    "add_mesh",
]


@pytest.mark.parametrize("name", NOT_SHOWN)
def test_what_no_tracker_can_show_gives_one_warning(name: str, writer: Writer, logger: RecordingLogger) -> None:
    for _ in range(3):
        getattr(writer, name)("tag", object(), global_step=1)
    ((_, text, level),) = logger.of("alert")
    assert level == "warning"
    assert text.startswith(f"writer.{name} is not recorded")


@pytest.mark.parametrize(
    "call",
    [
        lambda writer: writer.add_scalar("x", "text", 1),
        lambda writer: writer.add_scalar("x", None, 1),
        lambda writer: writer.add_scalar(3, 1.0, 1),
        lambda writer: writer.add_scalar("x", 1.0, "first"),
        lambda writer: writer.add_histogram("x", ["a"], 1),
        lambda writer: writer.add_histogram("x", [1.0], 1, bins="no such rule"),
        lambda writer: writer.add_histogram_raw("x", 0, 1, 1, 1, 1, [1.0], [1, 2], 1),
        lambda writer: writer.add_image("x", np.zeros((7, 4, 4)), 1),
        lambda writer: writer.add_image_with_boxes("x", np.zeros((3, 4, 4)), np.zeros(3), 1),
        lambda writer: writer.add_figure("x", object(), 1),
        lambda writer: writer.add_embedding(np.zeros(3), tag="x"),
        lambda writer: writer.add_embedding(np.zeros((3, 2)), ["a"], tag="x"),
        lambda writer: writer.add_hparams({}, {"x": "text"}),
    ],
)
def test_a_bad_value_is_one_warning_and_never_an_error(call, writer: Writer, logger: RecordingLogger) -> None:
    call(writer)
    call(writer)
    assert len(logger.of("alert")) == 1


def test_closing_the_writer_does_not_end_the_run(writer: Writer, logger: RecordingLogger, tmp_path: Path) -> None:
    writer.add_scalar("x", 1.0, 1)
    writer.flush()
    writer.close()
    with writer:
        writer.add_scalar("x", 2.0, 2)
    assert logger.points("x") == [(1, 1.0), (2, 2.0)]
    assert writer.get_logdir() == writer.log_dir == str(tmp_path)
