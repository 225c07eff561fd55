"""Whole runs: they learn, and what was asked for is on record."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl.errors import ConfigError
from verl.journal import JournalReader
from verl.testing.models import make_tiny_reward_model_folder
from verl.tracking.catalogue import TIME_DEPENDENT
from verl.trainer.export import export
from verl.trainer.hooks import EVENTS
from verl.trainer.ppo_trainer import PPOTrainer

COUNT_A = """
def share_of_a(data_source, solution_str, ground_truth, extra_info):
    share = solution_str.count("a") / max(len(solution_str), 1)
    return {"score": share, "length": len(solution_str)}
"""


def metrics_of(run: Path) -> list[dict[str, float]]:
    return [dict(record.fields["metrics"]) for record in JournalReader(run).records() if record.kind == "metrics"]


@pytest.fixture
def reward(tmp_path) -> str:
    (tmp_path / "reward.py").write_text(COUNT_A)
    return f"reward.functions={tmp_path / 'reward.py'}:share_of_a"


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_reward_rises(make_config, tmp_path, reward, algorithm):
    config = make_config(
        f"algorithm.type={algorithm}",
        reward,
        "trainer.total_steps=25",
        "data.train_batch_size=4",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.actor.optim.lr=1e-2",
        "actor_rollout_ref.actor.kl_loss_coef=0",
        "critic.optim.lr=1e-2",
    )
    PPOTrainer(config).train()
    records = metrics_of(tmp_path / "run")
    rewards = [record["reward/episode_reward_mean"] for record in records if "reward/episode_reward_mean" in record]
    assert sum(rewards[:3]) / 3 < 0.1
    assert sum(rewards[-3:]) / 3 > 0.5
    assert records[-1]["val/reward_mean"] > records[0]["val/reward_mean"] + 0.3
    assert records[-1]["reward/parts/share_of_a"] == records[-1]["reward/episode_reward_mean"]
    assert records[-1]["reward/parts/share_of_a/length"] > 0


def test_micro_batches_padding_and_threads_of_rewards_change_no_metric(make_config, tmp_path, reward):
    def run(name: str, *overrides: str) -> list[dict[str, float]]:
        settings = [
            "trainer.total_steps=3",
            "actor_rollout_ref.actor.optim.lr=1e-6",
            f"trainer.log_dir={tmp_path / name}",
        ]
        PPOTrainer(make_config(reward, *settings, *overrides)).train()
        return [
            {key: value for key, value in record.items() if not key.startswith(TIME_DEPENDENT)}
            for record in metrics_of(tmp_path / name)
        ]

    whole = run("whole")
    parts = run(
        "parts",
        "actor_rollout_ref.actor.micro_batch_size=1",
        "critic.micro_batch_size=3",
        "actor_rollout_ref.rollout.max_batch_size=3",
        "actor_rollout_ref.model.gradient_checkpointing=true",
        "reward.num_workers=3",
        "data.val_batch_size=1",
    )
    assert len(whole) == len(parts) == 4
    for one, other in zip(whole, parts, strict=True):
        assert other == pytest.approx(one, rel=1e-3, abs=1e-4, nan_ok=True)


def test_every_hook_event_happens_with_what_it_promises(make_config, reward):
    trainer = PPOTrainer(make_config(reward, "trainer.total_steps=2", "trainer.save_freq=1"))
    calls: dict[str, list[tuple[int, dict]]] = {event: [] for event in EVENTS}
    for event in EVENTS:
        trainer.add_hook(
            event, lambda trainer, results, event=event: calls[event].append((trainer.global_step, results))
        )
    trainer.train()
    assert [step for step, _ in calls["on_train_start"]] == [0]
    assert [step for step, _ in calls["on_rollout_end"]] == [1, 2]
    assert [step for step, _ in calls["on_update_end"]] == [1, 2]
    assert [step for step, _ in calls["on_step_end"]] == [1, 2]
    assert [step for step, _ in calls["on_validation_end"]] == [0, 2]
    assert [results["step"] for _, results in calls["on_checkpoint_saved"]] == [1, 2]
    assert calls["on_train_end"] == [(2, {"status": "finished", "step": 2})]
    results = calls["on_rollout_end"][0][1]
    assert len(results["prompts"]) == len(results["responses"]) == len(results["rewards"]) == 4
    assert set(calls["on_step_end"][0][1]["timings"]) >= {"rollout", "update_actor", "step", "other"}
    assert "val/reward_mean" in calls["on_validation_end"][0][1]["metrics"]


def test_the_run_directory_holds_every_sample_and_setting(make_config, tmp_path, reward):
    PPOTrainer(make_config(reward, "trainer.total_steps=2", "trainer.log_val_generations=0.5")).train()
    run = tmp_path / "run"
    rows = pq.read_table(run / "trajectories/steps/train/step_00000002.parquet").to_pylist()
    assert [(row["rollout_n"], row["policy_version"]) for row in rows] == [(0, 1), (1, 1), (0, 1), (1, 1)]
    for row in rows:
        length = len(row["response_ids"])
        assert length > 0
        for column in ("rollout_logprob", "train_minus_rollout_logprob", "advantage", "return", "value", "entropy"):
            assert len(row[column]) == length, column
        assert row["reward"] == dict(row["reward_parts"])["share_of_a"]
    mean = sum(row["reward"] for row in rows) / 4
    assert metrics_of(run)[-1]["reward/episode_reward_mean"] == pytest.approx(mean)
    assert "share_of_a" in (run / "config.yaml").read_text()
    environment = json.loads((run / "environment.json").read_text())
    assert environment["seeds"] == {"trainer": 0, "data": 0}
    assert "torch" in environment["packages"]
    (first, last) = [record for record in JournalReader(run).records() if record.kind == "table"]
    assert (first.step, last.step) == (0, 2)
    assert len(last.fields["rows"]) == 2  # half of the four validation prompts
    assert {record.fields["tag"] for record in JournalReader(run).records() if record.kind == "histogram"} == {
        "reward/dist",
        "length/response",
        "advantage/dist",
    }


def test_a_reward_model_scores_and_its_distribution_is_logged(make_config, tmp_path, reward):
    make_tiny_reward_model_folder(tmp_path / "reward_model")
    config = make_config(
        f"reward.model.path={tmp_path / 'reward_model'}", reward, "reward.model.weight=0.5", "trainer.total_steps=1"
    )
    PPOTrainer(config).train()
    record = metrics_of(tmp_path / "run")[-1]
    total = record["reward/parts/share_of_a"] + 0.5 * record["reward/parts/model_score"]
    assert record["reward/episode_reward_mean"] == pytest.approx(total, abs=1e-6)
    tags = [record.fields["tag"] for record in JournalReader(tmp_path / "run").records() if record.kind == "histogram"]
    assert "reward/model_score" in tags


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lora_trains_resumes_and_exports_a_merged_model(make_config, tmp_path, reward, dtype):
    settings = [
        reward,
        "algorithm.type=grpo",
        "actor_rollout_ref.model.lora.rank=4",
        f"actor_rollout_ref.model.dtype={dtype}",
    ]
    PPOTrainer(make_config(*settings, "trainer.total_steps=4", f"trainer.log_dir={tmp_path / 'unbroken'}")).train()
    PPOTrainer(make_config(*settings, "trainer.total_steps=2")).train()
    PPOTrainer(make_config(*settings, "trainer.total_steps=4", "trainer.resume_from_checkpoint=auto")).train()
    key = "loss/policy_loss"
    assert [record[key] for record in metrics_of(tmp_path / "run") if key in record] == [
        record[key] for record in metrics_of(tmp_path / "unbroken") if key in record
    ]
    assert metrics_of(tmp_path / "run")[-1]["kl/kl_divergence"] != 0.0
    folder = export(tmp_path / "run", tmp_path / "exported")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model(**tokenizer("a", return_tensors="pt")).logits.isfinite().all()
    assert not (folder / "adapter_config.json").exists()


def test_an_export_equals_the_trained_policy(make_config, tmp_path, reward):
    trainer = PPOTrainer(make_config(reward, "trainer.total_steps=2"))
    trainer.train()
    model = AutoModelForCausalLM.from_pretrained(export(tmp_path / "run", tmp_path / "exported"))
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        assert torch.equal(model.eval()(ids).logits, trainer.parts.policy.transformer.eval()(ids).logits)


def test_the_best_checkpoint_is_kept(make_config, tmp_path, reward):
    config = make_config(
        reward, "trainer.save_freq=1", "trainer.test_freq=1", "trainer.keep_checkpoints=1", "trainer.total_steps=5"
    )
    trainer = PPOTrainer(config)
    values = {}
    trainer.add_hook(
        "on_validation_end", lambda t, results: values.__setitem__(t.global_step, results["metrics"]["val/reward_mean"])
    )
    trainer.train()
    values.pop(0)
    best = max(values, key=lambda step: (values[step], step))
    kept = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {"global_step_5", f"global_step_{best}"}


def test_a_best_metric_that_is_not_there_is_refused_at_the_first_validation(make_config, reward):
    with pytest.raises(ConfigError, match=r"best_metric is nope.*val/reward_mean"):
        PPOTrainer(make_config(reward, "trainer.best_metric=nope")).train()


def test_the_critic_can_warm_up_alone(make_config, tmp_path, reward):
    PPOTrainer(make_config(reward, "algorithm.type=ppo", "critic.warmup_steps=1", "trainer.total_steps=2")).train()
    first, second = metrics_of(tmp_path / "run")[1:]
    assert "loss/policy_loss" not in first
    assert "loss/value_loss" in first
    assert "loss/policy_loss" in second


def test_embeddings_are_logged_when_asked(make_config, tmp_path, reward):
    config = make_config(reward, "trainer.log_embeddings=true", "trainer.total_steps=1", "trainer.logger=[tensorboard]")
    PPOTrainer(config).train()
    assert (tmp_path / "run" / "projector_config.pbtxt").exists()


def test_training_works_inside_a_running_event_loop(make_config, reward):
    async def notebook_cell() -> int:
        return PPOTrainer(make_config(reward, "trainer.total_steps=1")).train().step

    assert asyncio.run(notebook_cell()) == 1


def test_a_trainer_trains_once(make_config, reward):
    trainer = PPOTrainer(make_config(reward, "trainer.total_steps=1"))
    trainer.train()
    with pytest.raises(ConfigError, match="has trained already"):
        trainer.train()


def test_several_processes_are_refused_until_they_can_work_together(make_config, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="trains in one process"):
        PPOTrainer(make_config())


def test_texts_are_left_out_when_not_wanted(make_config, tmp_path, reward):
    PPOTrainer(make_config(reward, "actor_rollout_ref.rollout.trace.token2text=false", "trainer.total_steps=1")).train()
    rows = pq.read_table(tmp_path / "run/trajectories/steps/train/step_00000001.parquet").to_pylist()
    assert all(row["response_text"] is None and row["messages"] is None and row["response_ids"] for row in rows)


def test_a_prompt_that_comes_twice_in_a_batch_gives_trajectories_that_can_be_told_apart(make_config, tmp_path, reward):
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "Say a"}\n')
    PPOTrainer(make_config(reward, f"data.train_files={data}", "trainer.total_steps=1")).train()
    rows = pq.read_table(tmp_path / "run/trajectories/steps/train/step_00000001.parquet").to_pylist()
    assert [(row["sample_index"], row["rollout_n"]) for row in rows] == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_gradient_that_is_not_finite_is_an_alert(make_config, tmp_path, reward):
    trainer = PPOTrainer(make_config(reward, "trainer.total_steps=1", "algorithm.type=grpo"))

    def poison(trainer: PPOTrainer, results: dict) -> None:
        next(iter(trainer.parts.policy.network.parameters())).register_hook(lambda gradient: gradient * float("nan"))

    trainer.add_hook("on_train_start", poison)
    trainer.train()
    (alert,) = [record for record in JournalReader(tmp_path / "run").records() if record.kind == "alert"]
    assert "not finite" in alert.fields["title"]


def test_steps_follow_from_epochs(make_config, tmp_path, reward):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"Say {letter}"}) + "\n" for letter in "abcde"))
    trainer = PPOTrainer(
        make_config(reward, f"data.train_files={data}", "trainer.total_steps=null", "trainer.total_epochs=2")
    )
    assert trainer.train().step == 5
    assert metrics_of(tmp_path / "run")[-1]["progress/epoch"] == 2.0
