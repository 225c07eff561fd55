"""TensorBoard: event files as `torch.utils.tensorboard.SummaryWriter` writes them, without torch.

Written with TensorBoard's own record writer and messages: one event for all scalars of a step, `events.out.tfevents.*`
directly in the run directory, one file per attempt. The content of a file depends on the journal alone (times are
those of the records), and a file is cut back to what was acknowledged before it is continued. So a feeder that was
killed in the middle leaves neither a gap nor a duplicate.

When training goes back, and when a disk lost acknowledged bytes, the files are written anew from the journal: readers
do not agree on what is superseded in a file, so there is nothing superseded in it.
"""

# TensorBoard's generated message classes have no types that a checker could see.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import dataclasses
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from verl.tracking.backends.tensorboard_events import (
    EventFile,
    forget_everything,
    own_files,
    remove_files_of_folders,
)
from verl.tracking.backends.tensorboard_values import (
    artifact_text,
    encodable,
    encodable_config,
    histogram_value,
    hparams_end,
    hparams_start,
    image_value,
    text_value,
)
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
from verl.tracking.projector import write_projector_files
from verl.tracking.spelling import Spelling

# Lone surrogates, which UTF-8 has no place for, and what they are spelled as.
_ODD = re.compile(r"[\ud800-\udfff]|_xd[89a-f][0-9a-f]{2}_")
_FORBIDDEN = re.compile(r"[\ud800-\udfff]")
_LONGEST_TAG = 100_000
_LONGEST_TEXT = 1_000_000  # TensorBoard turns a text into a page at each look at it
_SHOWN_AS_METRIC = ("reward/episode_reward_mean", "val/reward_mean")
STATUS_TAG = "status"
ARTIFACTS = "artifacts/"


