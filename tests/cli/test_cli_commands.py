"""The commands as a user runs them: output, messages and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl import __version__
from verl.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]


def verl(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "verl.cli.main", *arguments, **variables)


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )


def assert_fails(done: subprocess.CompletedProcess[str], *parts: str, code: int = 2) -> None:
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("verl: error: ")
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    file = tmp_path / "experiment.yaml"
    file.write_text(
        "trainer:\n  project_name: financial_llm_agent\n  logger: ['console', 'tensorboard']\n"
        "  log_val_generations: 20\nactor_rollout_ref:\n  rollout:\n    trace:\n      token2text: True\n",
        encoding="utf-8",
    )
    return file


# verl


def test_help_names_every_command() -> None:
    done = verl("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name, command in COMMANDS.items():
        assert f"  {name}" in done.stdout
        assert command.summary in done.stdout
    assert verl().stdout == done.stdout


def test_version() -> None:
    done = verl("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"verl {__version__}\n", "")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("trian", "`trian` is not a command of verl; did you mean `train`?"),
        ("frobnicate", "the commands are train, config, metrics, export"),
        ("--verison", "`--verison` is not an option of verl"),
    ],
)
def test_an_unknown_command_names_the_nearest(name: str, suggestion: str) -> None:
    assert_fails(verl(name), suggestion)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    done = verl(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: verl {name}")


# verl config


def test_config_prints_what_a_run_would_use(experiment: Path) -> None:
    done = verl("config", "trainer.seed=3", "--config", str(experiment), "algorithm.type=grpo")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  project_name: financial_llm_agent  # default: verl\n" in done.stdout
    assert "  seed: 3  # default: 0\n" in done.stdout
    assert "  adv_estimator: grpo  # from recipe grpo; default: gae\n" in done.stdout


def test_config_with_a_recipe() -> None:
    assert "  type: grpo  # default: ppo\n" in verl("config", "--recipe", "grpo").stdout
    assert_fails(verl("config", "--recipe", "gropo"), "did you mean `grpo`?")


def test_config_describe_and_env() -> None:
    described = verl("config", "--describe")
    assert described.returncode == 0
    assert "trainer.log_step_interval  (default 1; a whole number of at least 1)" in described.stdout
    environment = verl("config", "--env")
    assert environment.returncode == 0
    assert "VERL_LOG_DIR" in environment.stdout


@pytest.mark.parametrize(
    "arguments", [["--describe", "trainer.seed=1"], ["--env", "--recipe", "grpo"], ["--describe", "--env"]]
)
def test_options_that_exclude_each_other(arguments: list[str]) -> None:
    assert_fails(verl("config", *arguments))


def test_options_with_a_typing_error_are_named() -> None:
    assert_fails(verl("config", "--confg", "a.yaml"), "`--confg` is not an option", "`a.yaml` is not a setting")


# Problems and exit codes.


def test_a_wrong_setting_is_told_before_anything_loads() -> None:
    done = verl("train", "trainer.totl_steps=3")
    assert_fails(done, "`trainer.totl_steps` is not a key", "did you mean `trainer.total_steps`?")


def test_a_missing_file_is_one_message(tmp_path: Path) -> None:
    assert_fails(verl("config", "--config", str(tmp_path / "no.yaml")), "does not exist")
    assert_fails(verl("config", "--config"), "--config", "see `verl config --help`")


def test_a_syntax_error_names_the_place(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("trainer: {seed: 1\n", encoding="utf-8")
    assert_fails(verl("config", "--config", str(file)), f"{file}, line 2, column 1: not valid YAML")


def test_secrets_of_the_environment_are_not_echoed() -> None:
    done = verl("config", "trainer.wandb_proxy=abcd-efgh-1234", "trainer.seed=x", WANDB_API_KEY="abcd-efgh-1234")
    assert_fails(done)
    assert "abcd-efgh-1234" not in done.stderr
    shown = verl("config", "trainer.wandb_proxy=abcd-efgh-1234", WANDB_API_KEY="abcd-efgh-1234")
    assert shown.returncode == 0
    assert "abcd-efgh-1234" not in shown.stdout


# verl metrics, verl export


def test_metrics_prints_the_catalogue() -> None:
    done = verl("metrics")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split() == ["key", "reduction", "unit", "better", "meaning"]
    for key in ("reward/episode_reward_mean", "kl/kl_divergence", "throughput/step_per_second", "grad_norm/critic"):
        assert f"\n{key} " in done.stdout


def test_export_needs_a_checkpoint_and_a_folder() -> None:
    assert_fails(verl("export"), "CHECKPOINT", "--to")


def test_export_of_a_folder_that_is_no_checkpoint_is_one_message(tmp_path: Path) -> None:
    done = verl("export", str(tmp_path / "none"), "--to", str(tmp_path / "model"))
    assert_fails(done, str(tmp_path / "none"), code=1)
    assert not (tmp_path / "model").exists()


# scripts/print_cfg.py


def test_print_cfg_prints_the_same_as_the_command(experiment: Path) -> None:
    done = run(sys.executable, "scripts/print_cfg.py", "--config", str(experiment), "trainer.seed=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == verl("config", "--config", str(experiment), "trainer.seed=3").stdout


def test_print_cfg_reads_the_experiment_of_the_repository() -> None:
    done = run(sys.executable, "scripts/print_cfg.py", "--config", "config/experiment.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  project_name: financial_llm_agent  # default: verl\n" in done.stdout
    assert "  log_val_generations: 20  # default: 0\n" in done.stdout


def test_print_cfg_fails_on_a_wrong_key(experiment: Path) -> None:
    with experiment.open("a", encoding="utf-8") as file:
        file.write("critic: {pth: a}\n")
    done = run(sys.executable, "scripts/print_cfg.py", "--config", str(experiment))
    assert_fails(done, "`critic.pth` is not a key", str(experiment), "did you mean `critic.path`?")


def test_print_cfg_works_away_from_the_checkout(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "print_cfg.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# Pipes.


def test_a_reader_that_leaves_early_is_no_error() -> None:
    script = f"{sys.executable} -m verl.cli.main config --describe | head -c 1 > /dev/null; echo ${{PIPESTATUS[0]}}"
    done = run("bash", "-c", script)
    assert done.stderr == ""
    # 0 if all output fitted into the pipe before the reader left.
    assert done.stdout in ("0\n", "141\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_stdout_ends_quietly(unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "verl.cli.main", "--help"],
            cwd=ROOT,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


# Where stdout and stderr lead


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return run("sh", "-c", line.replace("verl", f"{sys.executable} -m verl.cli.main", 1))


@pytest.mark.parametrize("command", ["verl --version", "verl config", "verl config --help"])
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_about_the_end(command: str, closed: str) -> None:
    done = shell(f"{command} {closed}")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_that_nobody_can_read_keeps_its_code() -> None:
    assert shell("verl config nope=1 >&- 2>&-").returncode == 2
    assert shell("verl config nope=1 2>/dev/full").returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["verl --version", "verl config", "verl config --describe", "verl config --help"])
def test_output_to_a_full_disk_is_one_sentence(command: str) -> None:
    done = shell(f"{command} >/dev/full")
    assert done.stderr == "verl: error: the output cannot be written to stdout: No space left on device\n"
    assert done.returncode == 1
