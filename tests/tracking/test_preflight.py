"""The look at trackers before a run: everything wrong in one message, quickly, without their packages."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verl.errors import TrackerError
from verl.tracking.diagnosis.preflight import installed, preflight, preflight_or_raise, sentence
from verl.tracking.logger import Check, TrainerLogger
from verl.tracking.table import BUILTIN, check_tracker

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No login and no settings but those of the test, and a server of W&B that is away."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings of nobody"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    yield
    for name in [name for name in sys.modules if name.startswith("their_")]:
        del sys.modules[name]


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
        raise KeyError(f"{'x' * 477}https://me:geheim123@host {'x' * 1000}")


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
        preflight_or_raise(["tensorboard", "wandb", "wandbb", "no_such_module:Logger"])
    message = str(raised.value)
    assert "3 trackers cannot work as set up; nothing was started" in message
    assert "  wandb: there is no key for http://127.0.0.1:9: run `wandb login`" in message
    assert "Did you mean 'wandb'?" in message
    assert "no_such_module" in message
    assert "take them out of trainer.logger: trainer.logger=[tensorboard]" in message


def test_a_package_that_is_missing_is_told_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as Python marks what cannot be imported
    check = installed("tensorboard")
    assert (check.result, check.advice) == ("error", "pip install tensorboard")
    with pytest.raises(TrackerError) as raised:
        preflight_or_raise(["tensorboard"])
    said = "needs the package 'tensorboard': pip install tensorboard"
    assert f"the tracker 'tensorboard' cannot work as set up; nothing was started\n  tensorboard: it {said}\n" in str(
        raised.value
    )
    with pytest.raises(TrackerError, match=said):  # the same words
        check_tracker("tensorboard")


def test_a_server_that_is_away_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    (warning,) = preflight_or_raise(["console", "wandb"], {"wandb": "http://127.0.0.1:7"})
    assert "through the proxy http://127.0.0.1:7 (trainer.wandb_proxy): 127.0.0.1:7 (the proxy): Connection" in warning
    assert "The journal keeps everything" in warning
    assert "`verl sync RUN` completes it later" in warning


def test_a_tracker_without_checks_is_fine() -> None:
    assert preflight_or_raise(["console", "tensorboard", named(Plain)]) == []
    assert preflight_or_raise([]) == []


def test_a_look_that_raises_is_a_warning_without_secrets() -> None:
    (look,) = preflight([named(Raising)])
    (warning,) = look.warnings
    assert "the look at it failed: KeyError" in warning.found
    assert "geheim123" not in warning.found
    assert len(warning.found) < 600


def test_what_is_asked_for_is_told_without_secrets() -> None:
    check = Check("server", "error", "http://me:geheim123@host refuses.", "try http://host?password=geheim123")
    assert sentence(check) == "http://me:***@host refuses: try http://host?password=***"


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
    assert "no licence" in preflight(["breaks_at_import:Logger"])[0].errors[0].found


def test_before_a_run_nothing_of_the_user_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("their_package", "their_package/inner"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "their_package/inner/logger.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "their_module.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = ["their_package.inner.logger:Logger", "their_module:Logger"]
    assert preflight_or_raise(names) == []
    assert not [name for name in sys.modules if name.startswith("their_")]
    with pytest.raises(TrackerError, match="their_module:Logger"):
        preflight_or_raise(["their_module:Logger", "no_such_module:Logger"])
    assert "imported" in preflight(["their_module:Logger"])[0].errors[0].found  # `verl doctor` does ask them


@pytest.mark.parametrize("inside", ["", "raise RuntimeError('imported')\n"])
def test_a_module_that_is_not_in_its_package_is_missed(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_empty_package").mkdir()
    (tmp_path / "their_empty_package/__init__.py").write_text(inside)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TrackerError, match=r"there is no module|cannot be looked for"):
        preflight_or_raise(["their_empty_package.logger:Logger"])


def test_a_module_that_only_its_package_can_find_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere/plain").mkdir(parents=True)
    (tmp_path / "elsewhere/their_logger.py").write_text("")
    (tmp_path / "elsewhere/plain/their_logger.py").write_text("")
    (tmp_path / "their_moving_package").mkdir()
    source = f"__path__.append({str(tmp_path / 'elsewhere')!r})\n"
    (tmp_path / "their_moving_package/__init__.py").write_text(source)
    (tmp_path / "their_folder/inner").mkdir(parents=True)
    (tmp_path / "their_folder/inner/their_logger.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for module in (
        "their_moving_package.their_logger",
        "their_moving_package.plain.their_logger",
        "their_folder.inner.their_logger",
    ):
        assert preflight_or_raise([f"{module}:Logger"]) == []


def test_answers_come_in_the_order_of_the_names_and_of_the_diagnosis() -> None:
    names = [named(ServerAway), "console", named(NeedsLogin)]
    found = preflight(names)
    assert [look.tracker for look in found] == names
    assert [check.question for check in found[0].checks] == ["installed", "login", "server"]


def test_no_package_of_a_tracker_is_imported() -> None:
    program = (
        "import sys\n"
        "from verl.tracking.diagnosis.preflight import preflight\n"
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
