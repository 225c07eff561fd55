"""Files that belong to records: images, embeddings, and copies of what lies outside the run directory."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from verl.config.secrets import mask_text

FOLDER = "artifacts"


def new_artifact_path(run_directory: Path, kind: str, name: str, ending: str) -> Path:
    """A path that no file has yet: `artifacts/<kind>/<name>[-2]<ending>`; its folder is made.

    Args:
        run_directory: The run.
        kind: Folder, such as "images".
        name: Any text; what a file name cannot hold becomes `_`.
        ending: Such as "_000010.png".

    Raises:
        OSError: The folder cannot be made.
    """
    folder = run_directory / FOLDER / kind
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]", "_", mask_text(name)).lstrip(".")[:100] or "unnamed"
    path, number = folder / f"{stem}{ending}", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}{ending}"
    return path


def inside(run_directory: Path, path: Path) -> str:
    """The path relative to the run directory; what lies outside is copied in.

    Raises:
        OSError: It does not exist, or cannot be copied.
        ValueError: It is a folder with the run directory in it.
    """
    absolute, home = path.resolve(strict=True), run_directory.resolve()
    if absolute.is_relative_to(home):
        return absolute.relative_to(home).as_posix()
    if home.is_relative_to(absolute):
        raise ValueError(f"{path} has the run directory in it, and would be copied into itself; give a folder in it")
    target = new_artifact_path(run_directory, "files", absolute.stem, absolute.suffix)
    if absolute.is_dir():
        shutil.copytree(absolute, target)
    else:
        shutil.copy2(absolute, target)
    return target.relative_to(run_directory).as_posix()
