"""Fingerprints: enough of a file or model to tell later whether it was the same one."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from verl.config.environment import hub_cache

WHOLE = "whole file"
ENDS = "first and last MiB, and size"

_MIB = 1024 * 1024
_WHOLE_BYTES = 16 * _MIB
_MAX_HEADER_BYTES = 16 * _MIB
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
_MAX_WEIGHT_FILES = 500


@dataclass(frozen=True, slots=True)
class FileFingerprint:
    """A file as it was.

    Attributes:
        sha256: Of what `covers` says: the whole file up to 16 MiB, of a larger one its first MiB,
            its last MiB and its size as text.
        modified: Unix seconds.
    """

    path: str
    size: int
    sha256: str
    covers: str
    modified: float


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A file of weights.

    Attributes:
        sha256: As in `FileFingerprint`. header_sha256: Of the header (names, shapes, types) of a
            safetensors file, nothing for other formats.
    """

    name: str
    size: int
    sha256: str
    covers: str
    header_sha256: str | None


@dataclass(frozen=True, slots=True)
class ModelFingerprint:
    """A model as it was.

    Attributes:
        role: What the run uses it for. path: Folder, or hub name.
        config_sha256: Of `config.json`. index_sha256: Of the index of sharded weights.
        revision: Commit of a hub model in the local cache.
    """

    role: str
    path: str
    config_sha256: str | None
    index_sha256: str | None
    revision: str | None
    weights: tuple[WeightFile, ...]


def fingerprint_file(path: str | os.PathLike[str]) -> FileFingerprint:
    """Fingerprint of one file.

    Raises:
        OSError: It cannot be read.
    """
    status = os.stat(path)
    digest, covers = _digest(Path(path), status.st_size)
    return FileFingerprint(os.fspath(path), status.st_size, digest, covers, status.st_mtime)


def fingerprint_model(role: str, path: str | os.PathLike[str]) -> ModelFingerprint:
    """Fingerprint of a model folder, or of a hub model as far as the local cache knows it.

    Raises:
        OSError: A file of it cannot be read.
    """
    name, folder, revision = os.fspath(path), Path(path), None
    if not folder.is_dir():
        folder, revision = _cached_hub_model(name)
    if folder is None:
        return ModelFingerprint(role, name, None, None, revision, ())
    files = sorted(entry for entry in folder.iterdir() if entry.suffix in _WEIGHT_SUFFIXES and entry.is_file())
    index = next(iter(sorted(folder.glob("*.index.json"))), None)
    return ModelFingerprint(
        role=role,
        path=name,
        config_sha256=_digest_if_there(folder / "config.json"),
        index_sha256=None if index is None else _digest_if_there(index),
        revision=revision,
        weights=tuple(_weight_file(file) for file in files[:_MAX_WEIGHT_FILES]),
    )


def _weight_file(path: Path) -> WeightFile:
    size = path.stat().st_size
    digest, covers = _digest(path, size)
    return WeightFile(path.name, size, digest, covers, _header_digest(path, size))


def _header_digest(path: Path, size: int) -> str | None:
    """A safetensors file starts with the length of its JSON header, 8 bytes little-endian."""
    if path.suffix != ".safetensors" or size < 8:
        return None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _MAX_HEADER_BYTES):
            return None
        return hashlib.sha256(file.read(length)).hexdigest()


def _digest(path: Path, size: int) -> tuple[str, str]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            digest.update(file.read(_WHOLE_BYTES))
            return digest.hexdigest(), WHOLE
        digest.update(file.read(_MIB))
        file.seek(-_MIB, os.SEEK_END)
        digest.update(file.read(_MIB))
    digest.update(str(size).encode())
    return digest.hexdigest(), ENDS


def _digest_if_there(path: Path) -> str | None:
    return _digest(path, path.stat().st_size)[0] if path.is_file() else None


def _cached_hub_model(name: str) -> tuple[Path | None, str | None]:
    """Snapshot folder and commit of a hub model's `main`, if it is in the local cache."""
    cache = hub_cache() / f"models--{name.replace('/', '--')}"
    reference = cache / "refs" / "main"
    if not reference.is_file():
        return None, None
    revision = reference.read_text().strip()
    snapshot = cache / "snapshots" / revision
    return (snapshot if snapshot.is_dir() else None), revision
