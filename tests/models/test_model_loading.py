import json
import time
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, MptConfig

from verl.config.schema import CriticConfig, LoraConfig, ModelConfig, RewardModelConfig
from verl.errors import ModelError
from verl.models.batching import pad_batch
from verl.models.loading import (
    disable_dropout,
    load_critic,
    load_policy,
    load_reference,
    load_reward_model,
    load_tokenizer,
)
from verl.models.logprobs import token_logprobs
from verl.testing.models import make_tiny_model_folder, make_tiny_reward_model_folder, tiny_config, tiny_tokenizer


def load(folder: Path, **settings):
    return load_policy(ModelConfig(path=str(folder), **settings), "cpu", tokenizer=tiny_tokenizer())


def edit_json(file: Path, **changes):
    content = json.loads(file.read_text())
    content.update(changes)
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def edit_weights(folder: Path, edit):
    weights = load_file(folder / "model.safetensors")
    save_file(edit(weights), folder / "model.safetensors", metadata={"format": "pt"})


def test_a_policy_is_float32_in_train_mode_and_without_dropout(tmp_path):
    folder = make_tiny_model_folder(tmp_path / "m", "gpt2", resid_pdrop=0.3, attn_pdrop=0.3, embd_pdrop=0.3)
    policy = load(folder, dtype="bfloat16")
    assert {parameter.dtype for parameter in policy.network.parameters()} == {torch.float32}
    assert policy.compute_dtype == torch.bfloat16
    assert policy.network.training
    assert all(module.p == 0 for module in policy.network.modules() if isinstance(module, torch.nn.Dropout))
    config = policy.transformer.config
    assert (config.resid_pdrop, config.attn_pdrop, config.embd_pdrop) == (0.0, 0.0, 0.0)


def test_dropout_of_nested_and_integer_settings_is_turned_off():
    config = MptConfig(attn_config={"attn_pdrop": 1})
    disable_dropout(config)
    assert config.attn_config.attn_pdrop == 0
    assert isinstance(config.attn_config.attn_pdrop, int)


def test_a_model_with_dropout_scores_alike_twice(tmp_path):
    policy = load(make_tiny_model_folder(tmp_path / "m", "opt", dropout=0.5, attention_dropout=0.5, layerdrop=0.5))
    batch = pad_batch([_Row()])
    with torch.no_grad():
        assert torch.equal(
            token_logprobs(policy, batch, 1.0).logprobs_BT, token_logprobs(policy, batch, 1.0).logprobs_BT
        )


class _Row:
    prompt_ids, response_ids, response_mask = [5, 6], [7, 8, 9], [1, 1, 1]


def test_bfloat16_computes_in_bfloat16_and_is_close(model_folder):
    batch = pad_batch([_Row()])
    with torch.no_grad():
        exact = token_logprobs(load(model_folder), batch, 1.0).logprobs_BT
        rough = token_logprobs(load(model_folder, dtype="bfloat16"), batch, 1.0).logprobs_BT
    assert not torch.equal(exact, rough)
    torch.testing.assert_close(rough, exact, atol=0.2, rtol=0.05)


