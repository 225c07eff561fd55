"""The callback for transformers, in real trainings of a tiny model: everything is in the run, with its true end."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from verl.integrations.transformers_callback import VerlCallback
from verl.journal import JournalReader, RunDirectory
from verl.testing.models import make_tiny_model_folder
from verl.tracking import Tracking

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="the Trainer needs accelerate"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),
]
STEPS = 4
SECRET = "hf_thisIsTheSecretOfTheUser123"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def train(model_folder: Path, tmp_path: Path):
    """Makes a trainer whose output lies beside the run directory."""

    def make(*callbacks: TrainerCallback, max_steps: int = STEPS, **arguments: Any) -> Trainer:
        given = {
            "report_to": "none",
            "max_steps": max_steps,
            "logging_steps": 1,
            "save_steps": 2,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "per_device_train_batch_size": 2,
            "use_cpu": True,
            "disable_tqdm": True,
            **arguments,
        }
        rows = [{"input_ids": torch.arange(4) + row, "labels": torch.arange(4) + row} for row in range(16)]
        model = AutoModelForCausalLM.from_pretrained(model_folder)
        args = TrainingArguments(str(tmp_path / "out"), **given)
        return Trainer(model, args, train_dataset=rows, eval_dataset=rows[:2], callbacks=[*callbacks])  # type: ignore[arg-type]

    return make


class Failing(TrainerCallback):
    """Raises at a step."""

    def __init__(self, step: int, error: BaseException) -> None:
        self._step, self._error = step, error

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            raise self._error


def steps_of(run: Path, key: str) -> list[int]:
    return JournalReader(run).metrics()[key].steps.tolist()


def fields(run: Path, kind: str) -> list[dict[str, Any]]:
    return [dict(record.fields) for record in JournalReader(run).records({kind})]


def test_a_training_is_tracked_from_its_arguments_to_its_end(train: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    callback = VerlCallback("my project", "first", ["tensorboard"], log_dir=str(run))
    trainer = train(callback, hub_token=SECRET)
    trainer.train()
    assert callback.tracking is None

    assert RunDirectory.open(run).status == "finished"
    assert fields(run, "run")[0]["project"] == "my project"
    assert fields(run, "run")[0]["total_steps"] == STEPS
    config = fields(run, "config")[0]["config"]
    assert config["training_arguments"]["max_steps"] == STEPS
    assert config["model"]["model_type"] == "llama"
    history = trainer.state.log_history
    series = JournalReader(run).metrics()
    assert series["train/loss"].steps.tolist() == [1, 2, 3, 4]
    assert series["train/loss"].values.tolist() == [entry["loss"] for entry in history if "loss" in entry]
    assert series["eval/loss"].steps.tolist() == [2, 4]
    assert series["train/global_step"].values.tolist() == [1, 2, 3, 4]
    assert series["train/train_runtime"].steps.tolist() == [STEPS]
    assert any("checkpoint-2" in note["text"] for note in fields(run, "note"))
    everything = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert SECRET.encode() not in everything

    shown = EventAccumulator(str(run)).Reload()
    assert [point.step for point in shown.Scalars("train/loss")] == [1, 2, 3, 4]
    assert [point.value for point in shown.Scalars("eval/loss")] == pytest.approx(series["eval/loss"].values.tolist())


def test_a_resumed_training_continues_its_run_and_replaces_what_came_after_the_checkpoint(
    train: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with pytest.raises(ValueError, match="no more data"), Tracking("p", "e", [], log_dir=str(run)) as tracking:
        train(VerlCallback(tracking=tracking), Failing(3, ValueError("no more data"))).train()
    assert RunDirectory.open(run).status == "failed"
    assert "no more data" in fields(run, "finish")[0]["error"]

    train(VerlCallback("p", "e", [], log_dir=str(run)), max_steps=6).train(
        resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2")
    )
    assert [record["to"] for record in fields(run, "rewind")] == [2]
    assert RunDirectory.open(run).status == "finished"
    canonical = [
        (record.attempt, record.step)
        for record in JournalReader(run).canonical({"metrics"})
        if "train/loss" in record.fields["metrics"]
    ]
    assert canonical == [(1, 1), (1, 2), (2, 3), (2, 4), (2, 5), (2, 6)]


def test_a_new_training_in_the_same_place_replaces_the_earlier_one(train: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for steps in (4, 2):
        train(VerlCallback("p", "e", [], log_dir=str(run)), max_steps=steps).train()
    assert steps_of(run, "train/loss") == [1, 2]
    assert len(RunDirectory.open(run).info.attempts) == 2


def test_evaluations_before_and_after_the_training_belong_to_it(train: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = train(VerlCallback("p", "e", [], log_dir=str(run)), eval_strategy="no")
    trainer.evaluate()
    trainer.train()
    trainer.evaluate(metric_key_prefix="eval_end")
    trainer.predict(trainer.eval_dataset)
    assert steps_of(run, "eval/loss") == [0]
    assert steps_of(run, "train/loss") == [1, 2, 3, 4]
    assert steps_of(run, "eval/end_loss") == [STEPS]
    assert steps_of(run, "test/loss") == [STEPS]
    assert {attempt.status for attempt in RunDirectory.open(run).info.attempts} == {"finished"}


def test_a_training_whose_error_was_caught_has_failed_once_the_next_begins(train: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    callback = VerlCallback("p", "e", [], log_dir=str(run))
    with pytest.raises(ValueError, match="no more data"):
        train(callback, Failing(2, ValueError("no more data"))).train()
    train(callback).train()
    assert [attempt.status for attempt in RunDirectory.open(run).info.attempts] == ["failed", "finished"]


PROGRAM = """
import sys, torch
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
from verl.integrations.transformers_callback import VerlCallback

class Failing(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        raise {error}

model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
rows = [{{"input_ids": torch.arange(4), "labels": torch.arange(4)}}]
args = TrainingArguments(sys.argv[2] + "/out", report_to="none", max_steps=2, use_cpu=True, disable_tqdm=True)
callback = VerlCallback("p", "e", [], log_dir=sys.argv[2] + "/run")
trainer = Trainer(model, args, train_dataset=rows, callbacks=[callback, Failing()])
{train}
"""
CAUGHT = "try:\n    trainer.train()\nexcept ValueError:\n    sys.exit(0)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "train", "status", "told"),
    [
        ("ValueError('no more data')", "trainer.train()", "failed", "ValueError: no more data"),
        ("ValueError('no more data')", CAUGHT, "failed", "train() ended with an error"),
        ("KeyboardInterrupt()", "trainer.train()", "killed", "KeyboardInterrupt: "),
    ],
    ids=["uncaught", "caught", "interrupted"],
)
def test_a_program_that_ends_by_an_error_has_its_true_status(
    error: str, train: str, status: str, told: str, model_folder: Path, tmp_path: Path
) -> None:
    program = PROGRAM.format(error=error, train=train)
    subprocess.run([sys.executable, "-c", program, model_folder, tmp_path], capture_output=True, check=False)
    assert RunDirectory.open(tmp_path / "run").status == status
    assert fields(tmp_path / "run", "finish")[0]["error"] == told


def test_a_tracking_and_what_to_make_one_of_exclude_each_other(tmp_path: Path) -> None:
    with Tracking("p", "e", [], log_dir=str(tmp_path)) as tracking, pytest.raises(ValueError, match="either"):
        VerlCallback(experiment_name="e", tracking=tracking)
