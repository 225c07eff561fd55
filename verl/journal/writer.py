"""The writing end of the journal."""

from __future__ import annotations

import itertools
import operator
import os
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from verl.config.secrets import mask, masked_keys
from verl.errors import JournalError
from verl.journal.failures import journal_error
from verl.journal.locks import OwnedLock
from verl.journal.records import (
    LARGEST_STEP,
    MAX_LINE_BYTES,
    SCHEMA_VERSION,
    Draft,
    Kind,
    Record,
    Stream,
    encode_event,
    encode_line,
    encode_metrics,
    plain_event,
    stream_of,
)
from verl.journal.segments import StreamId, is_writer_name, list_segments
from verl.journal.stream_file import StreamFile
from verl.journal.syncer import Syncer

ROTATE_BYTES = 64 * 1024 * 1024
SYNC_SECONDS = 5.0

_MAX_CHECKED_KEYS = 100_000
_KINDS = {kind.value: kind.value for kind in Kind}


class JournalWriter:
    """Appends records to the journal of a run directory.

        with JournalWriter(run_directory, attempt=1) as journal:
            journal.append("metrics", 10, metrics={"loss/policy_loss": 0.03})
            journal.append("text", 10, tag="samples/first", text="...")

    A record is safe from a killed process when `append` returns, and from a power loss after the
    next `fsync`: at `sync`, at `close`, and every `sync_seconds` by a background thread. Secrets in
    texts are masked before they are written. Threads may share a writer; a forked child may not.

    Args:
        run_directory: The run directory; its `journal/` folder is created.
        writer: Name of the writing process within the run.
        attempt: Number of the attempt that writes.
        rotate_bytes: Size at which the next segment file is begun.
        sync_seconds: Longest time between an append and its `fsync`.

    Raises:
        JournalError: Another process has this writer's files open, or the folder cannot be written.
        ValueError: The writer's name has other characters than letters, digits, `_` and `-`.
    """

    def __init__(
        self,
        run_directory: str | os.PathLike[str],
        writer: str = "rank0",
        *,
        attempt: int,
        rotate_bytes: int = ROTATE_BYTES,
        sync_seconds: float = SYNC_SECONDS,
    ) -> None:
        if not is_writer_name(writer):
            raise ValueError(f"Writer name {writer!r}: use letters, digits, '_' and '-', such as 'rank0'.")
        self._journal = Path(run_directory) / "journal"
        self._attempt = attempt
        self._pid = os.getpid()
        self._is_open = False
        self._checked_keys: set[str] = set()
        # Reentrant: a signal handler may append a last word while the same thread appends.
        self._append_lock = threading.RLock()
        try:
            self._journal.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise journal_error("create the journal folder", self._journal, error) from error
        self._lock = OwnedLock(self._journal / f"{writer}.lock", f"writes the journal files of {writer!r} in")
        self._lock.acquire()
        try:
            self._files = _open_files(self._journal, writer, rotate_bytes)
        except BaseException:
            self._lock.release()
            raise
        self._metrics_file = self._files[Stream.METRICS]
        self._events_file = self._files[Stream.EVENTS]
        self._last_seq = max(file.last_seq for file in self._files.values())
        self._numbers = itertools.count(self._last_seq + 1)
        self._syncer = Syncer(self._journal, list(self._files.values()), self._append_lock, sync_seconds)
        self._is_open = True
        self._note_torn_tails()

    def _note_torn_tails(self) -> None:
        try:
            for path, cut in [torn for file in self._files.values() for torn in file.torn]:
                text = f"Cut {cut} bytes of an unfinished line off {path.name} and kept them in {path.name}.torn."
                self.append(Kind.NOTE, text=text, level="warning")
        except JournalError:
            with suppress(JournalError):
                self.close()
            raise

    @property
    def next_seq(self) -> int:
        """Number that the next record gets."""
        return self._last_seq + 1

    def append(self, kind: str, step: int | None = None, **fields: Any) -> Record:
        """Appends one record; when it returns, the record survives the death of this process.

        Args:
            kind: A `Kind` or its name. step: Training step, or nothing.
            **fields: What the kind carries (see `Kind`).

        Returns:
            The record as a reader will see it: a copy of the values, secrets masked.

        Raises:
            JournalError: The disk is full or failed (nothing of the record was written, the call can
                be repeated), the writer is closed, or this process was forked from the writer's.
            ValueError: Unknown kind, a step that is no whole number of 64 bits, or a metric that is no number.
        """
        kind, step = _checked(kind, step)
        fields, body = self._encoded(kind, fields)
        file = self._metrics_file if kind == "metrics" else self._events_file
        self._check_process()
        with self._append_lock:
            self._check_writable()
            seq = next(self._numbers)  # one step, so a signal handler here cannot get the same number
            t = time.time()
            try:
                file.write(encode_line(seq, t, self._attempt, kind, step, body))
            except JournalError:
                self._number_anew()
                raise
            self._last_seq = max(seq, self._last_seq)
        return Record(SCHEMA_VERSION, seq, t, self._attempt, kind, step, fields)

    def append_many(self, drafts: Iterable[Draft]) -> list[Record]:
        """Appends records together, in order, all of them or none: one write per run of records of one stream.

        Raises:
            JournalError, ValueError: As `append`.
        """
        prepared = []
        for draft in drafts:
            kind, step = _checked(draft.kind, draft.step)
            prepared.append((kind, step, *self._encoded(kind, draft.fields)))
        self._check_process()
        lines: list[tuple[StreamFile, bytes]] = []
        records = []
        with self._append_lock:
            self._check_writable()
            t = time.time()
            for kind, step, fields, body in prepared:
                seq = next(self._numbers)
                line = encode_line(seq, t, self._attempt, kind, step, body)
                lines.append((self._files[stream_of(kind)], line))
                records.append(Record(SCHEMA_VERSION, seq, t, self._attempt, kind, step, fields))
            try:
                self._write_all(lines)
            except JournalError:
                self._number_anew()
                raise
            self._last_seq = max([self._last_seq, *(record.seq for record in records)])
        return records

    def _write_all(self, lines: list[tuple[StreamFile, bytes]]) -> None:
        """Writes runs of lines of the same stream, in order: a reader never sees a number before a lower one."""
        runs = [
            (file, b"".join(line for _, line in run)) for file, run in itertools.groupby(lines, lambda item: item[0])
        ]
        for file in self._files.values():
            file.make_room(sum(len(block) for owner, block in runs if owner is file))
        written: list[tuple[StreamFile, bytes]] = []
        for file, block in runs:
            try:
                file.write_here(block)
            except JournalError:
                for earlier, earlier_block in written:
                    earlier.take_back(len(earlier_block))
                raise
            written.append((file, block))

    def _number_anew(self) -> None:
        """Goes on after the last number that is on disk: those of a failed append are free again."""
        self._last_seq = max(self._last_seq, *(file.refresh_last_seq() for file in self._files.values()))
        self._numbers = itertools.count(self._last_seq + 1)

    def _encoded(self, kind: str, fields: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Fields with secrets masked, and their JSON; done before the lock is taken."""
        if kind == "metrics":
            fields, body = encode_metrics(self._with_masked_names(fields))
        else:
            fields = mask(plain_event(kind, fields))
            body = encode_event(kind, fields)
        if len(body) > MAX_LINE_BYTES - 1024:
            raise ValueError(
                f"A {kind} record of {len(body) / 2**20:.0f} MiB is too large (at most {MAX_LINE_BYTES // 2**20} MiB). "
                "Write it to a file in the run directory and log that as an artifact."
            )
        return fields, body

    def _with_masked_names(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Of a metrics record only keys and further fields can hold text, and each key is looked at once."""
        metrics = fields.get("metrics")
        if type(metrics) is not dict and not isinstance(metrics, Mapping):
            return fields  # the encoder says what is wrong
        if not self._checked_keys.issuperset(metrics):
            if len(self._checked_keys) > _MAX_CHECKED_KEYS:
                self._checked_keys.clear()
            metrics = {name: metrics[key] for key, name in masked_keys(metrics).items()}
            self._checked_keys.update(metrics)
        elif len(fields) == 1:
            return fields
        return {**mask({**fields, "metrics": None}), "metrics": metrics}

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise JournalError(
                f"Process {os.getpid()} was forked from process {self._pid}, which writes the journal in "
                f"{self._journal}; only that process may. Open a writer with another name in the child, or hand its "
                "values to the parent."
            )

    def _check_writable(self) -> None:
        if not self._is_open:
            raise JournalError(f"The journal in {self._journal} is closed; nothing can be appended after close().")
        self._syncer.raise_failure()

    def sync(self) -> None:
        """Returns when everything appended so far is on the disk (`fsync`).

        Raises:
            JournalError: The disk failed, now or in the background since the last call.
        """
        self._check_process()
        with self._append_lock:
            self._check_writable()
        self._syncer.sync()

    def close(self) -> None:
        """Syncs, closes the files and gives the lock back. Repeated calls do nothing.

        Raises:
            JournalError: The last sync failed; the files are closed all the same.
        """
        if os.getpid() != self._pid:
            return  # the files are the parent's
        with self._append_lock:
            was_open, self._is_open = self._is_open, False
        if not was_open:
            return
        try:
            self._syncer.stop()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _checked(kind: str, step: int | None) -> tuple[str, int | None]:
    try:
        kind = _KINDS[kind]
    except KeyError:
        raise ValueError(f"Unknown record kind {kind!r}; there are {', '.join(_KINDS)}.") from None
    if type(step) is not int and step is not None:
        try:
            step = operator.index(step)
        except TypeError:
            raise ValueError(f"Step {step!r} ({type(step).__name__}) is not a whole number.") from None
    if step is not None and not -LARGEST_STEP <= step <= LARGEST_STEP:
        shown = step if step.bit_length() < 256 else f"of {step.bit_length()} bits"
        raise ValueError(f"Step {shown} is too large: a step has 64 bits (from -(2**63 - 1) to 2**63 - 1).")
    return kind, step


def _open_files(journal: Path, writer: str, rotate_bytes: int) -> dict[Stream, StreamFile]:
    segments = list_segments(journal)
    files: dict[Stream, StreamFile] = {}
    try:
        for stream in Stream:
            stream_id = StreamId(writer, stream)
            files[stream] = StreamFile(journal, stream_id, segments.get(stream_id, []), rotate_bytes)
    except BaseException:
        for file in files.values():
            file.close()
        raise
    return files
