"""`verl doctor`: what keeps trackers from working, and with `--choose`, which one to take."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from verl.config.command_line import Parser, printable, read_arguments, write_output
from verl.errors import ConfigError

if TYPE_CHECKING:
    from verl.journal import RunDirectory
    from verl.tracking.diagnosis.choice import Question, Recommendation
    from verl.tracking.diagnosis.tracker_checkup import Standing
    from verl.tracking.logger import Check

_NOTHING_LOOKED_AT = "nothing to be looked at beforehand"


def run(argv: list[str]) -> int:
    """Prints what was found, in the order in which troubles are looked for; 1 if something is wrong, else 0.

    Raises:
        ConfigError: Arguments exclude each other, or settings are wrong.
        JournalError: There is no run at the path.
    """
    arguments = read_arguments(_parser(), argv)
    if options := [text for text in arguments.overrides if text.startswith("-")]:
        raise ConfigError(f"`{options[0]}` is not an option of `verl doctor`; see `verl doctor --help`")
    runs = [text for text in arguments.overrides if "=" not in text or Path(text).is_dir()]
    settings = [text for text in arguments.overrides if text not in runs]
    if arguments.choose or arguments.answers is not None:
        if runs or settings or arguments.config:
            raise ConfigError("--choose asks questions, and takes neither a run nor settings")
        return _choose(arguments)
    if len(runs) > 1:
        raise ConfigError(f"one run at a time; given: {', '.join(runs)}")
    if runs and (settings or arguments.config):
        raise ConfigError("a run has its own settings; give either RUN, or --config FILE and key=value")
    if runs:
        return _diagnose_run(Path(runs[0]))
    if settings or arguments.config:
        return _diagnose_settings(arguments.config, settings)
    return _diagnose_machine()


def _parser() -> Parser:
    parser = Parser(
        prog="verl doctor",
        usage="verl doctor [RUN | --config FILE] [key=value ...]\n       verl doctor --choose [--answers A,B,...]",
        description="Looks for what keeps trackers from working: installed? logged in? reachable? complete?"
        " Without arguments: all trackers, on this machine.",
    )
    parser.add_argument("--config", metavar="FILE", help="look at the trackers of trainer.logger of this configuration")
    parser.add_argument(
        "overrides",
        metavar="RUN | key=value",
        nargs="*",
        help="a run directory: its trackers, and what they lack of it; or settings, as for `verl train`",
    )
    parser.add_argument("--choose", action="store_true", help="ask a few questions, and recommend a tracker")
    parser.add_argument(
        "--answers",
        metavar="A,B,...",
        help="answers to these questions in their order; an empty one is the first offered",
    )
    return parser


def _diagnose_machine() -> int:
    from verl.tracking.diagnosis.preflight import INSTALLED, preflight
    from verl.tracking.table import IN_TRAINING_PROCESS, proxies_of_environment, tracker_locations

    names = [name for name in tracker_locations() if name not in IN_TRAINING_PROCESS]
    found = preflight(names, proxies_of_environment())
    has_error = False
    for look in found:
        # Nobody needs all of them: one that is not there is no error until a configuration names it.
        is_absent = look.checks[0].question == INSTALLED and look.checks[0].result == "error"
        has_error |= bool(look.errors) and not is_absent
        _show(look.tracker, look.checks, absent=is_absent)
    return int(has_error)


def _diagnose_settings(file: str | None, settings: Sequence[str]) -> int:
    from verl.config.load import load_config
    from verl.tracking.diagnosis.preflight import preflight
    from verl.tracking.diagnosis.tracker_checkup import proxy_checks
    from verl.tracking.table import chosen_proxies

    config = load_config(file, settings)
    names = config.trainer.logger
    if not names:
        write_output("trainer.logger is empty: the run is only in its journal. Trackers: verl doctor --choose\n")
        return 0
    trainer = config.trainer.model_dump()
    found = preflight(names, chosen_proxies(trainer))
    unusable = proxy_checks(trainer)
    for look in found:
        _show(look.tracker, [*look.checks, *filter(None, [unusable.get(look.tracker)])])
    interval = config.trainer.log_step_interval
    if interval > 1:
        write_output(
            f"metrics are logged every {interval} steps (trainer.log_step_interval={interval}): "
            "no tracker can show those between\n"
        )
    return int(any(look.errors for look in found))


def _diagnose_run(path: Path) -> int:
    from verl.journal import RunDirectory
    from verl.tracking.diagnosis.run_checkup import checkup
    from verl.tracking.diagnosis.tracker_checkup import all_trackers_of, completeness, standing_of

    directory = RunDirectory.open(path)
    info = directory.info
    of_run = checkup(directory, info)
    _show(_title(directory), of_run)
    has_error = any(check.result == "error" for check in of_run)
    names = all_trackers_of(directory)
    standings = [standing_of(directory, info, name) for name in names]
    looks = _looks(directory, standings)
    for standing in standings:
        name = standing.tracker
        checks = [*looks[name], *completeness(standing, info, _typed(path), info.trackers.get(name, {}))]
        _show(name, checks)
        has_error |= any(check.result == "error" for check in checks)
    if not names:
        write_output("no trackers but the console; to show the run in one: verl sync RUN --to TRACKER\n")
    return int(has_error)


def _looks(directory: RunDirectory, standings: Sequence[Standing]) -> dict[str, list[Check]]:
    """Whether those trackers can work to which something can be delivered; nobody needs the others here."""
    from verl.tracking.diagnosis.preflight import preflight
    from verl.tracking.diagnosis.tracker_checkup import Condition, is_known_by_name, proxy_checks, trainer_settings_of
    from verl.tracking.table import chosen_proxies

    lacking = [
        standing.tracker
        for standing in standings
        if standing.condition is not Condition.COMPLETE and is_known_by_name(standing.tracker)
    ]
    if not lacking:
        return {standing.tracker: [] for standing in standings}
    trainer = trainer_settings_of(directory)
    unusable = proxy_checks(trainer)
    found = {look.tracker: list(look.checks) for look in preflight(lacking, chosen_proxies(trainer))}
    for name in found:
        found[name] += filter(None, [unusable.get(name)])
    return {standing.tracker: found.get(standing.tracker, []) for standing in standings}


def _title(directory: RunDirectory) -> str:
    from verl.tracking.console.terminal_text import one_line

    info = directory.info
    return one_line(f"{directory.path.name}: {info.project} / {info.experiment}")


def _typed(path: Path) -> str:
    """A path as it can be typed."""
    import shlex

    from verl.tracking.console.terminal_text import one_line

    return one_line(shlex.quote(str(path)))


def _show(title: str, checks: Sequence[Check], *, absent: bool = False) -> None:
    """Prints a heading, and a line for each check with what to do below it."""
    from verl.cli.layout import BOLD, DIM, GREEN, RED, YELLOW, painted, width_of, wrapped
    from verl.config.secrets import mask_text
    from verl.tracking.console.terminal_text import one_line
    from verl.tracking.logger import Check

    colours = {"ok": GREEN, "warning": YELLOW, "error": RED, "absent": DIM}
    width = width_of(sys.stdout)
    lines = [painted(one_line(title), BOLD)]
    for check in checks or [Check("", "ok", _NOTHING_LOOKED_AT)]:
        result = "absent" if absent else check.result
        head = f"  {result:<8} {one_line(check.question, 20):<10} "
        found, advice = mask_text(check.found).rstrip(". "), mask_text(check.advice).rstrip(". ")
        text, *rest = wrapped(head + one_line(found, 2000), width, " " * len(head))
        lines.append("  " + painted(result, colours[result]) + text[2 + len(result) :])
        lines += rest
        if advice:
            lines += wrapped(" " * (len(head) - 3) + "-> " + one_line(advice, 2000), width, " " * len(head))
    write_output("".join(f"{line}\n" for line in lines))


def _choose(arguments: argparse.Namespace) -> int:
    from verl.tracking.diagnosis.choice import QUESTIONS, choose, matters, read_answers

    if arguments.answers is not None:
        answers = read_answers([text.strip() for text in arguments.answers.split(",")])
    elif sys.stdin.isatty():
        answers: dict[str, str] = {}
        for question in QUESTIONS:
            asks = matters(question, answers)
            answers[question.name] = _asked(question) if asks else next(iter(question.answers))
    else:
        answers = read_answers(sys.stdin.read().rstrip().replace(",", "\n").split("\n"))
    _show_recommendation(choose(answers))
    return 0


def _asked(question: Question) -> str:
    """Asks until there is an answer; only Enter takes the first."""
    from verl.tracking.diagnosis.choice import read_answer

    lines = [question.text]
    for number, (answer, meaning) in enumerate(question.answers.items(), start=1):
        lines.append(f"  {number}  {answer:<10} {meaning}")
    write_output("".join(f"{line}\n" for line in lines))
    while True:
        try:
            said = input(f"1-{len(question.answers)} or a word [1]: ")
        except EOFError:
            raise ConfigError(f"{question.text} No answer was given") from None
        try:
            answer = read_answer(question, said)
        except ConfigError as error:
            write_output(f"{printable(str(error))}\n")
        else:
            write_output("\n")
            return answer


def _show_recommendation(found: Recommendation) -> None:
    from verl.cli.layout import BOLD, painted, width_of, wrapped

    width = width_of(sys.stdout)
    lines = wrapped(f"-> {found.title} (trainer.logger={found.tracker})", width, "   ")
    lines[0] = painted(lines[0], BOLD)
    facts = {"why": found.reason, "cost": found.cost, "or": found.alternative}
    for name, fact in facts.items():
        if fact:
            lines += wrapped(f"   {name:<5} {fact}", width, " " * 9)
    write_output("".join(f"{line}\n" for line in [*lines, "", "Next:", *(f"  {line}" for line in found.commands)]))
