"""Samples of the machine: what they are, that each step gets them once, and that nothing they meet harms the run."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from verl.config import PPOConfig
from verl.errors import ConfigError, JournalError
from verl.journal import JournalReader
from verl.testing.trackers import RecordingLogger
from verl.tracking import Reduction, Tracking, lookup
from verl.tracking.catalogue import TIME_DEPENDENT
from verl.tracking.system.gpu_samples import find_gpus, nvml_devices, parse_smi, read_nvml
from verl.tracking.system.memory_limit import memory_used_fractions
from verl.tracking.system.readings import Rates, Reader, readers
from verl.tracking.system.sampler import SystemSampler


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


@pytest.fixture
def sampler(tmp_path: Path) -> Iterator[Callable[..., SystemSampler]]:
    made: list[SystemSampler] = []

    def make(
        parts: list[tuple[str, Callable[[], Reader | None]]], tell: Callable[[str], None] = print
    ) -> SystemSampler:
        made.append(SystemSampler(tmp_path, 0.02, tell, lambda _: parts))
        return made[-1]

    yield make
    for one in made:
        one.stop()


# What is read.


def test_the_whole_machine_is_read_with_plausible_numbers(tmp_path: Path) -> None:
    parts = {name: begin() for name, begin in readers(tmp_path)}
    blob = os.urandom(64) * 2**14
    deadline = time.process_time() + 0.2
    while time.process_time() < deadline:
        sum(blob)
    sample = {key: value for reader in parts.values() if reader for key, value in reader().items()}
    assert 2 < sample["system/process_cpu_percent"] < 100.0 * (os.cpu_count() or 1) + 50
    assert 0 < sample["system/cpu_percent"] <= 100
    assert sample["system/memory_bytes"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert 0 < sample["system/memory_used_fraction"] <= 1
    assert 0 < sample["system/disk_free_bytes"] <= psutil.disk_usage(str(tmp_path)).total
    assert 0 < sample["system/disk_used_fraction"] <= 1
    assert sample["system/network_sent_bytes_per_second"] >= 0
    assert sample["system/network_received_bytes_per_second"] >= 0
    assert all(lookup(key) is not None for key in sample)


def test_processor_time_of_children_counts_though_they_have_ended(tmp_path: Path) -> None:
    read = dict(readers(tmp_path))["processor"]()
    assert read is not None
    read()
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    busy = read()["system/process_cpu_percent"]
    assert busy >= 100 * 0.4 / (time.monotonic() - begun)


def test_rates_are_per_second_and_never_negative() -> None:
    rates = Rates()
    assert rates.of({"a": 100.0, "b": 100.0}) == {}
    begun = time.monotonic()
    time.sleep(0.1)
    found = rates.of({"a": 1100.0, "b": 0.0, "new": 5.0})
    assert found["a"] == pytest.approx(1000 / (time.monotonic() - begun), rel=0.2)
    assert found["b"] == 0.0
    assert set(found) == {"a", "b"}


def cgroup(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def test_limits_of_control_groups_of_version_2(tmp_path: Path) -> None:
    membership = tmp_path / "membership"
    membership.write_text("0::/pod/container\n")
    root = tmp_path / "cgroup"
    cgroup(root, memory__current=900)  # the root group has no limit
    cgroup(root / "pod", memory__max=1000, memory__current=800, memory__stat="anon 5\ninactive_file 300")
    cgroup(root / "pod" / "container", memory__max="max", memory__current=700)
    assert memory_used_fractions(root, membership) == [0.5]
    cgroup(root / "pod" / "container", memory__max=1000, memory__stat="inactive_file x")
    assert memory_used_fractions(root, membership) == [0.7, 0.5]


def test_limits_of_control_groups_of_version_1(tmp_path: Path) -> None:
    membership = tmp_path / "membership"
    membership.write_text("5:cpu,cpuacct:/elsewhere\n4:memory:/not/visible/here\n0::/\n")
    root = tmp_path / "cgroup"
    cgroup(
        root / "memory",
        memory__limit_in_bytes=1000,
        memory__usage_in_bytes=600,
        memory__stat="inactive_file 1\ntotal_inactive_file 100",
    )
    assert memory_used_fractions(root, membership) == [0.5]
    cgroup(root / "memory", memory__limit_in_bytes=9223372036854771712)
    assert memory_used_fractions(root, membership) == []


@pytest.mark.parametrize("text", ["", "nonsense", "0::/../..\n4:memory", None])
def test_without_control_groups_there_is_no_limit(tmp_path: Path, text: str | None) -> None:
    membership = tmp_path / "membership"
    if text is not None:
        membership.write_text(text)
    assert memory_used_fractions(tmp_path / "none", membership) == []


SMI = """\
0, 97, 40960, 81920, 61, 350.25, GPU-0a
1, [N/A], 1024, 81920, [N/A], [Not Supported], GPU-1b
2, 5, [N/A], [N/A], 30, 60.0, GPU-1c
No devices were found
"""


def test_a_table_of_nvidia_smi() -> None:
    values = parse_smi(SMI, None)
    assert values["system/gpu_0/utilisation"] == 97
    assert values["system/gpu_0/memory_used"] == values["system/gpu_0/memory_used_max"] == 40960 * 2**20
    assert values["system/gpu_0/memory_used_fraction"] == 0.5
    assert (values["system/gpu_0/temperature"], values["system/gpu_0/power"]) == (61, 350.25)
    assert {key for key in values if "gpu_1" in key} == {
        "system/gpu_1/memory_used", "system/gpu_1/memory_used_max", "system/gpu_1/memory_used_fraction"
    }  # fmt: skip
    assert {key for key in values if "gpu_2" in key} == {
        f"system/gpu_2/{k}" for k in ("utilisation", "temperature", "power")
    }
    assert all(lookup(key) is not None for key in values)


def gpus(values: Iterable[str]) -> set[int]:
    return {int(key.removeprefix("system/gpu_").partition("/")[0]) for key in values}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, {0, 1, 2}),
        (["0"], {0}),
        (["2", "1"], {1, 2}),
        (["GPU-1"], {1, 2}),
        (["GPU-0a", "2"], {0, 2}),
        (["GPU-f"], set()),
        ([""], set()),
        (["-1"], set()),
        (["0", "-1", "1"], {0}),
        (["7"], set()),
        (["MIG-5f"], {0, 1, 2}),
    ],
)
def test_only_gpus_of_this_process_are_shown_by_their_own_numbers(
    visible: list[str] | None, expected: set[int]
) -> None:
    assert gpus(parse_smi(SMI, visible)) == expected
    assert set(nvml_devices(Library(), visible)) == expected


def program_of_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has GPUs of its own")
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    "answer", ["echo 'NVIDIA-SMI has failed: no driver'; exit 9", "echo 'No devices were found'; exit 6", "exit 0"]
)
def test_a_program_without_a_driver_is_no_gpu_and_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, sampler: Callable[..., SystemSampler]
) -> None:
    program_of_gpus(tmp_path, monkeypatch, answer)
    assert find_gpus() is None
    told: list[str] = []
    made = sampler([("GPUs", find_gpus), ("good", lambda: lambda: {"system/cpu_percent": 1.0})], told.append)
    until(lambda: made.take(1))
    assert told == []


@pytest.mark.parametrize(("visible", "expected"), [(None, {0, 1}), ("1", {1}), ("GPU-0a", {0}), (" 1 , 0 ", {0, 1})])
def test_gpus_are_those_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: set[int]
) -> None:
    rows = "0, 50, 1024, 2048, 40, 100.5, GPU-0a\n1, 50, 1024, 2048, 40, 100.5, GPU-1b"
    program_of_gpus(tmp_path, monkeypatch, f"cat <<END\n{rows}\nEND")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    read = find_gpus()
    assert read is not None
    assert gpus(read()) == expected
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus() is None


def test_gpus_by_the_program_where_the_library_finds_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "0, 50, 1024, 2048, 40, 100.5, GPU-0a"
    program_of_gpus(tmp_path, monkeypatch, f'case "$1" in --query-gpu=index,*) echo "{row}" ;; esac')
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    read = find_gpus()
    assert read is not None
    assert read()["system/gpu_0/memory_used_fraction"] == 0.5
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_gpus() is None


class Library:
    """Stands for NVIDIA's library, which needs a driver: three devices, the second one tells its memory only."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    class NVMLError_NoPermission(NVMLError):
        pass

    def asked(self, device: int, value: Any) -> Any:
        if device == 1:
            raise self.NVMLError_NotSupported
        return value

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, device: int) -> str:
        return ("GPU-0a", "GPU-1b", "GPU-1c")[device]

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:
        return self.asked(device, type("Rates", (), {"gpu": 80, "memory": 10}))

    def nvmlDeviceGetTemperature(self, device: int, sensor: int) -> int:
        return self.asked(device, 55 + sensor)

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:
        return self.asked(device, 250_500)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:
        return type("Memory", (), {"used": 3 * 2**30, "total": 4 * 2**30})


