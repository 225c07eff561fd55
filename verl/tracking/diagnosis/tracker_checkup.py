"""What a tracker has of a run, and what is wrong with it: the facts behind `verl sync`, `verl runs`, `verl doctor`."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import orjson

from verl.config.secrets import mask_text
from verl.journal import Cursor, JournalReader, Kind, RunDirectory, RunInfo
from verl.journal.processes import ProcessIdentity
from verl.journal.run_info import RUNNING
from verl.journal.run_listing import Count, count_after, latest_run_record
from verl.tracking.logger import Check
from verl.tracking.relay.feed_state import BROKEN, FEEDING, RETRYING, FeedState, read_states, state_path
from verl.tracking.table import IN_TRAINING_PROCESS, masked_proxies, proxies_of_environment, tracker_locations

_LITTLE_SPACE, _NO_SPACE = 2 * 2**30, 200 * 2**20
_MOST_NAMED = 5
_LOGIN_WORDS = ("401", "403", "unauthori", "forbidden", "api key", "api_key", "not logged in", "login", "permission")
_NETWORK_WORDS = ("timed out", "timeout", "refused", "unreachable", "resol", "proxy", "connect", "no answer")


class Condition(StrEnum):
    """How a tracker stands to the journal."""

    COMPLETE = "complete"
    """It has everything, and knows how the run ended."""
    CURRENT = "current"
    """It has everything so far; the run goes on."""
    BEHIND = "behind"
    """It lacks records."""
    UNFINISHED = "unfinished"
    """It has all records, but was not told how the run ended."""
    FAILING = "failing"
    """It failed at the last try."""
    ABSENT = "absent"
    """It was never given anything."""
    DAMAGED = "damaged"
    """How far it was fed is not known: the file that says so is damaged."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a tracker has of a run.

    Attributes:
        tracker: Its name. condition: How it stands.
        behind: Records that it lacks.
        state: How far it was fed.
    """

    tracker: str
    condition: Condition
    behind: Count
    state: FeedState

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing, to the end, and nothing was refused."""
        return self.condition is Condition.COMPLETE and not self.state.num_skipped

    @property
    def in_short(self) -> str:
        """In a few words: "ok", "12 behind", "failing: no route to host"."""
        match self.condition:
            case Condition.COMPLETE | Condition.CURRENT:
                return f"{self.state.num_skipped} refused" if self.state.num_skipped else "ok"
            case Condition.BEHIND:
                return f"{self.behind} behind"
            case Condition.UNFINISHED:
                return "lacks the end"
            case Condition.ABSENT:
                return "has nothing"
            case Condition.FAILING:
                return f"failing: {mask_text(self.state.last_error)}"
            case Condition.DAMAGED:
                return "state file damaged"


def trackers_of(directory: RunDirectory) -> list[str]:
    """Trackers of a run's last attempt, without the console; those that it was shown in, if no record names any."""
    record = latest_run_record(directory.journal)
    named = record.fields.get("trackers") if record else None
    if not isinstance(named, list):
        return [state.tracker for state in read_states(directory.path)]
    return [name for name in dict.fromkeys(map(str, named)) if name not in IN_TRAINING_PROCESS]


def all_trackers_of(directory: RunDirectory) -> list[str]:
    """Trackers of a run's last attempt, and others that it was shown in, by an earlier attempt or `verl sync --to`."""
    named = trackers_of(directory)
    paths = {state_path(directory, name) for name in named}
    others = [state.tracker for state in read_states(directory.path)]
    return named + [name for name in others if state_path(directory, name) not in paths]


