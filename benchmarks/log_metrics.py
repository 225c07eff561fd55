"""Cost of logging 60 scalars on the training thread: `Tracking.log_metrics` against `SummaryWriter.add_scalar`.

    python benchmarks/log_metrics.py [CALLS]

Both run in the same process, in turns of a hundred calls, with a pause of a millisecond between calls as if work
was done. `Tracking` has its relay process and TensorBoard running.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from torch.utils.tensorboard import SummaryWriter

from verl.tracking import Tracking

SCALARS = 60
TURN = 100
PAUSE_SECONDS = 0.001


def measure(call: Callable[[int], None], first_step: int) -> list[float]:
    """Microseconds of each of a hundred calls."""
    times = []
    for step in range(first_step, first_step + TURN):
        start = time.perf_counter()
        call(step)
        times.append((time.perf_counter() - start) * 1e6)
        time.sleep(PAUSE_SECONDS)
    return times


def main(num_calls: int) -> None:
    """Measure and print the table."""
    metrics = {f"group_{index % 6}/metric_{index}": 0.1 * index + 0.01 for index in range(SCALARS)}
    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(f"{folder}/torch")
        tracking = Tracking("benchmark", "log_metrics", ["tensorboard"], log_dir=f"{folder}/run")

        def summary_writer(step: int) -> None:
            for tag, value in metrics.items():
                writer.add_scalar(tag, value, step)

        rows: dict[str, list[float]] = {"Tracking.log_metrics": [], f"SummaryWriter.add_scalar x{SCALARS}": []}
        for first_step in range(0, num_calls, TURN):
            ours, theirs = rows.values()
            ours += measure(lambda step: tracking.log_metrics(metrics, step), first_step)
            theirs += measure(summary_writer, first_step)
        tracking.finish("finished")
        writer.close()
    print(f"{SCALARS} scalars per call, {num_calls} calls, microseconds on the calling thread\n")
    print(f"{'':<32}{'median':>10}{'p99':>10}{'max':>10}")
    for name, times in rows.items():
        percentiles = statistics.quantiles(times, n=100)
        print(f"{name:<32}{statistics.median(times):>10.1f}{percentiles[98]:>10.1f}{max(times):>10.1f}")
    ours, theirs = (statistics.median(times) for times in rows.values())
    print(f"\nSummaryWriter takes {theirs / ours:.0f} times as long (median).")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
