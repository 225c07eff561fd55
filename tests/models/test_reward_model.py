"""Scores of a reward model do not depend on what else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSequenceClassification, BertConfig

from verl.config.schema import RewardModelConfig
from verl.errors import ModelError, RewardError
from verl.models.loading import load_reward_model
from verl.models.reward_model import RewardModel
from verl.rewards import ScoredText, TextScorer
from verl.testing.models import tiny_config, tiny_tokenizer


def make_model(architecture: str = "llama", **overrides: Any) -> Any:
    tokenizer = tiny_tokenizer()
    if architecture == "bert":
        config: Any = BertConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, max_position_embeddings=64, pad_token_id=0, num_labels=1, **overrides,
        )  # fmt: skip
    else:
        config = tiny_config(architecture, len(tokenizer), num_labels=1, **overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_config(config)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., RewardModel]:
    """Writes a model and a tokenizer as a folder and loads it as a run does."""

    def load(model: Any = None, tokenizer: Any = None, **settings: Any) -> RewardModel:
        folder = tmp_path / f"rm{len(list(tmp_path.iterdir()))}"
        (model or make_model()).save_pretrained(folder)
        (tokenizer or tiny_tokenizer()).save_pretrained(folder)
        return load_reward_model(
            RewardModelConfig.model_validate({"path": str(folder), "micro_batch_size": 4, **settings}), "cpu"
        )

    return load


def conversation(response: str, prompt: str = "2+2?") -> ScoredText:
    return ScoredText([{"role": "user", "content": prompt}, {"role": "assistant", "content": response}])


CONVERSATIONS = [conversation(text) for text in ("4", "It is four.", "", "x" * 40, "5", "I do not know that")]


def direct(model: Any, ids: list[int]) -> float:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits.item()


def test_a_score_is_the_logit_of_the_rendered_conversation(load):
    model, tokenizer = make_model(), tiny_tokenizer()
    (score,) = load(model).score([CONVERSATIONS[1]])
    assert score == pytest.approx(direct(model, tokenizer("<u>2+2?\n<a>It is four.\n")["input_ids"]), abs=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "opt", "bert"])
@pytest.mark.parametrize("micro_batch_size", [1, 2, 100])
def test_scores_do_not_depend_on_the_batch(load, architecture, micro_batch_size):
    scorer: TextScorer = load(make_model(architecture), micro_batch_size=micro_batch_size)
    alone = [scorer.score([text])[0] for text in CONVERSATIONS]
    assert scorer.score(CONVERSATIONS) == pytest.approx(alone, abs=1e-5)
    assert scorer.score(CONVERSATIONS[::-1]) == pytest.approx(alone[::-1], abs=1e-5)
    assert max(alone) - min(alone) > 1e-3


def test_dropout_is_off(load):
    scorer = load(make_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5).train())
    assert scorer.score(CONVERSATIONS) == scorer.score(CONVERSATIONS)


def test_without_template_contents_are_joined_by_blank_lines_with_special_tokens(load):
    model, tokenizer = make_model(), tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    (score,) = load(model, tokenizer).score([conversation("4")])
    assert score == pytest.approx(direct(model, tokenizer("2+2?\n\n4")["input_ids"]), abs=1e-5)
    assert tokenizer("2+2?\n\n4")["input_ids"][0] == 1


def test_a_template_gets_no_second_start_token(load):
    model, tokenizer = make_model(), tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    expected = direct(model, tokenizer("<u>2+2?\n<a>4\n", add_special_tokens=False)["input_ids"])
    assert load(model, tokenizer).score([conversation("4")]) == pytest.approx([expected], abs=1e-5)


def test_long_texts_lose_their_left_side(load):
    model, tokenizer = make_model(), tiny_tokenizer()
    ids = tokenizer("<u>" + "q" * 100 + "\n<a>yes\n")["input_ids"]
    (score,) = load(model, max_length=16).score([conversation("yes", prompt="q" * 100)])
    assert score == pytest.approx(direct(model, ids[-16:]), abs=1e-5)


def test_a_start_token_survives_the_cut(load):
    model, tokenizer = make_model(), tiny_tokenizer()
    tokenizer.chat_template = "<bos>" + str(tokenizer.chat_template)
    ids = tokenizer("<u>" + "q" * 100 + "\n<a>yes\n")["input_ids"]
    (score,) = load(model, tokenizer, max_length=16).score([conversation("yes", prompt="q" * 100)])
    assert score == pytest.approx(direct(model, [1, *ids[-15:]]), abs=1e-5)


def test_a_class_token_survives_the_cut(load):
    model, tokenizer = make_model("bert"), tiny_tokenizer()
    tokenizer.bos_token, tokenizer.cls_token = None, "<unk>"
    tokenizer.chat_template = "<unk>" + str(tokenizer.chat_template)
    ids = tokenizer("<u>" + "q" * 100 + "\n<a>yes\n")["input_ids"]
    (score,) = load(model, tokenizer, max_length=16).score([conversation("yes", prompt="q" * 100)])
    assert score == pytest.approx(direct(model, [3, *ids[-15:]]), abs=1e-5)


def test_the_limit_of_the_model_holds_when_it_is_below_the_setting(load):
    scorer = load(make_model("bert"), max_length=2048)
    assert scorer.max_length == 64
    assert len(scorer.score([conversation("x" * 500)])) == 1


def test_the_limit_of_the_tokenizer_holds_when_it_is_below_the_setting(load):
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 32
    assert load(tokenizer=tokenizer).max_length == 32


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_model_without_padding_token_gets_that_of_its_tokenizer(load, architecture):
    scores = load(make_model(architecture, pad_token_id=None)).score(CONVERSATIONS)
    assert scores == pytest.approx(load(make_model(architecture)).score(CONVERSATIONS), abs=1e-5)


def test_without_any_padding_token_the_end_token_pads(load):
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    scorer = load(make_model(pad_token_id=None), tokenizer)
    assert scorer.network.config.pad_token_id == 2
    assert scorer.score(CONVERSATIONS) == pytest.approx(load(make_model()).score(CONVERSATIONS), abs=1e-5)


def test_no_texts_give_no_scores(load):
    assert load().score([]) == []


def test_bfloat16_models_give_python_floats(load):
    (score,) = load(dtype="bfloat16").score([conversation("4")])
    assert type(score) is float


def test_scoring_leaves_no_gradients_and_no_random_state_behind(load):
    scorer = load()
    before = torch.random.get_rng_state()
    scorer.score(CONVERSATIONS)
    assert all(parameter.grad is None for parameter in scorer.network.parameters())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_tokenizer_of_another_model_is_refused_before_it_scores(load):
    model = AutoModelForSequenceClassification.from_config(tiny_config("llama", 20, num_labels=1))
    with pytest.raises(ModelError, match=r"has embeddings for 20 tokens, but the tokenizer has \d+"):
        load(model)


def test_a_template_that_refuses_a_conversation_is_named(load):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('only users') }}"
    with pytest.raises(RewardError, match=r"refuses the messages \(roles: user, assistant\): only users"):
        load(tokenizer=tokenizer).score([conversation("4")])


def test_a_text_without_tokens_is_named(load):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ '' }}"
    with pytest.raises(RewardError, match="gives no tokens with the reward model's tokenizer"):
        load(tokenizer=tokenizer).score([conversation("4")])


def test_a_model_that_gives_several_numbers_is_named(load):
    scorer = load()
    several = AutoModelForSequenceClassification.from_config(tiny_config("llama", len(tiny_tokenizer()), num_labels=3))
    with pytest.raises(RewardError, match=r"gave logits of shape \(1, 3\) for 1 texts; it must give \(1, 1\)"):
        RewardModel(several, scorer.tokenizer, micro_batch_size=1, max_length=64).score([conversation("4")])
