"""What a person sees: plain lines, a live table, and an end; nothing can break or block it."""

from __future__ import annotations

import fcntl
import io
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.journal import JournalReader, RunDirectory
from verl.tracking import TrackedRun, Tracking
from verl.tracking.backends.console_logger import ConsoleLogger
from verl.tracking.console.terminal_text import duration, number, one_line, pace, sparkline
from verl.tracking.logger import Moment
from verl.tracking.relay.feed_state import FeedState

PROGRAM = Path(__file__).with_name("training_program.py")
STEP = {
    "reward/episode_reward_mean": 0.53125,
    "kl/kl_divergence": 0.012,
    "loss/policy_loss": -0.0001234,
    "grad_norm/actor": math.nan,
    "timing/rollout": 6.0,
    "timing/update_actor": 3.0,
    "timing/step": 10.0,
    "reward/skewness": 0.25,
}


class Terminal(io.StringIO):
    """A terminal of 100 columns that keeps what it was sent."""

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        """What was sent, without colours."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    return TrackedRun("abc", "stocks", "first", tmp_path, total_steps=100)


@pytest.fixture
def plain(run: TrackedRun) -> Iterator[ConsoleLogger]:
    yield from opened(ConsoleLogger(io.StringIO(), is_live=False), run)


@pytest.fixture
def live(run: TrackedRun) -> Iterator[ConsoleLogger]:
    yield from opened(ConsoleLogger(Terminal(), is_live=True), run)


def opened(logger: ConsoleLogger, run: TrackedRun) -> Iterator[ConsoleLogger]:
    logger.open(run)
    yield logger
    logger.close()


def at(logger: ConsoleLogger, seconds: float) -> ConsoleLogger:
    logger.moment = Moment(seconds)
    return logger


def lines(logger: ConsoleLogger) -> list[str]:
    assert logger.stream is not None
    return logger.stream.getvalue().splitlines()  # type: ignore[union-attr]


def test_a_logged_step_is_one_plain_line(plain: ConsoleLogger) -> None:
    at(plain, 1000.0).log_metrics(STEP, 9)
    at(plain, 1002.0).log_metrics(STEP, 10)
    assert lines(plain)[-1] == (
        "step 10/100  reward 0.5312  kl 0.012  policy loss -1.2e-04  grad norm NaN  reward/skewness 0.25"
        "  2.0 s/step  left 3m 00s"
    )


def test_a_counter_of_the_users_own_does_not_move_the_run(plain: ConsoleLogger, live: ConsoleLogger) -> None:
    for logger in (plain, live):
        at(logger, 1000.0).log_metrics(STEP, 9)
        at(logger, 1001.0).log_metrics({"mine/tokens": 1.0}, 450_000)
        at(logger, 1002.0).log_metrics(STEP, 10)
    assert lines(plain)[-2] == "step 450000  mine/tokens 1"
    assert lines(plain)[-1].startswith("step 10/100  ")
    assert "2.0 s/step  left 3m 00s" in lines(plain)[-1]
    live.flush()
    assert "step 10/100" in live.stream.text  # type: ignore[union-attr]
    assert "450000/" not in live.stream.text  # type: ignore[union-attr]


def test_the_run_stays_within_its_steps(live: ConsoleLogger) -> None:
    live.progress(-5)
    live.flush()
    assert "step 0/100" in live.stream.text  # type: ignore[union-attr]
    live.log_metrics(STEP, 450_000)
    live.finish("finished")
    assert "step 100/100" in live.stream.text  # type: ignore[union-attr]


def test_validation_is_a_line_of_its_own(plain: ConsoleLogger) -> None:
    results = {"reward_mean": 0.6, "truncated_fraction": 0.0, "stocks/reward_mean": 0.7, "stocks/format": 1.0}
    plain.log_metrics({f"val/{key}": value for key, value in {**results, "loss": 0.3}.items()}, 20)
    assert lines(plain)[-1] == "validation at step 20  reward 0.6  truncated 0  stocks 0.7  loss 0.3"


def test_validation_over_many_sources_stays_short(plain: ConsoleLogger) -> None:
    plain.log_metrics({f"val/source_{index}/reward_mean": 0.5 for index in range(20)}, 1)
    assert lines(plain)[-1].endswith("source_7 0.5  and 12 more")


def test_the_summary_says_how_it_went_and_where_all_lies(
    plain: ConsoleLogger, run: TrackedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.directory.parent)
    (run.directory / "checkpoints" / "global_step_9").mkdir(parents=True)
    (run.directory / "checkpoints" / "global_step_10").mkdir()
    (run.directory / "relay").mkdir()
    FeedState("tensorboard", status="finished", where="tensorboard --logdir x").save(run.directory / "relay" / "a.json")
    FeedState("other", failures=3, last_error="no server").save(run.directory / "relay" / "b.json")
    plain.log_metrics({"reward/episode_reward_mean": 0.1, "val/reward_mean": 0.9}, 1)
    plain.log_metrics({"reward/episode_reward_mean": 0.8, "val/reward_mean": 0.7}, 10)
    plain.alert("", "be careful", "warning")
    plain.finish("failed")
    summary = "\n".join(lines(plain)).partition("FAILED")[2]
    name = run.directory.name
    for part in (
        "steps            10/100 in ",
        "reward           0.1 -> 0.8",
        "best validation  0.9 at step 1",
        "warnings         1, the last: be careful",
        f"run              {name}",
        f"journal          {name}/journal",
        f"checkpoints      {name}/checkpoints  (2, newest global_step_10)",
        "tensorboard      tensorboard --logdir x",
        "other            not all of the run has reached it; the journal has it",
        f"other            3 failures, the last: no server (see {name}/relay/relay.log)",
    ):
        assert part in summary


def test_the_live_table_shows_value_change_and_course(live: ConsoleLogger) -> None:
    for step in range(1, 4):
        at(live, 1000.0 + step).log_metrics({**STEP, "reward/episode_reward_mean": step / 10}, step)
    live.alert("", "mind the gap", "warning")
    live.flush()
    text = live.stream.text  # type: ignore[union-attr]
    assert re.search(r"reward +0\.3 +▲ 0\.2 +▁▅█", text)
    assert re.search(r"grad norm +NaN +×××", text)
    assert "step 3/100  1.0 s/step" in text
    assert "time  rollout 60%  update_actor 30%" in text
    assert "1 warning, the last: mind the gap" in text
    assert "warning  mind the gap" in text  # and above, where it stays


def test_the_live_table_is_drawn_four_times_a_second_at_most(live: ConsoleLogger) -> None:
    live.flush()
    drawn = live.stream.getvalue().count("step 0/100")  # type: ignore[union-attr]
    for _ in range(100):
        live.flush()
    assert live.stream.getvalue().count("step 0/100") <= drawn + 2  # type: ignore[union-attr]


@pytest.mark.parametrize("columns", [20, 40, 80, 109, 110, 200])
@pytest.mark.parametrize("rows", [4, 10, 50])
def test_the_live_table_fits_terminals_of_any_size(
    columns: int, rows: int, run: TrackedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(rows))
    terminal = Terminal()
    logger = ConsoleLogger(terminal, is_live=True)
    logger.open(run)
    for step in range(30):
        at(logger, float(step)).log_metrics(
            {**STEP, **{f"own metric number {index}": 1.0 for index in range(20)}}, step
        )
    terminal.truncate(0)
    logger.flush()
    drawn = [line for line in terminal.text.lstrip("\0").split("\n") if line.strip()]
    logger.close()
    assert max(len(line.rstrip()) for line in drawn) <= columns
    assert len(drawn) <= rows


HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m[bold red]x[/]\r\n\t\u202e\u200b\ud800\x00" + "y" * 100_000


def test_hostile_text_cannot_break_plain_output(plain: ConsoleLogger) -> None:
    for step in (1, 2):
        plain.log_metrics({HOSTILE: 1.0, f"val/{HOSTILE}": 1.0}, step)
    plain.alert(HOSTILE, HOSTILE, "error")
    plain.finish("finished")
    output = plain.stream.getvalue()  # type: ignore[union-attr]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u200b\ud800]", output)
    assert "[bold red]x[/]" in output
    assert max(map(len, output.splitlines())) < 1000


def test_hostile_text_cannot_break_the_live_table(live: ConsoleLogger) -> None:
    live.log_metrics({**STEP, HOSTILE: 1.0}, 1)
    live.alert(HOSTILE, HOSTILE, "error")
    live.flush()
    assert not re.search(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e\ud800]", live.stream.text)  # type: ignore[union-attr]
    assert "pwned" in live.stream.text  # type: ignore[union-attr]
    assert "\x1b]0;" not in live.stream.getvalue()  # type: ignore[union-attr]


@given(st.text())
def test_one_line_is_one_printable_line(text: str) -> None:
    line = one_line(text, 50)
    assert len(line) <= 50
    assert "\n" not in line
    assert line.isprintable()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1"),
        (0.53125, "0.5312"),
        (-12.3456, "-12.35"),
        (9999.4, "9999"),
        (12345, "12.3k"),
        (999_950, "1.0M"),
        (2.5e9, "2.5G"),
        (1e-5, "1.0e-05"),
        (1e300, "1.0e+300"),
        (math.nan, "NaN"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats())
def test_no_number_is_longer_than_its_column(value: float) -> None:
    assert len(number(value)) <= 9


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0s"), (59.7, "1m 00s"), (204, "3m 24s"), (7500, "2h 05m"), (270_000, "3d 03h")]
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_pace_changes_its_unit() -> None:
    assert (pace(2.14), pace(0.05), pace(0)) == ("2.1 s/step", "20 steps/s", "")


def test_sparklines() -> None:
    assert sparkline([1, 2, 3], 10) == "▁▅█"
    assert sparkline([math.nan, 1, math.inf, 2], 10) == "×▁×█"
    assert sparkline([5, 5], 10) == "▄▄"
    assert len(sparkline(list(range(1000)), 30)) == 30
    assert sparkline([], 10) == sparkline([1.0], 0) == ""


def test_lines_come_after_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    class Watching(io.StringIO):
        def write(self, text: str) -> int:
            for step in re.findall(r"^step (\d+)", text, re.MULTILINE):
                steps = [record.step for record in JournalReader(tmp_path).records({"metrics"})]
                seen.append(int(step) in steps)
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Watching())
    with Tracking("p", "e", "console", log_dir=str(tmp_path)) as tracking:
        for step in range(1, 30):
            tracking.log_metrics({"loss": 1.0}, step)
    assert seen == [True] * 29


def trained(stdout: int | io.IOBase, path: Path, steps: int) -> subprocess.Popen[bytes]:
    """The training program with its console on `stdout`, when it has logged so many steps."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(path), "1", "console"], stdout=stdout, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.strip() == str(steps).encode():
            return process
    raise AssertionError(process.stderr.read())


def ended_by_interrupt(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(2)
    assert process.stderr is not None
    process.stderr.read()
    process.wait(timeout=30)
    process.stderr.close()


def test_a_pipe_that_nobody_reads_does_not_stop_training(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    process = trained(write_end, tmp_path, 300)
    ended_by_interrupt(process)
    os.close(write_end)
    os.close(read_end)
    assert RunDirectory.open(tmp_path).status == "killed"


def test_a_terminal_that_nobody_reads_does_not_stop_training(tmp_path: Path) -> None:
    controller, terminal = os.openpty()
    process = trained(terminal, tmp_path, 500)
    ended_by_interrupt(process)
    os.close(terminal)
    os.close(controller)
    assert RunDirectory.open(tmp_path).status == "killed"


def test_a_reader_that_goes_away_does_not_stop_training(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = trained(write_end, tmp_path, 200)
    ended_by_interrupt(process)
    os.close(write_end)
    assert RunDirectory.open(tmp_path).status == "killed"
    notes = [record.fields["text"] for record in JournalReader(tmp_path).records({"note"})]
    assert "BrokenPipeError" in notes[-1]
