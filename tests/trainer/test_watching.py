"""What looks after a run that trains: health rules that alert and end it, samples of the machine, times of phases."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl.config import PPOConfig, load_config
from verl.journal import JournalReader, RunDirectory
from verl.tracking.health.monitor import HealthStopError
from verl.trainer.launch import main
from verl.trainer.ppo_trainer import PPOTrainer

HUGE = ["algorithm.type=grpo", "actor_rollout_ref.actor.optim.lr=1.0", "actor_rollout_ref.actor.ppo_mini_batch_size=1"]


@pytest.fixture
def overrides(model_folder: Path, tmp_path: Path) -> Callable[..., list[str]]:
    def make(*more: str) -> list[str]:
        return [
            f"actor_rollout_ref.model.path={model_folder}",
            f"trainer.log_dir={tmp_path / 'run'}",
            "trainer.logger=[]",
            "trainer.async_log=false",
            "trainer.num_threads=1",
            "trainer.total_steps=6",
            "data.train_batch_size=4",
            "data.max_response_length=8",
            "data.max_val_samples=2",
            "actor_rollout_ref.rollout.n=4",
            *more,
        ]

    return make


@pytest.fixture
def config(overrides: Callable[..., list[str]]) -> Callable[..., PPOConfig]:
    return lambda *more: load_config(None, overrides(*more))


def alerts(run: Path) -> list[tuple[int | None, str]]:
    """(step, rule) of each alert."""
    found = [(record.step, record.fields["text"]) for record in JournalReader(run).records({"alert"})]
    return [(step, text.rpartition("(Health rule `")[2].removesuffix("`.)")) for step, text in found]


def metrics(run: Path) -> dict[int | None, dict[str, float]]:
    return {record.step: record.fields["metrics"] for record in JournalReader(run).records({"metrics"})}


def test_training_that_blows_up_alerts_and_goes_on(config: Callable[..., PPOConfig], tmp_path: Path) -> None:
    outcome = PPOTrainer(config(*HUGE)).train()
    assert (outcome.status, outcome.step) == ("finished", 6)
    told = alerts(tmp_path / "run")
    rules = [rule for _, rule in told]
    assert "kl_blow_up" in rules
    assert len(rules) == len(set(rules))
    (text,) = [
        record.fields["text"]
        for record in JournalReader(tmp_path / "run").records({"alert"})
        if "kl_blow_up" in record.fields["text"]
    ]
    number = re.search(r"Step (\d+): `(\w+/\w+)` is ([\d.e+]+) nats/token", text)
    assert number is not None
    assert number[2] in ("kl/kl_divergence", "policy/approx_kl")
    assert f"{metrics(tmp_path / 'run')[int(number[1])][number[2]]:.3g}" == number[3]


def test_a_rule_that_is_to_stop_the_run_ends_it_with_a_checkpoint(
    overrides: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(overrides(*HUGE, "trainer.total_steps=50", "trainer.health.stop_on=[kl_blow_up]"))
    error = capsys.readouterr().err
    assert code == 1
    assert "Traceback" not in error
    assert "health rule `kl_blow_up`" in error
    assert re.search(r"`(kl/kl_divergence|policy/approx_kl)` is [\d.e+]+ nats/token \(limit ", error)
    run = RunDirectory.open(tmp_path / "run")
    assert run.status == "failed"
    (step,) = [step for step, rule in alerts(run.path) if rule == "kl_blow_up"]
    assert step is not None
    assert max(step for step in metrics(run.path) if step is not None) == step
    checkpoint = run.checkpoints / f"global_step_{step}" / "checkpoint.json"
    assert json.loads(checkpoint.read_text())
    (finish,) = JournalReader(run.path).records({"finish"})
    assert finish.fields["status"] == "failed"
    assert finish.fields["error"].startswith("The health rule `kl_blow_up` (trainer.health.stop_on) ended the run.")
    # ... and it can be gone on from.
    resumed = overrides(
        *HUGE,
        "actor_rollout_ref.actor.optim.lr=0",
        f"trainer.total_steps={step + 1}",
        "trainer.resume_from_checkpoint=auto",
    )
    assert main(resumed) == 0
    assert RunDirectory.open(tmp_path / "run").status == "finished"


def nan_at(step: int) -> Callable[[PPOTrainer, dict[str, object]], None]:
    def log(trainer: PPOTrainer, results: dict[str, object]) -> None:
        trainer.tracking.log_metrics({"loss": math.nan if results["step"] == step else 0.5}, trainer.global_step)

    return log


def test_what_a_rule_finds_in_the_last_step_is_told_but_ends_nothing(
    config: Callable[..., PPOConfig], tmp_path: Path
) -> None:
    trainer = PPOTrainer(config("trainer.total_steps=3", "trainer.health.stop_on=[not_finite]"))
    trainer.add_hook("on_step_end", nan_at(3))
    outcome = trainer.train()
    assert (outcome.status, outcome.step) == ("finished", 3)
    assert (3, "not_finite") in alerts(tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").status == "finished"


def test_what_a_rule_finds_before_the_last_step_ends_the_run(config: Callable[..., PPOConfig], tmp_path: Path) -> None:
    trainer = PPOTrainer(config("trainer.total_steps=3", "trainer.health.stop_on=[not_finite]"))
    trainer.add_hook("on_step_end", nan_at(2))
    with pytest.raises(HealthStopError, match="Step 2: `loss` is nan"):
        trainer.train()
    assert RunDirectory.open(tmp_path / "run").status == "failed"


@pytest.mark.slow
def test_validation_and_checkpoints_that_take_long_are_no_stall(
    config: Callable[..., PPOConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["trainer.total_steps=6", "trainer.test_freq=5", "trainer.save_freq=5"]
    stall = ["trainer.health.stalled_step.minimum_seconds=1.5", "trainer.health.stop_on=[stalled_step]"]
    trainer = PPOTrainer(config(*settings, *stall))

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            if trainer.global_step == 5:
                time.sleep(6.0)
            return function(*values)

        return call

    monkeypatch.setattr(trainer, "validate", slow(trainer.validate))
    monkeypatch.setattr(trainer._checkpoints, "save", slow(trainer._checkpoints.save))
    trainer.add_hook("on_train_end", lambda trainer, results: time.sleep(3.0))
    assert trainer.train().status == "finished"
    assert "stalled_step" not in {rule for _, rule in alerts(tmp_path / "run")}


def test_a_run_that_does_well_is_left_in_peace(config: Callable[..., PPOConfig], tmp_path: Path) -> None:
    settings = ["trainer.log_step_interval=2", "trainer.test_freq=3", "actor_rollout_ref.actor.optim.lr=1e-5"]
    rules = "[kl_blow_up,entropy_collapse,gradient_explosion,not_finite,reward_flat,groups_equal,length_drift,clipping]"
    steps = ["trainer.total_steps=20", "trainer.health.history=3", f"trainer.health.stop_on={rules}"]
    assert PPOTrainer(config(*settings, *steps)).train().status == "finished"
    # A model of random weights seldom ends what it says.
    assert {rule for _, rule in alerts(tmp_path / "run")} <= {"truncation"}


def test_the_phases_of_every_logged_record_add_up_to_the_time_of_its_steps(
    config: Callable[..., PPOConfig], tmp_path: Path
) -> None:
    settings = ["trainer.log_step_interval=2", "trainer.test_freq=2", "trainer.save_freq=2"]
    PPOTrainer(config(*settings, "actor_rollout_ref.ref.micro_batch_size=4")).train()
    records = metrics(tmp_path / "run")
    assert set(records) == {0, 2, 4, 6}
    for step in (2, 4, 6):
        times = {key: value for key, value in records[step].items() if key.startswith("timing/")}
        total = times.pop("timing/step")
        assert sum(times.values()) == pytest.approx(total, rel=1e-9)
        assert {"timing/rollout", "timing/reward", "timing/update_actor", "timing/update_critic"} <= set(times)
        assert {"timing/other", "timing/logging", "timing/recording", "timing/validation"} <= set(times)
        assert records[step]["timing/validation"] > 0
        # What comes after the record of a step counts to the next one.
        assert ("timing/checkpoint" in times) == (step > 2)


def test_the_machine_is_sampled_while_training(config: Callable[..., PPOConfig], tmp_path: Path) -> None:
    PPOTrainer(config("trainer.system_metrics_interval=0.1", "trainer.total_steps=12")).train()
    sampled = [values for values in metrics(tmp_path / "run").values() if "system/memory_bytes" in values]
    assert sampled
    assert all(values["system/memory_bytes"] > 50e6 and values["system/cpu_percent"] >= 0 for values in sampled)
    assert any(values["system/process_cpu_percent"] > 1 for values in sampled)


def test_without_samples_no_metric_of_the_machine_is_logged(config: Callable[..., PPOConfig], tmp_path: Path) -> None:
    PPOTrainer(config("trainer.system_metrics_interval=0", "trainer.total_steps=2")).train()
    assert not [key for values in metrics(tmp_path / "run").values() for key in values if key.startswith("system/")]
