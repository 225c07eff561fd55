"""What people read beside the charts: the description of the run, and the list of names that read differently."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

import orjson

from verl.tracking.backends.mlflow_alerts import AlertPages, literal
from verl.tracking.backends.mlflow_names import json_text
from verl.tracking.backends.mlflow_server import MlflowServer, MlflowTroubleError
from verl.tracking.logger import TrackedRun

log = logging.getLogger("verl.tracking")

RENAMED_FILE = "renamed.json"
_BEGIN, _END = "<!-- verl -->", "<!-- /verl -->"


def note_block(run: TrackedRun, alerts: AlertPages, num_renamed: int) -> str:
    """This package's part of the description, as Markdown."""
    steps = f", {run.total_steps} steps" if run.total_steps else ""
    lines = [f"Run `{run.run_id}` in the run directory `{run.directory.name}`{steps}, attempt {run.attempt}."]
    if run.branch:
        lines.append("Training went back to an earlier step, or the run was sent anew: what was shown before is below.")
    if alerts.warnings:
        lines.append(f"**{alerts.warnings} alert(s)**, see `{alerts.file}`; the last: {literal(alerts.last)}")
    if num_renamed:
        lines.append(f"{num_renamed} name(s) are spelled differently here, see `{RENAMED_FILE}`.")
    return "\n\n".join([_BEGIN, *lines, _END])


def with_block(description: str, block: str) -> str | None:
    """The description with the block in it; what people wrote around it stays.

    Returns:
        Nothing if it need not or must not change: people have written their own instead.
    """
    before, begin, rest = description.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if begin and end:
        changed = f"{before}{block}{after}"
    elif description.strip():
        return None
    else:
        changed = block
    return None if changed == description else changed


class NameList:
    """The names that MLflow cannot have as they are, in `renamed.json`: kind -> name in the journal -> name there.

    Args:
        server: MLflow. run_id: The run.
        count: How many names the file has already.

    Attributes:
        count: How many names the file has.
    """

    def __init__(self, server: MlflowServer, run_id: str, count: int) -> None:
        self.count = count
        self._server, self._run_id = server, run_id
        self._known: dict[str, dict[str, str]] | None = None if count else {}
        self._seen = 0

    def update(self, renamed: Mapping[str, Mapping[str, str]]) -> bool:
        """Add names; True if there were new ones.

        Raises:
            MlflowTroubleError: The file cannot be written.
        """
        seen = sum(map(len, renamed.values()))
        if seen == self._seen:
            return False
        known = self._read() if self._known is None else self._known
        merged = {kind: {**known.get(kind, {}), **names} for kind, names in renamed.items()}
        count = sum(map(len, merged.values()))
        if count > self.count:
            with self._server.asked_to(f"store {RENAMED_FILE}") as client:
                client.log_text(self._run_id, json_text(merged), RENAMED_FILE)
        is_new = count > self.count
        self._known, self.count, self._seen = merged, max(count, self.count), seen
        return is_new

    def _read(self) -> dict[str, dict[str, str]]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                with self._server.asked_to(f"read {RENAMED_FILE}") as client:
                    path = client.download_artifacts(self._run_id, RENAMED_FILE, folder)
                return orjson.loads(Path(path).read_bytes())
            except (MlflowTroubleError, OSError, ValueError) as error:
                log.warning("mlflow: %s is begun anew: %s", RENAMED_FILE, error)
                self.count = 0
                return {}
