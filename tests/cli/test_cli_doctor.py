"""`verl doctor`: findings in the order of the diagnosis, advice below them, and an exit code for programs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from file_tracker import NAME

from verl.cli.doctor import _show
from verl.cli.main import main
from verl.testing.trackers import RecordingLogger
from verl.tracking import Tracking
from verl.tracking.diagnosis.choice import QUESTIONS
from verl.tracking.logger import Check
from verl.tracking.relay.feed_state import FeedState
from verl.tracking.table import BUILTIN, IN_TRAINING_PROCESS

ROOT = Path(__file__).parents[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]):
    """Runs the command: exit code, stdout, stderr."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = main(["doctor", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    with Tracking("p", "e", [NAME], log_dir=str(tmp_path / "a run"), total_steps=2, async_log=False) as tracking:
        tracking.log_metrics({"loss": 1.0}, 1)
        tracking.log_metrics({"loss": 1.0}, 2)
    return tmp_path / "a run"


def test_without_arguments_all_trackers_are_looked_at(doctor) -> None:
    _, out, _ = doctor()
    headings = [line for line in out.splitlines() if not line.startswith(" ")]
    assert headings[: len(BUILTIN) - 1] == [name for name in BUILTIN if name not in IN_TRAINING_PROCESS]
    assert out.count(" installed ") == len(headings)


