"""Time that logging to every tracker takes from a training step: through `Tracking`, against the trackers' own calls.

    python benchmarks/tracker_cost.py [--steps 400] [--pause 0.05] [--hang wandb,mlflow,swanlab]

Each step logs 60 scalars; every tenth a distribution of 256 values, every twentieth a text, every fiftieth a table of
16 samples. Both sides log the same steps to the same servers, with a pause between steps as if a model was trained:

* `Tracking` with console (into a pipe), TensorBoard, W&B, MLflow, SwanLab and trackio;
* `SummaryWriter`, `wandb.log`, `mlflow.log_metrics`, `swanlab.log` and `trackio.log`, one after the other.

Then the servers take connections and never answer. MLflow is a real `mlflow server` with a SQLite database, the
servers of W&B and SwanLab are those of `verl.testing`; all on this machine, where a network costs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from tracker_services import TRACKERS, WITH_SERVER, Services, fail

KEYS = [f"group_{index % 6}/metric_{index}" for index in range(60)]
COLUMNS = ["prompt", "answer", "score"]
WARM_UP = 20
HANGING_SECONDS = 10.0
SIDE_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Step:
    """What one step logs."""

    metrics: dict[str, float]
    values: np.ndarray | None
    text: str | None
    rows: list[list[Any]] | None


Log = Callable[[int, Step], None]


def step_of(number: int) -> Step:
    """The same for both sides."""
    random = np.random.default_rng(number)
    metrics = dict(zip(KEYS, random.random(len(KEYS)).tolist(), strict=True))
    values = random.normal(size=256) if number % 10 == 0 else None
    text = f"step {number}: " + "a sentence of a sample. " * 40 if number % 20 == 5 else None
    rows = [[f"prompt {number}.{row} " * 8, "an answer of a model " * 60, row / 16] for row in range(16)]
    return Step(metrics, values, text, rows if number % 50 == 15 else None)


@dataclass(slots=True)
class Times:
    """Seconds on the training thread.

    Attributes:
        well: Each step while all servers work. hanging: Each step that came back while they hang.
        stuck: For how long a step had not come back when nobody waited for it any longer; 0 = all did.
    """

    well: list[float] = field(default_factory=list)
    hanging: list[float] = field(default_factory=list)
    stuck: float = 0.0


def timed(log: Log, numbers: range, pause: float, times: list[float]) -> None:
    """Log steps at the pace of a training."""
    for number in numbers:
        step = step_of(number)
        time.sleep(pause)
        start = time.perf_counter()
        log(number, step)
        times.append(time.perf_counter() - start)


def log_with_tracking(steps: int, pause: float, hang: tuple[str, ...], folder: Path) -> Times:
    from verl.tracking import Tracking

    loggers = ["console", *TRACKERS]
    tracking = Tracking("benchmark", "tracking", loggers, {"lr": 1e-6}, log_dir=str(folder / "run"), total_steps=steps)

    def log(number: int, step: Step) -> None:
        tracking.log_metrics(step.metrics, number)
        if step.values is not None:
            tracking.log_histogram("dist", step.values, number)
        if step.text is not None:
            tracking.log_text("sample", step.text, number)
        if step.rows is not None:
            tracking.log_table("generations", COLUMNS, step.rows, number)

    times = Times()
    timed(log, range(WARM_UP), pause, [])
    timed(log, range(WARM_UP, WARM_UP + steps), pause, times.well)
    fail(hang, "hang")
    timed(log, range(WARM_UP + steps, WARM_UP + 2 * steps), pause, times.hanging)
    fail(hang, None)
    tracking.finish("finished", seconds=0.0)
    return times


def log_directly(steps: int, pause: float, hang: tuple[str, ...], folder: Path) -> Times:
    log = direct_calls(folder)
    times = Times()
    timed(log, range(WARM_UP), pause, [])
    timed(log, range(WARM_UP, WARM_UP + steps), pause, times.well)
    fail(hang, "hang")
    more = range(WARM_UP + steps, WARM_UP + 2 * steps)
    thread = threading.Thread(target=timed, args=(log, more, pause, times.hanging), daemon=True)
    start = time.monotonic()
    thread.start()
    thread.join(HANGING_SECONDS)
    if thread.is_alive():
        times.stuck = time.monotonic() - start - sum(times.hanging) - pause * len(times.hanging)
    return times


def direct_calls(folder: Path) -> Log:
    """The calls that somebody without a layer above would write, one tracker after the other."""
    loggers = [log_to(folder) for log_to in (to_tensorboard, to_wandb, to_mlflow, to_swanlab, to_trackio)]

    def log(number: int, step: Step) -> None:
        for logger in loggers:
            logger(number, step)

    return log


def to_tensorboard(folder: Path) -> Log:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def log(number: int, step: Step) -> None:
        for tag, value in step.metrics.items():
            writer.add_scalar(tag, value, number)
        if step.values is not None:
            writer.add_histogram("dist", step.values, number)
        if step.text is not None:
            writer.add_text("sample", step.text, number)

    return log


def to_wandb(folder: Path) -> Log:
    import wandb

    run = wandb.init(project="benchmark", name="direct", dir=str(folder), settings=wandb.Settings(silent=True))

    def log(number: int, step: Step) -> None:
        content: dict[str, Any] = dict(step.metrics)
        if step.values is not None:
            content["dist"] = wandb.Histogram(step.values.tolist())
        if step.text is not None:
            content["sample"] = wandb.Html(step.text)
        if step.rows is not None:
            content["generations"] = wandb.Table(columns=[*COLUMNS], data=[*step.rows])
        run.log(content, step=number)

    return log


def to_mlflow(folder: Path) -> Log:
    import mlflow

    mlflow.set_experiment("benchmark")
    mlflow.start_run(run_name="direct")

    def log(number: int, step: Step) -> None:
        mlflow.log_metrics(step.metrics, step=number)
        if step.text is not None:
            mlflow.log_text(step.text, f"texts/{number}.md")
        if step.rows is not None:
            table: dict[str, Any] = dict(zip(COLUMNS, zip(*step.rows, strict=True), strict=True))
            mlflow.log_table(table, f"tables/{number}.json")

    return log


def to_swanlab(folder: Path) -> Log:
    import swanlab

    swanlab.init(project="benchmark", name="direct", log_dir=str(folder / "swanlog"))

    def log(number: int, step: Step) -> None:
        text = {} if step.text is None else {"sample": swanlab.Text(step.text)}
        swanlab.log({**step.metrics, **text}, step=number)

    return log


def to_trackio(folder: Path) -> Log:
    import trackio

    trackio.init("benchmark", "direct", embed=False)

    def log(number: int, step: Step) -> None:
        content: dict[str, Any] = dict(step.metrics)
        if step.values is not None:
            content["dist"] = trackio.Histogram(step.values.tolist())
        if step.text is not None:
            content["sample"] = trackio.Markdown(step.text)
        trackio.log(content, step=number)

    return log


SIDES = {"tracking": log_with_tracking, "direct": log_directly}


def run_side(name: str, arguments: argparse.Namespace, folder: Path) -> Times:
    """Run one side in a process of its own, its output into a pipe that is read."""
    (folder / name).mkdir()
    result = folder / f"{name}.json"
    command = [sys.executable, __file__, "--side", name, "--folder", str(folder), "--steps", str(arguments.steps)]
    command += ["--pause", str(arguments.pause), "--hang", arguments.hang]
    process = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SIDE_SECONDS, check=False
    )
    if not result.exists():
        raise RuntimeError(f"{name} failed:\n{process.stdout.decode(errors='replace')[-3000:]}")
    return Times(**json.loads(result.read_text()))


def be_side(arguments: argparse.Namespace) -> None:
    """Measure, and end at once with everything that was started: packages would wait for the servers that hang."""
    hang = tuple(filter(None, arguments.hang.split(",")))
    times = SIDES[arguments.side](arguments.steps, arguments.pause, hang, arguments.folder / arguments.side)
    fail(hang, None)
    result = arguments.folder / f"{arguments.side}.json"
    result.write_text(json.dumps({"well": times.well, "hanging": times.hanging, "stuck": times.stuck}))
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


def percentile_99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[98]


def row(times: list[float]) -> list[str]:
    """Median, 99th percentile and maximum in milliseconds."""
    if len(times) < 2:
        return ["-", "-", "-"]
    high = percentile_99(times)
    return [f"{value * 1e3:.3f}" for value in (statistics.median(times), high, max(times))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between steps")
    parser.add_argument("--hang", default=",".join(WITH_SERVER), help="trackers whose servers hang in the end")
    parser.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        be_side(arguments)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, Services(Path(name)):
        ours = run_side("tracking", arguments, Path(name))
        theirs = run_side("direct", arguments, Path(name))
    load = os.getloadavg()[0]
    table = Table(title=f"Milliseconds of the training thread per step, {arguments.steps} steps, load {load:.1f}")
    for column in ("", "median", "p99", "max"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("Tracking, all trackers", *row(ours.well))
    table.add_row(f"Tracking, {arguments.hang} hang", *row(ours.hanging))
    table.add_row("direct calls", *row(theirs.well))
    table.add_row(f"direct calls, {arguments.hang} hang", *row(theirs.hanging))
    console = Console(width=120)
    console.print(table)
    if theirs.stuck:
        done = f"after {len(theirs.hanging)} steps the next one had not come back in {theirs.stuck:.0f} s"
        console.print(f"Direct calls while servers hang: {done}; nobody waited longer.")
    middle = statistics.median(theirs.well) / statistics.median(ours.well)
    high = percentile_99(theirs.well) / percentile_99(ours.well)
    console.print(f"Direct calls take {middle:.0f} times as long (median), {high:.0f} times (p99).")


if __name__ == "__main__":
    main()