class TensorboardLogger(TrainerLogger):
    """Writes event files that any TensorBoard (2.10 or later) reads."""

    shows: ClassVar[frozenset[str]] = frozenset(
        {
            "metrics",
            "config",
            "text",
            "histogram",
            "table",
            "embedding",
            "image",
            "artifact",
            "alert",
            "rewind",
            "status",
        }
    )

    def open(self, run: TrackedRun) -> None:
        state = run.state
        self._run = run
        self._marker = f"verl run {run.run_id}"
        self._tags = Spelling(_FORBIDDEN, _LONGEST_TAG)
        self._file: EventFile | None = None
        self._files = [str(name) for name in state.get("files", [])]
        self._attempt = int(state.get("attempt", 0))
        self._highest = int(state.get("highest", -1))
        # How many alerts and notes there are at the last step that has some.
        self._told: dict[str, list[int]] = {tag: list(told) for tag, told in state.get("told", {}).items()}
        self._has_config = bool(state.get("has_config", False))
        gone = [name for name in self._files if not (run.directory / name).exists()]
        if gone:
            raise StateLostError(f"{', '.join(gone)}: not there any more")
        if self._files:
            self._file = EventFile.continued(run.directory / self._files[-1], int(state["size"]))
        self._is_anew = self._remove_unknown()

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        tags = map(self._tag, metrics)
        self._show(
            step, *(Summary.Value(tag=tag, simple_value=metrics[name]) for tag, name in zip(tags, metrics, strict=True))
        )

    def log_histogram(self, tag: str, histogram: Histogram, step: int) -> None:
        self._show(step, histogram_value(self._tag(tag), histogram))

    def log_text(self, tag: str, text: str, step: int) -> None:
        missing = len(text) - _LONGEST_TEXT
        if missing > 0:
            text = f"{text[:_LONGEST_TEXT]} … ({missing} more characters)"
            self.leave_out(tag, step, f"the end of a text of more than {_LONGEST_TEXT} characters")
        self._show(step, text_value(self._tag(tag), text))

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        self.log_text(name, table_markdown(columns, rows), step)

    def log_config(self, config: dict[str, Any]) -> None:
        config = encodable_config(config)
        self._write(0, text_value("config", code_markdown(config_text(config))))
        self._write(0, *hparams_start(flatten(config), _SHOWN_AS_METRIC, self._run.experiment, self._time()))
        self._has_config = True

    def log_embedding(self, embedding: Embedding, step: int) -> None:
        write_projector_files(self._run.directory, dataclasses.replace(embedding, tag=self._tag(embedding.tag)), step)

    def log_artifact(self, artifact: Artifact, step: int) -> None:
        if artifact.type == "hparams":
            self._write_hparams_run(artifact, step)
        elif not artifact.path.exists():
            self.leave_out(artifact.name, step, f"{artifact.path} is not there any more")
        elif artifact.type != "image":
            self.log_text(f"{ARTIFACTS}{artifact.name}", artifact_text(artifact.path, self._run.directory), step)
        else:
            try:
                self._show(step, image_value(self._tag(artifact.name), artifact.path))
            except ValueError as error:
                self.leave_out(artifact.name, step, str(error))

    def alert(self, title: str, text: str, level: AlertLevel) -> None:
        tag = "notes" if level == "info" else "alerts"
        here = max(self._highest, 0)
        step, count = self._told.get(tag, (here, 0))
        count = count + 1 if step == here else 1
        self._told[tag] = [here, count]
        # A tag has one text a step: a server shows the last one only.
        heading = f"**{level.upper()}**" + (f" {title}" if title else "")
        self._write(here, text_value(tag if count == 1 else f"{tag}/{count}", f"{heading}\n\n{text}"))

    def purge(self, to_step: int) -> None:
        if self._highest > to_step:
            raise StateLostError(f"the event files are written anew, as training goes on from step {to_step}")

    def flush(self) -> None:
        if self._file:
            self._file.flush()

    def state(self) -> dict[str, Any]:
        if not self._file:
            return {}
        return {
            "attempt": self._attempt,
            "files": list(self._files),
            "size": self._file.size,
            "highest": self._highest,
            "told": {tag: list(told) for tag, told in self._told.items()},
            "has_config": self._has_config,
        }

    def ids(self) -> dict[str, Any]:
        return {"run_id": self._run.run_id, "files": list(self._files)} if self._files else {}

    def renamed(self) -> dict[str, str]:
        return self._tags.renamed

    def where(self) -> str:
        directory, here = self._run.directory.absolute(), Path.cwd()
        shown = directory.relative_to(here) if directory.is_relative_to(here) else directory
        return f"tensorboard --logdir {shlex.quote(str(shown))}"

    def finish(self, status: RunStatus) -> None:
        self._write(max(self._highest, 0), text_value(STATUS_TAG, status))
        if self._has_config:
            self._write(0, hparams_end(status, self._time()))
        self.flush()
        self.close()

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _tag(self, name: str) -> str:
        return self._tags(name) if _ODD.search(name) else name

    def _time(self) -> float:
        return self.moment.time or time.time()

    def _show(self, step: int, *values: Summary.Value) -> None:
        self._write(step, *values)
        self._highest = max(self._highest, step)

    def _write(self, step: int, *values: Summary.Value) -> None:
        self._open_file().write(Event(wall_time=self._time(), step=step, summary=Summary(value=values)))

    def _open_file(self) -> EventFile:
        attempt = max(self.moment.attempt, self._attempt)  # the end may be told without a record
        if self._file and attempt == self._attempt:
            return self._file
        if self._file:
            self._file.flush()
            self._file.close()
        self._attempt, seconds = attempt, self._time()
        marker = f"{self._marker} attempt {attempt}"
        self._file = EventFile.begin(self._run.directory, marker, attempt, seconds)
        self._files.append(self._file.path.name)
        if self._is_anew:
            self._file.write(forget_everything(seconds))
            self._is_anew = False
        running = Summary(value=[text_value(STATUS_TAG, "running")])
        self._file.write(Event(wall_time=seconds, step=max(self._highest, 0), summary=running))
        return self._file

    def _remove_unknown(self) -> bool:
        """Remove what was written but not acknowledged; true if the files are written anew."""
        directory = self._run.directory
        unknown = [path for path in own_files(directory, f"{self._marker} ") if path.name not in self._files]
        for path in unknown:
            path.unlink()
        if not self._files:
            remove_files_of_folders(directory, f"{self._marker} ")
        return bool(unknown) and not self._files

    def _write_hparams_run(self, artifact: Artifact, step: int) -> None:
        """A run of its own below this one, as `SummaryWriter.add_hparams` makes it."""
        name = encodable(artifact.name)
        folder = self._run.directory / (re.sub(r"[^\w.-]", "_", name).lstrip(".") or "hparams")
        folder.mkdir(exist_ok=True)
        marker = f"{self._marker} hparams {name}"
        for path in own_files(folder, marker):
            path.unlink()
        hparams, metrics = artifact.metadata["hparams"], artifact.metadata["metrics"]
        tags, seconds = [self._tag(metric) for metric in metrics], self._time()
        file = EventFile.begin(folder, marker, self.moment.attempt, seconds)
        values = [*hparams_start(hparams, tags, name, seconds), hparams_end("finished", seconds)]
        file.write(Event(wall_time=seconds, summary=Summary(value=values)))
        scalars = [
            Summary.Value(tag=tag, simple_value=float(value)) for tag, value in zip(tags, metrics.values(), strict=True)
        ]
        file.write(Event(wall_time=seconds, step=step, summary=Summary(value=scalars)))
        file.close()