def test_gpus_by_the_library() -> None:
    values = read_nvml(Library(), {0: 0, 1: 1})
    assert values["system/gpu_0/utilisation"] == 80.0
    assert values["system/gpu_0/power"] == 250.5  # the library gives milliwatts
    assert values["system/gpu_0/temperature"] == 55.0
    assert values["system/gpu_1/memory_used_fraction"] == 0.75
    assert "system/gpu_1/power" not in values


def test_the_real_library_has_what_is_asked_of_it() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = [name for name in dir(Library) if name.startswith(("nvml", "NVML"))]
    assert len(names) == 11
    assert all(hasattr(pynvml, name) for name in names)


# How steps get them.


def test_samples_are_reduced_as_the_catalogue_says_and_each_step_gets_them_once(
    sampler: Callable[..., SystemSampler],
) -> None:
    values = iter([10.0, 40.0, 10.0])
    done = threading.Event()

    def read() -> dict[str, float]:
        value = next(values, None)
        if value is None:
            done.set()
            return {}
        return dict.fromkeys(
            ("system/cpu_percent", "system/memory_bytes", "system/disk_free_bytes", "system/gpu_0/memory_used_max"),
            value,
        )

    made = sampler([("all", lambda: read)])
    assert done.wait(20)
    assert made.take(5) == {
        "system/cpu_percent": 20.0,
        "system/memory_bytes": 40.0,
        "system/disk_free_bytes": 10.0,
        "system/gpu_0/memory_used_max": 40.0,
    }
    assert made.take(6) == {}


