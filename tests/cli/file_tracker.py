"""A tracker whose remote runs are files: what it shows can be read back, and it can be made to fail or be slow."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl.tracking import TrackedRun, TrainerLogger
from verl.tracking.logger import Check

NAME = f"{__name__}:FileLogger"
OTHER = f"{__name__}:OtherLogger"


class FileLogger(TrainerLogger):
    """Appends to `shown-<class>-<remote id>.jsonl` in the run directory; a file `fault` there says what goes wrong."""

    @classmethod
    def preflight(cls, proxy: str | None) -> list[Check]:
        if os.environ.get("FILE_TRACKER_LOGIN") == cls.__name__:
            return [Check("login", "error", "there is no key", "set FILE_TRACKER_KEY")]
        return [Check("login", "ok", "the key is there")]

    def open(self, run: TrackedRun) -> None:
        self._fault = run.directory / "fault"
        self._path = run.directory / f"shown-{type(self).__name__}-{run.remote_id}.jsonl"
        self._file = self._path.open("ab")
        self._file.truncate(int(run.state.get("size", 0)))

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        fault = self._fault.read_text() if self._fault.exists() else ""
        if fault == "slow":
            time.sleep(0.02)
        elif fault:
            raise ConnectionError(f"https://me:geheim123@tracker.example.com: {fault}")
        self._write({"step": step, **metrics})

    def log_config(self, config: dict[str, Any]) -> None:
        self._write({"config": config})

    def flush(self) -> None:
        self._file.flush()

    def state(self) -> dict[str, Any]:
        return {"size": self._file.tell()}

    def ids(self) -> dict[str, Any]:
        return {"run_id": self._path.stem}

    def where(self) -> str:
        return f"less {self._path.name}"

    def finish(self, status: str) -> None:
        self._write({"status": status})
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")


class OtherLogger(FileLogger):
    """Another one beside it."""


def shown(run: Path, remote: str = "", tracker: str = "FileLogger") -> list[dict[str, Any]]:
    """What the tracker shows of a run: lines in order."""
    run_id = json.loads((run / "run.json").read_text())["run_id"]
    path = run / f"shown-{tracker}-{run_id}{remote}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(lines: list[dict[str, Any]]) -> list[int]:
    """Steps of the losses shown; there are samples of the machine besides."""
    return [line["step"] for line in lines if "loss" in line]
