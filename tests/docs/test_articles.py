"""The commands and snippets of the two articles, as they are written there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from scipy.stats import skew
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from verl.errors import ModelError
from verl.journal import JournalReader
from verl.testing.models import make_tiny_model_folder, make_tiny_reward_model_folder

ROOT = Path(__file__).parents[2]

MINIMAL_SCRIPT = """
from verl import PPOTrainer
from verl.trainer.ppo_config import PPOConfig

# 构建一个极简配置（仅用于验证日志）
config = PPOConfig(
    log_dir="./test_logs",  # 显式指定日志路径
    total_steps=10,
    rollout_batch_size=4,
    actor_model_name_or_path="facebook/opt-125m",  # 小模型便于快速测试
)
trainer = PPOTrainer(config=config)
trainer.train()  # 执行10步训练
"""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the hub name of the article is a local folder: an OPT model, but tiny."""
    make_tiny_model_folder(tmp_path / "facebook" / "opt-125m", architecture="opt")
    make_tiny_reward_model_folder(tmp_path / "your_reward_model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("VERL_LOG_DIR", raising=False)
    return tmp_path


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, **environment}, check=False
    )


def events_of(folder: Path) -> EventAccumulator:
    files = list(folder.glob("events.out.tfevents.*"))
    assert len(files) == 1, f"one event file per attempt, by rank 0 alone: {files}"
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def test_loading_check_prints_the_version():
    import verl

    command = "import verl; print(f'verl {verl.__version__} loaded successfully')"
    done = run(sys.executable, "-c", command)
    assert done.stdout == f"verl {verl.__version__} loaded successfully\n"


def test_minimal_script_runs_as_it_stands(workplace):
    (workplace / "train_ppo.py").write_text(MINIMAL_SCRIPT)
    done = run(sys.executable, "train_ppo.py")
    assert done.returncode == 0, done.stderr
    assert "No data.train_files given" in done.stdout
    events = events_of(workplace / "test_logs")
    tags = set(events.Tags()["scalars"])
    assert {
        "reward/episode_reward_mean",
        "kl/kl_divergence",
        "loss/policy_loss",
        "loss/value_loss",
        "throughput/rollout_per_second",
        "throughput/step_per_second",
        "grad_norm/actor",
        "grad_norm/critic",
    } <= tags
    assert [event.step for event in events.Scalars("reward/episode_reward_mean")] == list(range(1, 11))


def test_hooks_of_the_article_reach_tensorboard(workplace):
    from verl import PPOTrainer
    from verl.trainer.ppo_config import PPOConfig

    config = PPOConfig(
        log_dir="./logs/ppo_opt125m_v1",
        total_steps=2,
        rollout_batch_size=2,
        actor_model_name_or_path="facebook/opt-125m",
        reward_model_name_or_path="your_reward_model",
        log_interval=1,
        data={"max_response_length": 6, "max_val_samples": 2},
        actor_rollout_ref={"rollout": {"n": 2}},
    )
    trainer = PPOTrainer(config=config)
    seen = []

    def on_rollout_end(self, rollout_results):
        rewards = rollout_results["rewards"]  # shape: [batch_size]
        seen.append(rewards)
        self.writer.add_scalar("reward/skewness", skew(rewards), self.global_step)
        self.writer.add_histogram("reward/dist", rewards, self.global_step)

    def log_sample(self, rollout_results):
        prompt = rollout_results["prompts"][0]
        response = rollout_results["responses"][0]
        self.writer.add_text(
            "samples/prompt_response", f"**Prompt:** {prompt}\n\n**Response:** {response}", self.global_step
        )
        self.writer.add_scalar("my_metric", 0.5, self.global_step)

    trainer.add_hook("on_rollout_end", on_rollout_end)
    trainer.add_hook("on_rollout_end", log_sample)
    trainer.train()

    events = events_of(workplace / "logs" / "ppo_opt125m_v1")
    assert [event.value for event in events.Scalars("reward/skewness")] == pytest.approx(
        [skew(r) for r in seen], rel=1e-6
    )
    assert {"reward/dist", "reward/model_score"} <= set(events.Tags()["histograms"])
    assert [event.step for event in events.Scalars("my_metric")] == [1, 2]
    texts = [
        event.tensor_proto.string_val[0].decode() for event in events.Tensors("samples/prompt_response/text_summary")
    ]
    assert any(text.startswith("**Prompt:**") for text in texts)
    assert all(isinstance(rewards, np.ndarray) and rewards.shape == (4,) for rewards in seen)


