"""Speed and memory of the relay while it delivers a large run to every tracker, and what `verl sync` takes.

    python benchmarks/tracker_delivery.py [--points 100000] [--samples 1000] [--trackers wandb,mlflow]
    python benchmarks/tracker_delivery.py --points 1000000 --samples 10000        # the full size

A journal with 60 metrics per step and validation tables of 100 samples (prompt, answer and reference of 1 to 2 kB) is
delivered to all trackers at the same time, by the relay of `verl sync`, which is that of training. All the while the
memory of the relay and its feeders is sampled (proportional set size: what is shared counts once), apart from it that
of helper processes of the trackers' packages, such as wandb-core. Then the same for each tracker alone, in a new run
there (`--fresh`), and once more, when there is nothing to do.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from tracker_services import TRACKERS, Services

from verl.journal import JournalReader, RunDirectory
from verl.tracking import Tracking
from verl.tracking.diagnosis.tracker_checkup import feeder_of
from verl.tracking.relay.feed_state import read_states

KEYS = [f"group_{index % 6}/metric_{index}" for index in range(60)]
ROWS = 100
COLUMNS = ["prompt", "response", "reference", "score"]
SAMPLE_SECONDS = 0.25
_WORDS = ("the", "price", "of", "this", "share", "rose", "after", "its", "report", "and", "fell", "with", "others")


@dataclass(frozen=True, slots=True)
class Size:
    """How much a run logs."""

    points: int
    samples: int

    @property
    def steps(self) -> int:
        return max(1, self.points // len(KEYS))

    @property
    def tables(self) -> int:
        return self.samples // ROWS


def write_run(folder: Path, size: Size) -> RunDirectory:
    """A finished run that no tracker has had yet."""
    numbers = random.Random(0)
    every = max(1, size.steps // max(1, size.tables))
    written = 0
    with Tracking("benchmark", "large", [], {"lr": 1e-6}, log_dir=str(folder), total_steps=size.steps) as tracking:
        for step in range(1, size.steps + 1):
            tracking.log_metrics({key: numbers.random() for key in KEYS}, step)
            if step % every == 0 and written < size.tables:
                rows = [[text(numbers, 150), text(numbers, 200), text(numbers, 150), row / ROWS] for row in range(ROWS)]
                tracking.log_table("val/generations", COLUMNS, rows, step)
                written += 1
    return RunDirectory.open(folder)


def text(numbers: random.Random, words: int) -> str:
    return " ".join(numbers.choices(_WORDS, k=words))


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory at one moment, in MiB.

    Attributes:
        relay: Of the relay and its feeders. helpers: Of all processes that trackers' packages started.
        feeders: Of each feeder alone, with its helpers. shares: How much each tracker has of the run, 0 to 1.
    """

    relay: float
    helpers: float
    feeders: dict[str, float]
    shares: dict[str, float]


class Watch:
    """Samples memory and progress of a delivery.

    Args:
        directory: The run. total: Its records. trackers: Names.
    """

    def __init__(self, directory: RunDirectory, total: int, trackers: list[str]) -> None:
        self.samples: list[Sample] = []
        self.seconds: dict[str, float] = {}
        self._directory, self._total, self._trackers = directory, total, trackers
        self._start = time.monotonic()

    def look(self, command: psutil.Process) -> None:
        """Take a sample of what a command started."""
        states = {state.tracker: state for state in read_states(self._directory.path)}
        shares = {name: states[name].delivered / self._total for name in self._trackers if name in states}
        for name in shares:
            if states[name].status == "finished":
                self.seconds.setdefault(name, time.monotonic() - self._start)
        relays, others = _tree(command)
        owners = {identity.pid: name for name in self._trackers if (identity := feeder_of(self._directory, name))}
        memory = {process.pid: proportional_mib(process.pid) for process in (*relays, *others)}
        feeders = {owners[process.pid]: memory[process.pid] for process in relays if process.pid in owners}
        for helper in others:
            if name := next((owners[pid] for pid in _ancestors(helper) if pid in owners), None):
                feeders[name] += memory[helper.pid]
        if relays:
            relay, helpers = (sum(memory[process.pid] for process in group) for group in (relays, others))
            self.samples.append(Sample(relay, helpers, feeders, shares))

    def peak(self, share: float, tracker: str) -> float | None:
        """Largest memory of a feeder with its helpers in the tenth of the run before this share of it."""
        found = [
            sample.feeders[tracker]
            for sample in self.samples
            if tracker in sample.feeders and share - 0.1 <= sample.shares.get(tracker, 0.0) <= share
        ]
        return max(found, default=None)


