"""The tiny stock model: what its warm-up trains on, what is measured, and that reinforcement learning moves it."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch

from verl.config import load_config
from verl.trainer.ppo_trainer import PPOTrainer

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "stock_analysis"
EXPERIMENT = ROOT / "config" / "experiment.yaml"
sys.path.append(str(EXAMPLE))

import stock_model  # noqa: E402 - the example is no package
import stock_questions  # noqa: E402


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    """The script; loaded by path, for every example has one of this name."""
    spec = importlib.util.spec_from_file_location("stock_analysis_prepare", EXAMPLE / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def one_thread():
    """The script computes on one thread; the other tests get theirs back."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def some_questions(count: int) -> list[stock_questions.Question]:
    return stock_questions.make_distinct_questions(stock_questions.load_quotes(), count, 4, random.Random(1), taken=())


def overrides(folder: Path, total_steps: int) -> list[str]:
    return [
        f"data.train_files={folder / 'data' / 'stock_analysis_train.parquet'}",
        f"data.val_files={folder / 'data' / 'stock_analysis_val.parquet'}",
        f"actor_rollout_ref.model.path={folder / 'models' / 'financial-llm-7b'}",
        f"reward.functions={EXAMPLE / 'reward.py'}:compute_score",
        f"trainer.log_dir={folder / 'run'}",
        "trainer.logger=[]",
        f"trainer.total_steps={total_steps}",
    ]


def arguments(folder: Path, *more: str) -> list[str]:
    return ["--data-dir", str(folder / "data"), "--model-dir", str(folder / "models" / "financial-llm-tiny"), *more]


def test_no_answer_pays_without_reading():
    questions = some_questions(1500)
    for kind, num_answers in (("highest", 4), ("trend", 2)):
        answers = Counter(question.answer for question in questions if question.kind == kind)
        assert len(answers) == num_answers
        assert max(answers.values()) < 1.25 * answers.total() / num_answers


def test_compared_prices_differ_by_more_than_rounding_can_undo():
    for question in some_questions(600):
        exact = [quote.price for quote in question.quotes]
        if question.kind == "highest":
            assert max(exact) == exact["ABCD".index(question.answer)]
        elif question.kind == "trend":
            assert (exact[-1] > exact[0]) == (question.answer == "rise")


def test_too_few_prices_are_an_error_and_no_endless_search():
    quotes = stock_questions.load_quotes()
    with pytest.raises(ValueError, match="no share has 4 quotes among the 3 given"):
        stock_questions.make_distinct_questions(quotes[:3], 1, 4, random.Random(0), taken=())
    flat = [stock_questions.Quote("IBM", f"2001-{month:02d}", 80.0) for month in range(1, 13)]
    with pytest.raises(ValueError, match="no question of kind 'highest'"):
        stock_questions.make_distinct_questions(flat, 1, 4, random.Random(0), taken=())


def test_only_the_answer_and_its_end_follow_the_prompt():
    tokenizer = stock_model.build_tokenizer()
    question = {"role": "user", "content": "AAPL A 22 B 40 C 18 D 12 price C"}
    opened = tokenizer.apply_chat_template([question], add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template([question, {"role": "assistant", "content": "18"}], tokenize=False)
    assert whole == f"{opened}18<eos>"
    assert tokenizer.encode(whole)[-1] == tokenizer.eos_token_id


def test_an_answer_is_spelled_with_the_tokens_of_the_list():
    tokenizer = stock_model.build_tokenizer()
    assert tokenizer.tokenize("18") == tokenizer.tokenize("AAPL A 22 B 40 C 18")[-2:] == [" 1", "8"]


def test_labels_cover_the_answers_only():
    tokenizer = stock_model.build_tokenizer()
    questions = some_questions(10)
    input_ids, labels = stock_model.encode(tokenizer, questions, [question.answer for question in questions])
    for question, ids, own in zip(questions, input_ids, labels, strict=True):
        covered = own != stock_model.IGNORED
        assert tokenizer.decode(own[covered]) == f"{question.answer}<eos>"
        assert torch.equal(own[covered], ids[covered])
        prompt = [{"role": "user", "content": question.text}]
        expected = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        assert ids[: len(expected)].tolist() == expected


def test_accuracy_is_what_greedy_decoding_reaches(one_thread):
    torch.manual_seed(0)
    tokenizer = stock_model.build_tokenizer()
    model = stock_model.build_model(len(tokenizer))
    stock_model._train(model, tokenizer, stock_questions.load_quotes(), stock_model.PHASES[0], 30, random.Random(0))
    questions, right = some_questions(50), 0
    for question in questions:
        prompt = torch.tensor([tokenizer.encode(f"<bos>{question.text}<answer>", add_special_tokens=False)])
        with torch.no_grad():
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False)
        right += tokenizer.decode(out[0, prompt.shape[1] :]) == f"{question.answer}<eos>"
    assert 0 < right < 50
    assert stock_model.accuracy(model, tokenizer, questions) == pytest.approx(right / 50)


def test_another_seed_replaces_what_the_script_made(prepare, tmp_path, one_thread):
    def contents() -> list[bytes]:
        files = sorted((tmp_path / "data").iterdir())
        return [path.read_bytes() for path in [*files, tmp_path / "models" / "financial-llm-7b" / "model.safetensors"]]

    assert prepare.main(arguments(tmp_path, "--max-steps", "1")) == 0
    before = contents()
    assert prepare.main(arguments(tmp_path, "--max-steps", "1", "--seed", "1")) == 0
    assert all(old != new for old, new in zip(before, contents(), strict=True))


def test_a_folder_made_by_somebody_else_is_not_touched(prepare, tmp_path, capsys):
    foreign = tmp_path / "models" / "financial-llm-tiny"
    foreign.mkdir(parents=True)
    (foreign / "weights").write_text("precious")
    assert prepare.main(arguments(tmp_path)) == 2
    assert "was not made by this script" in capsys.readouterr().err
    assert [path.name for path in foreign.iterdir()] == ["weights"]


def test_the_experiment_file_trains_what_the_script_made(prepare, tmp_path, one_thread):
    prepare.main(arguments(tmp_path, "--max-steps", "1"))
    outcome = PPOTrainer(load_config(EXPERIMENT, overrides(tmp_path, 1))).train()
    assert outcome.status == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_it_learns_to_answer_about_months_it_never_saw(prepare, tmp_path, one_thread, algorithm):
    prepare.main(arguments(tmp_path))
    config = load_config(EXPERIMENT, [*overrides(tmp_path, 80), f"algorithm.type={algorithm}"])
    rewards: list[float] = []
    trainer = PPOTrainer(config)
    trainer.add_hook("on_validation_end", lambda _, results: rewards.append(results["metrics"]["val/reward_mean"]))
    trainer.train()
    assert rewards[0] < 0.45
    assert rewards[-1] > 0.75
