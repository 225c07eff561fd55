"""Every piece of code in docs/integrations.md, and every example, runs as written."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from verl.journal import JournalReader, RunDirectory

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "integrations.md"
EXAMPLES = ROOT / "examples" / "tracking"

pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("UserWarning", "FutureWarning")]
pytestmark += [pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def snippet(name: str) -> str:
    found = re.search(rf"<!-- tested: {name} -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def run_snippet(name: str, names: dict[str, Any]) -> None:
    exec(compile(snippet(name), "integrations.md", "exec"), names)


def values(run: Path, key: str) -> list[float]:
    assert RunDirectory.open(run).status == "finished"
    assert list(run.glob("events.out.tfevents.*"))
    return JournalReader(run).metrics()[key].values.tolist()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs write below the folder they are started in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_piece_of_code_is_tested_and_short() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = re.findall(r"<!-- tested: (.*?) -->\n```python", page)
    assert len(names) == page.count("```python")
    assert names == ["own loop", "torchrun", "transformers", "transformers with", "lightning", "upstream call"]
    for name in names:
        assert len([line for line in snippet(name).splitlines() if line.strip()]) <= 11, name


def test_a_loop_of_ones_own_works_as_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_LOG_DIR", "run")
    run_snippet("own loop", {})
    assert values(folder / "run", "loss") == [0.35] * 3


def test_the_upstream_call_works_as_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_LOG_DIR", "run")
    run_snippet("upstream call", {})
    assert values(folder / "run", "timing/gen") == [0.5] * 3
    kinds = [record.kind for record in JournalReader(folder / "run").records({"text", "histogram"})]
    assert sorted(kinds) == ["histogram"] * 3 + ["text"] * 3


def test_transformers_works_as_written(folder: Path) -> None:
    pytest.importorskip("accelerate")
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    names: dict[str, Any] = {
        "model": LlamaForCausalLM(LlamaConfig(vocab_size=8, **size)),
        "rows": [{"input_ids": torch.arange(4), "labels": torch.arange(4)}] * 8,
    }
    run_snippet("transformers", names)
    assert len(values(folder / "logs/first", "train/loss")) == 3
    run_snippet("transformers with", names)
    assert len(values(folder / "logs/second", "train/loss")) == 3
    assert len(values(folder / "logs/second", "eval/loss")) == 1


def test_lightning_works_as_written(folder: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            loss = self.layer(batch).square().mean()
            self.log("train/loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows: Any = torch.ones(8, 1)
    run_snippet("lightning", {"module": Line(), "loader": DataLoader(rows, batch_size=2)})
    assert len(values(folder / "logs/lightning", "train/loss")) == 8


@pytest.mark.parametrize(
    ("program", "library", "key"),
    [
        ("own_loop.py", "torch", "loss/fit"),
        ("transformers_trainer.py", "accelerate", "train/loss"),
        ("lightning_training.py", "lightning", "train/loss"),
    ],
)
def test_an_example_runs(program: str, library: str, key: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library)
    monkeypatch.setenv("VERL_LOG_DIR", "run")
    runpy.run_path(str(EXAMPLES / program), run_name="__main__")
    losses = values(folder / "run", key)
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_torchrun_runs_the_example_and_the_documented_loop(folder: Path) -> None:
    documented = folder / "documented.py"
    documented.write_text(snippet("torchrun"))
    for program, run, key in (
        (EXAMPLES / "torchrun_loop.py", folder / "example", "loss/fit"),
        (documented, folder / "documented", "loss"),
    ):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", program]
        environment = {**os.environ, "VERL_LOG_DIR": str(run), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        losses = values(run, key)
        assert len(RunDirectory.open(run).info.attempts) == 1
        assert done.stdout.count(f"step 1/{len(losses)}  ") + done.stdout.count("step 1  ") == 1
        if program == documented:
            assert losses == [1.0] * 3  # (0.5 * 8 + 1.5 * 8) / 16
        else:
            assert losses[-1] < losses[0]