def test_one_that_nobody_needs_is_absent_and_no_error(doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    for tracker in BUILTIN.values():
        monkeypatch.setitem(sys.modules, tracker.package, None)  # as Python marks what cannot be imported
    code, out, _ = doctor()
    assert code == 0
    assert "  absent   installed  it needs the package 'mlflow'\n" in out
    assert "-> pip install mlflow\n" in out


def test_trackers_of_a_configuration(doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"trainer: {{logger: [console, '{NAME}'], log_step_interval: 10}}\n")
    code, out, _ = doctor("--config", file)
    assert code == 0
    assert f"{NAME}\n  ok       installed  {NAME}\n  ok       login      the key is there\n" in out
    assert "metrics are logged every 10 steps (trainer.log_step_interval=10)" in out
    monkeypatch.setenv("FILE_TRACKER_LOGIN", "FileLogger")
    code, out, _ = doctor("--config", file)
    assert code == 1
    assert "  error    login      there is no key\n                   -> set FILE_TRACKER_KEY\n" in out


def test_settings_without_a_file(doctor) -> None:
    assert doctor(f"trainer.logger=[console,{NAME}]")[0] == 0
    code, out, _ = doctor("trainer.logger=[wnadb]")
    assert code == 1
    assert "Did you mean 'wandb'?" in out
    code, out, _ = doctor("trainer.logger=[]")
    assert code == 0
    assert "verl doctor --choose" in out
    code, _, err = doctor("trainer.loger=[]")
    assert code == 2
    assert "did you mean `trainer.logger`?" in err


def test_a_complete_run(doctor, run_directory: Path) -> None:
    code, out, _ = doctor(run_directory)
    assert code == 0
    assert out.startswith("a run: p / e\n  ok       run        finished, step 2 of 2\n")
    questions = [line.split()[1] for line in out.splitlines()[1:] if not line.startswith(NAME)]
    assert questions == ["run", "journal", "disk", "complete", "where"]


def test_a_tracker_that_has_everything_needs_no_login_any_more(
    doctor, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FILE_TRACKER_LOGIN", "FileLogger")
    assert doctor(run_directory)[0] == 0
    (state,) = (run_directory / "relay").glob("*.json")
    state.write_text(json.dumps({**json.loads(state.read_text()), "status": "feeding"}))
    code, out, _ = doctor(run_directory)
    assert code == 1
    assert "there is no key" in out


class ListLogger(RecordingLogger):
    def flush(self) -> None:
        if self.fails:
            raise ConnectionError("away")

    fails = False


def test_a_tracker_given_as_an_object_or_a_class_is_no_error_when_it_is_complete(doctor, tmp_path: Path) -> None:
    with Tracking("p", "e", [ListLogger(), ListLogger], log_dir=str(tmp_path / "run")) as tracking:
        tracking.log_metrics({"loss": 1.0}, 1)
    code, out, _ = doctor(tmp_path / "run")
    assert code == 0, out
    for name in ("ListLogger", "ListLogger-2"):
        assert f"\n{name}\n  ok       complete   it has everything" in out


def test_one_that_is_not_complete_is_told_who_can_feed_it(
    doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ListLogger, "fails", True)
    with Tracking("p", "e", [ListLogger()], log_dir=str(tmp_path / "run"), async_log=False) as tracking:
        tracking.log_metrics({"loss": 1.0}, 1)
        tracking.finish("finished", seconds=0.1)
    code, out, _ = doctor(tmp_path / "run")
    assert code == 1
    assert "unknown tracker" not in out
    assert "given to the run as an object or a class" in out
    assert "verl sync" not in out


def test_a_proxy_whose_password_was_not_kept_is_told(doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_WANDB_PROXY", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    config = {"trainer": {"wandb_proxy": "http://me:geheim123@127.0.0.1:7"}}
    with Tracking("p", "e", [], config, log_dir=str(tmp_path / "run")):
        pass
    (tmp_path / "run/relay").mkdir(exist_ok=True)
    FeedState("wandb").save(tmp_path / "run/relay/wandb.json")
    for arguments in ([tmp_path / "run"], ["trainer.logger=[wandb]", "trainer.wandb_proxy=http://me:***@127.0.0.1:7"]):
        _, out, _ = doctor(*arguments)
        assert "  warning  proxy      trainer.wandb_proxy stands here without its password" in out
        assert "http://127.0.0.1:9 is not reached directly" in out
        monkeypatch.setenv("VERL_WANDB_PROXY", "http://127.0.0.1:8")
        _, out, _ = doctor(*arguments)
        assert "http://127.0.0.1:9 is not reached through the proxy http://127.0.0.1:8" in out
        assert "that of VERL_WANDB_PROXY is\n" in out
        monkeypatch.delenv("VERL_WANDB_PROXY")


def test_what_is_found_is_shown_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    _show("x", [Check("server", "error", "http://me:geheim123@host refuses", "open http://host?password=geheim123")])
    assert "geheim123" not in capsys.readouterr().out


def test_an_incomplete_run_is_an_error_with_the_command_that_mends_it(doctor, run_directory: Path) -> None:
    (state,) = (run_directory / "relay").glob("*.json")
    raw = json.loads(state.read_text())
    raw.update(status="retrying", failures=4, last_error="open: \x1b[2Jtimed out", cursor={"events-rank0": [0, 0]})
    state.write_text(json.dumps(raw))
    code, out, _ = doctor(run_directory)
    assert code == 1
    assert "\x1b" not in out
    assert " records behind, 4 failed tries: open: �[2Jtimed out\n" in out
    assert f"then `verl sync '{run_directory}' --to {NAME}`" in out
    (run_directory / "fault").unlink(missing_ok=True)
    assert main(["sync", str(run_directory)]) == 0
    assert doctor(run_directory)[0] == 0


def test_a_run_with_an_equals_sign_in_its_name_is_a_run(
    doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tracking("p", "e", [], log_dir=str(tmp_path / "lr=0.1")):
        pass
    monkeypatch.chdir(tmp_path)
    code, out, _ = doctor("lr=0.1")
    assert code == 0
    assert "no trackers but the console; to show the run in one: verl sync RUN --to TRACKER" in out


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["none"], 1, "There is no run directory"),
        (["a", "b"], 2, "one run at a time"),
        (["a", "trainer.seed=1"], 2, "a run has its own settings"),
        (["--choose", "trainer.seed=1"], 2, "--choose asks questions"),
        (["--answers", "mars"], 2, "'mars' is no answer to 'team'"),
        (["--answers", "china,high,us,online,team,more"], 2, "6 answers were given to 5 questions"),
        (["--chose"], 2, "--chose"),
    ],
)
def test_arguments_that_make_no_sense(doctor, arguments: list[str], code: int, part: str) -> None:
    found, _, err = doctor(*arguments)
    assert found == code
    assert part in err


def test_a_damaged_run(doctor, run_directory: Path) -> None:
    (run_directory / "run.json").write_text("{")
    code, _, err = doctor(run_directory)
    assert code == 1
    assert "run.json is damaged" in err


# --choose


def test_answers_by_option_recommend_with_reason_cost_and_commands(doctor) -> None:
    code, out, _ = doctor("--answers", "elsewhere,high,us")
    assert code == 0
    assert out.splitlines()[0] == "-> MLflow (trainer.logger=mlflow)"
    assert "   why   " in out
    assert "   cost  needs infrastructure of your own" in out
    assert "\n  pip install mlflow\n" in out
    assert "SwanLab" in doctor("--choose", "--answers", "china")[1]
    assert "W&B" in doctor("--answers", "")[1]


def test_answers_by_a_pipe(doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("elsewhere\nhigh\n", "elsewhere,high", "1\n2\n\n\n\n\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert doctor("--choose")[1].startswith("-> MLflow")
    monkeypatch.setattr("sys.stdin", io.StringIO("china\nhigh\nus\nonline\nteam\nmore\n"))  # as by option
    code, _, err = doctor("--choose")
    assert code == 2
    assert "6 answers were given to 5 questions" in err


def test_questions_in_a_terminal_are_asked_until_they_are_answered(doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("mars\nchina\n\n\nlocal\n"))
    code, out, _ = doctor("--choose")
    assert code == 0
    assert "'mars' is no answer to 'team'" in out
    for question in QUESTIONS:
        assert (question.text in out) == (question.name != "operator")  # which changes nothing in China
    assert "-> TensorBoard (trainer.logger=tensorboard)" in out
    monkeypatch.setattr("sys.stdin", Terminal("china\n"))
    code, _, err = doctor("--choose")
    assert code == 2
    assert "No answer was given" in err


# How it looks, and how light it is.


@pytest.mark.parametrize("columns", [30, 80, 200])
def test_lines_fit_the_terminal(columns: int, run_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    for arguments in ([], [str(run_directory)], ["--answers", "china,high"]):
        screen = Terminal()
        monkeypatch.setattr("sys.stdout", screen)
        main(["doctor", *arguments])
        lines = screen.getvalue().splitlines()
        if arguments[:1] != ["--answers"]:  # commands are kept whole, to be copied
            assert max(map(len, lines)) <= columns
        assert "\x1b" not in screen.getvalue()


def test_results_are_coloured_in_a_terminal_only(run_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["doctor", str(run_directory)])
    assert "\x1b[32mok\x1b[0m" in screen.getvalue()


@pytest.mark.parametrize("command", ["sync", "runs", "doctor"])
def test_help_is_light(command: str) -> None:
    program = (
        "import sys\nfrom verl.cli.main import main\n"
        f"try: main([{command!r}, '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'rich', 'numpy', 'pydantic', 'omegaconf', 'orjson', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True)


def test_a_diagnosis_imports_no_package_of_a_tracker(run_directory: Path) -> None:
    packages = {tracker.package for tracker in BUILTIN.values()} - {"rich"}
    program = (
        "import sys\nfrom verl.cli.main import main\n"
        f"main(['doctor'])\nmain(['doctor', {str(run_directory)!r}])\nmain(['runs', {str(run_directory)!r}])\n"
        f"loaded = {packages!r} & set(sys.modules)\nassert not loaded, loaded"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, check=True)
