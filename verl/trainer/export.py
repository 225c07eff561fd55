"""A checkpoint as a plain transformers folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from verl.config import load_config
from verl.errors import CheckpointError
from verl.models.export import save_model_folder
from verl.models.loading import load_policy, load_tokenizer
from verl.models.lora import load_adapter
from verl.trainer.checkpoint import CheckpointStore, read_info


def export(checkpoint: str | Path, to: str | Path) -> Path:
    """Writes the policy of a checkpoint as a folder that anything that reads transformers folders can load.

    A LoRA adapter is merged into the model that it was trained on (named in the run's `config.yaml`).

    Args:
        checkpoint: A `global_step_N` folder, or a run directory (its newest checkpoint).
        to: Folder to make; it must not exist, or be empty.

    Returns:
        The folder.

    Raises:
        CheckpointError: There is no such checkpoint, or `to` holds something.
        ModelError: The base model of an adapter cannot be loaded.
    """
    source, target = _checkpoint_folder(Path(checkpoint)), Path(to)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target} exists already: choose a new folder for the export, or empty it.")
    actor = source / "actor"
    if not (actor / "config.json").exists() and not (actor / "adapter_config.json").exists():
        raise CheckpointError(f"{source} holds no model: {actor} has neither config.json nor adapter_config.json.")
    if (actor / "adapter_config.json").exists():
        return _export_merged(source, target)
    try:
        shutil.copytree(actor, target, dirs_exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{actor} cannot be copied to {target}: {error}") from error
    return target


def _checkpoint_folder(path: Path) -> Path:
    if (path / "run.json").exists():
        latest = CheckpointStore(path / "checkpoints", keep=None).latest()
        if latest is None:
            raise CheckpointError(f"The run {path} has no checkpoint yet.")
        return latest
    read_info(path)
    return path


def _export_merged(checkpoint: Path, target: Path) -> Path:
    settings = checkpoint.parent.parent / "config.yaml"
    if not settings.exists():
        raise CheckpointError(
            f"{checkpoint} holds a LoRA adapter, and the model it belongs to is named in the run's config.yaml, which "
            f"is missing at {settings}. Export from inside the run directory."
        )
    model = load_config(settings).actor_rollout_ref.model
    tokenizer = load_tokenizer(model.path, trust_remote_code=model.trust_remote_code)
    policy = load_policy(model, "cpu", tokenizer=tokenizer)
    load_adapter(policy, checkpoint / "actor")
    return save_model_folder(policy, tokenizer, target)
