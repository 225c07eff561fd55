"""Writing a policy as a plain transformers folder."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase

from verl.errors import CheckpointError
from verl.models.lora import has_lora, merged_state
from verl.models.policy import PolicyModel
from verl.models.source import quiet_transformers


def save_model_folder(policy: PolicyModel, tokenizer: PreTrainedTokenizerBase, path: str | Path) -> Path:
    """Writes weights, configuration, generation settings, tokenizer and chat template: a folder that anything
    that reads transformers folders can load.

    A LoRA adapter is merged into the written weights; the live model is not changed. The folder appears whole or not
    at all (written beside it, then renamed); an existing folder at `path` is replaced.

    Returns:
        The folder.

    Raises:
        CheckpointError: It cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            _write(policy, tokenizer, staging)
            _replace_folder(staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"the model cannot be written to {target}: {error}") from error
    return target


def save_adapter_folder(policy: PolicyModel, path: str | Path) -> None:
    """Writes only the LoRA adapter, as peft reads it."""
    policy.network.save_pretrained(str(path))  # type: ignore[operator]


def _write(policy: PolicyModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    state = merged_state(policy) if has_lora(policy) else None
    with quiet_transformers():
        policy.transformer.save_pretrained(folder, state_dict=state)
        tokenizer.save_pretrained(folder)


def _replace_folder(staging: Path, target: Path) -> None:
    staging.chmod(0o755)
    if not target.exists():
        staging.rename(target)
        return
    # Two renames: a folder cannot be replaced in one. The old one stays until the new one is in place.
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(old / target.name)
    try:
        staging.rename(target)
    except OSError:
        (old / target.name).rename(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
