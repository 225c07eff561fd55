import asyncio
import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats

from verl.config.schema import LoraConfig, ModelConfig
from verl.errors import ConfigError, ModelError, VerlError
from verl.models.batching import pad_batch
from verl.models.loading import load_policy
from verl.models.logprobs import token_logprobs
from verl.models.lora import trainable_parameters
from verl.rollout.engine import FinishReason, GenerateRequest, SamplingParams
from verl.rollout.hf_engine import HfEngine
from verl.testing.models import ARCHITECTURES, load_tiny_policy, make_tiny_model_folder, tiny_tokenizer

every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@dataclasses.dataclass
class Row:
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]


def mixed_requests(count: int = 14, **sampling) -> list[GenerateRequest]:
    """Groups of unequal size over prompts of unequal length, some longer than the sliding windows of the models."""
    params = SamplingParams(**{"max_new_tokens": 16, **sampling})
    prompts = [tuple(range(5, 5 + length)) for length in (1, 3, 3, 7, 12)]
    return [GenerateRequest(prompts[(i * i) % 5], params, seed=100 + i) for i in range(count)]


def generate(engine, requests):
    return asyncio.run(engine.generate(requests))


def rows_of(requests, completions):
    return [
        Row(list(request.prompt_ids), list(completion.token_ids), [1] * len(completion.token_ids))
        for request, completion in zip(requests, completions, strict=True)
    ]


def trainer_difference(policy, requests, completions, temperature) -> float:
    with torch.no_grad():
        scored = token_logprobs(policy, pad_batch(rows_of(requests, completions)), temperature).logprobs_BT
    return max(
        (scored[i, : len(completion.logprobs)] - torch.tensor(completion.logprobs)).abs().max().item()
        for i, completion in enumerate(completions)
    )


@every_architecture
@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.7, "temperature": 1.5}, {"temperature": 0.0}],
    ids=["plain", "temperature", "top_k", "top_p", "greedy"],
)
def test_log_probs_equal_the_trainers(loaded, architecture, sampling):
    policy, tokenizer = loaded[architecture]
    requests = mixed_requests(**sampling)
    completions = generate(HfEngine(policy, tokenizer), requests)
    temperature = sampling.get("temperature", 1.0) or 1.0
    assert trainer_difference(policy, requests, completions, temperature) < 1e-4


@pytest.mark.parametrize(("architecture", "can_pad"), [("bloom", True), ("mixtral", True), ("mamba", False)])
def test_unusual_models_are_sampled_and_trained_as_they_can_be(tmp_path, architecture, can_pad):
    policy, tokenizer = load_tiny_policy(tmp_path / "m", architecture)
    assert policy.can_pad == can_pad
    requests = mixed_requests()
    completions = generate(HfEngine(policy, tokenizer), requests)
    assert trainer_difference(policy, requests, completions, 1.0) < 1e-4
    token_logprobs(policy, pad_batch(rows_of(requests, completions)), 1.0).logprobs_BT.sum().backward()


def test_a_model_that_keeps_its_state_outside_the_cache_is_refused_rather_than_sampled_wrongly(tmp_path):
    policy, tokenizer = load_tiny_policy(tmp_path / "m", "rwkv")
    with pytest.raises(ModelError, match="RwkvForCausalLM cannot be sampled in this process"):
        HfEngine(policy, tokenizer)
    assert policy.network.training


@every_architecture
def test_a_sample_depends_on_its_seed_and_not_on_its_company(loaded, architecture):
    policy, tokenizer = loaded[architecture]
    requests = mixed_requests()
    together = generate(HfEngine(policy, tokenizer), requests)
    in_threes = generate(HfEngine(policy, tokenizer, max_batch_size=3), requests)
    backwards = generate(HfEngine(policy, tokenizer), requests[::-1])[::-1]
    for one, two, three in zip(together, in_threes, backwards, strict=True):
        assert one.token_ids == two.token_ids == three.token_ids
        np.testing.assert_allclose(one.logprobs, two.logprobs, atol=1e-4)
    for index in (0, 3, 7):
        alone = generate(HfEngine(policy, tokenizer), [requests[index]])[0]
        assert alone.token_ids == together[index].token_ids


@every_architecture
def test_a_shared_prompt_gives_what_separate_prompts_give(loaded, architecture):
    policy, tokenizer = loaded[architecture]
    prompt = tuple(range(5, 15))
    group = [GenerateRequest(prompt, SamplingParams(max_new_tokens=12), seed=i) for i in range(6)]
    engine = HfEngine(policy, tokenizer)
    shared = generate(engine, group)
    separate = [generate(engine, [request])[0] for request in group]
    assert [completion.token_ids for completion in shared] == [completion.token_ids for completion in separate]
    for one, other in zip(shared, separate, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


@every_architecture
def test_greedy_equals_transformers_generate(loaded, architecture):
    policy, tokenizer = loaded[architecture]
    prompt = tuple(range(5, 12))
    request = GenerateRequest(prompt, SamplingParams(max_new_tokens=20, temperature=0.0), seed=0)
    padded = GenerateRequest(tuple(range(5, 20)), request.sampling, seed=0)
    ours = generate(HfEngine(policy, tokenizer), [padded, request])[1].token_ids
    ids = torch.tensor([prompt])
    theirs = policy.transformer.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20, pad_token_id=0, eos_token_id=2
    )
    assert list(ours) == theirs[0, len(prompt) :].tolist()