def _tree(command: psutil.Process) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The relay with its feeders, and all other processes below a command."""
    relays, others = [], []
    with contextlib.suppress(psutil.Error):
        for process in command.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                is_relay = "verl.tracking.relay" in process.cmdline() and "python" in process.name()
                (relays if is_relay else others).append(process)
    return relays, others


def _ancestors(process: psutil.Process) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [parent.pid for parent in process.parents()]
    return []


def proportional_mib(pid: int) -> float:
    """What a process has in memory, with its part of what it shares; 0 if it has just ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def sync(directory: RunDirectory, trackers: list[str], total: int, *, is_fresh: bool = False) -> tuple[float, Watch]:
    """Run `verl sync`; gives its seconds and what was seen meanwhile.

    Raises:
        RuntimeError: It did not complete all.
    """
    command = [sys.executable, "-m", "verl.cli.main", "sync", str(directory.path)]
    command += [word for name in trackers for word in ("--to", name)] + (["--fresh"] if is_fresh else [])
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        watch = Watch(directory, total, trackers)
        seen = psutil.Process(process.pid)
        while process.poll() is None:
            watch.look(seen)
            time.sleep(SAMPLE_SECONDS)
        watch.look(seen)  # for who had it last
        seconds = time.monotonic() - start
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"verl sync failed: {output.read().decode(errors='replace')[-3000:]}")
    return seconds, watch


def show_memory(console: Console, watch: Watch, trackers: list[str], size: Size) -> None:
    """Table of memory and speed while all trackers are fed at once."""
    table = Table(title="All trackers at once; MiB of each feeder with the helpers of its package, as delivery goes on")
    for column in ("tracker", "at 10 %", "at 50 %", "at 100 %", "seconds", "points per second"):
        table.add_column(column, justify="left" if column == "tracker" else "right")
    for name in trackers:
        peaks = [watch.peak(share, name) for share in (0.1, 0.5, 1.0)]
        seconds = watch.seconds.get(name)
        speed = f"{size.points / seconds:,.0f}" if seconds else "-"
        cells = ["-" if peak is None else f"{peak:.0f}" for peak in peaks]
        table.add_row(name, *cells, f"{seconds:.0f}" if seconds else "-", speed)
    console.print(table)
    relay = max(sample.relay for sample in watch.samples)
    together = max(sample.relay + sample.helpers for sample in watch.samples)
    helpers = max(sample.helpers for sample in watch.samples)
    console.print(
        f"Largest at any moment: relay with all feeders {relay:.0f} MiB, helpers of packages {helpers:.0f} MiB, "
        f"all {together:.0f} MiB."
    )


def measure(arguments: argparse.Namespace, folder: Path, console: Console) -> None:
    size, trackers = Size(arguments.points, arguments.samples), arguments.trackers.split(",")
    directory = write_run(folder / "run", size)
    total = sum(1 for _ in JournalReader(directory).records())
    megabytes = sum(file.stat().st_size for file in directory.journal.iterdir()) / 1e6
    load = os.getloadavg()[0]
    console.print(f"{size.points:,} points, {size.tables * ROWS:,} samples: {total:,} records, {megabytes:.0f} MB")
    _, watch = sync(directory, trackers, total)
    show_memory(console, watch, trackers, size)
    table = Table(title=f"verl sync, one tracker at a time, load {load:.1f}")
    for column in ("tracker", "seconds", "records per second", "points per second", "again, seconds"):
        table.add_column(column, justify="left" if column == "tracker" else "right")
    for name in trackers:
        seconds, _ = sync(directory, [name], total, is_fresh=True)
        again, _ = sync(directory, [name], total)
        table.add_row(
            name, f"{seconds:.1f}", f"{total / seconds:,.0f}", f"{size.points / seconds:,.0f}", f"{again:.1f}"
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--trackers", default=",".join(TRACKERS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, Services(Path(name)):
        measure(arguments, Path(name), Console(width=120))


if __name__ == "__main__":
    main()
