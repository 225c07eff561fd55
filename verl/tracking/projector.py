"""Files of TensorBoard's embedding projector, as `SummaryWriter.add_embedding` writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from verl.tracking.logger import Embedding

FOLDER = "projector"


def write_projector_files(log_dir: Path, embedding: Embedding, step: int) -> None:
    """Write the points of an embedding and enter them in `projector_config.pbtxt`.

    The files lie in `projector/<tag>/<step>/` of the log directory; writing the same twice changes nothing.
    """
    folder = log_dir / FOLDER / re.sub(r"[^\w.-]", "_", embedding.tag).lstrip(".") / f"{step:06d}"
    folder.mkdir(parents=True, exist_ok=True)
    relative = folder.relative_to(log_dir).as_posix()
    lines = [f"tensor_name: {json.dumps(f'{embedding.tag}:{step:05d}')}", f'tensor_path: "{relative}/tensors.tsv"']
    _write_vectors(folder / "tensors.tsv", embedding.vectors)
    if embedding.labels is not None:
        (folder / "metadata.tsv").write_text(_labels_text(embedding.header, embedding.labels), encoding="utf-8")
        lines.append(f'metadata_path: "{relative}/metadata.tsv"')
    if embedding.sprite and embedding.sprite_size:
        (folder / "sprite.png").write_bytes(embedding.sprite.read_bytes())
        width, height = embedding.sprite_size
        size = f"single_image_dim: {width} single_image_dim: {height}"
        lines.append(f'sprite {{ image_path: "{relative}/sprite.png" {size} }}')
    (folder / "entry.pbtxt").write_text("embeddings {\n" + "".join(f"  {line}\n" for line in lines) + "}\n")
    entries = sorted((log_dir / FOLDER).glob("*/*/entry.pbtxt"))
    (log_dir / "projector_config.pbtxt").write_text("".join(entry.read_text() for entry in entries))


def _write_vectors(path: Path, vectors: np.ndarray) -> None:
    with path.open("w", encoding="ascii") as file:
        for row in vectors.astype(np.float64):
            file.write("\t".join(f"{value:.7g}" for value in row.tolist()) + "\n")


def _labels_text(header: list[str], labels: list[list[str]]) -> str:
    rows = [header, *labels] if len(header) > 1 else labels
    return "".join("\t".join(_one_line(cell) for cell in row) + "\n" for row in rows)


def _one_line(text: str) -> str:
    # The projector skips rows that look empty, which would shift all labels after them.
    return re.sub(r"[\t\r\n\x0b\x0c]+", " ", text).strip() or "␣"
