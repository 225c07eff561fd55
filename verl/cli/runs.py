"""`verl runs [FOLDER]`: the runs under a folder, and what each tracker lacks of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from verl.config.command_line import Parser, write_output
from verl.errors import JournalError

if TYPE_CHECKING:
    from verl.cli.run_facts import RunFacts

NEWEST = 20
"""Runs that are listed without `--all`, or as many as the terminal has lines for."""
FEWEST = 5

_LONGEST_PIPED = 300


def run(argv: list[str]) -> int:
    """Prints the runs, the newest first; returns 0.

    Raises:
        JournalError: There is no such folder, or it cannot be read.
    """
    parser = Parser(
        prog="verl runs", description="Lists the runs under a folder, the newest first, and what trackers lack of them."
    )
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", type=Path, default=Path("logs"), help="where to look; logs if not given"
    )
    parser.add_argument("--all", action="store_true", help=f"all runs, not only the {NEWEST} newest")
    parser.add_argument("--json", action="store_true", help="all runs and facts as JSON, for programs")
    arguments = parser.parse_args(argv)
    folder: Path = arguments.folder
    # Imported here, so that --help answers at once.
    from verl.cli.run_facts import facts_of, newest_first
    from verl.journal.run_listing import find_runs

    try:
        paths = newest_first(find_runs(folder))
    except FileNotFoundError:
        raise JournalError(f"There is no folder {folder}. Give the one with your runs: verl runs FOLDER.") from None
    except OSError as error:
        raise JournalError(f"{folder} cannot be read: {error.strerror}.") from None
    shown = paths if arguments.all or arguments.json else paths[:NEWEST]
    facts = [facts_of(path, folder) for path in shown]
    if arguments.json:
        write_output(_json(facts))
    elif not facts:
        write_output(f"No runs under {folder}. A run is a folder with run.json and journal/ in it.\n")
    else:
        write_output(
            "".join(f"{line}\n" for line in _lines(facts, len(paths) - len(shown), folder, is_all=arguments.all))
        )
    return 0


def _json(facts: list[RunFacts]) -> str:
    import dataclasses

    import orjson

    raw = [dataclasses.asdict(run) for run in facts]
    return orjson.dumps(raw, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE, default=str).decode()


def _lines(facts: list[RunFacts], num_older: int, folder: Path, *, is_all: bool) -> list[str]:
    import shlex
    import sys

    from verl.cli.layout import Column, cut, height_of, table, width_of, wrapped
    from verl.tracking.console.terminal_text import one_line

    columns = [
        Column("run", 12, 90),
        Column("experiment", 12, 70),
        Column("project", 8, 20),
        Column("status", 8, 95),
        Column("attempts", 8, 30, is_number=True),
        Column("step", 4, 80, is_number=True),
        Column("started", 16, 50),
        Column("duration", 8, 40, is_number=True),
        Column("size", 6, 35, is_number=True),
        Column("trackers", 22, 85),
    ]
    width, height = width_of(sys.stdout), None if is_all else height_of(sys.stdout)
    body = table(columns, [_row(run, whole=width is None) for run in facts], width)

    def rest(number: int) -> list[str]:
        return wrapped(
            f"... and {number:,} older; all of them: verl runs --all {one_line(shlex.quote(str(folder)))}", width
        )

    # The newest must not scroll away; the lines below the list and the prompt need room, too.
    room = None if height is None else height - 1 - len(rest(num_older + len(facts)))
    lines = body[:1]
    for number, (run, line) in enumerate(zip(facts, body[1:], strict=True)):
        # In a terminal the reason of a failure has a line of its own; a pipe has it in the last column.
        reasons = (
            [] if width is None else [cut(f"    {one_line(text, _LONGEST_PIPED)}", width) for text in run.problems]
        )
        if room is not None and number >= FEWEST and len(lines) + 1 + len(reasons) > room:
            num_older += len(facts) - number
            break
        lines += [line, *reasons]
    return lines + (rest(num_older) if num_older else [])


def _row(run: RunFacts, *, whole: bool) -> list[str]:
    from verl.tracking.console.terminal_text import duration, one_line

    of_total = f"/{run.total_steps}" if run.total_steps else ""
    return [
        one_line(run.name, 200),
        one_line(run.experiment, 100),
        one_line(run.project, 100),
        run.status,
        str(run.attempts),
        "-" if run.step is None else f"{run.step}{of_total}",
        _date(run.started),
        "-" if run.seconds is None else duration(run.seconds),
        _size(run.size),
        one_line(run.trackers_in_short(_LONGEST_PIPED if whole else 0), 10 * _LONGEST_PIPED),
    ]


def _date(time: float | None) -> str:
    from datetime import datetime

    if time is None:
        return "-"
    try:
        return datetime.fromtimestamp(time).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):  # a number that is no time
        return "-"


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
