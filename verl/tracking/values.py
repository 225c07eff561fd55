"""Turn whatever a user logs (Python, numpy or torch numbers and arrays) into plain floats and numpy arrays.

Nothing here imports torch: tensors are known by what they can do.
"""

from __future__ import annotations

from typing import Any, Protocol, SupportsFloat, runtime_checkable

import numpy as np


@runtime_checkable
class _HasItem(Protocol):
    """A numpy scalar, array or torch tensor."""

    def item(self) -> Any: ...


@runtime_checkable
class _Tensor(Protocol):
    """A torch tensor, perhaps on a GPU, in a type that numpy lacks, or part of a graph."""

    def detach(self) -> Any: ...
    def cpu(self) -> Any: ...
    def float(self) -> Any: ...


def as_float(key: object, value: object) -> float:
    """Turn one value into a float; NaN and infinities stay.

    Args:
        key: Name of the metric, for the message.
        value: A float, int, bool, or a numpy or torch value with exactly one element.

    Raises:
        TypeError: It is anything else; the message names key and type.
    """
    if isinstance(value, float | int):
        return _finite_or_infinite(value)
    number: object = value
    if isinstance(value, _HasItem):
        try:
            number = value.item()
        except (ValueError, RuntimeError, TypeError):
            raise _not_a_number(key, value) from None
    if isinstance(number, complex) or not isinstance(number, SupportsFloat):
        raise _not_a_number(key, value)
    try:
        return float(number)
    except (TypeError, ValueError, OverflowError):
        raise _not_a_number(key, value) from None


def _finite_or_infinite(value: float | int) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond 1.8e308
        return float("inf") if value > 0 else float("-inf")


def _not_a_number(key: object, value: object) -> TypeError:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, np.ndarray) else ""
    return TypeError(
        f"metric {key!r} got a {name}{shape}; allowed: a float, int or bool, or a numpy or torch value with one element"
    )


def as_array(values: Any) -> np.ndarray:
    """Turn an array, tensor or (nested) sequence of numbers into a numpy array.

    Args:
        values: Anything numpy takes, a torch tensor on any device and of any type, or a list of such.

    Raises:
        TypeError: It holds something that is not a number, or rows of unequal length.
    """
    if isinstance(values, _Tensor):
        values = _tensor_to_numpy(values)
    elif isinstance(values, list | tuple) and values and isinstance(values[0], _Tensor):
        values = [_tensor_to_numpy(value) if isinstance(value, _Tensor) else value for value in values]
    try:
        array = np.asarray(values)
    except ValueError:
        raise TypeError("expected an array of numbers, got rows of unequal length") from None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"expected an array of numbers, got {type(values).__qualname__} (numpy type {array.dtype})")
    return array


def _tensor_to_numpy(tensor: _Tensor) -> np.ndarray:
    plain = tensor.detach().cpu()
    try:
        return np.asarray(plain)
    except (TypeError, RuntimeError):  # bfloat16 and 8-bit floats have no numpy type
        return np.asarray(plain.float())
