import json

import pytest
import torch
from sequences import random_sequences
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl.errors import CheckpointError
from verl.models.batching import pad_batch
from verl.models.export import save_model_folder
from verl.models.logprobs import token_logprobs
from verl.testing.models import ARCHITECTURES, load_tiny_policy


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_folder_loads_with_plain_transformers_and_scores_the_same(tmp_path, architecture):
    policy, tokenizer = load_tiny_policy(tmp_path / "m", architecture)
    policy.transformer.get_input_embeddings().weight.data += 0.1
    folder = save_model_folder(policy, tokenizer, tmp_path / "deep" / "export")
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    row = random_sequences(1)[0]
    with torch.no_grad():
        actual = loaded(torch.tensor([row.prompt_ids + row.response_ids])).logits
        expected = policy.transformer(torch.tensor([row.prompt_ids + row.response_ids])).logits
    assert torch.equal(actual, expected)


def test_tokenizer_chat_template_and_generation_settings_come_along(tmp_path):
    policy, tokenizer = load_tiny_policy(tmp_path / "m")
    policy.transformer.generation_config.eos_token_id = [2, 7]
    folder = save_model_folder(policy, tokenizer, tmp_path / "export")
    loaded = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "hi"}]
    expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == expected
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 7]


def test_an_existing_folder_is_replaced_whole(tmp_path):
    policy, tokenizer = load_tiny_policy(tmp_path / "m")
    target = tmp_path / "export"
    target.mkdir()
    (target / "old.txt").write_text("old")
    save_model_folder(policy, tokenizer, target)
    assert not (target / "old.txt").exists()
    assert (target / "config.json").exists()


def test_nothing_is_left_beside_the_folder(tmp_path):
    policy, tokenizer = load_tiny_policy(tmp_path / "m")
    for _ in range(2):
        save_model_folder(policy, tokenizer, tmp_path / "out" / "export")
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["export"]


def test_a_place_that_cannot_be_written_is_one_error_and_leaves_nothing(tmp_path):
    policy, tokenizer = load_tiny_policy(tmp_path / "m")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="the model cannot be written to"):
        save_model_folder(policy, tokenizer, tmp_path / "file" / "export")


def test_a_failed_write_leaves_the_old_folder(tmp_path, monkeypatch):
    policy, tokenizer = load_tiny_policy(tmp_path / "m")
    target = save_model_folder(policy, tokenizer, tmp_path / "out" / "export")

    def disk_full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokenizer, "save_pretrained", disk_full)
    with pytest.raises(CheckpointError, match="No space left"):
        save_model_folder(policy, tokenizer, target)
    assert (target / "model.safetensors").exists()
    assert [entry.name for entry in target.parent.iterdir()] == ["export"]


def test_exporting_does_not_disturb_training(tmp_path):
    policy, tokenizer = load_tiny_policy(tmp_path / "m")
    batch = pad_batch(random_sequences(2))
    with torch.no_grad():
        before = token_logprobs(policy, batch, 1.0).logprobs_BT
        save_model_folder(policy, tokenizer, tmp_path / "export")
        assert torch.equal(token_logprobs(policy, batch, 1.0).logprobs_BT, before)
    assert policy.network.training
