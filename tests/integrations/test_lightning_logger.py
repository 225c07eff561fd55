"""The logger for Lightning, in real trainings: everything is in the run, with its true end."""

from __future__ import annotations

import copy
import pickle
import signal
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader

from verl.journal import JournalReader, RunDirectory

lightning = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from verl.integrations.lightning_logger import VerlLogger  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("UserWarning", "FutureWarning")]
pytestmark += [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
]

SECRET = "hf_thisIsTheSecretOfTheUser123"


class Line(lightning.LightningModule):
    """Fits one weight; may raise at a step."""

    def __init__(self, rate: float = 0.1, hf_token: str | None = None, error: BaseException | None = None) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["error"])
        self.layer = torch.nn.Linear(1, 1)
        self.rate, self.error = rate, error

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        if self.error is not None and self.global_step == 3:
            raise self.error
        loss = self.layer(batch).square().mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("val/loss", self.layer(batch).square().mean())

    def test_step(self, batch: torch.Tensor, index: int) -> None:
        self.log("test/loss", self.layer(batch).square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.rate)


def data() -> DataLoader[Any]:
    rows: Any = torch.ones(8, 1)
    return DataLoader(rows, batch_size=2)  # four steps an epoch


def make_trainer(logger: VerlLogger, folder: Path, **arguments: Any) -> Any:
    checkpoints = ModelCheckpoint(folder / "checkpoints", every_n_train_steps=2, save_top_k=-1)
    given = {"max_epochs": 2, "log_every_n_steps": 1, "accelerator": "cpu", "callbacks": [checkpoints], **arguments}
    return lightning.Trainer(logger=logger, enable_progress_bar=False, enable_model_summary=False, **given)


def fields(run: Path, kind: str) -> list[dict[str, Any]]:
    return [dict(record.fields) for record in JournalReader(run).records({kind})]


def test_a_training_is_tracked_from_its_hyperparameters_to_its_end(tmp_path: Path) -> None:
    run = tmp_path / "run"
    logger = VerlLogger("my project", "first", ["tensorboard"], log_dir=str(run), config={"data": "ones"})
    make_trainer(logger, tmp_path).fit(Line(hf_token=SECRET), data(), data())

    assert RunDirectory.open(run).status == "finished"
    assert (logger.name, logger.version, logger.save_dir) == ("first", RunDirectory.open(run).run_id, str(run))
    config = fields(run, "config")[-1]["config"]
    assert config["rate"] == 0.1
    assert config["data"] == "ones"
    series = JournalReader(run).metrics()
    assert series["train/loss"].steps.tolist() == list(range(8))
    assert series["val/loss"].steps.tolist() == [3, 7]
    assert series["epoch"].values.tolist() == [0] * 4 + [1] * 4
    assert any("checkpoint saved: " in note["text"] for note in fields(run, "note"))
    everything = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert SECRET.encode() not in everything
    shown = EventAccumulator(str(run)).Reload()
    assert [point.value for point in shown.Scalars("train/loss")] == pytest.approx(series["train/loss"].values.tolist())


def test_checkpoints_lie_in_the_run_directory_if_nothing_else_is_said(tmp_path: Path) -> None:
    logger = VerlLogger("p", "e", [], log_dir=str(tmp_path / "run"))
    trainer = make_trainer(logger, tmp_path, max_epochs=1, callbacks=[])
    trainer.fit(Line(), data())
    assert list((tmp_path / "run").rglob("*.ckpt"))


@pytest.mark.parametrize(
    ("error", "raised", "status"),
    [(ValueError("no more data"), ValueError, "failed"), (KeyboardInterrupt(), SystemExit, "killed")],
)
def test_a_training_that_ends_by_an_error_has_its_true_status_at_once(
    error: BaseException, raised: type[BaseException], status: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    handler = signal.getsignal(signal.SIGINT)  # Lightning switches it off
    with pytest.raises(raised):
        make_trainer(VerlLogger("p", "e", [], log_dir=str(run)), tmp_path).fit(Line(error=error), data())
    signal.signal(signal.SIGINT, handler)
    assert RunDirectory.open(run).status == status
    assert fields(run, "finish")[0]["error"] == f"{type(error).__name__}: {error}"


def test_a_resumed_training_replaces_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(ValueError, match="no more data"):
        make_trainer(VerlLogger("p", "e", [], log_dir=str(run)), tmp_path).fit(
            Line(error=ValueError("no more data")), data()
        )
    (checkpoint,) = (tmp_path / "checkpoints").glob("*step=2*")
    make_trainer(VerlLogger("p", "e", [], log_dir=str(run)), tmp_path).fit(Line(), data(), ckpt_path=str(checkpoint))
    assert [record["to"] for record in fields(run, "rewind")] == [1]
    canonical = [
        (record.attempt, record.step)
        for record in JournalReader(run).canonical({"metrics"})
        if "train/loss" in record.fields["metrics"]
    ]
    assert canonical == [(1, 0), (1, 1), *((2, step) for step in range(2, 8))]


def test_a_new_training_in_the_same_place_replaces_the_earlier_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for epochs in (2, 1):
        make_trainer(VerlLogger("p", "e", [], log_dir=str(run)), tmp_path, max_epochs=epochs).fit(Line(), data())
    assert JournalReader(run).metrics()["train/loss"].steps.tolist() == [0, 1, 2, 3]


def test_a_trainer_that_goes_on_keeps_what_it_logged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = make_trainer(VerlLogger("p", "e", [], log_dir=str(run)), tmp_path, max_epochs=1)
    module = Line()
    trainer.fit(module, data())
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, data())
    assert JournalReader(run).metrics()["train/loss"].steps.tolist() == list(range(8))


def test_validation_and_test_around_the_training_are_attempts_of_the_same_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = make_trainer(VerlLogger("p", "e", [], log_dir=str(run)), tmp_path, max_epochs=1)
    module = Line()
    trainer.validate(module, data())
    trainer.fit(module, data())
    trainer.test(module, data())
    series = JournalReader(run).metrics()
    assert series["val/loss"].steps.tolist() == [0]
    assert series["train/loss"].steps.tolist() == [0, 1, 2, 3]
    assert series["test/loss"].steps.tolist() == [4]
    assert [attempt.status for attempt in RunDirectory.open(run).info.attempts] == ["finished"] * 3


def test_other_ranks_take_all_calls_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from lightning.pytorch.utilities import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", 1)
    logger = VerlLogger("p", "e", ["console", "tensorboard"], log_dir=str(tmp_path / "run"))
    logger.log_hyperparams({"a": 1})
    logger.log_metrics({"loss": 1.0}, 1)
    logger.experiment.log_text("t", "x", 1)
    logger.experiment.metrics.add("loss", 1.0)
    logger.finalize("success")
    assert logger.version == ""
    assert not (tmp_path / "run").exists()
    assert capfd.readouterr() == ("", "")


def test_a_logger_can_be_copied_before_and_after_its_run_is_open(tmp_path: Path) -> None:
    logger = VerlLogger("p", "e", [], log_dir=str(tmp_path))
    logger.log_hyperparams(Namespace(rate=0.1))
    for copied in (pickle.loads(pickle.dumps(logger)), copy.deepcopy(logger)):
        assert (copied.name, copied.version, copied.save_dir) == (logger.name, logger.version, logger.save_dir)
    logger.finalize("aborted")
    assert RunDirectory.open(tmp_path).status == "killed"