def test_gradient_checkpointing_gives_the_same_gradients(model_folder):
    batch = pad_batch([_Row()])
    gradients = []
    for checkpointing in (False, True):
        policy = load(model_folder, gradient_checkpointing=checkpointing)
        assert policy.transformer.get_decoder().gradient_checkpointing == checkpointing
        token_logprobs(policy, batch, 1.0).logprobs_BT.sum().backward()
        gradients.append([parameter.grad for parameter in policy.network.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_the_reference_is_frozen_and_equal_to_the_policy(model_folder):
    config = ModelConfig(path=str(model_folder), gradient_checkpointing=True)
    reference = load_reference(config, "cpu", tokenizer=tiny_tokenizer())
    batch = pad_batch([_Row()])
    assert not any(parameter.requires_grad for parameter in reference.network.parameters())
    assert not reference.network.training
    logprobs = token_logprobs(reference, batch, 1.0).logprobs_BT
    assert torch.equal(logprobs, token_logprobs(load(model_folder), batch, 1.0).logprobs_BT)


def test_the_reference_may_be_another_model(model_folder, tmp_path):
    other = make_tiny_model_folder(tmp_path / "other", seed=5)
    reference = load_reference(ModelConfig(path=str(model_folder)), "cpu", tokenizer=tiny_tokenizer(), path=str(other))
    expected = load(other).transformer.get_input_embeddings().weight
    assert torch.equal(reference.transformer.get_input_embeddings().weight, expected)


def test_loading_prints_nothing(model_folder, capfd):
    load(model_folder)
    load_critic(CriticConfig(), ModelConfig(path=str(model_folder)), "cpu")
    assert capfd.readouterr() == ("", "")


def test_the_attention_implementation_can_be_chosen(model_folder):
    assert load(model_folder, attn_implementation="eager").transformer.config._attn_implementation == "eager"


# --- Tokenizers


def test_a_tokenizer_without_padding_token_pads_with_its_end_token(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.pad_token_id == loaded.eos_token_id == 2


def test_a_tokenizer_without_end_token_is_refused(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has no end token; set `eos_token`"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_folder_without_tokenizer_says_what_is_there(tmp_path, architecture):
    folder = make_tiny_model_folder(tmp_path / "m", architecture)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer file .*the folder holds: .*tokenizer_config\.json"):
        load_tokenizer(str(folder))


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused(tmp_path):
    folder = make_tiny_model_folder(tmp_path / "m", vocab_size=50)
    with pytest.raises(ModelError, match=rf"embeddings for 50 tokens, but the tokenizer has {len(tiny_tokenizer())}"):
        load(folder)


# --- Where a model is


def test_no_path_names_the_setting():
    with pytest.raises(ModelError, match=r"set actor_rollout_ref\.model\.path=/path/to/folder"):
        load_policy(ModelConfig(), "cpu", tokenizer=tiny_tokenizer())


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c"])
def test_a_missing_folder_is_not_looked_up_on_the_hub(path):
    with pytest.raises(ModelError, match="there is no such folder"):
        load_tokenizer(path)


def test_a_missing_folder_beside_existing_ones_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(ModelError, match=r"there is no such folder \(looked for .*/models/mine\)"):
        load_tokenizer("models/mine")


def test_a_file_is_not_a_folder(model_folder):
    with pytest.raises(ModelError, match="is a file; give the folder"):
        load_tokenizer(str(model_folder / "model.safetensors"))


def test_a_local_folder_wins_over_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_tiny_model_folder(tmp_path / "gpt2")
    assert load_tokenizer("gpt2").eos_token == "<eos>"


def test_an_unreachable_hub_gives_one_error_that_names_the_folder_alternative(monkeypatch, capfd):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    begin = time.monotonic()
    with pytest.raises(ModelError) as caught:
        load_tokenizer("someone/some-model")
    assert time.monotonic() - begin < 5
    assert "the hub cannot be reached" in str(caught.value)
    assert "give a local folder: actor_rollout_ref.model.path=/path/to/folder" in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_an_impossible_hub_name_says_so():
    with pytest.raises(ModelError, match="neither a folder here nor a valid hub name"):
        load_tokenizer("not a model!")


# --- Broken folders


def test_a_folder_without_config_says_what_is_there(model_folder):
    (model_folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json; the folder holds: .*model\.safetensors"):
        load(model_folder)


def test_an_empty_folder_says_so(tmp_path):
    with pytest.raises(ModelError, match=r"has no config\.json; the folder holds: nothing"):
        load(tmp_path)


def test_a_folder_without_weights_says_what_is_there(model_folder):
    (model_folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no weights \(model\.safetensors\); the folder holds: .*config\.json"):
        load(model_folder)


def test_a_config_that_is_not_json_is_named(model_folder):
    (model_folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read as JSON .*; fetch it again"):
        load(model_folder)


@pytest.mark.parametrize("content", ["[]", "null", '"llama"'])
def test_a_config_that_is_no_object_is_named(model_folder, content):
    (model_folder / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json must hold a JSON object"):
        load(model_folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"hidden_size": "abc"}, "hidden_size"), ({"num_attention_heads": 0}, "ZeroDivisionError")],
)
def test_a_config_with_an_impossible_value_is_named(model_folder, changes, reason):
    edit_json(model_folder / "config.json", **changes)
    with pytest.raises(ModelError, match=rf"a value in its config\.json is not possible \((.|\n)*{reason}"):
        load(model_folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no weights at all", r"pytorch_model\.bin is damaged or was not copied whole \(it is no torch file\)"),
        (b"PK\x03\x04 cut short", r"pytorch_model\.bin is damaged or was not copied whole \(it is no torch file\)"),
        (b"\x80\x02garbage", r"cannot be loaded: its weights \(pytorch_model\*\.bin\) are damaged"),
    ],
)
def test_a_torch_file_that_is_damaged_is_named(model_folder, content, reason):
    (model_folder / "model.safetensors").unlink()
    (model_folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ModelError, match=reason):
        load(model_folder)


def test_an_index_without_weight_map_is_named(model_folder):
    (model_folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json has no `weight_map`"):
        load(model_folder)


def test_the_home_of_a_user_whom_there_is_not_is_told():
    with pytest.raises(ModelError, match=r"=~no-such-user/m: ~ is unknown"):
        load(Path("~no-such-user/m"))


def test_an_unknown_architecture_is_a_model_error(model_folder):
    edit_json(model_folder / "config.json", model_type="never-heard-of")
    with pytest.raises(ModelError, match="never-heard-of"):
        load(model_folder)


def test_a_truncated_weight_file_is_named(model_folder):
    weights = model_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged or was not copied whole"):
        load(model_folder)


def test_a_git_lfs_pointer_is_recognised(model_folder):
    (model_folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(ModelError, match="is a Git LFS pointer, not the weights; run `git lfs pull`"):
        load(model_folder)


def test_a_missing_shard_is_named(model_folder):
    (model_folder / "model.safetensors").rename(model_folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (model_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"has no model-00002-of-00002\.safetensors \(listed in model\.safetensors"):
        load(model_folder)


def test_a_missing_weight_is_named(model_folder):
    edit_weights(model_folder, lambda weights: {k: v for k, v in weights.items() if k != "model.norm.weight"})
    with pytest.raises(ModelError, match=r"has no weights for model\.norm\.weight; they would be random"):
        load(model_folder)


def test_a_classifier_is_not_a_policy_because_its_language_head_would_be_random(tmp_path):
    folder = make_tiny_reward_model_folder(tmp_path / "rm")
    with pytest.raises(ModelError, match=r"has no weights for lm_head\.weight"):
        load(folder)


def test_weights_that_do_not_fit_the_config_are_named(model_folder):
    edit_json(model_folder / "config.json", intermediate_size=48)
    with pytest.raises(ModelError, match=r"config\.json does not fit the weights: .*mlp.*\(file \(.*config \("):
        load(model_folder)


# --- Critics and reward models


def test_a_critic_starts_from_the_policy_with_values_of_zero(model_folder):
    critic = load_critic(CriticConfig(), ModelConfig(path=str(model_folder)), "cpu")
    assert critic.training
    assert critic.value_head.weight.abs().max() == 0
    policy = load(model_folder)
    assert torch.equal(critic.backbone.get_input_embeddings().weight, policy.transformer.get_input_embeddings().weight)


def test_a_critic_may_start_from_another_model(model_folder, tmp_path):
    other = make_tiny_model_folder(tmp_path / "other", "opt")
    critic = load_critic(CriticConfig(path=str(other)), ModelConfig(path=str(model_folder)), "cpu")
    assert critic.backbone.config.model_type == "opt"


def test_a_missing_critic_names_its_own_setting(model_folder):
    with pytest.raises(ModelError, match=r"critic\.path=\./nowhere"):
        load_critic(CriticConfig(path="./nowhere"), ModelConfig(path=str(model_folder)), "cpu")


def test_a_reward_model_is_frozen_and_in_eval_mode(tmp_path):
    folder = make_tiny_reward_model_folder(tmp_path / "rm")
    loaded = load_reward_model(RewardModelConfig(path=str(folder), dtype="bfloat16"), "cpu")
    assert not any(parameter.requires_grad for parameter in loaded.network.parameters())
    assert not loaded.network.training
    assert loaded.network.dtype == torch.bfloat16
    assert loaded.network.config.num_labels == 1


def test_a_reward_model_without_padding_token_gets_the_tokenizers(tmp_path):
    folder = make_tiny_reward_model_folder(tmp_path / "rm", pad_token_id=None)
    loaded = load_reward_model(RewardModelConfig(path=str(folder)), "cpu")
    assert loaded.network.config.pad_token_id == loaded.tokenizer.pad_token_id


def test_a_classifier_with_more_labels_is_not_a_reward_model(tmp_path):
    folder = tmp_path / "rm"
    config = tiny_config("llama", len(tiny_tokenizer()), num_labels=3)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"reward\.model\.path=.* is a classifier with 3 labels; .*exactly one"):
        load_reward_model(RewardModelConfig(path=str(folder)), "cpu")


def test_a_language_model_is_not_a_reward_model(model_folder):
    with pytest.raises(ModelError, match=r"reward\.model\.path=.* is a language model \(\w+ForCausalLM in its config"):
        load_reward_model(RewardModelConfig(path=str(model_folder)), "cpu")


def test_a_reward_model_without_its_head_is_refused(model_folder):
    changes = {"architectures": None, "num_labels": 1, "id2label": {"0": "score"}, "label2id": {"score": 0}}
    edit_json(model_folder / "config.json", **changes)
    with pytest.raises(ModelError, match=r"has no weights for score\.weight"):
        load_reward_model(RewardModelConfig(path=str(model_folder)), "cpu")


def test_lora_targets_that_do_not_exist_are_refused(model_folder):
    with pytest.raises(ModelError, match=r"actor_rollout_ref\.model\.lora\.target_modules=\['nothing'\]"):
        load(model_folder, lora=LoraConfig(rank=2, target_modules=["nothing"]))
