"""The same promises on a GPU."""

import asyncio

import pytest
import torch

from verl.config.schema import CriticConfig, ModelConfig
from verl.models.batching import pad_batch
from verl.models.loading import load_critic, load_policy
from verl.models.logprobs import token_logprobs
from verl.models.value_model import token_values
from verl.rollout.engine import GenerateRequest, SamplingParams
from verl.rollout.hf_engine import HfEngine
from verl.testing.models import make_tiny_model_folder, tiny_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


class Row:
    def __init__(self, prompt_ids, response_ids):
        self.prompt_ids, self.response_ids = list(prompt_ids), list(response_ids)
        self.response_mask = [1] * len(self.response_ids)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.5)])
def test_sampled_log_probs_equal_the_trainers_and_train(tmp_path, architecture, dtype, tolerance):
    config = ModelConfig(path=str(make_tiny_model_folder(tmp_path / "m", architecture)), dtype=dtype)
    policy = load_policy(config, "cuda", tokenizer=tiny_tokenizer())
    sampling = SamplingParams(max_new_tokens=12, top_p=0.9)
    requests = [GenerateRequest(tuple(range(5, 8 + 4 * (i % 3))), sampling, seed=i) for i in range(12)]
    completions = asyncio.run(HfEngine(policy, tiny_tokenizer()).generate(requests))
    rows = [Row(request.prompt_ids, done.token_ids) for request, done in zip(requests, completions, strict=True)]
    scored = token_logprobs(policy, pad_batch(rows, "cuda"), 1.0).logprobs_BT
    for index, done in enumerate(completions):
        difference = scored[index, : len(done.logprobs)].detach().cpu() - torch.tensor(done.logprobs)
        assert difference.abs().max() < tolerance
    scored.sum().backward()
    assert all(parameter.grad is not None for parameter in policy.transformer.get_decoder().parameters())


def test_values_on_gpu_and_cpu_agree(tmp_path):
    config = ModelConfig(path=str(make_tiny_model_folder(tmp_path / "m")))
    rows = [Row(range(5, 15), range(20, 26)), Row(range(5, 15), range(30, 33))]
    values = []
    for device in ("cpu", "cuda"):
        critic = load_critic(CriticConfig(), config, device)
        torch.nn.init.ones_(critic.value_head.weight)
        with torch.no_grad():
            values.append(token_values(critic, pad_batch(rows, device)).cpu())
    torch.testing.assert_close(values[0], values[1], atol=1e-3, rtol=1e-3)
