"""Where a model comes from: a local folder, checked file by file, or a name on the hub."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import errors as hub_errors
from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]
from safetensors import SafetensorError, safe_open
from transformers.utils import logging as transformers_logging

from verl.errors import ModelError

_HUB_TIMEOUT_SECONDS = 5.0
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER_PATTERNS = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json")
_PICKLE_START = b"\x80"
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that transformers can be asked for.

    Attributes:
        location: Folder or hub name.
        setting: Dotted key that named it, for messages.
        is_folder: Whether it is a local folder (or the cached snapshot of a hub name that is out of reach).
    """

    location: str
    setting: str
    is_folder: bool


def resolve_source(path: str | None, setting: str) -> ModelSource:
    """Decides whether `path` is a local folder (it wins if it exists) or a hub name, and checks that it is there.

    Args:
        path: As given by the user.
        setting: Dotted key it was given under, such as `actor_rollout_ref.model.path`.

    Raises:
        ModelError: Nothing given, no such folder, a file instead of a folder, or a hub name that cannot be had.
    """
    if not path:
        raise ModelError(f"no model given: set {setting}=/path/to/folder or {setting}=<hub name>")
    try:
        folder = Path(path).expanduser()
    except RuntimeError as error:
        raise ModelError(f"{setting}={path}: ~ is unknown ({error}); give the whole path of the folder") from None
    if folder.is_dir():
        return ModelSource(str(folder), setting, is_folder=True)
    if folder.is_file():
        raise ModelError(f"{setting}={path} is a file; give the folder that holds config.json and the weights")
    if _looks_like_path(path):
        raise ModelError(f"{setting}={path}: there is no such folder (looked for {folder.absolute()})")
    return _resolve_hub_name(path, setting)


def _looks_like_path(path: str) -> bool:
    parts = Path(path).parts
    return (
        path.startswith((".", "~", "/"))
        or "\\" in path
        or len(parts) > 2
        or (len(parts) == 2 and Path(parts[0]).is_dir())
    )


def _resolve_hub_name(name: str, setting: str) -> ModelSource:
    folder_hint = f"give a local folder: {setting}=/path/to/folder"
    try:
        huggingface_hub.HfApi().model_info(name, timeout=_HUB_TIMEOUT_SECONDS)
    except hub_errors.HFValidationError as error:
        raise ModelError(f"{setting}={name} is neither a folder here nor a valid hub name ({error})") from error
    except hub_errors.GatedRepoError as error:
        raise ModelError(
            f"{setting}={name} is gated: ask for access on its hub page and log in (`hf auth login`), or {folder_hint}"
        ) from error
    except hub_errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{setting}={name} is neither a folder here ({Path(name).absolute()}) nor a model on the hub "
            f"(or it is private and you are not logged in: `hf auth login`); check the name, or {folder_hint}"
        ) from error
    except (HTTPError, OSError) as error:
        cached = huggingface_hub.try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str):
            # The snapshot as a folder: asked for it by name, transformers would try the hub again and again.
            return ModelSource(str(Path(cached).parent), setting, is_folder=True)
        raise ModelError(
            f"{setting}={name}: the hub cannot be reached ({error}), and there is no folder of that name here; "
            f"{folder_hint}"
        ) from error
    return ModelSource(name, setting, is_folder=False)


def check_folder(source: ModelSource, *, need_weights: bool = True, need_tokenizer: bool = False) -> None:
    """Checks a local folder before transformers reads it; a hub name is left alone.

    Raises:
        ModelError: A file is missing, damaged, cut short, or a Git LFS pointer; the message names it and what is
            there.
    """
    if not source.is_folder:
        return
    folder = Path(source.location)
    if not (folder / "config.json").exists() and need_weights:
        raise ModelError(_missing(source, "config.json"))
    if (folder / "config.json").exists():
        read_json_object(folder / "config.json")
    if need_tokenizer and not any(any(folder.glob(pattern)) for pattern in _TOKENIZER_PATTERNS):
        # Without this check transformers makes an empty tokenizer for some architectures.
        raise ModelError(_missing(source, f"tokenizer file ({', '.join(_TOKENIZER_PATTERNS)})"))
    if need_weights:
        _check_weights(source, folder)


def read_json_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelError: It cannot be read, or holds something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read as JSON ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} must hold a JSON object ({{...}}); it holds {str(content)[:60]}")
    return content


def _missing(source: ModelSource, what: str) -> str:
    present = sorted(entry.name for entry in Path(source.location).iterdir())
    shown = ", ".join(present[:12]) + (", ..." if len(present) > 12 else "") if present else "nothing"
    return f"{source.setting}={source.location} has no {what}; the folder holds: {shown}"


def _check_weights(source: ModelSource, folder: Path) -> None:
    files = [file for pattern in _WEIGHT_PATTERNS for file in sorted(folder.glob(pattern))]
    if not files:
        raise ModelError(_missing(source, "weights (model.safetensors)"))
    for index in folder.glob("*.index.json"):
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelError(f"{index} has no `weight_map` (file by weight); fetch it again")
        wanted = set(map(str, weight_map.values()))
        absent = sorted(wanted - {file.name for file in files})
        if absent:
            raise ModelError(_missing(source, f"{', '.join(absent)} (listed in {index.name})"))
    for file in files:
        with file.open("rb") as stream:
            start = stream.read(len(_LFS_POINTER))
        if start == _LFS_POINTER:
            raise ModelError(f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` in {folder}")
        # torch writes a zip file, and wrote a bare pickle long ago.
        if file.suffix == ".bin" and not zipfile.is_zipfile(file) and not start.startswith(_PICKLE_START):
            raise ModelError(f"{file} is damaged or was not copied whole (it is no torch file); fetch it again")
        if file.suffix == ".safetensors":
            try:
                with safe_open(str(file), framework="pt"):
                    pass
            except SafetensorError as error:
                raise ModelError(f"{file} is damaged or was not copied whole ({error}); fetch it again") from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keeps progress bars and load reports off the console; problems are raised by us instead."""
    verbosity = transformers_logging.get_verbosity()
    bars_were_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars_were_on:
            transformers_logging.enable_progress_bar()