def test_log_interval_is_the_number_of_steps_between_records(workplace):
    exec(MINIMAL_SCRIPT.replace("rollout_batch_size=4", "rollout_batch_size=2, log_interval=5"), {})
    events = events_of(workplace / "test_logs")
    assert [event.step for event in events.Scalars("loss/policy_loss")] == [5, 10]


def test_log_dir_of_the_environment_and_of_the_time(workplace, monkeypatch):
    from verl import PPOTrainer
    from verl.trainer.ppo_config import PPOConfig

    config = PPOConfig(
        total_steps=1,
        rollout_batch_size=2,
        actor_model_name_or_path="facebook/opt-125m",
        data={"max_response_length": 6, "max_val_samples": 2},
    )
    PPOTrainer(config=config).train()
    (stamped,) = (workplace / "logs").iterdir()
    assert len(stamped.name) == len("20250405_142301")
    events_of(stamped)
    monkeypatch.setenv("VERL_LOG_DIR", "from_environment")
    PPOTrainer(config=config).train()
    events_of(workplace / "from_environment")


def test_hub_that_cannot_be_reached_names_the_folder_alternative(workplace):
    with pytest.raises(ModelError, match="someone/no-such-model-1b") as raised:
        exec(MINIMAL_SCRIPT.replace("facebook/opt-125m", "someone/no-such-model-1b"), {})
    assert "actor_rollout_ref.model.path=" in str(raised.value)


def test_print_cfg_shows_the_configuration_of_the_article(workplace):
    done = run(sys.executable, str(ROOT / "scripts/print_cfg.py"), "--config", str(ROOT / "config/experiment.yaml"))
    assert done.returncode == 0, done.stderr
    assert "financial_llm_agent" in done.stdout


@pytest.mark.filterwarnings("ignore:::mlflow", "ignore:::alembic", "ignore:::sqlalchemy")
def test_the_training_command_of_the_article_runs(workplace, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///financial_agent_runs.db")
    (workplace / "config").symlink_to(ROOT / "config")
    (workplace / "examples").symlink_to(ROOT / "examples")
    made = run(sys.executable, "examples/stock_analysis/prepare.py", "--max-steps", "2")
    assert made.returncode == 0, made.stderr
    command = [sys.executable, "-m", "verl.trainer.ppo_trainer", "--config", "config/experiment.yaml"]
    command += ["data.train_files=data/stock_analysis_train.parquet"]
    command += ["actor_rollout_ref.model.path=models/financial-llm-7b", "algorithm.type=grpo"]
    done = run(*command, "trainer.total_steps=2", "trainer.log_dir=logs/run")  # the article has no step limit
    assert done.returncode == 0, done.stderr
    assert "validation at step 2" in done.stdout
    events = events_of(workplace / "logs" / "run")
    assert "val/generations/text_summary" in events.Tags()["tensors"]
    client = MlflowClient(f"sqlite:///{workplace}/financial_agent_runs.db")
    (experiment,) = [each for each in client.search_experiments() if each.name == "financial_llm_agent"]
    (shown,) = client.search_runs([experiment.experiment_id])
    assert (shown.info.run_name, shown.info.status) == ("stock_analysis_grpo", "FINISHED")
    journaled = JournalReader(workplace / "logs" / "run").metrics()["reward/episode_reward_mean"]
    points = client.get_metric_history(shown.info.run_id, "reward/episode_reward_mean")
    assert [(point.step, point.value) for point in points] == [*zip(journaled.steps, journaled.values, strict=True)]


def test_requirements_install_what_the_article_installs():
    assert "-e ." in (ROOT / "requirements.txt").read_text().splitlines()
