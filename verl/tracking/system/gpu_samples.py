"""What the GPUs of the machine do: by NVML where `nvidia-ml-py` is installed, else by `nvidia-smi`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl.config.environment import visible_gpus

_TIME_LIMIT_SECONDS = 10.0
_MEGABYTE = 1024.0 * 1024.0
_SMI_FIELDS = "index,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,uuid"

GpuReader = Callable[[], dict[str, float]]
"""Gives `system/gpu_<index>/...` of all GPUs; what a GPU does not tell is absent."""


def find_gpus() -> GpuReader | None:
    """A reader of the GPUs that this process may use, or None where there are none (or none that can be asked).

    Raises:
        subprocess.TimeoutExpired: `nvidia-smi` gives no answer.
    """
    visible = visible_gpus()
    return _nvml_reader(visible) or _smi_reader(visible)


def is_visible(index: int, uuid: str, visible: Sequence[str] | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES names a GPU, by its index or the beginning of its UUID.

    As for CUDA, what follows something that names no GPU, such as -1, does not count. Instances of a GPU (MIG) are
    not told apart: where one is named, all GPUs are.

    Args:
        index: Of the GPU. uuid: Of the GPU, such as GPU-5f3c...
        visible: What the variable names; nothing = all GPUs.
    """
    if visible is None:
        return True
    for name in visible:
        if name.startswith("MIG-") or name == str(index):
            return True
        if name.startswith("GPU-"):
            if uuid.startswith(name):
                return True
        elif not name.isdecimal():
            return False
    return False


def _nvml_reader(visible: Sequence[str] | None) -> GpuReader | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        devices = nvml_devices(pynvml, visible)
    except (pynvml.NVMLError, OSError):  # no driver
        return None
    return (lambda: read_nvml(pynvml, devices)) if devices else None


def nvml_devices(nvml: Any, visible: Sequence[str] | None) -> dict[int, Any]:
    """The handles of the visible devices by their indices."""
    devices = {index: nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())}
    if visible is None:
        return devices
    return {
        index: device
        for index, device in devices.items()
        if is_visible(index, str(nvml.nvmlDeviceGetUUID(device)), visible)
    }


def read_nvml(nvml: Any, devices: Mapping[int, Any]) -> dict[str, float]:
    """One sample of each device.

    Args:
        nvml: The module `pynvml`.
        devices: Its handles by their indices.

    Raises:
        pynvml.NVMLError: A device is lost.
    """
    values: dict[str, float] = {}
    for index, device in devices.items():
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


def _smi_reader(visible: Sequence[str] | None) -> GpuReader | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None

    def read() -> dict[str, float]:
        query = [program, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=_TIME_LIMIT_SECONDS, check=True)
        return parse_smi(done.stdout, visible)

    try:
        return read if read() else None
    except (subprocess.CalledProcessError, OSError):  # the program is there, a driver or a GPU is not
        return None


def parse_smi(output: str, visible: Sequence[str] | None) -> dict[str, float]:
    """Reads a table of `nvidia-smi`; a cell that is no number (`[N/A]`) is left out, and so are invisible GPUs."""
    values: dict[str, float] = {}
    for line in output.splitlines():
        *numbers, uuid = line.split(",")
        cells = [_number(cell) for cell in numbers]
        if len(cells) != len(_SMI_FIELDS.split(",")) - 1 or cells[0] is None:
            continue
        index, utilisation, used, total, temperature, power = int(cells[0]), *cells[1:]
        if not is_visible(index, uuid.strip(), visible):
            continue
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
