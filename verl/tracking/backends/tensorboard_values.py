"""The messages of TensorBoard: texts, histograms, images, hyperparameters."""

# TensorBoard's generated message classes have no types that a checker could see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData

from verl.tracking.logger import Histogram, RunStatus
from verl.tracking.markdown_text import code_markdown
from verl.tracking.png_image import png_size

TEXT_SUFFIX = "/text_summary"
_PNG_COLORSPACE = 4  # what TensorBoard's own image summary says; readers go by the PNG itself
_LARGEST_FILE_SHOWN = 200_000
_AS_IT_IS = (".md", ".markdown")


def text_value(tag: str, text: str) -> Summary.Value:
    """A text, as Markdown."""
    plugin = SummaryMetadata.PluginData(plugin_name="text", content=TextPluginData(version=0).SerializeToString())
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[encodable(text).encode()], tensor_shape=shape)
    return Summary.Value(tag=f"{tag}{TEXT_SUFFIX}", metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)


def histogram_value(tag: str, histogram: Histogram) -> Summary.Value:
    """A histogram."""
    counts = HistogramProto(
        min=histogram.minimum,
        max=histogram.maximum,
        num=histogram.count,
        sum=histogram.sum,
        sum_squares=histogram.sum_squares,
        bucket_limit=histogram.bucket_limits,
        bucket=histogram.bucket_counts,
    )
    return Summary.Value(tag=tag, histo=counts)


def image_value(tag: str, path: Path) -> Summary.Value:
    """An image.

    Raises:
        ValueError: The file is no PNG. OSError: It cannot be read.
    """
    width, height = png_size(path)
    data = path.read_bytes()
    image = Summary.Image(height=height, width=width, colorspace=_PNG_COLORSPACE, encoded_image_string=data)
    return Summary.Value(tag=tag, image=image)


def artifact_text(path: Path, run_directory: Path) -> str:
    """A file as it is best read: a small text itself, everything else by its place and size."""
    inside = path.resolve().is_relative_to(run_directory.resolve())
    place = path.resolve().relative_to(run_directory.resolve()) if inside else path
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        return code_markdown(f"{place}/  ({len(files)} files, {size} bytes)")
    size = path.stat().st_size
    if size <= _LARGEST_FILE_SHOWN:
        content = path.read_bytes()
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = ""
        if text and "\0" not in text:
            return text if path.suffix.lower() in _AS_IT_IS else code_markdown(text)
    return code_markdown(f"{place}  ({size} bytes)")


def hparams_start(hparams: Mapping[str, Any], metrics: Sequence[str], name: str, time: float) -> list[Summary.Value]:
    """The hyperparameters of a session, and the metrics to be shown beside them."""
    session = plugin_data_pb2.SessionStartInfo(group_name=encodable(name), start_time_secs=time)
    infos = []
    for key, value in hparams.items():
        if value is None:
            continue
        key = encodable(key)
        if isinstance(value, bool):
            session.hparams[key].bool_value = value
            kind = api_pb2.DATA_TYPE_BOOL
        elif _is_finite(value):
            session.hparams[key].number_value = value
            kind = api_pb2.DATA_TYPE_FLOAT64
        else:
            session.hparams[key].string_value = encodable(str(value))
            kind = api_pb2.DATA_TYPE_STRING
        infos.append(api_pb2.HParamInfo(name=key, type=kind))
    shown = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag)) for tag in metrics]
    experiment = api_pb2.Experiment(hparam_infos=infos, metric_infos=shown, time_created_secs=time)
    return [
        _hparams_value(hparams_metadata.EXPERIMENT_TAG, experiment=experiment),
        _hparams_value(hparams_metadata.SESSION_START_INFO_TAG, session_start_info=session),
    ]


def hparams_end(status: RunStatus, time: float) -> Summary.Value:
    """How a session ended; TensorBoard knows success and failure."""
    outcome = api_pb2.STATUS_SUCCESS if status == "finished" else api_pb2.STATUS_FAILURE
    info = plugin_data_pb2.SessionEndInfo(status=outcome, end_time_secs=time)
    return _hparams_value(hparams_metadata.SESSION_END_INFO_TAG, session_end_info=info)


def encodable(text: str) -> str:
    """Lone surrogates, which UTF-8 has no place for, become readable."""
    return text.encode("utf-8", "backslashreplace").decode()


def encodable_config(value: Any) -> Any:
    """The same for every key and text of a configuration."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable(str(key)): encodable_config(item) for key, item in value.items()}
    return [encodable_config(item) for item in value] if isinstance(value, list | tuple) else value


def _is_finite(value: object) -> bool:
    # TensorBoard answers with JSON, which has no other numbers.
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def _hparams_value(tag: str, **content: Any) -> Summary.Value:
    data = plugin_data_pb2.HParamsPluginData(version=hparams_metadata.PLUGIN_DATA_VERSION, **content)
    plugin = SummaryMetadata.PluginData(plugin_name=hparams_metadata.PLUGIN_NAME, content=data.SerializeToString())
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=hparams_metadata.NULL_TENSOR)
