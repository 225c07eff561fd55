"""How a command ends, and how its arguments are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from verl.config import parse_arguments, run_command
from verl.errors import CheckpointError, ConfigError, RewardError, VerlError


def raising(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


def test_the_code_of_a_command_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(lambda: 0) == 0
    assert run_command(lambda: 7) == 7
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("no"), 2), (RewardError("no"), 1), (CheckpointError("no"), 1), (VerlError("no"), 1)],
)
def test_an_error_for_the_user_is_one_message(error: VerlError, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(raising(error)) == code
    assert capsys.readouterr() == ("", "verl: error: no\n")


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "verl: interrupted\n"


def test_our_own_mistakes_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: 1 // 0)


def test_a_broken_pipe_elsewhere_is_not_swallowed() -> None:
    with pytest.raises(BrokenPipeError):
        run_command(raising(BrokenPipeError()))


def test_arguments_come_in_any_order(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("config") / "a.yaml"
    file.write_text("trainer: {seed: 1, total_steps: 5}\n", encoding="utf-8")
    orders = (
        ["--config", str(file), "trainer.seed=2", "log_interval=3"],
        ["trainer.seed=2", "--config", str(file), "log_interval=3"],
        ["trainer.seed=2", "log_interval=3", f"--config={file}"],
    )
    for arguments in orders:
        config = parse_arguments(arguments)
        assert (config.trainer.seed, config.trainer.total_steps, config.trainer.log_step_interval) == (2, 5, 3)


def test_values_may_look_like_options() -> None:
    assert parse_arguments(["trainer.test_freq=-1", "trainer.experiment_name=--a"]).trainer.experiment_name == "--a"


def test_settings_with_dashes_are_told_with_everything_else() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_arguments(["--trainer.seed=1", "trainer.sede=2"])
    assert "`--trainer.seed=1` is not an option; settings are key=value, without dashes" in str(raised.value)
    assert "`trainer.sede` is not a key" in str(raised.value)


def test_help_says_how_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--help"], prog="something")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: something [-h] [--config FILE] [key=value ...]")


# What a message may hold


def test_a_message_shows_no_secrets_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    error = VerlError("token=hf_abcdefghij0123456789 \x1b[2J\rgone\x07\x9b31m\u202e\n\tnext: ü")
    assert run_command(raising(error)) == 1
    assert capsys.readouterr().err == "verl: error: token=*** \\x1b[2J\\x0dgone\\x07\\x9b31m\\u202e\n\tnext: ü\n"
