"""The look at trackers before a run: everything wrong in one message, quickly, without their packages."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from verl.errors import TrackerError
from verl.tracking.logger import Check, TrainerLogger
from verl.tracking.preflight import installed, preflight, preflight_or_raise, sentence
from verl.tracking.table import BUILTIN

ROOT = Path(__file__).parents[2]


class Plain(TrainerLogger):
    """As a user writes it: without checks."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None: ...

    def log_config(self, config: dict[str, Any]) -> None: ...


class NeedsLogin(Plain):
    @classmethod
    def preflight(cls, proxy: str | None) -> list[Check]:
        return [Check("login", "error", "there is no key for it.", "set ITS_KEY"), Check("server", "ok", "answers")]


class ServerAway(Plain):
    @classmethod
    def preflight(cls, proxy: str | None) -> list[Check]:
        return [Check("login", "ok", "as me"), Check("server", "warning", f"no answer through {proxy}", "wait")]


class Raising(Plain):
    @classmethod
    def preflight(cls, proxy: str | None) -> list[Check]:
        raise KeyError("https://me:geheim123@host")


class Hanging(Plain):
    release = threading.Event()

    @classmethod
    def preflight(cls, proxy: str | None) -> list[Check]:
        cls.release.wait(30)
        return []


def named(tracker: type[TrainerLogger]) -> str:
    return f"{__name__}:{tracker.__name__}"


def test_all_that_is_wrong_is_in_one_message_with_what_to_do() -> None:
    with pytest.raises(TrackerError) as raised:
        preflight_or_raise(["tensorboard", named(NeedsLogin), "wandbb", "no_such_module:Logger"])
    message = str(raised.value)
    assert "3 trackers cannot work as set up; nothing was started" in message
    assert "there is no key for it: set ITS_KEY" in message
    assert "Did you mean 'wandb'?" in message
    assert "no_such_module" in message
    assert "take them out of trainer.logger: trainer.logger=[tensorboard]" in message


def test_a_package_that_is_missing_is_told_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl.tracking.preflight.find_spec", lambda name: None)
    check = installed("tensorboard")
    assert (check.result, check.advice) == ("error", "pip install tensorboard")
    with pytest.raises(TrackerError, match=r"tracker 'tensorboard' cannot.*\n.*not installed: pip install tensorboard"):
        preflight_or_raise(["tensorboard"])


def test_a_server_that_is_away_is_a_warning() -> None:
    (warning,) = preflight_or_raise(["console", named(ServerAway)], {named(ServerAway): "http://proxy:1"})
    assert "no answer through http://proxy:1: wait." in warning
    assert "The journal keeps everything" in warning
    assert "`verl sync RUN` completes it later" in warning


def test_a_tracker_without_checks_is_fine() -> None:
    assert preflight_or_raise(["console", "tensorboard", named(Plain)]) == []
    assert preflight_or_raise([]) == []


def test_a_look_that_raises_is_a_warning_without_secrets() -> None:
    (warning,) = preflight_or_raise([named(Raising)])
    assert "the look at it failed: KeyError" in warning
    assert "geheim123" not in warning


def test_a_look_that_hangs_is_a_warning_in_time_and_delays_no_other() -> None:
    began = time.monotonic()
    found = {look.tracker: look for look in preflight([named(Hanging), named(ServerAway)], seconds=0.5)}
    assert time.monotonic() - began < 5
    Hanging.release.set()
    assert [check.found for check in found[named(Hanging)].warnings] == ["the look at it did not end within 0.5 s"]
    assert found[named(ServerAway)].checks[-1].found == "no answer through None"


def test_a_class_that_cannot_be_loaded_is_wrong_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_at_import.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("breaks_at_import:Logger", "verl.testing.trackers:Nothing", "verl.testing.trackers:Call"):
        (look,) = preflight([name])
        assert look.errors, name
    with pytest.raises(TrackerError, match="no licence"):
        preflight_or_raise(["breaks_at_import:Logger"])


def test_answers_come_in_the_order_of_the_names_and_of_the_diagnosis() -> None:
    names = [named(ServerAway), "console", named(NeedsLogin)]
    found = preflight(names)
    assert [look.tracker for look in found] == names
    assert [check.question for check in found[0].checks] == ["installed", "login", "server"]


def test_no_package_of_a_tracker_is_imported() -> None:
    program = (
        "import sys\n"
        "from verl.tracking.preflight import preflight\n"
        "from verl.tracking.table import BUILTIN\n"
        "found = preflight(BUILTIN)\n"
        "assert len(found) == len(BUILTIN), found\n"
        "packages = {tracker.package for tracker in BUILTIN.values()} - {'rich'}\n"
        "print(sorted(packages & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_sentence_has_one_full_stop_at_most() -> None:
    assert sentence(Check("a", "error", "It is so.", "Do it.")) == "It is so: Do it"
    assert sentence(Check("a", "ok", "It is so.")) == "It is so"


def test_every_built_in_tracker_can_be_looked_at() -> None:
    for look in preflight(BUILTIN):
        assert look.checks[0].question == "installed"
        assert all(check.found and check.result in ("ok", "warning", "error") for check in look.checks)
        assert all(check.advice for check in look.checks if check.result == "error" and check.question != "installed")
