"""Check the parts of an embedding and bring them into the form in which they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from verl.config.secrets import mask
from verl.tracking.png_image import as_image, encode_png
from verl.tracking.values import as_array


@dataclass(frozen=True, slots=True)
class EmbeddingParts:
    """What is stored of an embedding.

    Attributes:
        vectors: float32, shape (points, dimensions).
        labels: Rows of label columns as JSON, or None.
        header: Names of the label columns.
        sprite: Contact sheet of the points' images as PNG, or None.
        sprite_size: (width, height) of one image.
    """

    vectors: np.ndarray
    labels: bytes | None
    header: list[str]
    sprite: bytes | None
    sprite_size: tuple[int, int] | None

    def metadata(self) -> dict[str, Any]:
        """Metadata of its artifact record; the paths of labels and sprite are filled in when they are written."""
        return {"header": self.header, "labels": None, "sprite": None, "sprite_size": self.sprite_size}


def embedding_parts(vectors: Any, labels: Sequence[Any] | None, header: Sequence[str], images: Any) -> EmbeddingParts:
    """Check and convert.

    Raises:
        TypeError: Vectors or images are not numbers.
        ValueError: Shapes or counts do not fit each other.
    """
    points = as_array(vectors)
    if points.ndim != 2 or not points.size:
        raise ValueError(f"vectors of shape {points.shape}; expected (points, dimensions)")
    rows = None if labels is None else mask([_cells(label) for label in labels])
    if rows is not None and len(rows) != len(points):
        raise ValueError(f"{len(rows)} labels for {len(points)} points")
    columns = max(1, len(header))
    if rows is not None and any(len(row) != columns for row in rows):
        raise ValueError(f"each label needs {columns} column(s), as the header has")
    sprite = size = None
    if images is not None:
        pictures = as_array(images)
        if pictures.ndim != 4 or len(pictures) != len(points):
            raise ValueError(f"images of shape {pictures.shape} for {len(points)} points; expected (points, C, H, W)")
        sprite = encode_png(as_image(pictures, "NCHW"))
        size = (pictures.shape[3], pictures.shape[2])
    content = None if rows is None else orjson.dumps(rows)
    return EmbeddingParts(points.astype(np.float32), content, [str(name) for name in header], sprite, size)


def _cells(label: Any) -> list[str]:
    cells = label if isinstance(label, list | tuple) else [label]
    return [str(cell).encode("utf-8", "replace").decode() for cell in cells]
