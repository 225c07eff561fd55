"""Names of trackers, and what makes a class a tracker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from verl.errors import TrackerError
from verl.testing.trackers import RecordingLogger
from verl.tracking import Tracking, TrainerLogger, check_tracker, load_tracker, tracker_locations
from verl.tracking.backends.console_logger import ConsoleLogger
from verl.tracking.backends.tensorboard_logger import TensorboardLogger
from verl.tracking.table import BUILTIN


def test_built_in_trackers_load_by_name() -> None:
    assert load_tracker("console") is ConsoleLogger
    assert load_tracker("tensorboard") is TensorboardLogger


def test_a_tracker_of_ones_own_loads_by_module_and_class() -> None:
    assert load_tracker("verl.testing.trackers:RecordingLogger") is RecordingLogger


@pytest.mark.parametrize("name", ["tensorbord", "Console", "tensor-board"])
def test_an_unknown_name_is_answered_with_the_nearest_and_all(name: str) -> None:
    with pytest.raises(TrackerError, match=r"unknown tracker .* Did you mean .*Available: console, mlflow"):
        check_tracker(name)


def test_a_name_far_from_all_gets_no_guess() -> None:
    with pytest.raises(TrackerError, match=r"unknown tracker 'neptune' in trainer.logger. Available"):
        check_tracker("neptune")


@pytest.mark.parametrize("name", BUILTIN)
def test_every_built_in_tracker_loads_and_is_looked_at_without_its_package(name: str) -> None:
    program = (
        "import sys; from verl.tracking import load_tracker; from verl.tracking.table import BUILTIN\n"
        f"load_tracker({name!r}).preflight(None)\n"
        "heavy = {'wandb', 'mlflow', 'swanlab', 'trackio', 'torch', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_checking_a_tracker_does_not_import_it() -> None:
    loaded = set(sys.modules)
    check_tracker("tensorboard")
    assert not {name for name in set(sys.modules) - loaded if name.startswith("tensorboard")}


@pytest.mark.parametrize("name", ["no_such_module:Logger", "verl.no_such:Logger"])
def test_a_module_that_is_not_installed_says_so(name: str) -> None:
    with pytest.raises(TrackerError, match=r"there is no module"):
        check_tracker(name)


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboard"), ("console", "rich")])
def test_a_built_in_tracker_without_its_package_is_found_out_before_the_run(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as Python marks what cannot be imported
    with pytest.raises(TrackerError, match=rf"needs the package '{package}': pip install {package}"):
        check_tracker(name)


def test_a_class_that_is_not_there_says_so() -> None:
    with pytest.raises(TrackerError, match=r"has no 'Nothing'"):
        load_tracker("verl.testing.trackers:Nothing")


def test_a_package_that_cannot_be_imported_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_a_package.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TrackerError, match=r"no_such_package_at_all.*install"):
        load_tracker("needs_a_package:Logger")


def test_a_class_that_is_no_tracker_is_refused() -> None:
    with pytest.raises(TrackerError, match=r"subclass of verl.tracking.TrainerLogger"):
        load_tracker("pathlib:Path")


class Half(TrainerLogger):
    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        pass


def test_a_tracker_without_both_methods_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(TrackerError, match=r"lacks the method.*log_config"):
        Tracking("p", "e", [Half], log_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_an_object_that_is_no_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrackerError, match=r"is no tracker"):
        Tracking("p", "e", [3], log_dir=str(tmp_path / "run"))  # type: ignore[list-item]


def test_entry_points_of_other_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "their_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[verl.loggers]\ntheirs = verl.testing.trackers:RecordingLogger\nconsole = their:Impostor\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_tracker("theirs") is RecordingLogger
    assert tracker_locations()["console"] == BUILTIN["console"].location  # a built-in name cannot be taken over
    with pytest.raises(TrackerError, match=r"theirs"):
        check_tracker("their")
