"""What every engine promises, fakes included."""

import asyncio
import dataclasses

import pytest

from verl.errors import ConfigError, DataError
from verl.rollout.engine import FinishReason, GenerateRequest, SamplingParams
from verl.rollout.hf_engine import HfEngine
from verl.testing.engines import ScriptedEngine

PROMPTS = ((5, 6, 7), (8,), (5, 6, 7, 9, 10, 11))


def scripted(request: GenerateRequest) -> str:
    return "the quick brown fox"[request.seed % 19 :]


@pytest.fixture(params=["hf", "hf in small batches", "hf with soft-capping and windows", "scripted"])
def engine(request, loaded):
    name = "gemma2" if "soft-capping" in request.param else "llama"
    policy, tokenizer = loaded[name]
    if request.param == "scripted":
        return ScriptedEngine(tokenizer, scripted)
    return HfEngine(policy, tokenizer, max_batch_size=3 if "small" in request.param else None)


@pytest.fixture
def tokenizer(loaded):
    return loaded["llama"][1]


def requests(count: int = 12, **sampling) -> list[GenerateRequest]:
    params = SamplingParams(**{"max_new_tokens": 8, **sampling})
    return [GenerateRequest(PROMPTS[i % 3], params, seed=i * 7919) for i in range(count)]


def generate(engine, items):
    return asyncio.run(engine.generate(items))


def test_no_requests_give_no_completions(engine):
    assert generate(engine, []) == []


def test_each_request_gets_its_completion_in_order(engine):
    items = requests()
    together = generate(engine, items)
    assert len(together) == len(items)
    for item, completion in zip(items, together, strict=True):
        assert generate(engine, [item])[0].token_ids == completion.token_ids


def test_tokens_and_log_probs_match_in_number_and_are_sane(engine):
    for completion in generate(engine, requests(40)):
        assert 1 <= len(completion.token_ids) <= 8
        assert len(completion.logprobs) == len(completion.token_ids)
        assert all(isinstance(token, int) and token >= 0 for token in completion.token_ids)
        assert all(-100 < logprob <= 0 for logprob in completion.logprobs)


def test_the_finish_reason_says_how_it_ended(engine, tokenizer):
    completions = generate(engine, requests(60, max_new_tokens=12))
    for completion in completions:
        ends = [token == tokenizer.eos_token_id for token in completion.token_ids]
        assert not any(ends[:-1])
        if completion.finish_reason is FinishReason.STOP:
            assert ends[-1]
        else:
            assert completion.finish_reason is FinishReason.LENGTH
            assert not ends[-1]
            assert len(completion.token_ids) == 12
    assert {completion.finish_reason for completion in completions} == {FinishReason.STOP, FinishReason.LENGTH}


def test_the_same_seed_gives_the_same_completion(engine):
    assert generate(engine, requests()) == generate(engine, requests())


def test_the_seed_makes_the_difference(engine):
    items = [dataclasses.replace(item, prompt_ids=PROMPTS[0]) for item in requests(10)]
    assert len({completion.token_ids for completion in generate(engine, items)}) > 3


def test_every_request_keeps_its_own_limit(engine):
    items = requests(9)
    limits = [1 + index % 4 for index in range(9)]
    items = [
        dataclasses.replace(item, sampling=SamplingParams(max_new_tokens=limit))
        for item, limit in zip(items, limits, strict=True)
    ]
    for limit, completion in zip(limits, generate(engine, items), strict=True):
        assert len(completion.token_ids) <= limit


def test_a_shorter_limit_gives_a_prefix(engine):
    for short, long in zip(
        generate(engine, requests(12, max_new_tokens=3)), generate(engine, requests(12, max_new_tokens=8)), strict=True
    ):
        assert long.token_ids[: len(short.token_ids)] == short.token_ids


def test_a_stop_string_ends_a_response_and_is_kept(engine, tokenizer):
    free = generate(engine, requests(30))
    texts = [tokenizer.decode(completion.token_ids, skip_special_tokens=False) for completion in free]
    # Characters that no name of a special token holds in this order.
    names = "".join(tokenizer.all_special_tokens)
    index = next(i for i, text in enumerate(texts) if len(text) >= 6 and "<" not in text and text[2:4] not in names)
    stop = texts[index][2:4]
    stopped = generate(engine, requests(30, stop=("never said", stop)))
    assert stopped[index].finish_reason is FinishReason.STOP_STRING
    for before, after in zip(free, stopped, strict=True):
        assert before.token_ids[: len(after.token_ids)] == after.token_ids
        text = tokenizer.decode(after.token_ids, skip_special_tokens=False)
        if after.finish_reason is FinishReason.STOP_STRING:
            assert stop in text
            assert stop not in tokenizer.decode(after.token_ids[:-1], skip_special_tokens=False)
        else:
            assert stop not in text


def test_completions_carry_the_version_of_the_weights(engine):
    assert {completion.policy_version for completion in generate(engine, requests())} == {0}
    asyncio.run(engine.update_weights(5))
    assert {completion.policy_version for completion in generate(engine, requests())} == {5}


def test_an_empty_prompt_is_refused(engine):
    with pytest.raises(DataError, match="request 1 has an empty prompt"):
        generate(engine, [requests()[0], GenerateRequest((), SamplingParams(max_new_tokens=2), seed=0)])


def test_an_empty_stop_string_is_refused(engine):
    with pytest.raises(ConfigError, match="empty"):
        generate(engine, requests(1, stop=("",)))


def test_a_limit_below_one_is_refused(engine):
    with pytest.raises(ConfigError, match="max_new_tokens is 0"):
        generate(engine, requests(1, max_new_tokens=0))


def test_closing_twice_is_fine(engine):
    asyncio.run(engine.close())
    asyncio.run(engine.close())
