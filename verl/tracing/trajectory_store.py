"""Trajectories on disk: one Parquet file per step, written once the batch is final.

    trajectories/steps/train/step_00000012.parquet
    trajectories/steps/val/step_00000010.parquet

Floats per token are 16-bit; the trainer's log-prob is stored as its difference to the rollout's
(small numbers keep their precision). Files are written aside, synced and renamed, by one thread,
so the training thread waits for the disk only at checkpoints, or when it is many steps ahead.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from verl.config.secrets import mask, masked_keys
from verl.errors import JournalError
from verl.journal.files import sync_folder
from verl.tracing.trajectory import Trajectory

_TOKEN_FLOATS = pa.list_(pa.float16())
_WIDE_TOKEN_FLOATS = pa.list_(pa.float32())  # rewards of any size go into these
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("sample_index", pa.int64()),
        ("rollout_n", pa.int32()),
        ("validate", pa.bool_()),
        ("data_source", pa.string()),
        ("messages", pa.string()),
        ("prompt_text", pa.string()),
        ("response_text", pa.string()),
        ("ground_truth", pa.string()),
        ("extra_info", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("response_mask", pa.list_(pa.int8())),
        ("finish_reason", pa.string()),
        ("policy_version", pa.int64()),
        ("reward", pa.float64()),
        ("reward_parts", pa.map_(pa.string(), pa.float64())),
        ("reward_details", pa.map_(pa.string(), pa.string())),
        ("rollout_logprob", _TOKEN_FLOATS),
        ("train_minus_rollout_logprob", _TOKEN_FLOATS),
        ("ref_minus_rollout_logprob", _TOKEN_FLOATS),
        ("advantage", _WIDE_TOKEN_FLOATS),
        ("return", _WIDE_TOKEN_FLOATS),
        ("value", _WIDE_TOKEN_FLOATS),
        ("entropy", _TOKEN_FLOATS),
    ],
    metadata={"verl.trajectories": "1"},
)


def to_table(trajectories: Sequence[Trajectory], *, with_text: bool = True) -> pa.Table:
    """Trajectories as an Arrow table with `SCHEMA`; secrets in texts and metadata are masked."""
    masked = _MaskedJson()
    rows = [_row(trajectory, masked) for trajectory in trajectories]
    if not with_text:
        for row in rows:
            row.update(messages=None, prompt_text=None, response_text=None)
    return pa.Table.from_pylist(rows, schema=SCHEMA)


class _MaskedJson:
    """Masks values and writes them as JSON; equal ones (the prompts of a group) only once."""

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}

    def __call__(self, value: Any) -> str:
        content = json.dumps(value, ensure_ascii=False, default=str)
        key = content.encode("utf-8", "surrogatepass")
        if key not in self._known:
            self._known[key] = json.dumps(mask(value), ensure_ascii=False, default=str)
        return self._known[key]

    def text(self, value: str) -> str:
        """The masked text itself."""
        return json.loads(self(value))


def _masked_details(details: dict[str, str]) -> dict[str, str]:
    """Details under masked names; what a secret name stands for (`score/api_key`) is masked whole."""
    names = masked_keys(details)
    return {names[name]: mask({name.rpartition("/")[2]: text}).popitem()[1] for name, text in details.items()}


def _row(trajectory: Trajectory, masked: _MaskedJson) -> dict[str, Any]:
    facts = trajectory.token_facts
    part_names = masked_keys(trajectory.reward_parts)
    rollout = np.asarray(trajectory.rollout_logprobs, dtype=np.float32)

    def difference(name: str) -> np.ndarray | None:
        return (facts[name] - rollout).astype(np.float16) if name in facts else None

    def half(name: str) -> np.ndarray | None:
        return facts[name].astype(np.float16) if name in facts else None

    return {
        "step": trajectory.step,
        "sample_index": trajectory.sample_index,
        "rollout_n": trajectory.rollout_n,
        "validate": trajectory.validate,
        "data_source": masked.text(trajectory.data_source),
        "messages": f"[{', '.join(masked(message) for message in trajectory.messages)}]",
        "prompt_text": masked.text(trajectory.prompt_text),
        "response_text": masked.text(trajectory.response_text),
        "ground_truth": masked(trajectory.ground_truth),
        "extra_info": masked(trajectory.extra_info),
        "prompt_ids": trajectory.prompt_ids,
        "response_ids": trajectory.response_ids,
        "response_mask": trajectory.response_mask,
        "finish_reason": trajectory.finish_reason,
        "policy_version": trajectory.policy_version,
        "reward": trajectory.reward,
        "reward_parts": [(part_names[name], value) for name, value in trajectory.reward_parts.items()],
        "reward_details": list(_masked_details(trajectory.reward_details).items()),
        "rollout_logprob": rollout.astype(np.float16),
        "train_minus_rollout_logprob": difference("old_logprob"),
        "ref_minus_rollout_logprob": difference("ref_logprob"),
        "advantage": facts.get("advantage"),
        "return": facts.get("return"),
        "value": facts.get("value"),
        "entropy": half("entropy"),
    }


def step_file(folder: Path, step: int, *, validate: bool) -> Path:
    """Path of the file of a step under `<run>/trajectories`."""
    return folder / "steps" / ("val" if validate else "train") / f"step_{step:08d}.parquet"


def step_files(folder: Path) -> list[tuple[Path, int]]:
    """All step files under `<run>/trajectories` with their steps."""
    return [(path, int(path.stem.removeprefix("step_"))) for path in sorted(folder.glob("steps/*/step_*.parquet"))]


def write_step(path: Path, trajectories: Sequence[Trajectory], *, with_text: bool = True) -> None:
    """Writes one step aside, syncs it and renames it.

    Args:
        with_text: Store the decoded texts beside the token ids.

    Raises:
        JournalError: The disk is full or cannot be written.
    """
    aside = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            pq.write_table(
                to_table(trajectories, with_text=with_text),
                file,
                compression="zstd",
                use_dictionary=["data_source", "finish_reason"],  # pyright: ignore[reportArgumentType] - the stubs know bool only
            )
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # what failed may fail again; the first error is the one to tell
            aside.unlink()
        raise JournalError(
            f"The trajectories of {path.stem} could not be written to {path.parent}: {error}. "
            f"Free space there or set another trainer.log_dir; what was recorded before is untouched."
        ) from error


class TrajectoryStore:
    """Writes the trajectories of a run from a thread of its own.

    Args:
        folder: `<run>/trajectories`.
        with_text: Store the decoded texts beside the token ids.
        max_pending: Steps that may wait for the disk; then `write` waits, which bounds the memory.
    """

    def __init__(self, folder: Path, *, with_text: bool = True, max_pending: int = 4) -> None:
        self._folder = folder
        self._with_text = with_text
        self._pending: queue.Queue[tuple[Path, Sequence[Trajectory]] | None] = queue.Queue(max_pending)
        self._error: JournalError | None = None
        self._thread = threading.Thread(target=self._work, name="trajectory-store", daemon=True)
        self._thread.start()

    def write(self, step: int, trajectories: Sequence[Trajectory], *, validate: bool) -> None:
        """Hands the final trajectories of a step to the writing thread; do not change them afterwards.

        Raises:
            JournalError: An earlier step could not be written.
        """
        self._raise_error()
        self._pending.put((step_file(self._folder, step, validate=validate), trajectories))

    def flush(self) -> None:
        """Waits until all that was handed over is on the disk.

        Raises:
            JournalError: A step could not be written.
        """
        self._pending.join()
        self._raise_error()

    def close(self) -> JournalError | None:
        """Writes what is pending and ends the thread; never raises.

        Returns:
            Why a step could not be written, if that was not told yet.
        """
        if self._thread.is_alive():
            self._pending.put(None)
            self._thread.join()
        return self._error

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while (item := self._pending.get()) is not None:
            try:
                write_step(*item, with_text=self._with_text)
            except JournalError as error:
                self._error = error
            except Exception as error:  # the thread must live on; the run is told at its next write
                self._error = JournalError(f"Trajectories could not be stored: {type(error).__name__}: {error}")
            finally:
                self._pending.task_done()
        self._pending.task_done()