def test_what_is_logged_again_for_a_step_or_for_an_earlier_one_has_none(sampler: Callable[..., SystemSampler]) -> None:
    made = sampler([("all", lambda: lambda: {"system/cpu_percent": 1.0})])
    until(lambda: made.take(5))
    time.sleep(0.1)
    assert made.take(5) == made.take(4) == {}
    assert made.take(6)
    made.rewind(2)
    assert until(lambda: made.take(3))


def test_a_part_that_fails_is_told_once_and_the_others_go_on(sampler: Callable[..., SystemSampler]) -> None:
    told: list[str] = []
    counts = {"lost": 0}

    def lost() -> dict[str, float]:
        counts["lost"] += 1
        raise psutil.AccessDenied(1)

    def no_driver() -> Reader:
        raise RuntimeError("driver mismatch")

    parts = [("lost", lambda: lost), ("driver", no_driver), ("good", lambda: lambda: {"system/cpu_percent": 1.0})]
    made = sampler(parts, told.append)
    for step in range(3):
        until(lambda step=step: made.take(step))
    assert counts["lost"] == 1
    assert [sentence.partition(" cannot")[0] for sentence in told] == [
        "system metrics: the driver",
        "system metrics: the lost",
    ]
    assert "AccessDenied" in told[1]


def test_a_note_that_cannot_be_written_ends_nothing(sampler: Callable[..., SystemSampler]) -> None:
    def full(sentence: str) -> None:
        raise JournalError("no space left on device")

    def lost() -> dict[str, float]:
        raise OSError("gone")

    made = sampler([("lost", lambda: lost), ("good", lambda: lambda: {"system/cpu_percent": 1.0})], full)
    assert until(lambda: made.take(1)) == {"system/cpu_percent": 1.0}


