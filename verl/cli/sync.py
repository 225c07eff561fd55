"""`verl sync RUN ...`: completes what trackers lack of runs, or shows runs in trackers that never had them."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from verl.config.command_line import INTERRUPTED, Parser, write_output
from verl.config.secrets import mask_text
from verl.errors import ConfigError, JournalError, VerlError

if TYPE_CHECKING:
    from verl.journal import RunDirectory
    from verl.tracking.diagnosis.completion import Outcome

PATIENCE_SECONDS = 60.0
"""How long nothing may be delivered before the trackers that still lack something are given up."""


def run(argv: list[str]) -> int:
    """Delivers what is missing, shows how far it is, and says what each tracker has; 0 only if all are complete.

    Raises:
        ConfigError: An argument makes no sense.
        JournalError: There is no run at a path.
        TrackerError: A tracker of `--to` is unknown.
    """
    arguments = _parser().parse_args(argv)
    if not 0 < arguments.seconds < math.inf:
        raise ConfigError(f"--seconds is a time above 0, such as --seconds 60; given: {arguments.seconds:g}")
    # Imported here, so that --help answers at once.
    from verl.tracking.diagnosis.completion import check_names

    check_names(arguments.to)
    paths = [path for given in arguments.runs for path in _runs_at(given)]
    try:
        complete = _sync_all(list(dict.fromkeys(paths)), arguments)
    except KeyboardInterrupt:
        sys.stderr.write("verl: interrupted; what was delivered stays, and the same command goes on from there\n")
        return INTERRUPTED
    return 0 if complete else 1


def _parser() -> Parser:
    parser = Parser(
        prog="verl sync",
        description="Completes what trackers lack of runs, from their journals. Again, it delivers nothing twice.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run directory, or a folder with runs in it")
    parser.add_argument(
        "--to",
        metavar="TRACKER",
        action="append",
        default=[],
        help="tracker to complete, also one that the run never had; can be repeated; if not given: those of the run",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="build the run anew in each tracker, beside what it shows already"
    )
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=float,
        default=PATIENCE_SECONDS,
        help=f"give up when nothing could be delivered for N seconds ({PATIENCE_SECONDS:.0f})",
    )
    return parser


def _runs_at(given: Path) -> list[Path]:
    from verl.journal.run_listing import find_runs

    try:
        found = find_runs(given)
    except FileNotFoundError:
        raise JournalError(f"There is no run directory {given}.") from None
    except NotADirectoryError:
        raise JournalError(f"{given} is a file; a run is a folder with run.json and journal/ in it.") from None
    except OSError as error:
        raise JournalError(f"{given} cannot be read: {error.strerror}.") from None
    if not found:
        raise JournalError(f"There is no run in {given}: a run is a folder with run.json and journal/ in it.")
    return found


def _sync_all(paths: Sequence[Path], arguments: argparse.Namespace) -> bool:
    """Brings each run to its trackers; whether all of them have everything."""
    from verl.cli.layout import BOLD, painted
    from verl.tracking.console.terminal_text import one_line

    if len(paths) == 1:
        return _sync(paths[0], arguments)
    is_complete = True
    for path in paths:
        write_output(painted(one_line(str(path), 1000), BOLD) + "\n")
        try:
            is_complete &= _sync(path, arguments)
        except (VerlError, OSError) as error:  # the next one may be whole
            _say(mask_text(str(error)))
            is_complete = False
    return is_complete


def _sync(path: Path, arguments: argparse.Namespace) -> bool:
    """Brings one run to its trackers; whether all of them have everything."""
    from verl.cli.sync_progress import shown_progress
    from verl.journal import RunDirectory
    from verl.tracking.diagnosis.completion import Completion
    from verl.tracking.diagnosis.tracker_checkup import trackers_of

    directory = RunDirectory.open(path)
    names = list(dict.fromkeys(arguments.to)) or trackers_of(directory)
    if not names:
        write_output("  this run has no trackers but the console; name one: verl sync RUN --to TRACKER\n")
        return True
    completion = Completion(directory, names, is_fresh=arguments.fresh)
    for sentence in completion.prepare():
        _say(sentence)
    with shown_progress() as watch:
        completion.deliver(watch, arguments.seconds)
    outcomes = completion.outcomes()
    for outcome in outcomes:
        write_output("".join(f"{line}\n" for line in _told(outcome, directory, path)))
    return all(outcome.is_complete for outcome in outcomes)


def _told(outcome: Outcome, directory: RunDirectory, path: Path) -> list[str]:
    """What a tracker has now, and where to look at it."""
    from verl.cli.layout import GREEN, RED, painted, width_of, wrapped

    colour = GREEN if outcome.is_complete else RED
    width = width_of(sys.stdout)
    head, *rest = wrapped(f"{outcome.tracker}: {outcome.sentence}", width, "  ")
    lines = [painted(outcome.tracker, colour) + head.removeprefix(outcome.tracker), *rest]
    for fact in outcome.facts:
        lines += wrapped(f"  {fact}", width, "    ")
    return lines


def _say(sentence: str) -> None:
    from verl.cli.layout import width_of, wrapped

    sys.stderr.write("".join(f"{line}\n" for line in wrapped(sentence, width_of(sys.stderr), "  ")))
    sys.stderr.flush()
