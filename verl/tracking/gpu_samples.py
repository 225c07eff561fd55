"""What the GPUs of the machine do: by NVML where `nvidia-ml-py` is installed, else by `nvidia-smi`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

_TIME_LIMIT_SECONDS = 10.0
_MEGABYTE = 1024.0 * 1024.0
_SMI_FIELDS = "index,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw"

GpuReader = Callable[[], dict[str, float]]
"""Gives `system/gpu_<index>/...` of all GPUs; what a GPU does not tell is absent."""


def find_gpus() -> GpuReader | None:
    """A reader of the machine's GPUs, or None where there are none (or none that can be asked)."""
    return _nvml_reader() or _smi_reader()


def _nvml_reader() -> GpuReader | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except (pynvml.NVMLError, OSError):  # no driver
        return None
    return (lambda: read_nvml(pynvml, devices)) if devices else None


def read_nvml(nvml: Any, devices: list[Any]) -> dict[str, float]:
    """One sample of each device.

    Args:
        nvml: The module `pynvml`.
        devices: Its handles, in the order of their indices.

    Raises:
        pynvml.NVMLError: A device is lost.
    """
    values: dict[str, float] = {}
    for index, device in enumerate(devices):
        asked: list[tuple[str, Callable[[], float]]] = [
            ("utilisation", lambda device=device: nvml.nvmlDeviceGetUtilizationRates(device).gpu),
            ("temperature", lambda device=device: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
            ("power", lambda device=device: nvml.nvmlDeviceGetPowerUsage(device) / 1000.0),
        ]
        for name, ask in asked:
            try:
                values[f"system/gpu_{index}/{name}"] = float(ask())
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):  # such as within a MIG instance
                continue
        memory = nvml.nvmlDeviceGetMemoryInfo(device)
        values |= _memory(index, float(memory.used), float(memory.total))
    return values


def _smi_reader() -> GpuReader | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None

    def read() -> dict[str, float]:
        query = [program, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=_TIME_LIMIT_SECONDS, check=True)
        return parse_smi(done.stdout)

    return read


def parse_smi(output: str) -> dict[str, float]:
    """Reads a table of `nvidia-smi`; a cell that is no number (`[N/A]`) is left out."""
    values: dict[str, float] = {}
    for line in output.splitlines():
        cells = [_number(cell) for cell in line.split(",")]
        if len(cells) != len(_SMI_FIELDS.split(",")) or cells[0] is None:
            continue
        index, utilisation, used, total, temperature, power = int(cells[0]), *cells[1:]
        for name, value in (("utilisation", utilisation), ("temperature", temperature), ("power", power)):
            if value is not None:
                values[f"system/gpu_{index}/{name}"] = value
        if used is not None and total is not None:
            values |= _memory(index, used * _MEGABYTE, total * _MEGABYTE)
    return values


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _memory(index: int, used: float, total: float) -> dict[str, float]:
    prefix = f"system/gpu_{index}/memory_used"
    values = {prefix: used, f"{prefix}_max": used}
    if total > 0:
        values[f"{prefix}_fraction"] = used / total
    return values
