"""An interrupted and resumed run gives bit for bit what an unbroken one gives."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from verl.errors import CheckpointError, ConfigError, ModelError
from verl.journal import JournalReader, canonical
from verl.tracing.trajectory_store import step_files
from verl.tracking.catalogue import TIME_DEPENDENT
from verl.trainer.ppo_trainer import PPOTrainer

SETTINGS = {
    "grpo": ["algorithm.type=grpo", "actor_rollout_ref.actor.ppo_mini_batch_size=1"],
    "ppo": [
        "algorithm.type=ppo",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.horizon=20",
        "actor_rollout_ref.actor.ppo_epochs=2",
        "actor_rollout_ref.actor.optim.lr_scheduler=cosine",
        "critic.optim.lr_warmup_steps=3",
        "trainer.log_step_interval=2",
        "trainer.test_freq=2",
    ],
}


def stop_after(trainer: PPOTrainer, step: int, event: str = "on_step_end") -> None:
    def hook(trainer: PPOTrainer, results: object) -> None:
        if trainer.global_step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer.add_hook(event, hook)


def logged(run: Path) -> list[tuple[str, int | None, dict]]:
    """The canonical records of steps, without what depends on the clock."""
    records = []
    for record in canonical(JournalReader(run).records()):
        if record.kind in ("metrics", "histogram", "text", "table"):
            fields = dict(record.fields)
            if "metrics" in fields:
                metrics = fields["metrics"].items()
                fields["metrics"] = {key: value for key, value in metrics if not key.startswith(TIME_DEPENDENT)}
            records.append((record.kind, record.step, fields))
    return records


def weights(run: Path) -> dict:
    return load_file(run / "checkpoints" / "global_step_6" / "actor" / "model.safetensors")


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_resumed_run_equals_the_unbroken_one_at_any_step(make_config, tmp_path, algorithm):
    unbroken = tmp_path / "unbroken"
    PPOTrainer(make_config(*SETTINGS[algorithm], f"trainer.log_dir={unbroken}")).train()
    expected, expected_weights = logged(unbroken), weights(unbroken)
    assert any(key == "loss/policy_loss" for _, _, fields in expected for key in fields.get("metrics", {}))

    for step, event in ((1, "on_step_end"), (3, "on_step_end"), (3, "on_rollout_end"), (5, "on_step_end")):
        run = tmp_path / f"interrupted_{step}_{event}"
        first = PPOTrainer(make_config(*SETTINGS[algorithm], f"trainer.log_dir={run}"))
        stop_after(first, step, event)
        outcome = first.train()
        assert (outcome.status, outcome.stopped_by) == ("killed", "SIGTERM")
        # A signal during the rollout ends the run after the step before it, whose weights are untouched.
        assert outcome.step == (step if event == "on_step_end" else step - 1)
        resumed = [*SETTINGS[algorithm], f"trainer.log_dir={run}", "trainer.resume_from_checkpoint=auto"]
        assert PPOTrainer(make_config(*resumed)).train().status == "finished"
        assert logged(run) == expected
        assert all((value == expected_weights[key]).all() for key, value in weights(run).items())
        assert [path.read_bytes() for path, _ in step_files(run / "trajectories")] == [
            path.read_bytes() for path, _ in step_files(unbroken / "trajectories")
        ]


def test_resuming_from_an_earlier_checkpoint_puts_the_later_ones_aside(make_config, tmp_path):
    run = tmp_path / "run"
    PPOTrainer(make_config("trainer.save_freq=2")).train()
    checkpoint = run / "checkpoints" / "global_step_2"
    PPOTrainer(
        make_config("trainer.save_freq=2", f"trainer.resume_from_checkpoint={checkpoint}", "trainer.total_steps=3")
    ).train()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["global_step_2", "global_step_3"]
    aside = run / "superseded" / "attempt_1"
    assert sorted(path.name for path in (aside / "checkpoints").iterdir()) == ["global_step_4", "global_step_6"]
    assert max(step for _, step in step_files(run / "trajectories")) == 3
    steps = [record.step for record in canonical(JournalReader(run).records()) if record.kind == "metrics"]
    assert steps == [0, 1, 2, 3]


def test_a_fresh_start_in_a_used_directory_is_a_new_attempt_and_loses_nothing(make_config, tmp_path):
    run = tmp_path / "run"
    PPOTrainer(make_config("trainer.total_steps=2")).train()
    PPOTrainer(make_config("trainer.total_steps=1", "trainer.seed=5", "trainer.val_before_train=false")).train()
    assert (run / "superseded" / "attempt_1" / "checkpoints" / "global_step_2").is_dir()
    steps = [record.step for record in canonical(JournalReader(run).records()) if record.kind == "metrics"]
    assert steps == [1]
    every = [record.step for record in JournalReader(run).records() if record.kind == "metrics"]
    assert every == [0, 1, 2, 1]


def test_a_start_that_fails_leaves_the_earlier_run_alone(make_config, tmp_path):
    PPOTrainer(make_config("trainer.total_steps=2")).train()
    with pytest.raises(ModelError):
        PPOTrainer(make_config(f"actor_rollout_ref.model.path={tmp_path / 'nothing'}"))
    assert (tmp_path / "run" / "checkpoints" / "global_step_2").is_dir()
    outcome = PPOTrainer(make_config("trainer.total_steps=3", "trainer.resume_from_checkpoint=auto")).train()
    assert outcome.step == 3
    steps = [record.step for record in canonical(JournalReader(tmp_path / "run").records()) if record.kind == "metrics"]
    assert steps == [0, 1, 2, 3]


NOISY = """
import random
import numpy as np

