"""Share of a training step spent outside the models, against recording the same things naively.

Two runs of the same steps on a tiny model, one after the other. In the second a hook also writes what verl records
(every metric, the histograms and all trajectories) on the training thread, with one `add_scalar` per metric and one
JSON file per step; only the time of that hook is taken from it.

    python benchmarks/step_overhead.py [--steps 30] [--model FOLDER]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch.utils.tensorboard import SummaryWriter

from verl.config import load_config
from verl.journal import JournalReader
from verl.testing.models import make_tiny_model_folder
from verl.trainer.ppo_trainer import PPOTrainer

MODEL_PHASES = ("rollout", "old_logprob", "ref_logprob", "values", "update_actor", "update_critic")


def settings(model: Path, run: Path, steps: int, trackers: str) -> list[str]:
    return [
        f"actor_rollout_ref.model.path={model}",
        f"trainer.log_dir={run}",
        f"trainer.logger={trackers}",
        f"trainer.total_steps={steps}",
        "trainer.val_before_train=false",
        "algorithm.type=grpo",
        "data.train_batch_size=16",
        "data.max_response_length=16",
        "data.max_val_samples=1",
        "actor_rollout_ref.rollout.n=16",
    ]


def phase_seconds(run: Path, steps: int) -> dict[str, float]:
    """Seconds per phase over the run, without the first step (it warms up) and the last (it validates)."""
    totals: dict[str, float] = {}
    for record in JournalReader(run).records():
        if record.kind == "metrics" and record.step not in (1, steps):
            for key, value in record.fields["metrics"].items():
                if key.startswith("timing/"):
                    totals[key.removeprefix("timing/")] = totals.get(key.removeprefix("timing/"), 0.0) + value
    return totals


def naive_hook(folder: Path, spent: list[float]):
    """Writes metrics and trajectories on the training thread, as a quick script would."""
    writer = SummaryWriter(str(folder))

    def on_step_end(trainer: PPOTrainer, results: dict) -> None:
        started = time.perf_counter()
        for key, value in results["metrics"].items():
            writer.add_scalar(key, value, results["step"])
        for tag in ("reward/dist", "length/response", "advantage/dist"):
            writer.add_histogram(tag, results["batch"].rewards_B, results["step"])
        rows = [asdict(trajectory) for trajectory in results["batch"].trajectories]
        for row in rows:
            row["token_facts"] = {name: values.tolist() for name, values in row["token_facts"].items()}
        (folder / f"step_{results['step']}.json").write_text(json.dumps(rows))
        writer.flush()
        spent.append(time.perf_counter() - started)

    return on_step_end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--model", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        model = arguments.model or make_tiny_model_folder(home / "tiny")
        PPOTrainer(load_config(None, settings(model, home / "run", arguments.steps, "[tensorboard]"))).train()
        seconds = phase_seconds(home / "run", arguments.steps)
        second = PPOTrainer(load_config(None, settings(model, home / "second", arguments.steps, "[]")))
        spent: list[float] = []
        second.add_hook("on_step_end", naive_hook(home / "naive", spent))
        second.train()
    naive, step = sum(spent[1:-1]), seconds["step"]
    models = sum(seconds.get(name, 0.0) for name in MODEL_PHASES)
    recording = seconds["recording"] + seconds["logging"]
    table = Table(title=f"Outside the models, {arguments.steps - 2} steps of 256 trajectories")
    for column in ("part", "ms per step", "share of step"):
        table.add_column(column, justify="right" if column != "part" else "left")
    per_step = 1e3 / (arguments.steps - 2)
    rows = {name: seconds.get(name, 0.0) for name in (*MODEL_PHASES, "reward", "advantage", "recording", "logging")}
    for name, value in {**rows, "outside the models, together": step - models, "step": step}.items():
        table.add_row(name, f"{value * per_step:.2f}", f"{value / step:.2%}")
    console = Console()
    console.print(table)
    console.print(
        f"Recording on the training thread: verl {recording * per_step:.2f} ms per step, "
        f"naive {naive * per_step:.2f} ms: ratio {naive / recording:.1f}"
    )


if __name__ == "__main__":
    main()
