"""Slow reference in plain Python floats, written from the formulas and not from `verl.algorithms`.

Masked positions are dropped first, so nothing that stands there can matter.
"""

from __future__ import annotations

import math
import statistics as python_statistics
from collections.abc import Sequence


def kept(row: Sequence[float], mask: Sequence[int]) -> list[float]:
    return [value for value, keep in zip(row, mask, strict=True) if keep]


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float, last_value: float) -> list[float]:
    """A_t = sum_k (gamma lam)^k delta_{t+k}, straight from equation 16 of arXiv:1506.02438."""
    next_values = [*values, last_value][1:]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, next_values, values, strict=True)]
    return [math.fsum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


def grpo(rewards: Sequence[float], groups: Sequence[int], norm_by_std: bool, epsilon: float) -> list[float]:
    advantages = []
    for reward, group in zip(rewards, groups, strict=True):
        members = [r for r, g in zip(rewards, groups, strict=True) if g == group]
        deviation = reward - math.fsum(members) / len(members)
        std = python_statistics.stdev(members) if len(members) > 1 else 0.0
        advantages.append(deviation / (std + epsilon) if norm_by_std else deviation)
    return advantages


def ppo(ell: float, advantage: float, low: float, high: float, dual: float | None) -> float:
    ratio = math.exp(ell)
    objective = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if dual is not None and advantage < 0:
        objective = max(objective, dual * advantage)
    return -objective


def value(new: float, old: float, target: float, clip: float | None) -> float:
    if clip is None:
        return (new - target) ** 2 / 2
    near_old = max(old - clip, min(old + clip, new))
    return max((new - target) ** 2, (near_old - target) ** 2) / 2


def aggregate(losses: Sequence[Sequence[float]], mode: str, scale_length: int) -> float:
    """`losses` holds the trainable tokens of each sequence only."""
    sequences = [row for row in losses if row]
    if not sequences:
        return 0.0
    if mode == "token-mean":
        tokens = [loss for row in sequences for loss in row]
        return math.fsum(tokens) / len(tokens)
    per_sequence = {
        "seq-mean-token-mean": lambda row: math.fsum(row) / len(row),
        "seq-mean-token-sum": lambda row: math.fsum(row),
        "seq-mean-token-sum-norm": lambda row: math.fsum(row) / scale_length,
    }[mode]
    return math.fsum(per_sequence(row) for row in sequences) / len(sequences)


def softmax(logits: Sequence[float]) -> list[float]:
    largest = max(logits)
    weights = [math.exp(z - largest) for z in logits]
    return [w / math.fsum(weights) for w in weights]
