"""LoRA adapters through peft (optional package)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel

from verl.config.schema import LoraConfig
from verl.errors import ModelError
from verl.models.policy import PolicyModel

_NO_PEFT = "LoRA needs the package peft: pip install peft, or train all weights with lora.rank=0"


def wrap_with_lora(transformer: PreTrainedModel, config: LoraConfig) -> nn.Module:
    """Freezes the model and adds trainable adapters (Hu et al. 2021): W x + (alpha / rank) B A x, with B = 0 at first.

    Raises:
        ModelError: peft is missing, or `target_modules` matches nothing.
    """
    try:
        import peft  # optional package
    except ImportError as error:
        raise ModelError(_NO_PEFT) from error
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]
        lora_dropout=0.0,
        target_modules=config.target_modules,
        task_type=peft.TaskType.CAUSAL_LM,
    )
    try:
        with warnings.catch_warnings():
            # peft reads an attribute that transformers has renamed, and says which way round GPT-2 keeps its weights.
            warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False")
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
            return peft.get_peft_model(transformer, settings)  # type: ignore[return-value]
    except ValueError as error:
        raise ModelError(f"actor_rollout_ref.model.lora.target_modules={config.target_modules!r}: {error}") from error


def has_lora(policy: PolicyModel) -> bool:
    """Whether the policy carries an adapter."""
    return policy.network is not policy.transformer


@contextmanager
def reference_weights(policy: PolicyModel) -> Iterator[PolicyModel]:
    """Turns the adapter off, so that the policy is its own frozen reference:

        with reference_weights(policy) as reference, torch.no_grad():
            ref = token_logprobs(reference, batch, temperature)

    Raises:
        ModelError: The policy has no adapter.
    """
    if not has_lora(policy):
        raise ModelError("this policy trains all its weights; load the reference with `load_reference`")
    with policy.network.disable_adapter():  # type: ignore[operator]
        yield policy


def trainable_parameters(model: PolicyModel | nn.Module) -> list[nn.Parameter]:
    """Parameters to optimise: the adapter's with LoRA, else all."""
    network = model.network if isinstance(model, PolicyModel) else model
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def merged_state(policy: PolicyModel) -> dict[str, torch.Tensor]:
    """Weights with the adapter merged in, under the names of the plain model; the live model is not touched."""
    from peft.tuners.lora import LoraLayer  # optional package

    merged: dict[str, torch.Tensor] = {}
    layers = {name: module for name, module in policy.transformer.named_modules() if isinstance(module, LoraLayer)}
    for name, value in policy.transformer.state_dict().items():
        owner, _, rest = name.partition(".base_layer.")
        if not rest:
            if ".lora_" not in name:
                merged[name] = value
            continue
        layer = layers[owner]
        if rest == "weight":
            value = value + sum(layer.get_delta_weight(adapter).to(value) for adapter in layer.active_adapters)  # type: ignore[operator]
        merged[f"{owner}.{rest}"] = value
    return merged


def load_adapter(policy: PolicyModel, folder: Path) -> None:
    """Takes over the adapter weights of a folder written by `export.save_adapter_folder`.

    Raises:
        ModelError: There is no adapter, or it does not fit the policy.
    """
    import peft  # optional package

    file = folder / "adapter_model.safetensors"
    if not file.is_file():
        raise ModelError(f"there is no LoRA adapter in {folder}: {file.name} is missing")
    saved, own = load_file(file), peft.get_peft_model_state_dict(policy.network)  # type: ignore[arg-type]
    differing = sorted(saved.keys() ^ own.keys()) or sorted(key for key in own if own[key].shape != saved[key].shape)
    if differing:
        raise ModelError(
            f"the adapter in {folder} does not fit the policy: {len(differing)} weights differ, such as "
            f"{differing[0]}; lora.rank and lora.target_modules must be those it was saved with"
        )
    peft.set_peft_model_state_dict(policy.network, saved)  # type: ignore[arg-type]
