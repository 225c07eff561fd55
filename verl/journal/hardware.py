"""The machine a run ran on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

_TIME_LIMIT_SECONDS = 10.0
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A graphics processor, as `nvidia-smi` describes it."""

    name: str
    memory: str
    driver: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Hardware:
    """Processor, memory and graphics processors.

    Attributes:
        num_cores: Logical processors of the machine. num_usable_cores: Those this process may use.
    """

    cpu_model: str
    num_cores: int
    num_usable_cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]


def read_hardware(gpus: tuple[Gpu, ...]) -> Hardware:
    """The machine, with the graphics processors that `read_gpus` found (it takes longest)."""
    return Hardware(
        cpu_model=_cpu_model(),
        num_cores=os.cpu_count() or 0,
        num_usable_cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpus=gpus,
    )


def read_gpus() -> tuple[Gpu, ...]:
    """Graphics processors; none where there is no `nvidia-smi`.

    Raises:
        subprocess.SubprocessError: It failed or took longer than ten seconds.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, "--query-gpu=name,memory.total,driver_version,uuid", "--format=csv,noheader"]
    output = subprocess.run(query, capture_output=True, text=True, timeout=_TIME_LIMIT_SECONDS, check=True).stdout
    rows = [[part.strip() for part in line.split(",")] for line in output.splitlines()]
    return tuple(Gpu(*row) for row in rows if len(row) == 4)


def _cpu_model() -> str:
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
