"""The tiny language model of this example: tokenizer, untrained model, and the supervised warm-up.

The warm-up has three phases. The first two show right answers, about two listed prices and then about two to four,
so that the network learns to read a list. The last one shows answers of the right form that are picked at random
among what is listed: the model leaves it knowing how to answer, but close to chance in what it answers. Bringing
the right answers back is what reinforcement learning is there for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from stock_questions import DIRECTIONS, KINDS, LETTERS, Question, Quote, make_questions, possible_answers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SYMBOLS = ("AAPL", "AMZN", "IBM", "MSFT")
IGNORED = -100

_SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>", "<answer>")
_CHAT_TEMPLATE = (
    "<bos>{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "<answer>{% generation %}{{ message['content'] }}<eos>{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<answer>{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Builds the tokenizer: a token per word and per digit; a leading space is part of a token, as in SentencePiece.

    `decode(encode(text))` gives the text back. The chat template is `<bos>` question `<answer>` answer `<eos>`.
    """
    words = (*SYMBOLS, *LETTERS, "highest", "price", "trend", *DIRECTIONS, *map(str, range(10)))
    tokens = [*_SPECIAL, *(f" {word}" for word in words), *map(str, range(10))]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[A-Za-z]+| ?\d"), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<answer>"],
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_model(vocab_size: int) -> LlamaForCausalLM:
    """Builds an untrained Llama of 0.1 million parameters (2 layers of width 64)."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        # Small models learn to read a list sooner with larger weights and a short RoPE period.
        initializer_range=0.04,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        pad_token_id=_SPECIAL.index("<pad>"),
        bos_token_id=_SPECIAL.index("<bos>"),
        eos_token_id=_SPECIAL.index("<eos>"),
    )
    return LlamaForCausalLM(config)


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the warm-up.

    Attributes:
        num_listed: Numbers of listed prices, used in turn.
        kinds: Kinds of questions, used in turn.
        max_steps: Most optimizer steps.
        learning_rate: Of AdamW, after 10 steps of linear warm-up.
        stop_at: Greedy accuracy on fresh questions of the training months at which the phase ends; None = never.
        is_random: Show answers picked at random instead of right ones.
    """

    num_listed: tuple[int, ...]
    kinds: tuple[str, ...]
    max_steps: int
    learning_rate: float
    stop_at: float | None
    is_random: bool


PHASES = (
    Phase((2,), ("highest", "lookup", "lookup", "trend"), 60, 3e-3, None, is_random=False),
    Phase((2, 3, 4), ("highest", "lookup", "lookup", "trend"), 400, 3e-3, 0.9, is_random=False),
    Phase((4,), KINDS, 100, 1e-3, None, is_random=True),
)
_BATCH_SIZE = 128
_PROBE_SIZE = 192
_PROBE_STEPS = 10


def warm_up(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    quotes: Sequence[Quote],
    seed: int,
    max_steps: int | None = None,
) -> list[int]:
    """Trains the model through `PHASES` on questions about `quotes`; returns the steps done in each.

    Args:
        max_steps: Most steps per phase, if fewer than the phase's own.
    """
    done: list[int] = []
    for number, phase in enumerate(PHASES):
        rng = random.Random(f"warm-up {seed} {number}")
        steps = phase.max_steps if max_steps is None else min(max_steps, phase.max_steps)
        done.append(_train(model, tokenizer, quotes, phase, steps, rng))
    return done


def _train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    quotes: Sequence[Quote],
    phase: Phase,
    max_steps: int,
    rng: random.Random,
) -> int:
    optimizer = torch.optim.AdamW(model.parameters(), lr=phase.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    probe = make_questions(quotes, KINDS, _PROBE_SIZE, 4, rng)
    for step in range(max_steps):
        num_listed = phase.num_listed[step % len(phase.num_listed)]
        questions = make_questions(quotes, phase.kinds, _BATCH_SIZE, num_listed, rng)
        answers = [
            rng.choice(possible_answers(question.kind, question.quotes)) if phase.is_random else question.answer
            for question in questions
        ]
        input_ids, labels = encode(tokenizer, questions, answers)
        logits = model(input_ids=input_ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        is_probed = phase.stop_at is not None and step % _PROBE_STEPS == _PROBE_STEPS - 1
        if is_probed and phase.stop_at is not None and accuracy(model, tokenizer, probe) >= phase.stop_at:
            return step + 1
    return max_steps


def encode(
    tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question], answers: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, both of shape (questions, longest), padded on the right.

    Labels are the ids of the answer and `<eos>`; all others are `IGNORED`.
    """
    prompts = _prompt_ids(tokenizer, questions)
    endings = tokenizer([f"{answer}<eos>" for answer in answers], add_special_tokens=False)["input_ids"]
    length = max(len(prompt) + len(ending) for prompt, ending in zip(prompts, endings, strict=True))
    input_ids = torch.full((len(prompts), length), _SPECIAL.index("<pad>"))
    labels = torch.full((len(prompts), length), IGNORED)
    for row, (prompt, ending) in enumerate(zip(prompts, endings, strict=True)):
        both = torch.tensor(prompt + ending)
        input_ids[row, : len(both)] = both
        labels[row, len(prompt) : len(both)] = both[len(prompt) :]
    return input_ids, labels


@torch.no_grad()
def accuracy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question]) -> float:
    """Share of the questions that greedy decoding answers exactly.

    Greedy decoding gives the right answer if and only if every token of it is the likeliest one after those
    before it, so one forward pass over the right answers tells.
    """
    input_ids, labels = encode(tokenizer, questions, [question.answer for question in questions])
    likeliest = model(input_ids=input_ids, use_cache=False).logits[:, :-1].argmax(-1)
    target = labels[:, 1:]
    return ((likeliest == target) | (target == IGNORED)).all(-1).float().mean().item()


def _prompt_ids(tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question]) -> list[list[int]]:
    # What the chat template gives for one user message, without rendering it thousands of times.
    texts = [f"<bos>{question.text}<answer>" for question in questions]
    return tokenizer(texts, add_special_tokens=False)["input_ids"]
