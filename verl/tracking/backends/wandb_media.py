"""What W&B shows beside numbers: texts, distributions, tables, images, points; and what it can take as a value."""

from __future__ import annotations

import base64
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from verl.tracking.logger import Artifact, Embedding, Histogram

LONGEST_TEXT = 1_000_000
LONGEST_MESSAGE = 10_000
MOST_TABLE_ROWS = 10_000
LONGEST_CELL = 100_000
MOST_POINTS = 1000
_MOST_POINT_NUMBERS = 500_000
_SURROGATES = re.compile("[\ud800-\udfff]")
_STYLE = "white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.5 sans-serif;margin:8px"


def clean(text: str) -> str:
    """Text without lone surrogates, which no file can hold."""
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)


def shortened(text: str, longest: int) -> str:
    """A text of at most so many characters, with a note of how many are missing."""
    missing = len(text) - longest
    return text if missing <= 0 else f"{text[:longest]} … ({missing} more characters)"


def text_media(text: str) -> Any:
    """A text as a page: shown literally, line breaks kept. Markdown is not rendered, as a media panel has none."""
    import wandb

    body = html.escape(clean(shortened(text, LONGEST_TEXT)), quote=False)
    return wandb.Html(f'<div style="{_STYLE}">{body}</div>', inject=False, data_is_not_path=True)


def histogram_media(histogram: Histogram) -> Any:
    """A distribution from its counts."""
    import wandb

    limits = histogram.bucket_limits
    first = min(histogram.minimum, limits[0])
    edges = np.array([first, *limits], dtype=np.float64)
    if edges[0] == edges[1]:  # a bucket needs a width
        edges[0] = np.nextafter(edges[0], -np.inf)
    return wandb.Histogram(np_histogram=(np.array(histogram.bucket_counts), edges))


def table_media(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    """A table; cells are numbers, truth values or texts."""
    import wandb

    names: list[Any] = [clean(str(column)) for column in columns]
    data: list[Any] = [[_cell(cell) for cell in row] for row in rows[:MOST_TABLE_ROWS]]
    return wandb.Table(columns=names, data=data, allow_mixed_types=True)


def image_media(path: Path) -> Any:
    """A PNG file; without Pillow, which W&B needs for images, as a page."""
    import wandb

    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        encoded = base64.b64encode(path.read_bytes()).decode()
        return wandb.Html(f'<img src="data:image/png;base64,{encoded}">', inject=False, data_is_not_path=True)
    return wandb.Image(str(path), file_type="png")


def embedding_media(embedding: Embedding) -> Any:
    """Points as a table, one column per label and one for the vector, for W&B's projection panel."""
    import wandb

    count = shown_points(embedding)
    labels = embedding.labels
    header: list[Any] = [clean(name) for name in embedding.header] or (["label"] if labels else [])
    data: list[Any] = [
        [*(clean(str(cell)) for cell in (labels[index] if labels else [])), embedding.vectors[index].tolist()]
        for index in range(count)
    ]
    return wandb.Table(columns=[*header, "vector"], data=data, allow_mixed_types=True)


def shown_points(embedding: Embedding) -> int:
    """How many points of an embedding are shown."""
    points, dimensions = embedding.vectors.shape
    return min(points, MOST_POINTS, max(1, _MOST_POINT_NUMBERS // max(1, dimensions)))


def artifact_media(artifact: Artifact, name: str) -> Any:
    """A file or folder as an artifact.

    Raises:
        OSError: It is not there, or cannot be read.
    """
    import wandb

    if not artifact.path.exists():
        raise FileNotFoundError(f"{artifact.path} is gone")
    made = wandb.Artifact(name, type=artifact.type or "file", metadata=config_values(artifact.metadata))
    if artifact.path.is_dir():
        made.add_dir(str(artifact.path))
    else:
        made.add_file(str(artifact.path))
    return made


def config_values(value: Any) -> Any:
    """A configuration as W&B can hold it: keys are texts, and a number that JSON lacks is a text."""
    if isinstance(value, Mapping):
        return {_config_key(key): config_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [config_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return clean(str(value))


def is_held(sent: Any, held: Any) -> bool:
    """Whether a configuration that was sent is what the server holds, as exactly as JSON numbers can tell."""
    if isinstance(sent, Mapping):
        return isinstance(held, Mapping) and all(key in held and is_held(sent[key], held[key]) for key in sent)
    if isinstance(sent, bool) or sent is None or isinstance(sent, str):
        return sent == held
    if isinstance(sent, int | float):
        return isinstance(held, int | float) and math.isclose(sent, held, rel_tol=1e-6)
    return held is not None


def _config_key(key: Any) -> str:
    text = clean(str(key))
    return "wandb" if text == "_wandb" else text


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return clean(shortened(text, LONGEST_CELL))
