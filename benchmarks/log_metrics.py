"""Cost of logging 60 scalars on the training thread: `Tracking.log_metrics` against `SummaryWriter.add_scalar`.

    python benchmarks/log_metrics.py [CALLS]

Both run in the same process, in turns of a hundred calls; `Tracking` has its relay process and TensorBoard running.
"back to back" is the cost of the code itself; "paced" has a millisecond between calls, as if a step was done, so
caches are cold and background threads come in between.
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


def measure(call: Callable[[int], None], first_step: int, pause_seconds: float) -> list[float]:
    """Microseconds of each of a hundred calls."""
    times = []
    for step in range(first_step, first_step + TURN):
        start = time.perf_counter()
        call(step)
        times.append((time.perf_counter() - start) * 1e6)
        if pause_seconds:
            time.sleep(pause_seconds)
    return times


def compare(num_calls: int, pause_seconds: float, folder: str) -> dict[str, list[float]]:
    """Microseconds per call of both."""
    metrics = {f"group_{index % 6}/metric_{index}": 0.1 * index + 0.01 for index in range(SCALARS)}
    writer = SummaryWriter(f"{folder}/torch")
    tracking = Tracking("benchmark", "log_metrics", ["tensorboard"], log_dir=f"{folder}/run")

    def summary_writer(step: int) -> None:
        for tag, value in metrics.items():
            writer.add_scalar(tag, value, step)

    ours: list[float] = []
    theirs: list[float] = []
    for first_step in range(0, num_calls, TURN):
        ours += measure(lambda step: tracking.log_metrics(metrics, step), first_step, pause_seconds)
        theirs += measure(summary_writer, first_step, pause_seconds)
    tracking.finish("finished")
    writer.close()
    return {"Tracking.log_metrics": ours, f"SummaryWriter.add_scalar x{SCALARS}": theirs}


def main(num_calls: int) -> None:
    """Measure and print the tables."""
    print(f"{SCALARS} scalars per call, {num_calls} calls, microseconds on the calling thread")
    for title, pause_seconds in (("back to back", 0.0), ("paced", 0.001)):
        with tempfile.TemporaryDirectory() as folder:
            rows = compare(num_calls, pause_seconds, folder)
        print(f"\n{title:<32}{'median':>10}{'p99':>10}{'max':>10}")
        for name, times in rows.items():
            percentile_99 = statistics.quantiles(times, n=100)[98]
            print(f"{name:<32}{statistics.median(times):>10.1f}{percentile_99:>10.1f}{max(times):>10.1f}")
        ours, theirs = (statistics.median(times) for times in rows.values())
        print(f"SummaryWriter takes {theirs / ours:.0f} times as long (median).")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
