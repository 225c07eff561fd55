"""From what comes for a step to a row on the server or in the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from verl.tracking.backends.wandb_rows import Row, Rows
from verl.tracking.backends.wandb_session import FINGERPRINT_KEY, STEP_KEY, WandbSession
from verl.tracking.backends.wandb_upload import Upload
from verl.tracking.logger import Moment

LeaveOut = Callable[[str, int | None, str], None]


class RowWriter:
    """Fills rows and sends them, without those that the server has already.

    Args:
        rows: The rows so far.
        session: Where they go; nothing = nowhere (mode "disabled").
        upload: What the server has; nothing = there is no server.
        leave_out: Told of what cannot be sent: its name, step and why.

    Attributes:
        rows: The rows so far. pending: The row that is being filled.
        sent: Fingerprint of the last row that was sent in this session; nothing before the first.
        seen: Attempt and number of the record that came last.
    """

    def __init__(self, rows: Rows, session: WandbSession | None, upload: Upload | None, leave_out: LeaveOut) -> None:
        self.rows = rows
        self.pending: Row | None = None
        self.sent: int | None = None
        self.seen = (0, -1)
        self._session = session
        self._upload = upload
        self._leave_out = leave_out

    def see(self, moment: Moment) -> None:
        """Note that a record came."""
        self.seen = (moment.attempt, moment.seq)

    def row_for(self, moment: Moment, step: int | None, names: Collection[str]) -> Row:
        """The row that a record goes into; one that cannot take it is closed, and a new one begun.

        Args:
            moment: Of the record.
            step: Training step; nothing for a message, which goes with the next step.
            names: What the record brings.
        """
        self.see(moment)
        row = self.pending
        if row and (
            row.attempt != moment.attempt
            or (step is not None and row.step is not None and row.step != step)
            or row.has_any(names)
        ):
            self.close_row()
            row = None
        if row is None:
            row = self.pending = Row(moment.attempt)
        if step is not None:
            row.step = step
        row.add_record(moment)
        return row

    def close_row(self) -> None:
        """Send the row that is being filled, if there is one.

        Raises:
            NewBranchError: The server has another row in its place.
            Exception: What the SDK raises.
        """
        row, self.pending = self.pending, None
        if row is None:
            return
        native = self.rows.close(row)
        if self._session is None:
            return
        if self._upload and self._upload.has_row(self.rows):
            self._complete(row, native, self._session, self._upload)
            return
        own = {STEP_KEY: self.rows.last_step, FINGERPRINT_KEY: self.rows.fingerprint, "_timestamp": row.time}
        files = self._session.log({**row.values, **self._made(row, row.media), **own}, native)
        self.sent = self.rows.fingerprint
        if self._upload:
            self._upload.files |= set(files)

    def _complete(self, row: Row, native: int, session: WandbSession, upload: Upload) -> None:
        """Upload what the server lacks of the files of a row that it has."""
        missing = [name for name in row.media if not upload.has_file(name, native)]
        values = self._made(row, missing)
        upload.files |= {session.upload(name, value, native) for name, value in values.items()}

    def _made(self, row: Row, names: Iterable[str]) -> dict[str, Any]:
        made = {}
        for name in names:
            try:
                made[name] = row.media[name]()
            except (OSError, ValueError, TypeError) as error:  # such as a picture whose file is gone
                self._leave_out(name, row.step, str(error))
        return made