def test_a_reader_that_hangs_holds_up_neither_steps_nor_the_end(tmp_path: Path) -> None:
    release = threading.Event()

    def hangs() -> dict[str, float]:
        release.wait(60)
        return {}

    made = SystemSampler(tmp_path, 0.02, print, lambda _: [("disk", lambda: hangs)])
    time.sleep(0.1)
    begun = time.monotonic()
    assert made.take(1) == {}
    assert time.monotonic() - begun < 0.1
    made.stop()
    assert time.monotonic() - begun < 5
    release.set()


# In a loop.


def test_the_samples_join_the_metrics_of_the_step_in_journal_and_trackers(tmp_path: Path) -> None:
    logger = RecordingLogger()
    with Tracking("p", "e", [logger], log_dir=str(tmp_path), system_metrics_interval=0.1, async_log=False) as tracking:
        step = 0

        def both() -> bool:
            nonlocal step
            step += 1
            tracking.log_metrics({"loss": 0.5, "system/disk_free_bytes": 7}, step)
            tracking.log_metrics({"val/reward_mean": 1.0}, step)
            return len(logger.points("system/memory_bytes")) >= 3

        until(both)
    records = [(record.step, record.fields["metrics"]) for record in JournalReader(tmp_path).records({"metrics"})]
    assert [(step, metrics) for metrics, step in logger.of("log_metrics")] == records
    sampled = [step for step, metrics in records if "system/memory_bytes" in metrics]
    assert len(set(sampled)) == len(sampled)  # once for a step
    assert all(metrics["system/disk_free_bytes"] == 7 for _, metrics in records if "loss" in metrics)
    (first,) = [metrics for step, metrics in records if step == sampled[0] and "system/memory_bytes" in metrics]
    assert next(iter(first)) in ("loss", "val/reward_mean")
    assert {"system/cpu_percent", "system/memory_used_fraction", "system/process_cpu_percent"} <= set(first)


@pytest.mark.parametrize("interval", [None, 0])
def test_without_an_interval_nothing_is_sampled(tmp_path: Path, interval: float | None) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with Tracking("p", "e", [], log_dir=str(tmp_path), system_metrics_interval=interval) as tracking:
        assert "verl-system-metrics" not in {thread.name for thread in threading.enumerate()} - before
        tracking.log_metrics({"loss": 0.5}, 1)
    (record,) = JournalReader(tmp_path).records({"metrics"})
    assert record.fields["metrics"] == {"loss": 0.5}


def test_the_interval_is_off_or_at_least_a_tenth_of_a_second() -> None:
    assert PPOConfig(trainer={"system_metrics_interval": 0}).trainer.system_metrics_interval == 0
    assert PPOConfig(trainer={"system_metrics_interval": None}).trainer.system_metrics_interval is None
    with pytest.raises(ConfigError, match=r"trainer\.system_metrics_interval.*at least 0.1 seconds"):
        PPOConfig(trainer={"system_metrics_interval": 0.05})


def test_the_machine_is_among_what_depends_on_time() -> None:
    assert "system/cpu_percent".startswith(TIME_DEPENDENT)
    spec = lookup("system/gpu_11/memory_used_max")
    assert spec is not None
    assert spec.reduction is Reduction.MAX
