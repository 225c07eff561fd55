"""Tiny models and tokenizers for tests and examples: made in well under a second, about 30 thousand parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from verl.config.schema import ModelConfig
from verl.models.loading import load_policy, load_tokenizer
from verl.models.policy import PolicyModel
from verl.models.source import quiet_transformers

CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n.,:;?!+-*/=()<>[]{}'\"%$#&_|"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'][0] + '>' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)
_SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
_DECODER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
_ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": _DECODER,
    "mistral": {**_DECODER, "sliding_window": 8},
    "qwen2": {**_DECODER, "tie_word_embeddings": True},
    "qwen3": {**_DECODER, "tie_word_embeddings": True},
    # Logits and attention scores are soft-capped, every other layer sees a short window only.
    "gemma2": {
        **_DECODER,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
        "sliding_window": 8,
        "query_pre_attn_scalar": 8,
    },
    # Logits are divided by a constant.
    "granite": {**_DECODER, "logits_scaling": 4.0},
    "opt": {
        "hidden_size": 32,
        "ffn_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 32,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
}
_UNUSUAL_ARCHITECTURES: dict[str, dict[str, Any]] = {
    # Attention by distance instead of positions.
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    # Experts chosen by token.
    "mixtral": {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    # A recurrent state, which sees padding on the left.
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    # A recurrent state outside the cache of transformers.
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32},
}

ARCHITECTURES: tuple[str, ...] = tuple(_ARCHITECTURES)
"""Common names that `make_tiny_model_folder` takes."""
UNUSUAL_ARCHITECTURES: tuple[str, ...] = tuple(_UNUSUAL_ARCHITECTURES)
"""Further names that it takes."""


def tiny_tokenizer(characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per character, a chat template, and padding, start and end tokens of its own."""
    vocabulary = {token: index for index, token in enumerate([*_SPECIALS, *dict.fromkeys(characters)])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # type: ignore[assignment]
    backend.decoder = decoders.Fuse()  # type: ignore[assignment]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_config(architecture: str, vocabulary_size: int, **overrides: Any) -> PreTrainedConfig:
    """Configuration of a tiny model; `overrides` change single fields.

    Raises:
        ValueError: The architecture is unknown here.
    """
    known = _ARCHITECTURES | _UNUSUAL_ARCHITECTURES
    if architecture not in known:
        raise ValueError(f"architecture {architecture!r} is unknown; there are {', '.join(known)}")
    fields = {
        "vocab_size": vocabulary_size,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **known[architecture],
        **overrides,
    }
    return CONFIG_MAPPING[architecture](**fields)


def make_tiny_model_folder(path: str | Path, architecture: str = "llama", seed: int = 0, **overrides: Any) -> Path:
    """Writes a random tiny causal LM with its tokenizer as a plain transformers folder.

    Example: `ModelConfig(path=str(make_tiny_model_folder(tmp_path / "model", "opt")))`.

    Args:
        path: Folder to write.
        architecture: One of `ARCHITECTURES` or `UNUSUAL_ARCHITECTURES`.
        seed: Of the weights; the global random state is left alone.
        overrides: Fields of the transformers configuration.

    Returns:
        The folder.
    """
    return _write_model(AutoModelForCausalLM, Path(path), architecture, seed, overrides)


def make_tiny_reward_model_folder(
    path: str | Path, architecture: str = "llama", seed: int = 0, **overrides: Any
) -> Path:
    """Writes a random tiny sequence classifier with one label and its tokenizer."""
    return _write_model(
        AutoModelForSequenceClassification, Path(path), architecture, seed, {"num_labels": 1, **overrides}
    )


def load_tiny_policy(
    path: str | Path, architecture: str = "llama", seed: int = 0, **overrides: Any
) -> tuple[PolicyModel, PreTrainedTokenizerBase]:
    """Writes a tiny model folder at `path` and loads it for training on the CPU.

    Example: `policy, tokenizer = load_tiny_policy(tmp_path / "model", "qwen2")`.
    """
    folder = str(make_tiny_model_folder(path, architecture, seed, **overrides))
    tokenizer = load_tokenizer(folder)
    return load_policy(ModelConfig(path=folder), "cpu", tokenizer=tokenizer), tokenizer


def _write_model(auto_class: Any, path: Path, architecture: str, seed: int, overrides: dict[str, Any]) -> Path:
    tokenizer = tiny_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto_class.from_config(tiny_config(architecture, len(tokenizer), **overrides))
        # Wider than the usual 0.02, so that the distributions of a random model differ from uniform.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    with quiet_transformers():
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    return path
