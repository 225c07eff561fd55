"""Count values into buckets on the training side, so that only counts travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from verl.tracking.logger import Histogram
from verl.tracking.values import as_array

DEFAULT_BUCKETS = 64
_LARGEST_COUNTED_SINGLY = 1e9
MOST_BUCKETS = 512
"""Trackers show no more; a finer request is cut to this many."""


def make_histogram(values: Any, bins: int | str | Sequence[float] | None = None) -> tuple[Histogram | None, int]:
    """Count the finite values of an array into buckets.

    Args:
        values: Numbers of any shape (array, tensor on any device, list).
        bins: Number of equal buckets, a rule of `numpy.histogram_bin_edges` ("auto", "fd", ...), rising edges,
            "tensorflow" (TensorBoard's old exponential buckets), or None: one bucket per whole number where
            the values are whole and lie close together, else 64 equal buckets.

    Returns:
        The histogram, or None without a single finite value, and how many values were not finite.

    Raises:
        TypeError: `values` are not numbers.
        ValueError: `bins` is none of the above.
    """
    numbers = as_array(values).ravel().astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    excluded = numbers.size - finite.size
    if finite.size == 0:
        return None, excluded
    edges = _edges(finite, bins)
    if bins == "tensorflow" or not isinstance(bins, str | int | None):
        finite = finite.clip(edges[0], edges[-1])  # counted at the border rather than lost
    counts, edges = np.histogram(finite, edges)
    used = np.flatnonzero(counts)
    first, last = int(used[0]), int(used[-1])
    # What is counted may have been clipped, what is described is not.
    described = numbers[np.isfinite(numbers)]
    return Histogram(
        minimum=float(described.min()),
        maximum=float(described.max()),
        count=int(described.size),
        sum=float(described.sum()),
        sum_squares=float(np.square(described).sum()),
        bucket_limits=edges[first + 1 : last + 2].tolist(),
        bucket_counts=counts[first : last + 1].astype(np.float64).tolist(),
    ), excluded


def _edges(finite: np.ndarray, bins: int | str | Sequence[float] | None) -> np.ndarray:
    low, high = float(finite.min()), float(finite.max())
    if bins is None:
        is_close = high - low < DEFAULT_BUCKETS and max(abs(low), abs(high)) < _LARGEST_COUNTED_SINGLY
        if is_close and np.array_equal(finite, np.rint(finite)):
            return np.arange(low - 0.5, high + 1.0)
        return _equal_buckets(low, high, DEFAULT_BUCKETS)
    if isinstance(bins, str):
        return _exponential_edges() if bins == "tensorflow" else _edges_by_rule(finite, bins)
    if isinstance(bins, int):
        if bins < 1:
            raise ValueError(f"bins={bins}: a histogram has at least one bucket")
        return _equal_buckets(low, high, min(bins, MOST_BUCKETS))
    edges = as_array(bins).astype(np.float64)
    if edges.ndim != 1 or edges.size < 2 or not (np.diff(edges) > 0).all():
        raise ValueError("bins as edges: at least two numbers, each larger than the one before")
    return edges


def _equal_buckets(low: float, high: float, count: int) -> np.ndarray:
    if not np.isfinite(high - low):  # the span itself overflows
        return np.linspace(low / 2, high / 2, count + 1) * 2
    edges = np.linspace(low, high, count + 1)
    if (np.diff(edges) > 0).all():
        return edges
    # All values equal, or closer than floats can divide.
    width = max(abs(low), 1.0) * 1e-3
    return np.array([low - width, max(high, np.nextafter(low, np.inf)) + width])


def _edges_by_rule(finite: np.ndarray, rule: str) -> np.ndarray:
    try:
        np.histogram_bin_edges(np.arange(3.0), rule)
    except ValueError as error:
        raise ValueError(f"bins={rule!r}: {error}; allowed: a number, edges, 'tensorflow', 'auto', 'fd', ...") from None
    try:
        edges = np.histogram_bin_edges(finite, rule)
    except (ValueError, MemoryError):  # closer than floats can divide, or far too many buckets
        edges = None
    if edges is None or edges.size > MOST_BUCKETS + 1 or not (np.diff(edges) > 0).all():
        return _equal_buckets(float(finite.min()), float(finite.max()), MOST_BUCKETS)
    return edges


def _exponential_edges() -> np.ndarray:
    """Buckets that grow by a tenth from 1e-12 to 1e20, mirrored below zero (TensorBoard's first default)."""
    positive = 1e-12 * 1.1 ** np.arange(774)
    return np.concatenate([-positive[::-1], [0.0], positive])
