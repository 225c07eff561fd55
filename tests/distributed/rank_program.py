"""One process of several: reduces metrics in many situations and writes down what came out.

python rank_program.py SITUATIONS RANK WORLD_SIZE STORE_FILE RESULT_FILE
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from verl.distributed.metric_reduction import RanksError, reduce_metrics
from verl.tracking import MetricBuffer, MetricSpec, Reduction, Tracking

RANK = int(sys.argv[2])


def filled(**samples: list[tuple[float, float]]) -> MetricBuffer:
    buffer = MetricBuffer()
    for key, values in samples.items():
        for value, weight in values:
            buffer.add(key, value, weight)
    return buffer


def shared_and_own_keys() -> Any:
    """Means with weights, a key that only one rank has, and a rank (1) without any sample."""
    own = {0: filled(loss=[(1.0, 1)], only_0=[(5.0, 1)]), 1: filled(), 2: filled(loss=[(4.0, 3)], only_2=[(7.0, 2)])}
    return reduce_metrics(own[RANK])


def no_samples_at_all() -> Any:
    return reduce_metrics(MetricBuffer())


def not_finite() -> Any:
    buffer = filled(infinite=[(math.inf if RANK == 1 else 1.0, 1)], nothing=[(math.nan if RANK == 2 else 1.0, 1)])
    return {key: str(value) for key, value in reduce_metrics(buffer).items()}


def sums_that_rounding_would_spoil() -> Any:
    buffer = MetricBuffer()
    buffer.declare(MetricSpec(key="sum", description="A sum.", reduction=Reduction.SUM))
    buffer.add("sum", [1e16, 1.0, -1e16][RANK])
    return reduce_metrics(buffer)


def odd_keys() -> Any:
    buffer = MetricBuffer()
    buffer.add("损失/\udc80 \n", 2.0)
    return reduce_metrics(buffer)


def large_states() -> Any:
    buffer = MetricBuffer()
    for number in range(3000 if RANK == 2 else 10):
        buffer.add(f"key/{number}", float(RANK))
    return len(reduce_metrics(buffer))


def different_declarations() -> Any:
    """An error on every rank; the samples are kept, and the next call works."""
    buffer = MetricBuffer()
    if RANK == 2:
        buffer.declare(MetricSpec(key="tokens", description="A sum.", reduction=Reduction.SUM))
    buffer.add("tokens", 1.0)
    try:
        reduce_metrics(buffer)
    except RanksError as error:
        return [str(error), len(buffer), reduce_metrics(filled(after=[(1.0, 1)]))]
    return None


def buffers_are_empty_afterwards() -> Any:
    buffer = filled(loss=[(1.0, 1)])
    reduce_metrics(buffer)
    return [len(buffer), reduce_metrics(buffer)]


def tracking_on_every_rank() -> Any:
    """The same program on all ranks; only rank 0 writes, also what others had to say."""
    run = Path(sys.argv[5]).with_name("run")
    with Tracking("p", "e", [], {"lr": 0.1}, log_dir=str(run), rank=RANK) as tracking:
        for step in (1, 2):
            tracking.metrics.add("loss", float(RANK), weight=step)
            tracking.log_text("sample", f"of rank {RANK}", step)
            if RANK > 0 and step == 1:
                tracking.alert("slow", "the disk is slow")
                tracking.note(f"{RANK} samples skipped", level="warning")
                tracking.note("nothing important")
            tracking.log_metrics(reduce_metrics(tracking), step)
    return type(tracking).__name__


def some_ranks_only() -> Any:
    group = dist.new_group([1, 2], backend="gloo")
    try:
        return reduce_metrics(filled(loss=[(float(RANK), 1)]), group=group)
    except RanksError as error:
        return str(error)


def another_collective() -> Any:
    try:
        if RANK == 1:
            everyone = [torch.empty(2, dtype=torch.int64) for _ in range(3)]
            dist.all_gather(everyone, torch.tensor([3, 4]))
            return None
        return reduce_metrics(filled(loss=[(1.0, 1)]))
    except RanksError as error:
        return str(error)


def a_rank_that_does_not_come() -> Any:
    group = dist.new_group([0, 1], backend="gloo")  # no use afterwards
    given_up = Path(sys.argv[5]).with_name("given_up")
    if RANK == 1:
        while not given_up.exists():
            time.sleep(0.02)
        return None
    try:
        return reduce_metrics(filled(loss=[(1.0, 1)]), group=group, timeout_seconds=0.5)
    except RanksError as error:
        return str(error)
    finally:
        given_up.touch()


def a_rank_that_died() -> Any:
    if RANK == 1:
        raise SystemExit(3)
    try:
        return reduce_metrics(filled(loss=[(1.0, 1)]))
    except RanksError as error:
        return str(error)


SITUATIONS: dict[str, tuple[Callable[[], Any], ...]] = {
    "agreeable": (
        shared_and_own_keys,
        no_samples_at_all,
        not_finite,
        sums_that_rounding_would_spoil,
        odd_keys,
        large_states,
        different_declarations,
        buffers_are_empty_afterwards,
        tracking_on_every_rank,
        some_ranks_only,
        another_collective,
    ),
    "unlucky": (a_rank_that_does_not_come, a_rank_that_died),
}


def main() -> None:
    situations, store, result = sys.argv[1], sys.argv[4], Path(sys.argv[5])
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=RANK, world_size=int(sys.argv[3]), timeout=timedelta(seconds=60)
    )
    found = {situation.__name__: situation() for situation in SITUATIONS[situations]}
    result.write_text(json.dumps(found))
    if situations == "agreeable":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
