import sys

import pytest
import torch
from safetensors.torch import load_file
from sequences import random_sequences

from verl.config.schema import LoraConfig, ModelConfig
from verl.errors import ModelError
from verl.models.batching import pad_batch
from verl.models.export import save_adapter_folder, save_model_folder
from verl.models.loading import load_policy
from verl.models.logprobs import token_logprobs
from verl.models.lora import has_lora, load_adapter, reference_weights, trainable_parameters
from verl.testing.models import ARCHITECTURES, make_tiny_model_folder, tiny_tokenizer

BATCH = pad_batch(random_sequences(4))


def load(folder, rank=4, **lora):
    config = ModelConfig(path=str(folder), lora=LoraConfig(rank=rank, **lora))
    return load_policy(config, "cpu", tokenizer=tiny_tokenizer())


def disturb(policy):
    """An adapter as after some training: B is no longer zero."""
    generator = torch.Generator().manual_seed(0)
    for parameter in trainable_parameters(policy):
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return policy


def scores(policy):
    with torch.no_grad():
        return token_logprobs(policy, BATCH, 1.0).logprobs_BT


def test_only_the_adapter_is_trained(model_folder):
    policy = load(model_folder)
    assert has_lora(policy)
    names = [name for name, parameter in policy.network.named_parameters() if parameter.requires_grad]
    assert names
    assert all("lora_" in name for name in names)
    assert len(trainable_parameters(policy)) == len(names)


def test_without_lora_everything_is_trained(model_folder):
    policy = load(model_folder, rank=0)
    assert not has_lora(policy)
    assert len(trainable_parameters(policy)) == len(list(policy.network.parameters()))


def test_a_new_adapter_changes_nothing(model_folder):
    assert torch.equal(scores(load(model_folder)), scores(load(model_folder, rank=0)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_reference_is_the_model_without_its_adapter(tmp_path, architecture):
    folder = make_tiny_model_folder(tmp_path / "m", architecture)
    policy = disturb(load(folder))
    before = scores(policy)
    with reference_weights(policy) as reference:
        assert torch.equal(scores(reference), scores(load(folder, rank=0)))
    assert torch.equal(scores(policy), before)
    assert not torch.allclose(before, scores(load(folder, rank=0)))


def test_the_adapter_is_on_again_after_an_error(model_folder):
    policy = disturb(load(model_folder))
    before = scores(policy)
    with pytest.raises(RuntimeError, match="on purpose"), reference_weights(policy):
        raise RuntimeError("on purpose")
    assert torch.equal(scores(policy), before)


def test_without_an_adapter_there_is_no_reference_inside_the_policy(model_folder):
    with (
        pytest.raises(ModelError, match="load the reference with `load_reference`"),
        reference_weights(load(model_folder, rank=0)),
    ):
        pass


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2", "qwen2"])
def test_the_exported_folder_has_the_adapter_merged_and_the_live_model_is_untouched(tmp_path, architecture):
    policy = disturb(load(make_tiny_model_folder(tmp_path / "m", architecture)))
    before = {name: value.clone() for name, value in policy.network.state_dict().items()}
    expected = scores(policy)
    save_model_folder(policy, tiny_tokenizer(), tmp_path / "export")
    merged = load(tmp_path / "export", rank=0)
    torch.testing.assert_close(scores(merged), expected, atol=2e-4, rtol=1e-4)
    assert not any("lora" in name for name in load_file(tmp_path / "export" / "model.safetensors"))
    after = policy.network.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_an_adapter_folder_brings_the_adapter_back(model_folder, tmp_path):
    policy = disturb(load(model_folder))
    save_adapter_folder(policy, tmp_path / "adapter")
    other = load(model_folder)
    load_adapter(other, tmp_path / "adapter")
    assert torch.equal(scores(other), scores(policy))


def test_an_adapter_of_another_shape_is_refused(model_folder, tmp_path):
    save_adapter_folder(load(model_folder, target_modules=["q_proj"]), tmp_path / "adapter")
    with pytest.raises(ModelError, match="does not fit the policy"):
        load_adapter(load(model_folder, target_modules=["v_proj"]), tmp_path / "adapter")


def test_an_adapter_of_another_rank_is_refused(model_folder, tmp_path):
    save_adapter_folder(load(model_folder, rank=2), tmp_path / "adapter")
    with pytest.raises(ModelError, match="does not fit the policy"):
        load_adapter(load(model_folder, rank=4), tmp_path / "adapter")


def test_a_folder_without_adapter_says_so(model_folder, tmp_path):
    with pytest.raises(ModelError, match="there is no LoRA adapter in"):
        load_adapter(load(model_folder), tmp_path)


def test_an_adapter_on_the_head_is_scored_by_the_models_own_logits(model_folder):
    policy = disturb(load(model_folder, target_modules=["q_proj", "lm_head"]))
    assert not policy.has_plain_head
    row = random_sequences(1)[0]
    with torch.no_grad():
        actual = token_logprobs(policy, pad_batch([row]), 1.0).logprobs_BT[0]
        logits = policy.network(input_ids=torch.tensor([row.prompt_ids + row.response_ids])).logits[0]
    expected = torch.log_softmax(logits, -1)[len(row.prompt_ids) - 1 : -1]
    expected = expected.gather(1, torch.tensor(row.response_ids)[:, None]).squeeze(1) * torch.tensor(row.response_mask)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_gradient_checkpointing_trains_the_adapter(model_folder):
    config = ModelConfig(path=str(model_folder), lora=LoraConfig(rank=2), gradient_checkpointing=True)
    policy = load_policy(config, "cpu", tokenizer=tiny_tokenizer())
    token_logprobs(policy, BATCH, 1.0).logprobs_BT.sum().backward()
    assert all(parameter.grad is not None for parameter in trainable_parameters(policy))


def test_a_missing_peft_package_is_one_clear_error(model_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"LoRA needs the package peft: pip install peft"):
        load(model_folder)
