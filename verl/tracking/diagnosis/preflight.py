"""Look before a run whether its trackers can work: quickly, side by side, and without importing their packages.

What cannot work until somebody does something (no package, no login) stops the run with what to do. A server that is
away is a warning: the journal holds everything, and the tracker gets it later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

from verl.config.secrets import mask_text
from verl.errors import TrackerError
from verl.tracking.logger import Check
from verl.tracking.table import BUILTIN, check_tracker, load_tracker, missing_package

PREFLIGHT_SECONDS = 3.0
"""Longest time that all trackers together take."""

INSTALLED = "installed"
_NO_PROXIES: Mapping[str, str | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found about one tracker.

    Attributes:
        tracker: Its name.
        checks: Answers in the order of the diagnosis: installed, login, server, ...
    """

    tracker: str
    checks: tuple[Check, ...]

    @property
    def errors(self) -> list[Check]:
        """What keeps it from working until somebody does something."""
        return [check for check in self.checks if check.result == "error"]

    @property
    def warnings(self) -> list[Check]:
        """What does not work now, but may later."""
        return [check for check in self.checks if check.result == "warning"]


def preflight(
    names: Iterable[str],
    proxies: Mapping[str, str | None] = _NO_PROXIES,
    *,
    seconds: float = PREFLIGHT_SECONDS,
    imports_own: bool = True,
) -> list[Preflight]:
    """Look at trackers side by side.

    Args:
        names: Trackers, as for `check_tracker`.
        proxies: Tracker -> proxy for it alone.
        seconds: Longest time for all of them; one that takes longer gets a warning.
        imports_own: Import the modules of trackers that are not this package's own, to ask for their checks; else it is
            only looked whether they are there.

    Returns:
        What was found, in the order of the names.
    """
    looks = {name: _Look(name, proxies.get(name), asks=_has_checks(name, imports_own=imports_own)) for name in names}
    deadline = time.monotonic() + seconds
    return [look.result(deadline, seconds) for look in looks.values()]


def preflight_or_raise(
    names: Sequence[str], proxies: Mapping[str, str | None] = _NO_PROXIES, *, seconds: float = PREFLIGHT_SECONDS
) -> list[str]:
    """Make sure that trackers can work, before anything is started; imports nothing that is not of this package.

    Args:
        names, proxies, seconds: As for `preflight`.

    Returns:
        Sentences about what does not work now but may later, such as a server that is away.

    Raises:
        TrackerError: Trackers are unknown, not installed or without a login: all of them in one message.
    """
    found = preflight(names, proxies, seconds=seconds, imports_own=False)
    wrong = [look for look in found if look.errors]
    if wrong:
        raise TrackerError(_refusal(wrong, [look.tracker for look in found if not look.errors]))
    return [
        f"tracker {look.tracker!r}: {sentence(check)}. The journal keeps everything; it is tried again during the run, "
        "and `verl sync RUN` completes it later"
        for look in found
        for check in look.warnings
    ]


def sentence(check: Check) -> str:
    """What a check found and what to do about it, without the full stop and without secrets."""
    found = check.found.rstrip(". ")
    return mask_text(f"{found}: {check.advice.rstrip('. ')}" if check.advice else found)


def installed(name: str) -> Check:
    """Whether a tracker exists and its package is there, found without importing either."""
    package = BUILTIN[name].package if name in BUILTIN else None
    try:
        if lack := missing_package(name):
            what, command = lack
            return Check(INSTALLED, "error", f"it {what}", command)
        location = check_tracker(name)
    except TrackerError as error:
        return Check(INSTALLED, "error", str(error))
    except Exception as error:  # the parent package of a tracker of one's own is imported to find it
        return Check(INSTALLED, "error", f"it cannot be looked for: {_in_words(error)}")
    if package is None:
        return Check(INSTALLED, "ok", location)
    try:
        return Check(INSTALLED, "ok", f"{package} {version(package)}")
    except PackageNotFoundError:  # a folder on the path, without metadata
        return Check(INSTALLED, "ok", package)


class _Look:
    """A look at one tracker, in a thread that can be left behind."""

    def __init__(self, name: str, proxy: str | None, *, asks: bool) -> None:
        self._name = name
        self._proxy = proxy
        self._asks = asks
        self._checks: tuple[Check, ...] | None = None
        self._thread = threading.Thread(target=self._work, name=f"verl-preflight-{name}", daemon=True)
        self._thread.start()

    def result(self, deadline: float, seconds: float) -> Preflight:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._checks is None:
            late = Check("preflight", "warning", f"the look at it did not end within {seconds:g} s")
            return Preflight(self._name, (late,))
        return Preflight(self._name, self._checks)

    def _work(self) -> None:
        first = installed(self._name)
        asks = self._asks and first.result != "error"
        self._checks = (first, *_own_checks(self._name, self._proxy)) if asks else (first,)


def _has_checks(name: str, *, imports_own: bool) -> bool:
    return BUILTIN[name].has_preflight if name in BUILTIN else imports_own


def _own_checks(name: str, proxy: str | None) -> list[Check]:
    try:
        tracker = load_tracker(name)
    except TrackerError as error:
        return [Check("class", "error", str(error))]
    except Exception as error:
        return [Check("class", "error", f"its module cannot be imported: {_in_words(error)}")]
    try:
        return list(tracker.preflight(proxy))
    except Exception as error:
        return [Check("preflight", "warning", f"the look at it failed: {_in_words(error)}")]


def _refusal(wrong: Sequence[Preflight], others: Sequence[str]) -> str:
    which = f"the tracker {wrong[0].tracker!r} cannot" if len(wrong) == 1 else f"{len(wrong)} trackers cannot"
    lines = [f"{which} work as set up; nothing was started"]
    lines += [f"  {look.tracker}: {sentence(check)}" for look in wrong for check in look.errors]
    it = "it" if len(wrong) == 1 else "them"
    lines.append(f"To go on without {it}, take {it} out of trainer.logger: trainer.logger=[{','.join(others)}]")
    return "\n".join(lines)


def _in_words(error: BaseException) -> str:
    return mask_text(f"{type(error).__name__}: {error}")[:500]
