"""Cost of `JournalWriter.append` for a metrics record, beside the floor of encoding and writing it.

    python benchmarks/journal_append.py [--records 20000] [--keys 60] [--folder DIR]

Prints microseconds per record: median and 99th percentile of the wall clock, and mean CPU time
(which a busy machine disturbs least).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from verl.journal import JournalReader, JournalWriter, RunDirectory


def measure(name: str, call: Callable[[int], object], count: int) -> None:
    for number in range(200):
        call(number)
    times = []
    cpu_start = time.process_time()
    for number in range(count):
        start = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - start)
    cpu = (time.process_time() - cpu_start) / count
    times.sort()
    median, high = times[count // 2], times[count * 99 // 100]
    print(f"{name:28s} median {median * 1e6:7.1f} us   p99 {high * 1e6:7.1f} us   cpu {cpu * 1e6:7.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--keys", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=None, help="where the journal is written; a temporary folder")
    arguments = parser.parse_args()
    metrics = {f"group/metric_{number}": 0.1234567 * number for number in range(arguments.keys)}
    values = [0.37 * number for number in range(1000)]
    histogram = {"min": 0.0, "max": 370.0, "num": 1000, "bucket_limits": values, "bucket_counts": values}

    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        descriptor = os.open(Path(folder) / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        floor = {"step": 1, "metrics": metrics}
        measure("floor: orjson + os.write", lambda _: os.write(descriptor, orjson.dumps(floor)), arguments.records)
        run = RunDirectory.create(Path(folder) / "run", project="benchmark", experiment="append")
        with JournalWriter(run, attempt=1) as journal:
            measure("append metrics", lambda n: journal.append("metrics", n, metrics=metrics), arguments.records)
            few = max(100, arguments.records // 20)
            measure("append histogram", lambda n: journal.append("histogram", n, tag="a", histogram=histogram), few)
            text = "The quick brown fox jumps over the lazy dog. " * 40
            measure("append 1.8 kB text", lambda n: journal.append("text", n, tag="a", text=text), few)
        start = time.process_time()
        count = sum(1 for _ in JournalReader(run).records())
        print(f"{'read':28s} {(time.process_time() - start) / count * 1e6:7.1f} us cpu per record ({count} records)")


if __name__ == "__main__":
    main()
