"""Pictures as MLflow's interface shows them over the steps, and distributions drawn as such."""

from __future__ import annotations

import io
import itertools
import logging
import uuid
from typing import Any

from verl.tracking.logger import Histogram

log = logging.getLogger("verl.tracking")

IMAGES = "images"
_PREVIEW_PIXELS = 256
_WIDTH, _HEIGHT, _MARGIN, _LABEL = 640, 360, 24, 22
_BLUE, _GREY = (31, 119, 180), (90, 90, 90)


def image_file(run_id: str, key: str, step: int, time_ms: int) -> str:
    """Path, without its ending, of an image as MLflow names it (`MlflowClient.log_image`).

    MLflow draws a random part of the name; here it follows from what the image is, so that the same image sent again
    is the same file.
    """
    name = f"{key.replace('/', '~')}+step+{step}+timestamp+{time_ms}"
    return f"{IMAGES}/{name}+{uuid.uuid5(uuid.NAMESPACE_URL, f'verl:{run_id}/{name}')}"


def preview(png: bytes) -> bytes | None:
    """A small WebP of a PNG, which MLflow's image grid loads first; nothing if it cannot be made."""
    try:
        from PIL import Image

        image = Image.open(io.BytesIO(png))
        image.thumbnail((_PREVIEW_PIXELS, _PREVIEW_PIXELS))
        file = io.BytesIO()
        image.save(file, "WEBP")
    except (ImportError, OSError, ValueError) as error:
        log.debug("mlflow: no preview of an image: %s", error)
        return None
    return file.getvalue()


def histogram_facts(histogram: Histogram) -> dict[str, Any]:
    """A distribution in numbers: edges and counts, and what they add up to."""
    mean, deviation = _mean_and_deviation(histogram)
    return {
        "count": histogram.count,
        "min": histogram.minimum,
        "max": histogram.maximum,
        "mean": mean,
        "standard_deviation": deviation,
        "sum": histogram.sum,
        "sum_squares": histogram.sum_squares,
        "edges": [histogram.minimum, *histogram.bucket_limits],
        "counts": list(histogram.bucket_counts),
    }


def _mean_and_deviation(histogram: Histogram) -> tuple[float, float]:
    count = max(histogram.count, 1)
    mean = histogram.sum / count
    return mean, max(histogram.sum_squares / count - mean * mean, 0.0) ** 0.5


def draw_histogram(tag: str, histogram: Histogram, step: int) -> bytes | None:
    """A distribution as PNG: bars as wide as their buckets; nothing without an imaging package."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        log.debug("mlflow: a histogram is not drawn: %s", error)
        return None
    image = Image.new("RGB", (_WIDTH, _HEIGHT), "white")
    draw = ImageDraw.Draw(image)
    bottom = _HEIGHT - _MARGIN - _LABEL
    for left, right, height in _bars(histogram, bottom - 2 * _MARGIN):
        draw.rectangle((left, bottom - height, max(right - 1, left), bottom), fill=_BLUE)
    draw.line((_MARGIN, bottom, _WIDTH - _MARGIN, bottom), fill=_GREY)
    mean, deviation = _mean_and_deviation(histogram)
    heading = f"{tag.encode('ascii', 'replace').decode()}, step {step}: {histogram.count} values"
    draw.text((_MARGIN, 6), heading, fill="black")
    draw.text((_MARGIN, 22), f"mean {mean:.4g}, standard deviation {deviation:.4g}", fill=_GREY)
    draw.text((_MARGIN, bottom + 6), f"{histogram.minimum:.4g}", fill=_GREY)
    draw.text((_WIDTH - _MARGIN, bottom + 6), f"{histogram.maximum:.4g}", fill=_GREY, anchor="ra")
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def _bars(histogram: Histogram, height: int) -> list[tuple[int, int, int]]:
    """Left, right and height of each bar, in pixels; a bucket's area stands for its count."""
    edges = [histogram.minimum, *histogram.bucket_limits]
    # By halves, for the span of two large numbers may overflow.
    low, span = edges[0] / 2, (edges[-1] / 2 - edges[0] / 2) or 1.0
    places = [_MARGIN + round((edge / 2 - low) / span * (_WIDTH - 2 * _MARGIN)) for edge in edges]
    widths = [max((right / 2 - left / 2) / span, 1e-9) for left, right in itertools.pairwise(edges)]
    densities = [count / width for count, width in zip(histogram.bucket_counts, widths, strict=True)]
    tallest = max(densities, default=0.0) or 1.0
    heights = [round(density / tallest * height) for density in densities]
    return list(zip(places[:-1], places[1:], heights, strict=True))