def standing_of(directory: RunDirectory, info: RunInfo, tracker: str, most_bytes: int | None = None) -> Standing:
    """How a tracker stands to the journal.

    Args:
        directory: The run. info: Its `run.json`.
        tracker: Tracker's name.
        most_bytes: Read no more than this to count what is missing (see `count_after`).
    """
    path = state_path(directory, tracker)
    try:
        is_known = path.exists()
        state = FeedState.load(path, tracker)
    except (ValueError, OSError) as error:
        state = FeedState(tracker, status=BROKEN, last_error=str(error))
        return Standing(tracker, Condition.DAMAGED, count_after(directory.journal, Cursor(), most_bytes), state)
    if not is_known:
        return Standing(tracker, Condition.ABSENT, count_after(directory.journal, Cursor(), most_bytes), state)
    if state.status not in (FEEDING, RETRYING, BROKEN) and state.attempt >= info.last_attempt:
        # Notes about the trackers themselves may come after the end; no tracker needs them.
        return Standing(tracker, Condition.COMPLETE, Count(0), state)
    behind = count_after(directory.journal, state.cursor, most_bytes)
    return Standing(tracker, _condition(state, behind, info), behind, state)


def _condition(state: FeedState, behind: Count, info: RunInfo) -> Condition:
    if state.status in (RETRYING, BROKEN):
        return Condition.FAILING
    if behind.lines:
        return Condition.BEHIND
    return Condition.CURRENT if info.status == RUNNING else Condition.UNFINISHED


def trainer_settings_of(directory: RunDirectory) -> object:
    """The group `trainer` of a run's last configuration, secrets masked; nothing if none is on record.

    Raises:
        JournalError: The journal cannot be read.
    """
    trainer: object = None
    for record in JournalReader(directory).records({Kind.CONFIG}):
        config = record.fields.get("config")
        trainer = config.get("trainer") if isinstance(config, dict) else None
    return trainer


def proxy_checks(trainer: object) -> dict[str, Check]:
    """What is to be said about proxies in a configuration that are of no use, by tracker."""
    return {name: _proxy_check(name, variable) for name, variable in masked_proxies(trainer).items()}


def _proxy_check(name: str, variable: str) -> Check:
    found = f"trainer.{name}_proxy stands here without its password, and cannot be used"
    if name in proxies_of_environment():
        return Check("proxy", "ok", f"{found}; that of {variable} is")
    return Check("proxy", "warning", f"{found}; no other is given", f"set {variable}")


def is_known_by_name(tracker: str) -> bool:
    """Whether a tracker can be made by its name: not one that a program gave as an object or a class.

    The same is said of one whose package is not installed here.
    """
    return ":" in tracker or tracker in tracker_locations()


ONLY_BY_ITS_PROGRAM = (
    "it was given to the run as an object or a class, so only the program itself can feed it; "
    "or it belongs to a package that is not installed here"
)
"""Why a tracker that is not known by its name cannot be completed."""


