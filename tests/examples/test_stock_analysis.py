"""The stock-analysis example: real prices, checkable answers, nothing leaks, the same seed gives the same files."""

from __future__ import annotations

import csv
import hashlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import vega_datasets
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "stock_analysis"
sys.path.insert(0, str(EXAMPLE))

from reward import compute_score  # noqa: E402 - the example is no package


def prepare(folder: Path) -> str:
    command = [sys.executable, str(EXAMPLE / "prepare.py"), "--max-steps", "2"]
    command += ["--data-dir", str(folder / "data"), "--model-dir", str(folder / "models" / "financial-llm-tiny")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    prepare(folder)
    return folder


def rows(made: Path, split: str) -> list[dict]:
    return pq.read_table(made / "data" / f"stock_analysis_{split}.parquet").to_pylist()


def real_prices() -> dict[tuple[str, str], float]:
    """Month-end prices from the file of the package itself, read without the example's code."""
    names = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    months = {name: number for number, name in enumerate(names, start=1)}
    with (Path(vega_datasets.__file__).parent / "_data" / "stocks.csv").open() as file:
        return {
            (row["symbol"], f"{row['date'].split()[2]}-{months[row['date'].split()[0]]:02d}"): float(row["price"])
            for row in csv.DictReader(file)
        }


def test_every_answer_follows_from_real_prices(made):
    prices = real_prices()
    for row in rows(made, "train")[:900] + rows(made, "val"):
        info, kind = row["extra_info"], row["data_source"].removeprefix("stock/")
        listed = [int(prices[info["symbol"], month] + 0.5) for month in info["months"]]
        text = row["prompt"][0]["content"]
        names = " ".join(f"{letter} {price}" for letter, price in zip("ABCD", listed, strict=True))
        assert text.startswith(f"{info['symbol']} {names} ")
        if kind == "highest":
            answer = "ABCD"[listed.index(max(listed))]
        elif kind == "lookup":
            answer = str(listed["ABCD".index(text[-1])])
        else:
            answer = "rise" if listed[-1] > listed[0] else "fall"
        assert row["reward_model"]["ground_truth"] == answer


def test_no_month_and_no_question_of_training_is_in_validation(made):
    train, val = rows(made, "train"), rows(made, "val")

    def months(split: list[dict]) -> set[tuple[str, str]]:
        return {(row["extra_info"]["symbol"], month) for row in split for month in row["extra_info"]["months"]}

    assert not months(train) & months(val)
    assert not {row["prompt"][0]["content"] for row in train} & {row["prompt"][0]["content"] for row in val}
    assert min(Counter(row["data_source"] for row in val).values()) >= 40


def test_the_model_is_a_plain_folder_that_spells_prompts_back(made):
    tokenizer = AutoTokenizer.from_pretrained(made / "models" / "financial-llm-7b")
    model = AutoModelForCausalLM.from_pretrained(made / "models" / "financial-llm-7b")
    assert 100_000 <= model.num_parameters() <= 2_000_000
    for row in rows(made, "val")[:20]:
        text = row["prompt"][0]["content"]
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
        ids = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        assert tokenizer.unk_token_id not in ids
        assert len(ids) <= 32


def test_the_same_seed_gives_the_same_files_and_a_second_run_is_no_work(made, tmp_path):
    prepare(tmp_path)

    def hashes(folder: Path) -> list[str]:
        files = ["data/stock_analysis_train.parquet", "data/stock_analysis_val.parquet"]
        files += ["models/financial-llm-tiny/model.safetensors"]
        return [hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in files]

    assert hashes(tmp_path) == hashes(made)
    assert prepare(tmp_path).count("there already") == 2


@pytest.mark.parametrize(
    ("source", "answer", "truth", "score"),
    [
        ("stock/highest", "B", "B", 1.0),
        ("stock/highest", " B ", "B", 1.0),
        ("stock/highest", "C", "B", 0.05),
        ("stock/highest", "BB", "B", 0.0),
        ("stock/lookup", "18", "18", 1.0),
        ("stock/lookup", "81", "18", 0.05),
        ("stock/lookup", "1", "18", 0.0),
        ("stock/trend", "fall", "rise", 0.05),
        ("stock/trend", "", "rise", 0.0),
    ],
)
def test_the_reward_tells_right_wrong_and_malformed_apart(source, answer, truth, score):
    assert compute_score(source, answer, truth, {})["score"] == pytest.approx(score)


def test_a_foreign_data_source_is_an_error():
    with pytest.raises(ValueError, match="stock/highest"):
        compute_score("gsm8k", "1", "1", {})