def test_finished_rows_leave_the_batch_without_disturbing_the_others(loaded):
    """Row limits of 1 to 23 tokens shrink the batch many times."""
    policy, tokenizer = loaded["llama"]
    requests = [
        GenerateRequest(tuple(range(5, 6 + i % 7)), SamplingParams(max_new_tokens=1 + 2 * i), seed=i) for i in range(12)
    ]
    completions = generate(HfEngine(policy, tokenizer), requests)
    assert trainer_difference(policy, requests, completions, 1.0) < 1e-4
    for request, completion in zip(requests, completions, strict=True):
        assert completion == dataclasses.replace(
            generate(HfEngine(policy, tokenizer), [request])[0], logprobs=completion.logprobs
        )


def test_parameters_may_differ_from_request_to_request(loaded):
    policy, tokenizer = loaded["llama"]
    settings = [
        SamplingParams(max_new_tokens=8),
        SamplingParams(max_new_tokens=5, temperature=0.0),
        SamplingParams(max_new_tokens=8, top_k=1),
        SamplingParams(max_new_tokens=8, temperature=0.5, top_p=0.5),
    ]
    requests = [GenerateRequest((5, 6, 7), params, seed=1) for params in settings]
    engine = HfEngine(policy, tokenizer)
    together = generate(engine, requests)
    assert [c.token_ids for c in together] == [generate(engine, [r])[0].token_ids for r in requests]
    # Keeping one token is greedy.
    assert together[2].token_ids[:5] == together[1].token_ids[:5]


