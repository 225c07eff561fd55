"""Makes the data and the model of the stock-analysis example.

    python examples/stock_analysis/prepare.py

writes `data/stock_analysis_train.parquet`, `data/stock_analysis_val.parquet`, the model folder
`models/financial-llm-tiny` and, beside it, the link `financial-llm-7b`. What is there already, made with the same
settings, is left alone. The same seed gives the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from stock_questions import LETTERS, Question, Quote, load_quotes, make_distinct_questions, split_quotes

NUM_TRAIN, NUM_VAL = 6000, 240
MODEL_LINK = "financial-llm-7b"
RECIPE_FILE = "prepared.json"
"""In the model folder: how it was made."""
RECIPE_VERSION = 1
"""To be raised when what is made from the same settings changes."""

_RECIPE_KEY = b"prepared"


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make the data and the model of the stock-analysis example.")
    parser.add_argument("--seed", type=int, default=0, help="seed of the questions and of the model")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="folder for the parquet files")
    parser.add_argument("--model-dir", type=Path, default=Path("models/financial-llm-tiny"), help="model folder")
    parser.add_argument("--max-steps", type=int, default=None, help="most warm-up steps per phase (for quick tests)")
    options = parser.parse_args(arguments)
    train_quotes, val_quotes = split_quotes(load_quotes(), options.seed)
    prepare_data(train_quotes, val_quotes, options.seed, options.data_dir)
    try:
        prepare_model(train_quotes, val_quotes, options.seed, options.model_dir, options.max_steps)
    except FileExistsError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def prepare_data(train_quotes: list[Quote], val_quotes: list[Quote], seed: int, folder: Path) -> None:
    """Writes the two parquet files, unless they are there already."""
    recipe: dict[str, Any] = {"version": RECIPE_VERSION, "seed": seed}
    paths = {split: folder / f"stock_analysis_{split}.parquet" for split in ("train", "val")}
    if all(_recipe_of(path) == recipe for path in paths.values()):
        print(f"{paths['train']} and {paths['val']} are there already")
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"questions {seed}")
    val = make_distinct_questions(val_quotes, NUM_VAL, len(LETTERS), rng, taken=())
    train = make_distinct_questions(train_quotes, NUM_TRAIN, len(LETTERS), rng, taken={q.text for q in val})
    for split, questions in (("train", train), ("val", val)):
        rows = [to_row(question, split, index) for index, question in enumerate(questions)]
        table = pa.Table.from_pylist(rows).replace_schema_metadata({_RECIPE_KEY: json.dumps(recipe).encode()})
        _replace_file(table, paths[split])
        print(f"{paths[split]}: {len(rows)} questions, such as {questions[0].text!r} -> {questions[0].answer!r}")


def to_row(question: Question, split: str, index: int) -> dict[str, Any]:
    """Gives a question the columns of the upstream data format."""
    return {
        "data_source": f"stock/{question.kind}",
        "prompt": [{"role": "user", "content": question.text}],
        "reward_model": {"style": "rule", "ground_truth": question.answer},
        "extra_info": {
            "split": split,
            "index": index,
            "symbol": question.quotes[0].symbol,
            "months": [quote.month for quote in question.quotes],
            "prices": [quote.price for quote in question.quotes],
        },
    }


def prepare_model(
    train_quotes: list[Quote], val_quotes: list[Quote], seed: int, folder: Path, max_steps: int | None
) -> None:
    """Makes the model folder and the link beside it, unless they are there already.

    Raises:
        FileExistsError: `folder` holds something that this script did not make.
    """
    recipe = {"version": RECIPE_VERSION, "seed": seed, "max_steps": max_steps}
    note = folder / RECIPE_FILE
    if folder.exists() and not note.is_file():
        raise FileExistsError(f"{folder} exists and was not made by this script; remove it or choose --model-dir")
    made = json.loads(note.read_text()) if note.is_file() else {}
    if recipe.items() <= made.items():
        print(f"{folder} is there already")
    else:
        _build_model_folder(train_quotes, val_quotes, recipe, folder)
    link = folder.parent / MODEL_LINK
    if link.name != folder.name and not os.path.lexists(link):
        link.symlink_to(folder.name, target_is_directory=True)
        print(f"{link} -> {folder.name}")


def _build_model_folder(
    train_quotes: list[Quote], val_quotes: list[Quote], recipe: dict[str, Any], folder: Path
) -> None:
    # Imported here: torch takes seconds, and a second run must be quick.
    import torch
    from stock_model import accuracy, build_model, build_tokenizer, warm_up

    torch.set_num_threads(1)  # sums in one order: the same seed gives the same weights
    torch.manual_seed(recipe["seed"])
    begin = time.monotonic()
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer))
    steps = warm_up(model, tokenizer, train_quotes, recipe["seed"], recipe["max_steps"])
    probe = make_distinct_questions(val_quotes, NUM_VAL, len(LETTERS), random.Random("probe"), taken=())
    greedy = accuracy(model, tokenizer, probe)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    recipe = {**recipe, "warm_up_steps": steps, "held_out_greedy_accuracy": round(greedy, 4)}
    (partial / RECIPE_FILE).write_text(json.dumps(recipe, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    print(
        f"{folder}: {model.num_parameters():,} parameters, warm-up of {' + '.join(map(str, steps))} steps in "
        f"{time.monotonic() - begin:.0f} s, greedy accuracy on held-out months {greedy:.2f}"
    )


def _recipe_of(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    metadata = pq.read_schema(path).metadata or {}
    return json.loads(metadata[_RECIPE_KEY]) if _RECIPE_KEY in metadata else None


def _replace_file(table: pa.Table, path: Path) -> None:
    partial = path.with_name(f".{path.name}.partial")
    pq.write_table(table, partial)
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