def noisy(data_source, solution_str, ground_truth, extra_info):
    return random.random() + float(np.random.rand())
"""


def test_rewards_that_draw_random_numbers_go_on_exactly_after_a_signal(make_config, tmp_path):
    (tmp_path / "reward.py").write_text(NOISY)
    settings = [f"reward.functions={tmp_path / 'reward.py'}:noisy", "trainer.total_steps=4"]
    unbroken = tmp_path / "unbroken"
    PPOTrainer(make_config(*settings, f"trainer.log_dir={unbroken}")).train()
    first = PPOTrainer(make_config(*settings))
    stop_after(first, 3, "on_rollout_end")
    first.add_hook("on_rollout_end", lambda trainer, results: trainer.tracking.metrics.add("custom/count", 1.0))
    assert first.train().step == 2
    PPOTrainer(make_config(*settings, "trainer.resume_from_checkpoint=auto")).train()
    key = "reward/episode_reward_mean"

    def rewards(run: Path) -> list[float]:
        return [
            fields["metrics"][key] for kind, _, fields in logged(run) if kind == "metrics" and key in fields["metrics"]
        ]

    assert rewards(tmp_path / "run") == rewards(unbroken)
    assert "custom/count" not in logged(tmp_path / "run")[-1][2].get("metrics", {})


def test_a_grpo_checkpoint_can_be_continued_with_ppo(make_config, tmp_path):
    PPOTrainer(make_config("algorithm.type=grpo", "trainer.total_steps=1")).train()
    settings = ["algorithm.type=ppo", "trainer.total_steps=2", "trainer.resume_from_checkpoint=auto"]
    assert PPOTrainer(make_config(*settings)).train().step == 2
    notes = [record.fields["text"] for record in JournalReader(tmp_path / "run").records() if record.kind == "note"]
    assert any("no critic" in note for note in notes)


def test_resuming_with_other_data_warns(make_config, tmp_path):
    PPOTrainer(make_config("trainer.total_steps=1")).train()
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "Say a", "ground_truth": "a"}\n{"prompt": "Say b", "ground_truth": "b"}\n')
    PPOTrainer(
        make_config("trainer.total_steps=2", "trainer.resume_from_checkpoint=auto", f"data.train_files={data}")
    ).train()
    notes = [record.fields["text"] for record in JournalReader(tmp_path / "run").records() if record.kind == "note"]
    assert any("the training data (its fingerprint) was" in note for note in notes)


def test_resuming_with_other_settings_warns_and_with_fewer_steps_says_there_is_nothing_to_do(make_config, tmp_path):
    PPOTrainer(make_config("trainer.total_steps=2")).train()
    settings = ["trainer.resume_from_checkpoint=auto", "trainer.total_steps=1", "trainer.seed=3"]
    assert PPOTrainer(make_config(*settings)).train().step == 2
    notes = [record.fields["text"] for record in JournalReader(tmp_path / "run").records() if record.kind == "note"]
    assert any(note.startswith("trainer.seed was 0") for note in notes)
    assert any(note.startswith("Nothing to do") for note in notes)


def test_auto_without_a_run_directory_says_what_to_set(make_config, monkeypatch):
    monkeypatch.delenv("VERL_LOG_DIR", raising=False)
    config = make_config("trainer.resume_from_checkpoint=auto", "trainer.log_dir=null")
    with pytest.raises(ConfigError, match=r"Set trainer.log_dir \(or VERL_LOG_DIR\)"):
        PPOTrainer(config)


def test_auto_without_a_checkpoint_starts_from_the_beginning(make_config):
    outcome = PPOTrainer(make_config("trainer.resume_from_checkpoint=auto", "trainer.total_steps=1")).train()
    assert (outcome.status, outcome.step) == ("finished", 1)


@pytest.mark.parametrize(
    "damage", [lambda content: content[:100], lambda content: b"garbage" * 10, lambda content: b""]
)
def test_a_damaged_checkpoint_is_refused_with_a_way_out(make_config, tmp_path, damage):
    PPOTrainer(make_config("trainer.total_steps=1")).train()
    state = tmp_path / "run" / "checkpoints" / "global_step_1" / "trainer_state.pt"
    state.write_bytes(damage(state.read_bytes()))
    with pytest.raises(CheckpointError, match="use an older checkpoint"):
        PPOTrainer(make_config("trainer.total_steps=2", "trainer.resume_from_checkpoint=auto")).train()


def test_a_checkpoint_that_is_not_there_is_named(make_config, tmp_path):
    with pytest.raises(CheckpointError, match=r"No checkpoint at .*global_step_9"):
        PPOTrainer(make_config(f"trainer.resume_from_checkpoint={tmp_path}/run/checkpoints/global_step_9"))