def test_sampled_tokens_follow_the_models_distribution(tmp_path):
    tokenizer = tiny_tokenizer("abcd")
    policy, _ = load_tiny_policy(tmp_path / "m", vocab_size=len(tiny_tokenizer()))
    prompt, count = (4, 5, 6), 4000
    with torch.no_grad():
        logits = policy.transformer(torch.tensor([prompt])).logits[0, -1]
    expected = torch.softmax(logits.double(), -1).numpy()
    requests = [GenerateRequest(prompt, SamplingParams(max_new_tokens=1), seed=i) for i in range(count)]
    drawn = [c.token_ids[0] for c in generate(HfEngine(policy, tokenizer), requests)]
    observed = np.bincount(drawn, minlength=len(expected))
    # Tokens too rare for the test are taken together.
    common = expected * count >= 5
    observed = np.append(observed[common], observed[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    assert len(expected) > 10
    assert stats.chisquare(observed, expected / expected.sum() * count).pvalue > 1e-3


def test_all_end_ids_of_model_and_tokenizer_end_a_response(tmp_path):
    policy, tokenizer = load_tiny_policy(tmp_path / "m")
    policy.transformer.generation_config.eos_token_id = list(range(40, 70))
    completions = generate(HfEngine(policy, tokenizer), mixed_requests(40))
    stopped = [c for c in completions if c.finish_reason is FinishReason.STOP]
    assert stopped
    for completion in completions:
        ends = [token == 2 or 40 <= token < 70 for token in completion.token_ids]
        assert not any(ends[:-1])
        assert ends[-1] == (completion.finish_reason is FinishReason.STOP)


def test_parameters_stay_with_their_rows_when_others_leave_the_batch(loaded):
    policy, tokenizer = loaded["llama"]
    short = SamplingParams(max_new_tokens=1)
    long = [
        SamplingParams(max_new_tokens=10, temperature=0.0),
        SamplingParams(max_new_tokens=10, temperature=2.0, top_k=20),
        SamplingParams(max_new_tokens=10, temperature=0.5, top_p=0.6),
    ]
    requests = [GenerateRequest((5, 6, 7), params, seed=3) for params in [short, short, *long, short, short]]
    engine = HfEngine(policy, tokenizer)
    together = generate(engine, requests)
    assert [c.token_ids for c in together] == [generate(engine, [r])[0].token_ids for r in requests]
    assert any(len(c.token_ids) > 3 for c in together[2:5])


def test_an_end_token_wins_over_a_stop_string_that_names_it(loaded):
    policy, tokenizer = loaded["llama"]
    requests = mixed_requests(40, stop=(tokenizer.eos_token,))
    reasons = {c.finish_reason for c in generate(HfEngine(policy, tokenizer), requests)}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}


def test_a_stop_string_on_the_last_allowed_token_is_a_stop(loaded):
    policy, tokenizer = loaded["llama"]
    engine = HfEngine(policy, tokenizer)
    request = mixed_requests(1, max_new_tokens=4)[0]
    text = tokenizer.decode(generate(engine, [request])[0].token_ids)
    stop = SamplingParams(max_new_tokens=4, stop=(text[-2:],))
    assert generate(engine, [dataclasses.replace(request, sampling=stop)])[0].finish_reason is FinishReason.STOP_STRING


def test_too_long_a_request_is_refused_before_sampling_with_the_numbers(loaded):
    policy, tokenizer = loaded["llama"]
    request = GenerateRequest((5,) * 200, SamplingParams(max_new_tokens=57), seed=0)
    with pytest.raises(ConfigError, match=r"200 tokens and 57 new ones need 257 positions, but the model has 256"):
        generate(HfEngine(policy, tokenizer), [request])


@pytest.mark.parametrize("architecture", ["llama", "opt", "gpt2"])
def test_the_last_position_can_be_used(loaded, architecture):
    policy, tokenizer = loaded[architecture]
    request = GenerateRequest((5,) * 250, SamplingParams(max_new_tokens=6, temperature=0.0), seed=0)
    completions = generate(HfEngine(policy, tokenizer), [request])
    assert trainer_difference(policy, [request], completions, 1.0) < 1e-4


def test_sampling_leaves_train_mode_and_gradients_as_they_were(loaded):
    policy, tokenizer = loaded["llama"]
    engine = HfEngine(policy, tokenizer)
    assert policy.network.training
    completions = generate(engine, mixed_requests(3))
    assert policy.network.training
    token_logprobs(policy, pad_batch(rows_of(mixed_requests(3), completions)), 1.0).logprobs_BT.sum().backward()
    policy.network.zero_grad()


def test_train_mode_comes_back_after_an_error(loaded):
    policy, tokenizer = loaded["llama"]
    engine = HfEngine(policy, tokenizer)
    with pytest.raises(IndexError):
        generate(engine, [GenerateRequest((10**6,), SamplingParams(max_new_tokens=2), seed=0)])
    assert policy.network.training


def test_the_engine_samples_from_the_weights_as_they_are(tmp_path):
    policy, tokenizer = load_tiny_policy(tmp_path / "m")
    engine = HfEngine(policy, tokenizer)
    requests = mixed_requests(8)
    before = generate(engine, requests)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.mul_(1.1)
    after = generate(engine, requests)
    assert [c.token_ids for c in before] != [c.token_ids for c in after]
    assert trainer_difference(policy, requests, after, 1.0) < 1e-4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_diverged_policy_is_one_clear_error(tmp_path, temperature):
    policy, tokenizer = load_tiny_policy(tmp_path / "m")
    engine = HfEngine(policy, tokenizer)
    with torch.no_grad():
        policy.head.weight[7].fill_(float("nan"))
    with pytest.raises(VerlError, match=r"policy \(version 0\) gives NaN .*training has diverged"):
        generate(engine, mixed_requests(4, temperature=temperature))
    assert policy.network.training


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2"])
def test_an_adapter_is_sampled_from(tmp_path, architecture):
    folder = make_tiny_model_folder(tmp_path / "m", architecture)
    config = ModelConfig(path=str(folder), lora=LoraConfig(rank=4))
    policy = load_policy(config, "cpu", tokenizer=tiny_tokenizer())
    for parameter in trainable_parameters(policy):
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(0))
    requests = mixed_requests()
    completions = generate(HfEngine(policy, tiny_tokenizer()), requests)
    assert trainer_difference(policy, requests, completions, 1.0) < 1e-4


def test_gradient_checkpointing_does_not_hinder_sampling(tmp_path):
    folder = make_tiny_model_folder(tmp_path / "m")
    config = ModelConfig(path=str(folder), gradient_checkpointing=True)
    policy = load_policy(config, "cpu", tokenizer=tiny_tokenizer())
    requests = mixed_requests()
    completions = generate(HfEngine(policy, tiny_tokenizer()), requests)
    assert trainer_difference(policy, requests, completions, 1.0) < 1e-4


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_bfloat16_samples_and_agrees_roughly(tmp_path, architecture):
    folder = make_tiny_model_folder(tmp_path / "m", architecture)
    config = ModelConfig(path=str(folder), dtype="bfloat16")
    policy = load_policy(config, "cpu", tokenizer=tiny_tokenizer())
    requests = mixed_requests()
    completions = generate(HfEngine(policy, tiny_tokenizer()), requests)
    assert trainer_difference(policy, requests, completions, 1.0) < 0.5


def test_attention_can_be_eager(tmp_path):
    folder = make_tiny_model_folder(tmp_path / "m")
    policy = load_policy(ModelConfig(path=str(folder), attn_implementation="eager"), "cpu", tokenizer=tiny_tokenizer())
    requests = mixed_requests()
    completions = generate(HfEngine(policy, tiny_tokenizer()), requests)
    assert trainer_difference(policy, requests, completions, 1.0) < 1e-4


def test_sampling_prints_nothing(loaded, capfd):
    policy, tokenizer = loaded["gpt2"]
    generate(HfEngine(policy, tokenizer), mixed_requests())
    assert capfd.readouterr() == ("", "")
