"""Reduce the metrics of all processes to one number each, exactly, on rank 0.

    tracking.metrics.add("loss", loss, weight=num_tokens)             # every rank: its own samples
    tracking.log_metrics(reduce_metrics(tracking), step)              # every rank; rank 0 logs

What comes out does not depend on how the samples were split over ranks and micro-batches, not by a bit: sums are
kept without rounding until the end. Exceptions: `last` is the newest sample of the highest rank that has any, and a sum
that passes 1.8e308 on the way is infinite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from verl.config.environment import process_rank
from verl.errors import VerlError
from verl.tracking.metrics import MetricBuffer, MetricState, merge
from verl.tracking.rank_messages import RankMessage, RankMessages

_MAGIC = 0x7665726C01
"""First number of each rank's announcement: anything else there comes from another collective call."""


class RanksError(VerlError, RuntimeError):
    """The processes of a run do not agree, or one of them does not answer."""


class _Contribution(NamedTuple):
    """What one rank sends."""

    state: MetricState
    messages: list[RankMessage]


class MetricSource(Protocol):
    """A `Tracking`: samples of metrics, and what other ranks want to tell people."""

    metrics: MetricBuffer
    rank_messages: RankMessages


def reduce_metrics(
    source: MetricSource | MetricBuffer, *, group: dist.ProcessGroup | None = None, timeout_seconds: float | None = None
) -> dict[str, float]:
    """Reduce every metric over all samples of all ranks, and empty the buffers.

    A collective call: every rank of the group calls it, also one without samples. Ranks may have different metrics.
    Without `torch.distributed` it reduces the samples of the one process.

    Args:
        source: The `Tracking`, or its `metrics` alone. With the `Tracking`, alerts and warnings of other
            ranks come along and are logged by rank 0.
        group: Process group; nothing = all processes. Only its device matters otherwise: with nccl alone the
            (few) bytes go through the GPU.
        timeout_seconds: Longest wait for the other ranks; nothing = that of the process group.

    Returns:
        Metrics by key on the first rank of the group, nothing on all others.

    Raises:
        RanksError: Ranks reduce a metric differently (raised on all of them, the samples are kept), a rank does
            not answer, or there are several processes but no process group.
    """
    buffer = source if isinstance(source, MetricBuffer) else source.metrics
    messages = None if isinstance(source, MetricBuffer) else source.rank_messages
    if not (dist.is_available() and dist.is_initialized()):
        _check_alone()
        return buffer.reduce()
    exchange = _Exchange(group, None if timeout_seconds is None else timedelta(seconds=timeout_seconds))
    received = exchange.gather(_encode(buffer.state(), messages.waiting() if messages else []))
    ranks = [_decode(content) for content in received]
    exchange.agree(_disagreement([rank.state for rank in ranks]))
    buffer.load_state_dict({})
    if messages:
        messages.clear()
        messages.deliver([rank.messages for rank in ranks])
    return merge(rank.state for rank in ranks).reduce()


class _Exchange:
    """Small collective calls of one process group, with errors that say what to do.

    Raises:
        RanksError: This process is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: timedelta | None) -> None:
        self._group = group
        self._timeout = timeout
        self._rank = dist.get_rank(group)
        if self._rank < 0:
            raise RanksError("this process is not in the group that reduces metrics; call it on the group's ranks only")
        self._size = dist.get_world_size(group)
        self._first = 0 if group is None else dist.get_global_rank(group, 0)
        self._device = _device(group)

    def gather(self, content: bytes) -> list[bytes]:
        """What every rank gave, by rank, on the first rank; nothing on the others."""
        lengths = self._lengths(len(content))
        longest = max(lengths)
        padded = self._bytes(content.ljust(longest))
        slots = [torch.empty_like(padded) for _ in lengths] if self._rank == 0 else None
        self._run(lambda: dist.gather(padded, slots, dst=self._first, group=self._group, async_op=True))
        return [_content(slot)[:length] for slot, length in zip(slots or [], lengths, strict=slots is not None)]

    def agree(self, problem: str) -> None:
        """Raise on every rank what the first one found, if anything.

        Raises:
            RanksError: The problem.
        """
        content = problem.encode("utf-8", "replace")
        length = torch.tensor([len(content)], dtype=torch.int64, device=self._device)
        self._run(lambda: dist.broadcast(length, src=self._first, group=self._group, async_op=True))
        if not (num_bytes := int(length.item())):
            return
        text = self._bytes(content.ljust(num_bytes))
        self._run(lambda: dist.broadcast(text, src=self._first, group=self._group, async_op=True))
        raise RanksError(_content(text).decode())

    def _lengths(self, length: int) -> list[int]:
        mine = torch.tensor([_MAGIC, length], dtype=torch.int64, device=self._device)
        everyone = [torch.empty_like(mine) for _ in range(self._size)]
        self._run(lambda: dist.all_gather(everyone, mine, group=self._group, async_op=True))
        announced = [tuple(map(int, told.tolist())) for told in everyone]
        strangers = [rank for rank, (magic, _) in enumerate(announced) if magic != _MAGIC]
        if strangers:
            raise RanksError(
                f"rank {self._rank} reduces metrics while rank {strangers[0]} is in another collective call; "
                "all ranks call reduce_metrics at the same points of the program"
            )
        return [length for _, length in announced]

    def _bytes(self, content: bytes) -> Tensor:
        return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self._device)

    def _run(self, start: Callable[[], Any]) -> None:
        try:
            work = start()
            if self._timeout is None:
                work.wait()
            else:
                work.wait(self._timeout)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            raise RanksError(
                f"rank {self._rank} of {self._size} waited in reduce_metrics for the other ranks in vain: one has "
                "stopped, hangs, or does not call reduce_metrics at this point. Look at the first error in the output "
                f"of the other ranks. ({reason})"
            ) from error


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """Where tensors for the group must lie: the CPU if one of its backends works there."""
    kinds = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], torch.get_device_module(kinds[0]).current_device())


def _check_alone() -> None:
    process = process_rank()
    if process.world_size > 1:
        raise RanksError(
            f"this is process {process.rank} of {process.world_size} (RANK, WORLD_SIZE), but torch.distributed is not "
            "initialised, so that metrics of the others cannot be had. Call torch.distributed.init_process_group "
            "first, or log metrics.reduce() of each process for itself."
        )


def _disagreement(states: Sequence[MetricState]) -> str:
    """The first metric that two ranks reduce differently, in a sentence; nothing if there is none."""
    seen: dict[str, tuple[str, int]] = {}
    for rank, state in enumerate(states):
        for key, samples in state.items():
            reduction, first = seen.setdefault(key, (samples["reduction"], rank))
            if reduction != samples["reduction"]:
                return (
                    f"metric {key!r} is reduced as {reduction} on rank {first} and as {samples['reduction']} on rank "
                    f"{rank}; declare it alike on all ranks"
                )
    return ""


def _encode(state: MetricState, messages: Sequence[RankMessage]) -> bytes:
    # Not orjson: this keeps NaN, infinities and keys with lone surrogates.
    return json.dumps([state, [list(message) for message in messages]], separators=(",", ":")).encode("ascii")


def _decode(content: bytes) -> _Contribution:
    state, messages = json.loads(content)
    return _Contribution(state, [RankMessage(*message) for message in messages])


def _content(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
