"""How far a run has come on the server: asked before a session, now and then during it, and at its end."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from verl.tracking.backends.wandb_media import is_held
from verl.tracking.backends.wandb_remote import RefusedError, RemoteError, RemoteRun, WandbRemote
from verl.tracking.backends.wandb_rows import Rows
from verl.tracking.backends.wandb_session import FINGERPRINT_KEY
from verl.tracking.logger import NewBranchError, StateLostError

log = logging.getLogger("verl.tracking")

CHECK_SECONDS = 20.0
STALL_SECONDS = 60.0
SETTLE_SECONDS = 15.0
_POLL_SECONDS = 0.5


class UploadError(RemoteError):
    """The SDK has stopped uploading, which it does silently after some answers of a server."""


class Upload:
    """What the server has of a run, and what is not known to be there yet.

    Args:
        remote: The run on the server.

    Attributes:
        remote: The same.
        files: Names of files that are not known to be there. config: Configuration that is not.
    """

    def __init__(self, remote: WandbRemote) -> None:
        self.remote = remote
        self.files: set[str] = set()
        self.config: dict[str, Any] | None = None
        self._there = 0  # rows that the server had at first, or was later seen to have
        self._first = 0
        self._fingerprint: Any = None
        self._stored: set[str] | None = None
        self._checked = time.monotonic()
        self._waits_since: float | None = None  # for anything that was sent to be there

    def prepare(self, saved: Mapping[str, Any], rows: Rows) -> None:
        """Compare the server with what was acknowledged, before a session begins.

        Args:
            saved: State of the tracker; empty at the beginning of a run and when it is given everything again.
            rows: Rows up to this state.

        Raises:
            StateLostError: Something that was acknowledged is not there.
            NewBranchError: Something else is there.
            RemoteError: The server is away.
        """
        found = self.remote.look()
        self._first = self._there = found.rows if found else 0
        self._fingerprint = found.tail.get(FINGERPRINT_KEY) if found else None
        if saved:
            self._compare(found, saved, rows)
        elif self._there and self._fingerprint is None:
            raise NewBranchError("the run on the W&B server has rows that are not from here")

    def _compare(self, found: RemoteRun | None, saved: Mapping[str, Any], rows: Rows) -> None:
        if found is None:
            raise NewBranchError("the run is gone from the W&B server")
        if found.rows < rows.count:
            raise StateLostError(f"the W&B server has {found.rows} of {rows.count} rows")
        if found.rows == rows.count and rows.count and self._fingerprint != rows.fingerprint:
            raise NewBranchError("the run on the W&B server has other rows than were sent")
        if saved["pending"]:
            raise StateLostError(f"what was to become row {rows.count + 1} in W&B was not sent yet")
        if missing := saved["uploads"] or (set(saved["files"]) - self._among(saved["files"])):
            raise StateLostError(f"the W&B server lacks {sorted(missing)[0]}")

    def agree(self) -> None:
        """Make sure that the session, which has now begun, counts on from the rows that were seen.

        Raises:
            RemoteError: Rows came in between, such as from a process that was just ended; or the server is away.
        """
        found = self.remote.look()
        if (found.rows if found else 0) != self._first:
            raise RemoteError("rows came to the W&B server while the run was opened; it is opened again")

    def has_row(self, rows: Rows) -> bool:
        """Whether the last row was there from the first.

        Raises:
            NewBranchError: The server's row in its place is another one.
        """
        if rows.count == self._first and self._fingerprint != rows.fingerprint:
            raise NewBranchError("the run on the W&B server has rows that are not of this run as it is now")
        return rows.count <= self._first

    def will_have(self, rows: Rows) -> bool:
        """Whether the row after these was there from the first."""
        return rows.count < self._first

    def has_file(self, key: str, native_step: int) -> bool:
        """Whether the file of a value of such a row is there."""
        from wandb.util import make_file_path_upload_safe

        if self._stored is None:
            names = self._among(())
            self._stored = {name.split("/", 2)[-1].rpartition("_")[0] for name in names if name.startswith("media/")}
        return f"{make_file_path_upload_safe(key)}_{native_step}" in self._stored

    def check(self, rows: Rows, is_busy: bool) -> None:
        """Look, from time to time, whether what was sent arrives.

        Args:
            rows: Rows that were sent. is_busy: Whether anything else is on its way.

        Raises:
            UploadError: It does not.
            RemoteError: The server is away.
        """
        now = time.monotonic()
        if rows.count <= self._there and not self.files and self.config is None and not is_busy:
            self._waits_since = None
            return
        if self._waits_since is None:
            self._waits_since = now
        if now - self._checked < CHECK_SECONDS:
            return
        self._checked = now
        there = self._there
        found = self._confirm(rows)
        waits = now - self._waits_since
        if found > there or found >= rows.count:
            self._waits_since = now
        elif waits > STALL_SECONDS:
            raise UploadError(f"the W&B SDK has uploaded nothing for {waits:.0f} s though the server answers")

    def settle(self, rows: Rows) -> None:
        """Make sure, after the end of a session, that everything is there.

        Raises:
            UploadError: Something is missing.
            NewBranchError: The server has rows that are not of this run.
            RemoteError: The server is away.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while (found := self._confirm(rows)) < rows.count or self.files:
            if time.monotonic() > deadline:
                missing = sorted(self.files)[:1] or f"{rows.count - found} of {rows.count} rows"
                raise UploadError(f"the W&B server lacks {missing} after the upload")
            time.sleep(_POLL_SECONDS)
        if found > rows.count or (found and self._fingerprint != rows.fingerprint):
            raise NewBranchError("the run on the W&B server has other rows than were sent")
        if self.config is not None:
            log.warning("wandb: the server does not show the configuration as it was sent")

    def _confirm(self, rows: Rows) -> int:
        """Look what is there now; number of rows."""
        found = self.remote.look()
        if found is None:
            raise NewBranchError("the run is gone from the W&B server")
        self._there = max(self._there, min(found.rows, rows.count))
        self._fingerprint = found.tail.get(FINGERPRINT_KEY) if found.rows else None
        if self.config is not None and is_held(self.config, found.config):
            self.config = None
        if self.files:
            self.files -= self._among(self.files)
        return found.rows

    def _among(self, names: Iterable[str]) -> set[str]:
        wanted = set(names)
        with contextlib.suppress(RefusedError):
            return self.remote.files(wanted)
        return wanted  # a server that does not tell is believed
