"""Loading tokenizers and models with errors that say what to do."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from verl.config.schema import CriticConfig, ModelConfig, RewardModelConfig
from verl.errors import ModelError
from verl.models.lora import wrap_with_lora
from verl.models.policy import PolicyModel, autocast, max_positions
from verl.models.reward_model import RewardModel
from verl.models.source import ModelSource, check_folder, quiet_transformers, resolve_source
from verl.models.value_model import ValueModel

_POLICY_SETTING = "actor_rollout_ref.model.path"
_GENERATIVE_ENDINGS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_DROPOUT_SUFFIXES = ("dropout", "pdrop", "layerdrop", "dropout_prob", "dropout_rate")
# What a configuration runs into while transformers reads it or builds the model.
_IMPOSSIBLE_VALUES = (StrictDataclassError, TypeError, ArithmeticError, AttributeError, IndexError, AssertionError)
_DAMAGED_FILES = (pickle.UnpicklingError, EOFError)


def load_tokenizer(
    path: str | None, *, trust_remote_code: bool = False, setting: str = _POLICY_SETTING
) -> PreTrainedTokenizerBase:
    """Loads a tokenizer; one without a padding token pads with its end token.

    Args:
        path: Folder or hub name.
        trust_remote_code: Run code that comes with the tokenizer.
        setting: Dotted key that `path` was given under, for messages.

    Raises:
        ModelError: It cannot be found or read, or has no end token.
    """
    source = resolve_source(path, setting)
    check_folder(source, need_weights=False, need_tokenizer=True)
    tokenizer = _from_pretrained(AutoTokenizer, source, trust_remote_code=trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"the tokenizer of {source.location} has no end token; set `eos_token` in its tokenizer_config.json"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def context_length(config: ModelConfig, *, setting: str = _POLICY_SETTING) -> int | None:
    """Longest sequence that a model has positions for, from its `config.json` alone; nothing = no limit stated.

    Raises:
        ModelError: The model cannot be found or read.
    """
    source = resolve_source(config.path, setting)
    check_folder(source)
    return max_positions(_load_config(source, config.trust_remote_code))


def load_policy(
    config: ModelConfig,
    device: torch.device | str,
    *,
    tokenizer: PreTrainedTokenizerBase,
    setting: str = _POLICY_SETTING,
) -> PolicyModel:
    """Loads the policy for training: float32 weights, no dropout, LoRA if configured, in train mode.

    Without dropout the probability ratio is exactly 1 before the first update; train mode stays on because
    gradient checkpointing needs it.

    Raises:
        ModelError: The model cannot be found or read, a weight is missing or has the wrong shape, or the
            vocabulary is smaller than the tokenizer's.
    """
    source = resolve_source(config.path, setting)
    transformer = _load_transformer(AutoModelForCausalLM, source, config)
    check_vocabulary(transformer, tokenizer, source.location)
    transformer.to(device)  # type: ignore[arg-type]
    if config.gradient_checkpointing:
        _enable_gradient_checkpointing(transformer)
    network: nn.Module = wrap_with_lora(transformer, config.lora) if config.lora.rank > 0 else transformer
    network.train()
    return PolicyModel.build(network, transformer, getattr(torch, config.dtype))


def load_reference(
    config: ModelConfig,
    device: torch.device | str,
    *,
    tokenizer: PreTrainedTokenizerBase,
    path: str | None = None,
) -> PolicyModel:
    """Loads the frozen reference: the initial policy, or the model at `path` (`actor_rollout_ref.ref.path`).

    Its weights are float32 like the policy's, so that the KL is exactly 0 before the first update. A policy with a
    LoRA adapter needs no second copy: see `lora.reference_weights`.

    Raises:
        ModelError: As `load_policy`.
    """
    setting = _POLICY_SETTING if path is None else "actor_rollout_ref.ref.path"
    source = resolve_source(config.path if path is None else path, setting)
    transformer = _load_transformer(AutoModelForCausalLM, source, config)
    check_vocabulary(transformer, tokenizer, source.location)
    transformer.to(device).requires_grad_(False).eval()  # type: ignore[arg-type]
    return PolicyModel.build(transformer, transformer, getattr(torch, config.dtype))


def load_critic(critic: CriticConfig, model: ModelConfig, device: torch.device | str) -> ValueModel:
    """Loads the critic from `critic.path`, else from the policy's model; float32 weights, no dropout, train mode.

    A folder written by `ValueModel.save_pretrained` brings its value head; any other starts with a head of zeros.

    Raises:
        ModelError: The model cannot be found or read, or a weight is missing.
    """
    source = resolve_source(critic.path or model.path, "critic.path" if critic.path else _POLICY_SETTING)
    backbone = _load_transformer(AutoModel, source, model)
    backbone.to(device)  # type: ignore[arg-type]
    if model.gradient_checkpointing:
        _enable_gradient_checkpointing(backbone)
    dtype = getattr(torch, model.dtype)
    with torch.no_grad(), autocast(backbone.device, dtype):
        probe = backbone(input_ids=torch.zeros(1, 1, dtype=torch.long, device=backbone.device), use_cache=False)
    value_model = ValueModel(backbone, probe.last_hidden_state.shape[-1], dtype)
    if source.is_folder:
        value_model.load_head(source.location)
    return value_model.train()


def load_reward_model(config: RewardModelConfig, device: torch.device | str) -> RewardModel:
    """Loads a sequence classifier with one label, frozen and in eval mode, with its own tokenizer.

    Raises:
        ModelError: The model cannot be found or read, it is a language model, its head is missing, it has more than
            one label, or its vocabulary is smaller than its tokenizer's.
    """
    setting = "reward.model.path"
    source = resolve_source(config.path, setting)
    check_folder(source)
    model_config = _load_config(source, config.trust_remote_code)
    generative = [name for name in model_config.architectures or () if name.endswith(_GENERATIVE_ENDINGS)]
    if generative:
        raise ModelError(
            f"{setting}={source.location} is a language model ({generative[0]} in its config.json), which writes text "
            f"and has no head that scores it. Use a sequence classifier with one label"
        )
    if model_config.num_labels != 1:
        raise ModelError(
            f"{setting}={source.location} is a classifier with {model_config.num_labels} labels; a reward model has "
            f"exactly one (its score). Use a model whose config.json says `num_labels: 1`"
        )
    tokenizer = load_tokenizer(config.path, trust_remote_code=config.trust_remote_code, setting=setting)
    if model_config.get_text_config().pad_token_id is None:
        # Causal classifiers find the last real token by comparing with the padding token.
        model_config.get_text_config().pad_token_id = tokenizer.pad_token_id
    network = _load_weights(
        AutoModelForSequenceClassification, source, model_config, config.trust_remote_code, getattr(torch, config.dtype)
    )
    check_vocabulary(network, tokenizer, source.location)
    network.to(device).requires_grad_(False).eval()  # type: ignore[arg-type]
    return RewardModel(network, tokenizer, config.micro_batch_size, config.max_length)


def check_vocabulary(transformer: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, location: str) -> None:
    """Checks that the model has an embedding for each id of the tokenizer.

    Raises:
        ModelError: It has fewer.
    """
    rows, ids = transformer.get_input_embeddings().weight.shape[0], len(tokenizer)  # type: ignore[union-attr]
    if rows < ids:
        raise ModelError(
            f"{location} has embeddings for {rows} tokens, but the tokenizer has {ids}; "
            f"they do not belong together (or the model must be resized to {ids})"
        )


def disable_dropout(config: PreTrainedConfig) -> None:
    """Sets every dropout probability of a configuration (and of its parts) to 0."""
    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            disable_dropout(value)
        elif name.endswith(_DROPOUT_SUFFIXES) and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, name, type(value)(0))


def _enable_gradient_checkpointing(transformer: PreTrainedModel) -> None:
    # transformers renamed the method in 5.x; the old name warns in new versions, the new one lacks in old ones.
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    enable = next(getattr(transformer, name) for name in names if hasattr(transformer, name))
    enable({"use_reentrant": False})


def _load_transformer(auto_class: Any, source: ModelSource, config: ModelConfig) -> PreTrainedModel:
    check_folder(source)
    model_config = _load_config(source, config.trust_remote_code)
    disable_dropout(model_config)
    attention = {} if config.attn_implementation is None else {"attn_implementation": config.attn_implementation}
    return _load_weights(auto_class, source, model_config, config.trust_remote_code, torch.float32, **attention)


def _load_config(source: ModelSource, trust_remote_code: bool) -> PreTrainedConfig:
    return _from_pretrained(AutoConfig, source, trust_remote_code=trust_remote_code)


def _load_weights(
    auto_class: Any,
    source: ModelSource,
    config: PreTrainedConfig,
    trust_remote_code: bool,
    dtype: torch.dtype,
    **attention: str,
) -> PreTrainedModel:
    model, info = _from_pretrained(
        auto_class,
        source,
        config=config,
        trust_remote_code=trust_remote_code,
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **attention,
    )
    _check_loaded(source, info)
    return model


def _check_loaded(source: ModelSource, info: Mapping[str, Any]) -> None:
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            f"{source.setting}={source.location} has no weights for {_listed(missing)}; they would be random. "
            f"Is it the right kind of model, and are all its files there?"
        )
    mismatched = sorted(
        f"{key} (file {tuple(found)}, config {tuple(wanted)})" for key, found, wanted in info["mismatched_keys"]
    )
    if mismatched:
        raise ModelError(
            f"{source.setting}={source.location}: config.json does not fit the weights: {_listed(mismatched)}"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _from_pretrained(auto_class: Any, source: ModelSource, **arguments: Any) -> Any:
    try:
        with quiet_transformers():
            return auto_class.from_pretrained(source.location, **arguments)
    # What transformers raises for an unusable folder; anything else is a fault of ours or theirs and keeps its trace.
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ModelError(f"{source.setting}={source.location} cannot be loaded: {error}") from error
    except _IMPOSSIBLE_VALUES as error:
        raise ModelError(
            f"{source.setting}={source.location} cannot be loaded: a value in its config.json is not possible "
            f"({type(error).__name__}: {error})"
        ) from error
    except _DAMAGED_FILES as error:
        raise ModelError(
            f"{source.setting}={source.location} cannot be loaded: its weights (pytorch_model*.bin) are damaged or "
            f"were not copied whole ({error}); fetch them again"
        ) from error
