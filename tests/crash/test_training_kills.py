"""`kill -9` at random moments of training: nothing that was printed is lost, and the run goes on exactly."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from verl.config import load_config
from verl.journal import JournalReader, RunDirectory, canonical
from verl.testing.models import make_tiny_model_folder
from verl.tracking.catalogue import TIME_DEPENDENT
from verl.trainer.checkpoint import CheckpointStore, read_info

SEED = 20261130
PRINTED_STEP = re.compile(r"^step (\d+)/\d+ ", re.MULTILINE)


def settings(model: Path, run: Path, steps: int) -> list[str]:
    return [
        f"actor_rollout_ref.model.path={model}",
        f"trainer.log_dir={run}",
        "trainer.logger=[console]",
        "trainer.num_threads=1",
        f"trainer.total_steps={steps}",
        "trainer.save_freq=2",
        "trainer.keep_checkpoints=2",
        "trainer.resume_from_checkpoint=auto",
        "trainer.val_before_train=false",
        "algorithm.type=grpo",
        "data.train_batch_size=2",
        "data.max_response_length=4",
        "data.max_val_samples=2",
        "actor_rollout_ref.rollout.n=2",
        "actor_rollout_ref.actor.optim.lr=1e-3",
    ]


def train(overrides: list[str], output: Path) -> None:
    """Trains with its output in a file, in a process of its own."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from verl.trainer.ppo_trainer import PPOTrainer

    PPOTrainer(config=load_config(None, overrides)).train()


def metrics_by_step(run: Path) -> dict[int | None, dict[str, float]]:
    return {
        record.step: {
            key: value for key, value in record.fields["metrics"].items() if not key.startswith(TIME_DEPENDENT)
        }
        for record in canonical(JournalReader(run).records())
        if record.kind == "metrics"
    }


def kill_and_check(tmp_path: Path, kills: int) -> None:
    model, run, output = tmp_path / "model", tmp_path / "run", tmp_path / "output.txt"
    make_tiny_model_folder(model, seed=1)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["verl.trainer.ppo_trainer", "verl.config.load"])
    generator = random.Random(SEED)
    hits = 0
    for number in range(kills):
        process = processes.Process(target=train, args=(settings(model, run, 100_000), output))
        process.start()
        if generator.random() > 0.2:  # the others die while they start
            wait_for_steps(output, generator.randint(1, 5))
        process.join(timeout=generator.uniform(0.0, 0.5))
        assert process.exitcode is None, f"kill {number}: training ended by itself:\n{output.read_text()[-3000:]}"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        hits += check_after_kill(run, output, number)
    assert hits > kills // 2, "most kills must hit a run that has begun"

    # Let it end properly, and compare with a run that was never touched.
    steps = CheckpointStore(run / "checkpoints", keep=None).steps()[-1] + 4
    finish = processes.Process(target=train, args=(settings(model, run, steps), output))
    finish.start()
    finish.join(timeout=300)
    assert finish.exitcode == 0, output.read_text()[-3000:]
    unbroken = processes.Process(
        target=train, args=(settings(model, tmp_path / "unbroken", steps), tmp_path / "other.txt")
    )
    unbroken.start()
    unbroken.join(timeout=1800)
    assert unbroken.exitcode == 0
    assert metrics_by_step(run) == metrics_by_step(tmp_path / "unbroken")
    assert RunDirectory.open(run).status == "finished"


def wait_for_steps(output: Path, more: int) -> None:
    """Waits until so many more steps are printed."""
    wanted, deadline = num_printed(output) + more, time.monotonic() + 120
    while num_printed(output) < wanted:
        assert time.monotonic() < deadline, f"too few steps in two minutes:\n{output.read_text()[-3000:]}"
        time.sleep(0.01)


def num_printed(output: Path) -> int:
    return len(PRINTED_STEP.findall(output.read_text())) if output.exists() else 0


def check_after_kill(run: Path, output: Path, number: int) -> bool:
    """Checks what a killed process left behind; says whether it had begun to train."""
    if not (run / "run.json").exists():
        return False
    reader = JournalReader(run)
    recorded = {record.step for record in reader.records() if record.kind == "metrics"}
    printed = {int(step) for step in PRINTED_STEP.findall(output.read_text())}
    assert printed <= recorded, f"kill {number}: printed but not in the journal: {sorted(printed - recorded)}"
    assert RunDirectory.open(run).status in ("created", "crashed", "running")
    store = CheckpointStore(run / "checkpoints", keep=None)
    for step in store.steps():
        assert read_info(store.path(step)).step == step
        assert (store.path(step) / "trainer_state.pt").exists()
    return bool(printed)


def test_a_few_random_kills_lose_nothing(tmp_path):
    kill_and_check(tmp_path, kills=6)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_hundred_random_kills_lose_nothing(tmp_path):
    kill_and_check(tmp_path, kills=200)
