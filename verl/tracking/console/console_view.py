"""How a run looks on a terminal: pure functions from what is known of it to text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from verl.tracking.console.run_view import (
    ON_ONE_LINE,
    REWARD,
    TELLING,
    Curve,
    RunView,
    TrackerReport,
    checkpoints_in,
)
from verl.tracking.console.terminal_text import duration, number, one_line, pace, sparkline
from verl.tracking.logger import RunStatus, TrackedRun

_WIDE = 110
_LINES_BESIDE_METRICS = 7
_LONGEST_NAME = 22
_CHANGE_WIDTH = 11
_VALUE_WIDTH = 9
_MOST_PHASES = 5
_MOST_RESULTS = 8
_OVER_ALL = {"reward_mean": "reward", "length/response_mean": "length", "truncated_fraction": "truncated"}
_OF_SOURCE = "/reward_mean"
_STATUS = {
    "finished": ("finished", "bold green"),
    "failed": ("FAILED", "bold red"),
    "killed": ("stopped", "bold yellow"),
    "crashed": ("CRASHED", "bold red"),
}


def opening_line(run: TrackedRun) -> Text:
    """First line: which run, and where it is kept."""
    attempt = f"  (attempt {run.attempt})" if run.attempt > 1 else ""
    name = f"{one_line(run.project, 60)} / {one_line(run.experiment, 80)}"
    return Text.assemble((name, "bold"), attempt, ("  in ", "dim"), shown_path(run.directory))


def live_view(view: RunView, width: int, height: int, now: float) -> RenderableType:
    """The live region: progress, metrics, and where the time goes.

    Args:
        view: The run.
        width: Columns of the terminal.
        height: Lines of the terminal; metrics that do not fit are not shown.
        now: Unix time.
    """
    parts: list[RenderableType] = [_progress(view, width, now)]
    if view.shown:
        columns = 2 if width >= _WIDE and len(view.shown) > 3 else 1
        most = columns * max(1, height - _LINES_BESIDE_METRICS)
        parts.append(_metrics(view.shown[:most], width, columns))
    if view.phase_shares:
        parts.append(_phases(view, width))
    if view.warnings:
        text = Text(f"{_count(view.warnings, 'warning')}, the last: {view.last_warning}", "yellow")
        text.truncate(width, overflow="ellipsis")
        parts.append(text)
    return Group(*parts)


def _progress(view: RunView, width: int, now: float) -> RenderableType:
    total = view.run.total_steps
    facts = [
        f"step {view.step}" + (f"/{total}" if total else ""),
        pace(view.seconds_per_step),
        duration(now - view.started),
    ]
    if view.seconds_left is not None:
        facts.append(f"left {duration(view.seconds_left)}")
    text = Text("  ".join(fact for fact in facts if fact), no_wrap=True, overflow="ellipsis")
    if not total:
        return text
    bar_width = max(10, min(60, width - text.cell_len - 2))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=bar_width)
    grid.add_column(no_wrap=True)
    grid.add_row(ProgressBar(total=total, completed=min(view.step, total), width=bar_width), text)
    return grid


def _metrics(shown: list[tuple[str, Curve]], width: int, columns: int) -> RenderableType:
    per_column = math.ceil(len(shown) / columns)
    name_width = min(_LONGEST_NAME, max(len(name) for name, _ in shown))
    fixed = name_width + _VALUE_WIDTH + _CHANGE_WIDTH + 3 * 2
    curve_width = max(0, min(40, (width - 2) // columns - fixed - 2))
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns):
        grid.add_column(width=name_width, no_wrap=True, overflow="ellipsis", style="cyan")
        grid.add_column(width=_VALUE_WIDTH, no_wrap=True, justify="right")
        grid.add_column(width=_CHANGE_WIDTH, no_wrap=True, justify="right", style="dim")
        grid.add_column(width=curve_width, no_wrap=True, style="blue")
    grid.add_row(*[Text(title, "dim") for title in ("", "now", "change", "course")] * columns)
    for row in range(per_column):
        cells: list[RenderableType] = []
        for name, curve in shown[row::per_column]:
            cells += _metric_cells(name, curve, curve_width)
        grid.add_row(*cells)
    return grid


def _metric_cells(name: str, curve: Curve, curve_width: int) -> list[RenderableType]:
    is_finite = math.isfinite(curve.latest)
    value = Text(number(curve.latest), "bold" if is_finite else "bold red")
    change = ""
    if is_finite and math.isfinite(curve.change) and len(curve.values) > 1 and curve.change:
        change = f"{'▲' if curve.change > 0 else '▼'} {number(abs(curve.change))}"
    return [Text(one_line(name, _LONGEST_NAME)), value, change, sparkline(list(curve.values), curve_width)]


def _phases(view: RunView, width: int) -> Text:
    shares = view.phase_shares
    text = Text("time  ", "dim", no_wrap=True, overflow="ellipsis")
    text.append("  ".join(f"{one_line(name, 20)} {share:.0%}" for name, share in shares[:_MOST_PHASES]))
    text.truncate(width, overflow="ellipsis")
    return text


def step_line(view: RunView, metrics: Mapping[str, float], step: int) -> Text | None:
    """One plain line for a logged step, nothing for a record that only holds validation.

    Example: `step 10/100  reward 0.5312  kl 0.012  2.1 s/step  left 3m 12s`.
    """
    telling = [(name, metrics[key]) for key, name in TELLING.items() if key in metrics and key in ON_ONE_LINE]
    own = [(key, metrics[key]) for key in view.curves if key in metrics and key not in TELLING]
    if not telling and not own:
        return None
    is_training = view.tells_progress(metrics, step)
    total = f"/{view.run.total_steps}" if view.run.total_steps and is_training else ""
    parts = [f"step {step}{total}", *(f"{one_line(name, 40)} {number(value)}" for name, value in telling + own)]
    if not is_training:
        return Text("  ".join(parts))
    parts.append(pace(view.seconds_per_step))
    if view.seconds_left is not None:
        parts.append(f"left {duration(view.seconds_left)}")
    return Text("  ".join(part for part in parts if part))


def validation_line(metrics: Mapping[str, float], step: int) -> Text | None:
    """One line for validation results, nothing if there are none.

    Of each data source its reward, not the parts of it: those are for the trackers.

    Example: `validation at step 20  reward 0.61  length 84  truncated 0.02  stocks 0.7  bonds 0.52`.
    """
    results = {key.removeprefix("val/"): value for key, value in metrics.items() if key.startswith("val/")}
    if not results:
        return None
    parts = [f"validation at step {step}"]
    parts += [f"{name} {number(results.pop(key))}" for key, name in _OVER_ALL.items() if key in results]
    sources = {key.removesuffix(_OF_SOURCE): value for key, value in results.items() if key.endswith(_OF_SOURCE)}
    others = {key: value for key, value in results.items() if key.partition("/")[0] not in sources}
    shown = [f"{one_line(name, 60)} {number(value)}" for name, value in (sources | others).items()]
    parts += shown[:_MOST_RESULTS]
    if len(shown) > _MOST_RESULTS:
        parts.append(f"and {len(shown) - _MOST_RESULTS} more")
    return Text("  ".join(parts), "green")


def closing_lines(view: RunView, status: RunStatus, reports: list[TrackerReport], now: float) -> list[Text]:
    """The summary at the end: how it went, and where everything lies."""
    word, style = _STATUS[status]
    lines = [
        Text(""),
        Text.assemble((word, style), f"  {one_line(view.run.experiment, 80)}"),
        _row("steps", _steps(view, now)),
    ]
    reward = view.curves.get(REWARD)
    if reward:
        lines.append(_row("reward", f"{number(reward.first)} -> {number(reward.latest)}  (first -> last)"))
    if view.best:
        lines.append(_row("best validation", f"{number(view.best[0])} at step {view.best[1]}"))
    if view.warnings:
        lines.append(_row("warnings", f"{view.warnings}, the last: {view.last_warning}", "yellow"))
    lines.append(_row("run", shown_path(view.run.directory)))
    lines.append(_row("journal", shown_path(view.run.directory / "journal")))
    checkpoints = checkpoints_in(view.run.directory)
    if checkpoints:
        where = shown_path(view.run.directory / "checkpoints")
        lines.append(_row("checkpoints", f"{where}  ({len(checkpoints)}, newest {checkpoints[-1]})"))
    for report in reports:
        lines += _tracker_rows(report, view.run.directory)
    return lines


def _tracker_rows(report: TrackerReport, directory: Path) -> list[Text]:
    rows = [_row(report.name, report.where)] if report.where else []
    if not report.is_complete:
        rows.append(_row(report.name, "not all of the run has reached it; the journal has it", "yellow"))
    if report.failures:
        problem = f"{_count(report.failures, 'failure')}, the last: {one_line(report.last_error, 200)}"
        rows.append(_row(report.name, f"{problem} (see {shown_path(directory / 'relay' / 'relay.log')})", "yellow"))
    return rows


def _steps(view: RunView, now: float) -> str:
    total = f"/{view.run.total_steps}" if view.run.total_steps else ""
    speed = f"  ({pace(view.seconds_per_step)})" if view.seconds_per_step else ""
    return f"{view.step}{total} in {duration(now - view.started)}{speed}"


def _row(name: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"  {one_line(name, 40):<17}", "dim"), (text, style))


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shown_path(path: Path) -> str:
    """A path for people: relative where it lies below the working directory."""
    absolute = path.absolute()
    here = Path.cwd()
    return one_line(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))
