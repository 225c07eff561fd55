"""TensorBoard: event files as `torch.utils.tensorboard.SummaryWriter` writes them, without torch.

Written with TensorBoard's own record writer and messages: one event for all scalars of a step, `events.out.tfevents.*`
directly in the run directory, one file per attempt. The content of a file depends on the journal alone (times are
those of the records), and a file is cut back to what was acknowledged before it is continued. So a feeder that was
killed in the middle leaves neither a gap nor a duplicate. If a disk lost acknowledged bytes all the same, the files are
written anew from the journal.
"""

# TensorBoard's generated message classes have no types that a checker could see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
import re
import shlex
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

from tensorboard.compat.proto.event_pb2 import Event, SessionLog, SourceMetadata
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData
from tensorboard.summary.writer.record_writer import RecordWriter

from verl.journal.files import sync_descriptor, sync_folder
from verl.tracking.config_text import config_text, flatten
from verl.tracking.logger import (
    AlertLevel,
    Artifact,
    Embedding,
    Histogram,
    RunStatus,
    StateLostError,
    TrackedRun,
    TrainerLogger,
)
from verl.tracking.markdown_text import code_markdown, table_markdown
from verl.tracking.png_image import png_size
from verl.tracking.projector import write_projector_files

_RECORD_HEAD = struct.Struct("<QI")
_RECORD_OVERHEAD = _RECORD_HEAD.size + 4
_PNG_COLORSPACE = 4  # what TensorBoard's own image summary says; readers go by the PNG itself
_SHOWN_AS_METRIC = ("reward/episode_reward_mean", "val/reward_mean")


class TensorboardLogger(TrainerLogger):
    """Writes event files that any TensorBoard (2.10 or later) reads."""

    shows: ClassVar[frozenset[str]] = frozenset(
        {"metrics", "config", "text", "histogram", "table", "embedding", "image", "alert", "rewind"}
    )

    def open(self, run: TrackedRun) -> None:
        self._run = run
        self._file: EventFile | None = None
        self._attempt = int(run.state.get("attempt", 0))
        self._alerts = int(run.state.get("alerts", 0))
        self._has_config = bool(run.state.get("has_config", False))
        if name := run.state.get("file"):
            self._file = EventFile.continued(run.directory / str(name), int(run.state["size"]))

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self._write(step, [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()])

    def log_histogram(self, tag: str, histogram: Histogram, step: int) -> None:
        counts = HistogramProto(
            min=histogram.minimum,
            max=histogram.maximum,
            num=histogram.count,
            sum=histogram.sum,
            sum_squares=histogram.sum_squares,
            bucket_limit=histogram.bucket_limits,
            bucket=histogram.bucket_counts,
        )
        self._write(step, [Summary.Value(tag=tag, histo=counts)])

    def log_text(self, tag: str, text: str, step: int) -> None:
        self._write(step, [_text_value(tag, text)])

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        self.log_text(name, table_markdown(columns, rows), step)

    def log_config(self, config: dict[str, Any]) -> None:
        self._write(0, [_text_value("config", code_markdown(config_text(config)))])
        self._write(0, _hparams_start(flatten(config), _SHOWN_AS_METRIC, self._run.experiment, self.moment.time))
        self._has_config = True

    def log_embedding(self, embedding: Embedding, step: int) -> None:
        write_projector_files(self._run.directory, embedding, step)

    def log_artifact(self, artifact: Artifact, step: int) -> None:
        if artifact.type == "image":
            width, height = png_size(artifact.path)
            image = Summary.Image(
                height=height,
                width=width,
                colorspace=_PNG_COLORSPACE,
                encoded_image_string=artifact.path.read_bytes(),
            )
            self._write(step, [Summary.Value(tag=artifact.name, image=image)])
        elif artifact.type == "hparams":
            self._write_hparams_run(artifact, step)

    def alert(self, title: str, text: str, level: AlertLevel) -> None:
        # Alerts have no step; their number keeps them apart on TensorBoard's step slider.
        self._alerts += 1
        heading = f"**{level.upper()}**" + (f" {title}" if title else "")
        self.log_text("notes" if level == "info" else "alerts", f"{heading}\n\n{text}", self._alerts)

    def purge(self, to_step: int) -> None:
        started = SessionLog(status=SessionLog.START)
        self._open_file().write(Event(wall_time=self.moment.time, step=to_step + 1, session_log=started))

    def flush(self) -> None:
        if self._file:
            self._file.flush()

    def state(self) -> dict[str, Any]:
        if not self._file:
            return {}
        return {
            "attempt": self._attempt,
            "file": self._file.path.name,
            "size": self._file.size,
            "alerts": self._alerts,
            "has_config": self._has_config,
        }

    def where(self) -> str:
        directory, here = self._run.directory.absolute(), Path.cwd()
        shown = directory.relative_to(here) if directory.is_relative_to(here) else directory
        return f"tensorboard --logdir {shlex.quote(str(shown))}"

    def finish(self, status: RunStatus) -> None:
        if self._has_config:
            self._write(0, [_hparams_end(status, self.moment.time)])
        self.flush()
        self.close()

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _write(self, step: int, values: list[Summary.Value]) -> None:
        self._open_file().write(Event(wall_time=self.moment.time, step=step, summary=Summary(value=values)))

    def _open_file(self) -> EventFile:
        attempt = self.moment.attempt
        if self._file and attempt == self._attempt:
            return self._file
        if self._file:
            self._file.close()
        self._attempt = attempt
        marker = f"verl run {self._run.run_id} attempt {attempt}"
        self._file = EventFile.begin(self._run.directory, marker, attempt, self.moment.time)
        return self._file

    def _write_hparams_run(self, artifact: Artifact, step: int) -> None:
        """A run of its own below this one, as `SummaryWriter.add_hparams` makes it."""
        name = re.sub(r"[^\w.-]", "_", artifact.name).lstrip(".") or "hparams"
        folder = self._run.directory / name
        folder.mkdir(exist_ok=True)
        hparams, metrics = artifact.metadata["hparams"], artifact.metadata["metrics"]
        time = self.moment.time
        file = EventFile.begin(folder, f"verl run {self._run.run_id} {artifact.name}", self.moment.attempt, time)
        values = [*_hparams_start(hparams, tuple(metrics), artifact.name, time), _hparams_end("finished", time)]
        file.write(Event(wall_time=time, summary=Summary(value=values)))
        scalars = [Summary.Value(tag=tag, simple_value=float(value)) for tag, value in metrics.items()]
        file.write(Event(wall_time=time, step=step, summary=Summary(value=scalars)))
        file.close()


