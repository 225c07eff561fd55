"""The order of the prompts: a pure function of the step, so resuming needs no sampler state.

Prompts form one endless stream, epoch after epoch; each epoch holds every prompt exactly once and a
batch is the next `batch_size` prompts of the stream. Batches therefore cross epoch borders: nothing
is dropped and all batches are full. A batch that crosses a border (or is larger than the data set)
can hold the same prompt twice; group samples by their place in the batch, not by prompt.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_UINT64 = 2**64 - 1


def epoch_order(num_prompts: int, epoch: int, seed: int, shuffle: bool) -> np.ndarray:
    """Gives the order of the prompts within one epoch.

    Sorts raw 64-bit words of the counter-based Philox generator (Salmon et al. 2011) keyed by
    (seed, epoch): NumPy fixes that stream for good, unlike `Generator.permutation`, so the order is
    the same under every NumPy version.

    Returns:
        A permutation of range(num_prompts), shape (num_prompts,), int64.
    """
    if not shuffle:
        return np.arange(num_prompts, dtype=np.int64)
    key = np.array([seed & _UINT64, epoch], dtype=np.uint64)
    words = np.random.Philox(key=key).random_raw(num_prompts)
    return np.argsort(words, kind="stable")


def batch_indices(num_prompts: int, batch_size: int, step: int, seed: int, shuffle: bool) -> tuple[int, list[int]]:
    """Gives the prompts of one batch.

    Args:
        num_prompts: Size of the data set, at least 1.
        batch_size: Prompts per batch, at least 1; may exceed `num_prompts` (prompts then repeat).
        step: Batches drawn before this one: 0 for the first.
        seed: Any integer; two seeds give unrelated orders.
        shuffle: Whether each epoch has its own order; otherwise the order of the file.

    Returns:
        The epoch (from 0) of the first prompt in the batch, and `batch_size` indices.

    Raises:
        ValueError: A count is below 1 or the step is negative.
    """
    if num_prompts < 1 or batch_size < 1 or step < 0:
        raise ValueError(
            f"num_prompts={num_prompts}, batch_size={batch_size}, step={step}: "
            "the first two must be at least 1, the step at least 0"
        )
    begin = step * batch_size
    end = begin + batch_size
    indices: list[int] = []
    for epoch in range(begin // num_prompts, (end - 1) // num_prompts + 1):
        first = epoch * num_prompts
        order = epoch_order(num_prompts, epoch, seed, shuffle)
        indices += order[max(begin - first, 0) : end - first].tolist()
    return begin // num_prompts, indices


def num_steps(num_prompts: int, batch_size: int, epochs: int) -> int:
    """Counts the batches after which every prompt was drawn at least `epochs` times."""
    return -(-num_prompts * epochs // batch_size)


def steps_per_epoch(num_prompts: int, batch_size: int) -> int:
    """Counts the batches of one pass, rounded up; for several passes use `num_steps` (batches cross epoch borders)."""
    return num_steps(num_prompts, batch_size, epochs=1)


def ordered_batches(num_prompts: int, batch_size: int | None) -> Iterator[range]:
    """Splits a data set into batches in its own order, each prompt once (validation).

    Args:
        batch_size: Prompts per batch (the last may be smaller); None = one batch with all.
    """
    size = num_prompts if batch_size is None else batch_size
    for begin in range(0, num_prompts, max(size, 1)):
        yield range(begin, min(begin + size, num_prompts))
