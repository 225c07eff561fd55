"""`trainer.writer`: the methods of `torch.utils.tensorboard.SummaryWriter`, for every tracker.

    def on_rollout_end(trainer, results):
        trainer.writer.add_scalar("reward/skewness", skew(results["rewards"]), trainer.global_step)
        trainer.writer.add_histogram("reward/dist", results["rewards"], trainer.global_step)

Arguments have SummaryWriter's names and order. Without `global_step` the current step of the run is meant. A value
that cannot be logged gives a warning and never stops the run.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import orjson

from verl.config.secrets import mask
from verl.tracking.artifact_files import new_artifact_path
from verl.tracking.logger import Histogram
from verl.tracking.png_image import as_image, draw_boxes, encode_png
from verl.tracking.recorder import Recorder
from verl.tracking.values import as_array, as_float


class Figure(Protocol):
    """A matplotlib figure, or anything else that can save itself as PNG."""

    def savefig(self, target: Any, /, *, format: str) -> Any: ...


def _not_shown(name: str) -> Callable[..., None]:
    def method(self: Writer, *_: object, **__: object) -> None:
        self._recorder.warn_once(
            f"writer.{name}", f"writer.{name} is not recorded: no tracker of this version can show it; training goes on"
        )

    method.__name__ = name
    method.__doc__ = "Not recorded: gives one warning and does nothing."
    return method


class Writer:
    """Stands in for a `SummaryWriter`.

    Args:
        recorder: Where everything goes.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @property
    def log_dir(self) -> str:
        """The run directory, where TensorBoard's event files are."""
        return str(self._recorder.home)

    def get_logdir(self) -> str:
        """The run directory."""
        return self.log_dir

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Log one number; `new_style` and `double_precision` are accepted and make no difference."""
        self._recorder.log_scalars({tag: scalar_value}, global_step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Log several numbers as `main_tag/name` each (SummaryWriter makes a run of each instead)."""
        scalars = {f"{main_tag}/{name}": value for name, value in tag_scalar_dict.items()}
        self._recorder.log_scalars(scalars, global_step, walltime)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: int | None = None,
        bins: int | str | Sequence[float] = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Log a distribution.

        Args:
            tag: Name.
            values: Array, tensor or list of any shape.
            global_step: Step.
            bins: "tensorflow" (SummaryWriter's default, here: equal buckets), a rule of `numpy.histogram` such as
                "auto" or "fd", a number of buckets, or their edges.
            walltime: Unix seconds to show instead of now.
            max_bins: Accepted; a histogram never has more than 512 buckets.
        """
        chosen = None if isinstance(bins, str) and bins == "tensorflow" else bins
        self._recorder.log_histogram(tag, values, global_step, chosen, walltime)

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: int,
        sum: float,
        sum_squares: float,
        bucket_limits: Any,
        bucket_counts: Any,
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Log a distribution that is counted already; `bucket_limits` are the right edges."""
        try:
            limits, counts = as_array(bucket_limits).ravel().tolist(), as_array(bucket_counts).ravel().tolist()
            if len(limits) != len(counts):
                raise ValueError(f"{len(limits)} bucket limits for {len(counts)} counts")
            numbers = [as_float(tag, value) for value in (min, max, sum, sum_squares)]
            histogram = Histogram(numbers[0], numbers[1], int(num), numbers[2], numbers[3], limits, counts)
        except (TypeError, ValueError) as error:
            self._recorder.warn_once(f"histogram {tag}", f"histogram {tag!r} is not logged: {error}")
            return
        self._recorder.log_counts(tag, histogram, global_step, walltime)

    def add_text(
        self, tag: str, text_string: str, global_step: int | None = None, walltime: float | None = None
    ) -> None:
        """Log a text (Markdown)."""
        self._recorder.log_text(tag, text_string, global_step, walltime)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Log an image: floats from 0 to 1, or integers from 0 to 255."""
        self._recorder.log_image(tag, img_tensor, global_step, dataformats, walltime)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Log a batch of images as one contact sheet."""
        self._recorder.log_image(tag, img_tensor, global_step, dataformats, walltime)

    def add_image_with_boxes(
        self,
        tag: str,
        img_tensor: Any,
        box_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        rescale: float = 1,
        dataformats: str = "CHW",
        labels: Sequence[str] | None = None,
    ) -> None:
        """Log an image with boxes [x1, y1, x2, y2] drawn on it; `rescale` and `labels` are accepted, not drawn."""
        try:
            png = encode_png(draw_boxes(as_image(img_tensor, dataformats), as_array(box_tensor)))
        except (TypeError, ValueError) as error:
            self._recorder.warn_once(f"image {tag}", f"image {tag!r} is not logged: {error}")
            return
        self._recorder.log_png(tag, png, global_step, walltime)

    def add_figure(
        self,
        tag: str,
        figure: Figure | list[Figure],
        global_step: int | None = None,
        close: bool = True,
        walltime: float | None = None,
    ) -> None:
        """Log a matplotlib figure, or several as `tag/0`, `tag/1`, ...; they are closed unless told otherwise."""
        several = isinstance(figure, list)
        for number, one in enumerate(figure if several else [figure]):
            buffer = io.BytesIO()
            try:
                one.savefig(buffer, format="png")
            except (AttributeError, TypeError, ValueError, RuntimeError) as error:
                self._recorder.warn_once(f"figure {tag}", f"figure {tag!r} is not logged: {error}")
                continue
            self._recorder.log_png(f"{tag}/{number}" if several else tag, buffer.getvalue(), global_step, walltime)
            # Only pyplot keeps figures open, and only if the user imported it.
            pyplot: Any = sys.modules.get("matplotlib.pyplot")
            if close and pyplot and isinstance(one, pyplot.Figure):
                pyplot.close(one)

    def add_embedding(
        self,
        mat: Any,
        metadata: Sequence[Any] | None = None,
        label_img: Any = None,
        global_step: int | None = None,
        tag: str = "default",
        metadata_header: Sequence[str] | None = None,
    ) -> None:
        """Log points for the projector: one row of `mat` each, with labels and small images (NCHW)."""
        header = metadata_header or ()
        self._recorder.log_embedding(tag, mat, metadata, global_step, header=header, images=label_img)

    def add_hparams(
        self,
        hparam_dict: Mapping[str, Any],
        metric_dict: Mapping[str, Any],
        hparam_domain_discrete: Mapping[str, Any] | None = None,
        run_name: str | None = None,
        global_step: int | None = None,
    ) -> None:
        """Log a set of hyperparameters with the results they gave; in TensorBoard a run of its own below this one."""
        name = run_name or "hparams"
        try:
            metrics = {str(key): as_float(key, value) for key, value in metric_dict.items()}
        except TypeError as error:
            self._recorder.warn_once(f"hparams {name}", f"hparams {name!r} are not logged: {error}")
            return
        content = {"hparams": {str(key): value for key, value in hparam_dict.items()}, "metrics": metrics}
        try:
            path = new_artifact_path(self._recorder.home, "hparams", name, ".json")
            path.write_bytes(orjson.dumps(mask(content), default=str, option=orjson.OPT_SERIALIZE_NUMPY))
        except OSError as error:
            self._recorder.warn_once(f"hparams {name}", f"hparams {name!r} are not logged: {error}")
            return
        self._recorder.log_artifact(path, path.stem, "hparams", global_step, content)

    add_tensor = _not_shown("add_tensor")
    add_video = _not_shown("add_video")
    add_audio = _not_shown("add_audio")
    add_graph = _not_shown("add_graph")
    add_onnx_graph = _not_shown("add_onnx_graph")
    add_pr_curve = _not_shown("add_pr_curve")
    add_pr_curve_raw = _not_shown("add_pr_curve_raw")
    add_custom_scalars = _not_shown("add_custom_scalars")
    add_custom_scalars_multilinechart = _not_shown("add_custom_scalars_multilinechart")
    add_custom_scalars_marginchart = _not_shown("add_custom_scalars_marginchart")
    add_mesh = _not_shown("add_mesh")

    def flush(self) -> None:
        """Let trackers have what was written; does not wait."""
        self._recorder.flush()

    def close(self) -> None:
        """The same as `flush`: the run ends with the trainer, not with its writer."""
        self._recorder.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.flush()
