"""What the machine does, part by part; each reader gives the `system/...` of one moment.

A reader may raise: the sampler then goes on without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from verl.tracking.system.gpu_samples import find_gpus
from verl.tracking.system.memory_limit import memory_used_fractions

Reader = Callable[[], dict[str, float]]


def readers(run_directory: Path) -> list[tuple[str, Callable[[], Reader | None]]]:
    """Each part of the machine by name, with what begins to read it (None = the machine has no such part)."""
    return [
        ("processor", _begin_processor),
        ("memory", lambda: _memory),
        ("disk space", lambda: lambda: _disk_space(run_directory)),
        ("disk traffic", _begin_disk_traffic),
        ("network", _begin_network),
        ("GPUs", find_gpus),
    ]


class Rates:
    """From counters that rise to their rise per second."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._time = 0.0

    def of(self, counters: dict[str, float]) -> dict[str, float]:
        """The rates since the last call; empty in the first one."""
        now = time.monotonic()
        seconds, before = now - self._time, self._before
        self._before, self._time = counters, now
        if seconds <= 0:
            return {}
        # A counter falls when a device or a process goes away.
        return {key: max(value - before[key], 0.0) / seconds for key, value in counters.items() if key in before}


def _begin_processor() -> Reader:
    process, rates = psutil.Process(), Rates()
    psutil.cpu_percent()  # gives the use since its last call

    def read() -> dict[str, float]:
        busy = rates.of({"system/process_cpu_percent": 100.0 * _tree_seconds(process)})
        return {"system/cpu_percent": psutil.cpu_percent(), **busy}

    rates.of({"system/process_cpu_percent": 100.0 * _tree_seconds(process)})
    return read


def _tree_seconds(process: psutil.Process) -> float:
    """Processor time of a process and its descendants, those that have ended included."""
    seconds = 0.0
    for member in (process, *process.children(recursive=True)):
        try:
            times = member.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _memory() -> dict[str, float]:
    machine = psutil.virtual_memory()
    used = 1.0 - machine.available / machine.total
    return {
        "system/memory_bytes": float(psutil.Process().memory_info().rss),
        "system/memory_used_fraction": max([used, *memory_used_fractions()]),
    }


def _disk_space(run_directory: Path) -> dict[str, float]:
    usage = psutil.disk_usage(str(run_directory))
    return {"system/disk_free_bytes": float(usage.free), "system/disk_used_fraction": usage.percent / 100.0}


def _begin_disk_traffic() -> Reader | None:
    rates = Rates()

    def counters() -> dict[str, float]:
        now = psutil.disk_io_counters()
        if now is None:
            return {}
        return {
            "system/disk_read_bytes_per_second": float(now.read_bytes),
            "system/disk_write_bytes_per_second": float(now.write_bytes),
        }

    before = counters()
    rates.of(before)
    return (lambda: rates.of(counters())) if before else None


def _begin_network() -> Reader | None:
    rates = Rates()

    def counters() -> dict[str, float]:
        cards = [card for name, card in psutil.net_io_counters(pernic=True).items() if not name.startswith("lo")]
        return {
            "system/network_sent_bytes_per_second": float(sum(card.bytes_sent for card in cards)),
            "system/network_received_bytes_per_second": float(sum(card.bytes_recv for card in cards)),
        }

    rates.of(counters())
    return lambda: rates.of(counters())
