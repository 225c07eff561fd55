"""What goes wrong ends in a sentence that helps, with the right exit code, and loses nothing recorded before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from verl.errors import ConfigError, HookError
from verl.journal import JournalReader, RunDirectory
from verl.trainer.launch import main
from verl.trainer.ppo_trainer import PPOTrainer


@pytest.fixture
def start(model_folder, tmp_path, capsys):
    """Runs the command line in this process; gives exit code and what was said on stderr."""

    def run(*overrides: str) -> tuple[int, str]:
        settings = {
            "actor_rollout_ref.model.path": str(model_folder),
            "trainer.log_dir": str(tmp_path / "run"),
            "trainer.logger": "[]",
            "trainer.async_log": "false",
            "trainer.total_steps": "4",
            "data.train_batch_size": "2",
            "data.max_response_length": "6",
            "data.max_val_samples": "2",
            "actor_rollout_ref.rollout.n": "2",
        }
        settings |= dict(override.split("=", 1) for override in overrides)
        code = main([f"{key}={value}" for key, value in settings.items()])
        error = capsys.readouterr().err
        assert "Traceback" not in error
        return code, error

    return run


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def steps_of(run: Path) -> list[int | None]:
    return [record.step for record in JournalReader(run).records() if record.kind == "metrics"]


def test_empty_data_file(start, tmp_path):
    code, error = start(f"data.train_files={write_lines(tmp_path / 'empty.jsonl')}")
    assert code == 2
    assert "empty.jsonl" in error


def test_missing_column_names_those_that_are_there(start, tmp_path):
    code, error = start(f"data.train_files={write_lines(tmp_path / 'a.jsonl', {'question': 'x', 'answer': 'y'})}")
    assert code == 2
    assert "prompt" in error
    assert "question" in error


def test_prompt_longer_than_the_context(start, tmp_path):
    data = write_lines(tmp_path / "long.jsonl", {"prompt": "x " * 3000, "ground_truth": "y"})
    code, error = start(f"data.train_files={data}", "data.max_prompt_length=100000")
    assert code == 2
    assert "long.jsonl, line 1" in error
    assert "context" in error


def test_model_folder_with_a_missing_file(start, model_folder, tmp_path):
    shutil.copytree(model_folder, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    code, error = start(f"actor_rollout_ref.model.path={tmp_path / 'model'}")
    assert code == 2
    assert "safetensors" in error
    assert str(tmp_path / "model") in error


def test_no_model_says_which_setting(start):
    code, error = start("actor_rollout_ref.model.path=null")
    assert code == 2
    assert "actor_rollout_ref.model.path" in error


REWARDS = """
calls = 0

def late(data_source, solution_str, ground_truth, extra_info):
    global calls
    calls += 1
    return {value} if calls > 10 else 0.5 + calls % 2
"""


@pytest.mark.parametrize(
    ("value", "said"), [("1 / 0", "division by zero"), ("float('nan')", "nan"), ("'yes'", "'yes'")]
)
def test_reward_that_fails_in_the_middle_keeps_the_steps_before(start, tmp_path, value, said):
    (tmp_path / "reward.py").write_text(REWARDS.format(value=value))
    code, error = start(f"reward.functions={tmp_path / 'reward.py'}:late", "trainer.val_before_train=false")
    assert code == 1
    assert "late" in error
    assert said in error
    run = tmp_path / "run"
    assert steps_of(run) == [1, 2]
    assert RunDirectory.open(run).status == "failed"
    (finish,) = [record for record in JournalReader(run).records() if record.kind == "finish"]
    assert finish.fields["status"] == "failed"
    assert said in finish.fields["error"]


@pytest.mark.parametrize("log_dir", ["/dev/null/run", "{tmp}/file"])
def test_run_directory_that_cannot_be_written(start, tmp_path, log_dir):
    (tmp_path / "file").write_text("in the way")
    code, error = start(f"trainer.log_dir={log_dir.format(tmp=tmp_path)}")
    assert code == 1
    assert "trainer.log_dir" in error


def test_two_runs_in_one_directory(make_config, start, tmp_path):
    trainer = PPOTrainer(make_config())
    code, error = start()
    assert code == 1
    assert str(os.getpid()) in error
    trainer._close("killed", None)


def test_hook_that_raises_is_named_and_ends_the_run(make_config, tmp_path):
    trainer = PPOTrainer(make_config())
    trainer.add_hook("on_step_end", lambda trainer, results: {}["missing"])
    with pytest.raises(HookError, match=r"on_step_end.*KeyError"):
        trainer.train()
    assert steps_of(tmp_path / "run") == [0, 1]
    assert RunDirectory.open(tmp_path / "run").status == "failed"


def test_hook_that_raises_can_be_a_warning(make_config, tmp_path):
    trainer = PPOTrainer(make_config("trainer.hook_errors=warn", "trainer.total_steps=2"))
    trainer.add_hook("on_step_end", lambda trainer, results: {}["missing"])
    assert trainer.train().status == "finished"
    notes = [record.fields["text"] for record in JournalReader(tmp_path / "run").records() if record.kind == "note"]
    assert sum("on_step_end" in note for note in notes) >= 1


def test_settings_that_contradict_each_other_after_a_change(make_config):
    config = make_config()
    config.actor_rollout_ref.actor.ppo_mini_batch_size = 50
    with pytest.raises(ConfigError, match="ppo_mini_batch_size"):
        PPOTrainer(config)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 3 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_ends_the_run_with_a_sentence_and_keeps_what_was_recorded(start, small_disk):
    code, error = start(f"trainer.log_dir={small_disk / 'run'}", "trainer.total_steps=400", "trainer.save_freq=1")
    assert code == 1
    assert "No space left" in error or "full" in error
    steps = steps_of(small_disk / "run")
    assert steps == list(range(len(steps)))
    assert len(steps) > 2
    checkpoints = list((small_disk / "run" / "checkpoints").glob("global_step_*"))
    assert all((checkpoint / "checkpoint.json").exists() for checkpoint in checkpoints)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_closes_and_gives_its_exit_code(make_config, model_folder, tmp_path, number, code):
    command = [
        sys.executable,
        "-m",
        "verl.trainer.ppo_trainer",
        "trainer.total_steps=100000",
        "trainer.val_before_train=false",
    ]
    command += [f"actor_rollout_ref.model.path={model_folder}", f"trainer.log_dir={tmp_path / 'run'}"]
    command += ["data.train_batch_size=2", "data.max_response_length=6", "actor_rollout_ref.rollout.n=2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 2/"):
                process.send_signal(number)
                break
        rest = process.stdout.read()
    assert process.returncode == code
    assert "saving a checkpoint and closing" in rest
    run = RunDirectory.open(tmp_path / "run")
    assert run.status == "killed"
    assert len(list(run.checkpoints.glob("global_step_*"))) == 1