def feeder_of(directory: RunDirectory, tracker: str) -> ProcessIdentity | None:
    """The living process that feeds a tracker now, if there is one on this machine."""
    try:
        raw = orjson.loads(state_path(directory, tracker).with_suffix(".lock").read_bytes())
        owner = ProcessIdentity(int(raw["pid"]), str(raw["host"]), float(raw["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return owner if owner.is_alive_here() else None


def completeness(standing: Standing, info: RunInfo, run: str, ids: Mapping[str, object]) -> list[Check]:
    """What a tracker has of a run, as answers of the diagnosis.

    Args:
        standing: How it stands.
        info: The run's `run.json`.
        run: How the user names the run, for commands.
        ids: The tracker's own identifiers.
    """
    sync = f"verl sync {run} --to {shlex.quote(standing.tracker)}"
    checks = [_complete(standing, info.status, sync), *_troubles(standing.state, f"{sync} --fresh")]
    if not is_known_by_name(standing.tracker):  # no command can feed it
        checks = [replace(check, advice="" if check.result == "ok" else ONLY_BY_ITS_PROGRAM) for check in checks]
    if standing.state.renamed:
        names = [f"{name} -> {spelled}" for name, spelled in standing.state.renamed.items()]
        checks.append(Check("names", "ok", f"{_counted(names, 'name')} spelled otherwise there: {_some(names)}"))
    if where := places(standing.state, ids):
        checks.append(Check("where", "ok", "; ".join(where)))
    return checks


def places(state: FeedState, ids: Mapping[str, object]) -> list[str]:
    """Where to look at a run in a tracker: its identifiers there, and a command or address."""
    known = ids_in_words(ids)
    return [text for text in (known, state.where if state.where not in known else "") if text]


def ids_in_words(ids: Mapping[str, object]) -> str:
    """A tracker's own identifiers of a run, such as "run_id k3x9a2bc, url https://..."."""
    return ", ".join(f"{name} {value}" for name, value in ids.items() if isinstance(value, str | int) and value != "")


def _complete(standing: Standing, status: str, sync: str) -> Check:
    is_running, behind, why = status == RUNNING, standing.behind, mask_text(standing.state.last_error)
    match standing.condition:
        case Condition.COMPLETE:
            return Check("complete", "ok", f"it has everything, and shows the run as {standing.state.status}")
        case Condition.CURRENT:
            return Check("complete", "ok", "it has everything so far; the run goes on")
        case Condition.DAMAGED:
            return Check("complete", "error", f"how far it was fed is not known: {why}")
        case Condition.FAILING:
            advice = "; ".join(filter(None, [hint(why), f"then `{sync}`" if not is_running else "it is tried again"]))
            found = f"{behind} records behind, {standing.state.failures} failed tries: {why}"
            return Check("complete", "warning" if is_running else "error", found, advice)
        case Condition.UNFINISHED:
            return Check("complete", "error", "it has all records, but not that the run ended", f"`{sync}`")
        case Condition.BEHIND if is_running:
            return Check("complete", "ok", f"{behind} records behind; the run's relay is at it")
        case _:
            found = (
                "it has nothing of this run" if standing.condition is Condition.ABSENT else f"{behind} records behind"
            )
            return Check("complete", "warning" if is_running else "error", found, f"`{sync}`, and see relay/relay.log")


def _troubles(state: FeedState, fresh: str) -> list[Check]:
    checks = []
    if state.outages and state.status not in (RETRYING, BROKEN):
        found = f"{state.outages} so far, all over ({state.failures} failed tries); the last: {state.last_error}"
        checks.append(Check("outages", "ok", mask_text(found)))
    if state.num_skipped:
        last = state.skipped[-1]
        found = f"{state.num_skipped} records were refused for good, such as {last.kind} of step {last.step}"
        found = mask_text(f"{found}: {last.reason}")
        checks.append(Check("refused", "warning", found, f"the journal has them; `{fresh}` offers them again"))
    if state.omissions:
        omitted = [f"{name} ({item.count} times: {item.reason})" for name, item in state.omissions.items()]
        found = mask_text(f"it cannot take all values of {_counted(omitted, 'name', verb=False)}: {_some(omitted)}")
        checks.append(Check("left out", "warning", found, "the journal has them"))
    return checks


def hint(error: str) -> str:
    """What to do about an error of a tracker, by what its words tell: the login, or the way to the server."""
    said = error.lower()
    if any(word in said for word in _LOGIN_WORDS):
        return "check the key, and log in again"
    if any(word in said for word in _NETWORK_WORDS):
        return "check that the server answers, and the proxy to it (trainer.wandb_proxy for W&B alone, HTTPS_PROXY)"
    return ""


def disk(path: Path) -> Check:
    """Whether there is room where a run lies."""
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Check("disk", "warning", f"its free space is not known: {error.strerror}")
    found = f"{free / 2**30:,.1f} GiB free" if free >= 2**30 else f"{free / 2**20:,.0f} MiB free"
    if free >= _LITTLE_SPACE:
        return Check("disk", "ok", found)
    advice = "make room: old checkpoints/ and runs are the largest"
    return Check("disk", "error" if free < _NO_SPACE else "warning", f"nearly full, {found}", advice)


def _some(items: Iterable[str]) -> str:
    items = list(items)
    rest = len(items) - _MOST_NAMED
    return "; ".join(items[:_MOST_NAMED]) + (f"; and {rest} more" if rest > 0 else "")


def _counted(items: list[str], noun: str, *, verb: bool = True) -> str:
    one = len(items) == 1
    return f"{len(items)} {noun}{'' if one else 's'}" + (f" {'is' if one else 'are'}" if verb else "")