class EventFile:
    """One event file, open for appending.

    Attributes:
        path: The file. size: Bytes handed over so far; on disk after `flush`.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        # Unbuffered is no option (one system call per field); closed by `close`.
        self._file: IO[bytes] = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(size)
        self._file.seek(size)
        self._records = RecordWriter(self._file)

    @classmethod
    def begin(cls, folder: Path, marker: str, attempt: int, time: float) -> EventFile:
        """Start the file of an attempt, or start it over where nothing in it was acknowledged."""
        number = attempt - 1
        source = SourceMetadata(writer=marker)
        own = (path for path in sorted(folder.glob(f"events.out.tfevents.*.{number}")) if _writer_of(path) == marker)
        name = f"events.out.tfevents.{int(time):010d}.{socket.gethostname()}.{os.getpid()}.{number}"
        file = cls(next(own, folder / name), 0)
        sync_folder(folder)
        file.write(Event(wall_time=time, file_version="brain.Event:2", source_metadata=source))
        return file

    @classmethod
    def continued(cls, path: Path, size: int) -> EventFile:
        """Go on after the acknowledged bytes.

        Raises:
            StateLostError: Not all of them are there.
        """
        found = path.stat().st_size if path.exists() else 0
        if found < size:
            raise StateLostError(f"{path.name} has {found} of the {size} bytes that were written")
        return cls(path, size)

    def write(self, event: Event) -> None:
        data = event.SerializeToString()
        self._records.write(data)
        self.size += len(data) + _RECORD_OVERHEAD

    def flush(self) -> None:
        """Also through a power loss: what is acknowledged now is not written again."""
        self._file.flush()
        sync_descriptor(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _records(path: Path) -> Iterator[tuple[bytes, int]]:
    """Data and end of each whole record of an event file."""
    with path.open("rb") as file:
        while len(head := file.read(_RECORD_HEAD.size)) == _RECORD_HEAD.size:
            length, _ = _RECORD_HEAD.unpack(head)
            data = file.read(length)
            if len(data) < length or len(file.read(4)) < 4:
                return
            yield data, file.tell()


def _writer_of(path: Path) -> str:
    for data, _ in _records(path):
        return Event.FromString(data).source_metadata.writer
    return ""


def _text_value(tag: str, text: str) -> Summary.Value:
    plugin = SummaryMetadata.PluginData(plugin_name="text", content=TextPluginData(version=0).SerializeToString())
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
    return Summary.Value(tag=f"{tag}/text_summary", metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)


def _hparams_value(tag: str, **content: Any) -> Summary.Value:
    data = plugin_data_pb2.HParamsPluginData(version=hparams_metadata.PLUGIN_DATA_VERSION, **content)
    plugin = SummaryMetadata.PluginData(plugin_name=hparams_metadata.PLUGIN_NAME, content=data.SerializeToString())
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=hparams_metadata.NULL_TENSOR)


def _hparams_start(hparams: Mapping[str, Any], metrics: Sequence[str], name: str, time: float) -> list[Summary.Value]:
    session = plugin_data_pb2.SessionStartInfo(group_name=name, start_time_secs=time)
    infos = []
    for key, value in hparams.items():
        if value is None:
            continue
        if isinstance(value, bool):
            session.hparams[key].bool_value = value
            kind = api_pb2.DATA_TYPE_BOOL
        elif isinstance(value, int | float):
            session.hparams[key].number_value = value
            kind = api_pb2.DATA_TYPE_FLOAT64
        else:
            session.hparams[key].string_value = str(value)
            kind = api_pb2.DATA_TYPE_STRING
        infos.append(api_pb2.HParamInfo(name=key, type=kind))
    shown = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag)) for tag in metrics]
    experiment = api_pb2.Experiment(hparam_infos=infos, metric_infos=shown, time_created_secs=time)
    return [
        _hparams_value(hparams_metadata.EXPERIMENT_TAG, experiment=experiment),
        _hparams_value(hparams_metadata.SESSION_START_INFO_TAG, session_start_info=session),
    ]


def _hparams_end(status: RunStatus, time: float) -> Summary.Value:
    outcome = api_pb2.STATUS_SUCCESS if status == "finished" else api_pb2.STATUS_FAILURE
    info = plugin_data_pb2.SessionEndInfo(status=outcome, end_time_secs=time)
    return _hparams_value(hparams_metadata.SESSION_END_INFO_TAG, session_end_info=info)
