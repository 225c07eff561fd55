"""Weights & Biases: one row per training step, each exactly once, online or as files for `wandb sync`.

What comes for a step is gathered into one row, which its metrics close; a row has the training step as `global_step`
(the x axis of all charts) and rises by at least one in W&B's own `_step`. The rows depend on the journal alone
(`wandb_rows`), so after a kill or an outage the server is asked how many it has, and gets the others. Offline nothing
can be continued, as the SDK's file loses its end: whatever was not finished is written anew.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

from verl.config.environment import variable
from verl.tracking.backends import wandb_media as media
from verl.tracking.backends.wandb_artifacts import ArtifactSender
from verl.tracking.backends.wandb_files import is_whole, move_aside, offline_folders, remove_scratch
from verl.tracking.backends.wandb_login import check_login, find_login
from verl.tracking.backends.wandb_remote import RefusedError, RemoteError, WandbRemote
from verl.tracking.backends.wandb_rows import Row, Rows
from verl.tracking.backends.wandb_session import SessionPlan, WandbSession
from verl.tracking.backends.wandb_upload import Upload
from verl.tracking.backends.wandb_writer import RowWriter
from verl.tracking.logger import (
    AlertLevel,
    Artifact,
    Check,
    Embedding,
    Histogram,
    Limits,
    NewBranchError,
    RunStatus,
    StateLostError,
    TrackedRun,
    TrainerLogger,
)
from verl.tracking.spelling import Spelling

_OWN_NAMES = ("global_step", "alerts", "notes", "status", "error")
_TAKEN = "|".join(
    [r"^_(?=(?:step|runtime|timestamp|wandb|journal)$)", *(f"^{name[0]}(?={name[1:]}$)" for name in _OWN_NAMES)]
)
_LONGEST_NAME = 1000
_LONGEST_TITLE = 128
_NOT_IN_PROJECTS = re.compile(r"[/\\#?%:\x00-\x1f]")
_BUCKET_BYTES = 40
_NUMBER_BYTES = 25


class WandbLogger(TrainerLogger):
    """Writes to Weights & Biases through its SDK."""

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
    limits: ClassVar[Limits] = Limits(open=90.0, call=90.0, finish=150.0)

    @classmethod
    def preflight(cls, proxy: str | None) -> list[Check]:
        return check_login(find_login(), proxy)

    def open(self, run: TrackedRun) -> None:
        self._run = run
        self._login = find_login()
        self._spell = Spelling(re.compile(f"{_TAKEN}|[\ud800-\udfff\x00-\x1f\x7f]"), _LONGEST_NAME)
        self._session: WandbSession | None = None
        self._upload: Upload | None = None
        self._artifacts: ArtifactSender | None = None
        self._is_finished = False
        self._url = str(run.state.get("url", ""))
        rows = Rows.from_json(run.state)
        if self._login.mode == "offline":
            self._open_offline()
        elif self._login.mode != "disabled":
            self._open_online(rows)
        self._writer = RowWriter(rows, self._session, self._upload, self.leave_out)
        if self._session:
            self._artifacts = ArtifactSender(run.run_id, self._session, self._upload, self.leave_out)

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        values = {self._spell(key): value for key, value in metrics.items()}
        row = self._row_for(step, values)
        for name, value in values.items():
            if not row.put(name, value, _NUMBER_BYTES):
                self.leave_out(name, step, "the row of this step would be larger than W&B takes")
        self._writer.close_row()

    def log_histogram(self, tag: str, histogram: Histogram, step: int) -> None:
        if self._session is None:
            return
        name = self._spell(tag)
        row = self._row_for(step, [name])
        if not row.put(name, media.histogram_media(histogram), _BUCKET_BYTES * len(histogram.bucket_limits)):
            self.leave_out(tag, step, "the row of this step would be larger than W&B takes")

    def log_text(self, tag: str, text: str, step: int) -> None:
        if len(text) > media.LONGEST_TEXT:
            self.leave_out(tag, step, f"a text of {len(text)} characters, of which {media.LONGEST_TEXT} are shown")
        self._add_media(tag, step, lambda: media.text_media(text))

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int) -> None:
        if len(rows) > media.MOST_TABLE_ROWS:
            self.leave_out(name, step, f"a table of {len(rows)} rows, of which {media.MOST_TABLE_ROWS} are shown")
        self._add_media(name, step, lambda: media.table_media(columns, rows))

    def log_embedding(self, embedding: Embedding, step: int) -> None:
        points, shown = len(embedding.vectors), media.shown_points(embedding)
        if points > shown:
            self.leave_out(embedding.tag, step, f"{points} points, of which {shown} are shown")
        self._add_media(embedding.tag, step, lambda: media.embedding_media(embedding))

    def log_artifact(self, artifact: Artifact, step: int) -> None:
        if artifact.type == "image":
            self._add_media(artifact.name, step, lambda: media.image_media(artifact.path))
        elif artifact.type == "hparams":
            hparams = {"hparams": {artifact.name: dict(artifact.metadata["hparams"])}}
            self.log_config(hparams)
            metrics = {str(key): float(value) for key, value in artifact.metadata["metrics"].items()}
            if metrics:
                self.log_metrics(metrics, step)
        else:
            self._writer.see(self.moment)
            if self._artifacts:
                self._artifacts.send(artifact, step)

    def log_config(self, config: dict[str, Any]) -> None:
        self._writer.see(self.moment)
        if self._session is None:
            return
        values = media.config_values(config)
        self._session.update_config(values)
        if self._upload:
            self._upload.config = {**(self._upload.config or {}), **values}

    def alert(self, title: str, text: str, level: AlertLevel) -> None:
        message = media.clean(f"{title}: {text}" if title else text)
        is_end = (self.moment.attempt, self.moment.seq) == self._writer.seen  # no record of its own: why the run ended
        if self._session is None:
            return
        if is_end:
            self._session.update_summary({"error": media.shortened(message, media.LONGEST_MESSAGE)})
        else:
            row = self._row_for(None, [])
            name = "alerts" if title else "notes"
            row.add_message(name, media.shortened(f"[{level}] {message}", media.LONGEST_MESSAGE))
        if title and self._upload and not self._upload.will_have(self._writer.rows):
            self._session.alert(media.clean(title), media.clean(text), level)

    def purge(self, to_step: int) -> None:
        if self._session is None:
            return
        if self._writer.pending and self._writer.pending.step is not None and self._writer.pending.step > to_step:
            raise StateLostError(f"the run goes on from step {to_step}, before a row that was begun")
        before = self._writer.rows.before(to_step)
        if before and before[0] == self._writer.rows.count:
            return
        if self._upload is None:
            raise StateLostError(f"the run goes on from step {to_step}, and a file of W&B cannot be cut")
        if before is None or before[0] == 0:
            raise NewBranchError(f"W&B cannot go back to step {to_step}")
        self._rewind(self._upload, *before)

    def flush(self) -> None:
        if self._upload and self._artifacts:
            self._upload.check(self._writer.rows, bool(self._artifacts.waiting()))

    def state(self) -> dict[str, Any]:
        upload = self._upload
        uploads = self._artifacts.waiting() if self._artifacts and not self._is_finished else []
        if upload and upload.config is not None and not self._is_finished:
            uploads.append("the configuration")
        return {
            "mode": self._login.mode,
            "url": self._url,
            **self._writer.rows.to_json(),
            "pending": self._writer.pending is not None,
            "files": sorted(upload.files) if upload else [],
            "uploads": uploads,
            "finished": self._is_finished,
        }

    def ids(self) -> dict[str, Any]:
        known = {"run_id": self._run.remote_id, "project": self._project(), "mode": self._login.mode}
        if self._login.mode == "offline":
            return {**known, "folders": [str(folder) for folder in self._folders()]}
        return {**known, **({"url": self._url} if self._url else {})}

    def renamed(self) -> dict[str, str]:
        return {**(self._artifacts.renamed if self._artifacts else {}), **self._spell.renamed}

    def where(self) -> str:
        if self._login.mode == "offline":
            return "wandb sync " + " ".join(shlex.quote(str(folder)) for folder in self._folders())
        return self._url

    def finish(self, status: RunStatus) -> None:
        if self._session is None:
            return
        if self._upload:
            self._upload.remote.look()  # the SDK would wait long for a server that is away
        if self._writer.pending:
            self._writer.close_row()
        self._session.update_summary({"status": status})
        session, self._session = self._session, None
        folder = session.folder
        try:
            session.finish(status)
        except BaseException:
            session.kill()
            raise
        if self._upload:
            self._upload.settle(self._writer.rows)
            remove_scratch(self._folder(), self._run.remote_id)
        elif not is_whole(folder / f"run-{self._run.remote_id}.wandb", self._writer.sent):
            raise OSError(f"{folder} lacks rows that were written; is the disk full?")
        self._is_finished = True

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.kill()

    def _open_online(self, rows: Rows) -> None:
        run, saved = self._run, self._run.state
        if saved and saved["mode"] != "online":
            raise StateLostError(f"W&B was {saved['mode']} until now")
        if self._login.key is None:
            raise RemoteError(f"there is no key for {self._login.base_url}: run `wandb login`, or set WANDB_API_KEY")
        upload = Upload(WandbRemote(self._login, self._project(), run.remote_id, run.proxy))
        upload.prepare(saved, rows)
        self._session = session = WandbSession(self._plan())
        self._url = session.url
        upload.remote.belongs_to(session.entity, session.project)
        upload.agree()
        self._upload = upload
        if (older := run.superseded_remote_id) and not saved:
            self._mark_superseded(upload.remote, older)

    def _open_offline(self) -> None:
        saved = self._run.state
        if saved and saved["mode"] == "online":
            raise NewBranchError("W&B was online until now: what is on the server cannot be continued offline")
        if saved and not saved["finished"]:
            raise StateLostError("a file of W&B is never continued")
        self._session = WandbSession(self._plan())
        if not saved:
            move_aside(self._folder(), self._run.run_id, keep=self._session.folder)

    def _plan(self) -> SessionPlan:
        run, login = self._run, self._login
        return SessionPlan(
            run_id=run.remote_id,
            group=run.run_id,
            project=self._project(),
            name=media.clean(run.experiment)[:_LONGEST_TITLE],
            folder=self._folder(),
            mode=login.mode if login.mode_source else None,
            proxy=run.proxy,
        )

    def _project(self) -> str:
        return Spelling(_NOT_IN_PROJECTS, _LONGEST_TITLE)(media.clean(self._run.project))

    def _folder(self) -> Path:
        return Path(variable("WANDB_DIR") or self._run.directory).absolute()

    def _folders(self) -> list[Path]:
        found = offline_folders(self._folder(), self._run.remote_id)
        current = [] if self._session is None or self._session.folder in found else [self._session.folder]
        return [*found, *current]  # its file may not be there yet

    def _row_for(self, step: int | None, names: Collection[str]) -> Row:
        return self._writer.row_for(self.moment, step, names)

    def _add_media(self, tag: str, step: int, make: Callable[[], Any]) -> None:
        name = self._spell(tag)
        self._row_for(step, [name]).media[name] = make

    def _rewind(self, upload: Upload, rows: int, native: int) -> None:
        self.close()
        found = upload.remote.look()
        if found and found.rows > rows:
            try:
                upload.remote.rewind(native)
                found = upload.remote.look()
            except RefusedError as error:
                raise NewBranchError(str(error)) from None
            if found is None or found.rows > rows:
                raise NewBranchError(f"W&B was to go back to {rows} rows, and has {found.rows if found else 0}")
        raise StateLostError(f"W&B went back to row {rows}")

    def _mark_superseded(self, remote: WandbRemote, older: str) -> None:
        try:
            remote.mark(older, "superseded", f"Superseded by the run {self._run.remote_id}: training went back.")
        except RemoteError as error:
            self.leave_out("superseded", None, f"the run {older} could not be marked: {error}")
