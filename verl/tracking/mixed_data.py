"""Sort what a user logs in one dictionary by what it is: numbers, texts, distributions, and the rest.

sort_data({"loss": 0.3, "eval": {"acc": 0.5}, "sample": "2+2=4", "lengths": [3, 5, 4]})
# numbers {"loss": 0.3, "eval/acc": 0.5}, texts {"sample": "2+2=4"}, distributions {"lengths": [3, 5, 4]}
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verl.tracking.values import as_array

log = logging.getLogger("verl.tracking")

MAX_DEPTH = 20
"""Levels of nested dictionaries that are flattened; deeper ones are not logged."""


@dataclass(slots=True)
class SortedData:
    """The values of one dictionary.

    Attributes:
        numbers: What is one number, and whatever is nothing of the others (to be refused with a warning).
        texts: Texts.
        distributions: Arrays, tensors and lists of several numbers.
        images: Images of Pillow, as arrays of bytes (height, width, 3).
    """

    numbers: dict[Any, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    distributions: dict[str, np.ndarray] = field(default_factory=dict)
    images: dict[str, np.ndarray] = field(default_factory=dict)


def sort_data(data: Mapping[Any, Any]) -> SortedData:
    """Sort values by kind; nested dictionaries become keys with `/`.

    Never raises: what is nothing that can be logged stays among the numbers, where it is refused by name.
    """
    found = SortedData()
    _sort_into(found, data, "", ())
    return found


def _sort_into(found: SortedData, data: Mapping[Any, Any], prefix: str, above: tuple[int, ...]) -> None:
    above = (*above, id(data))
    for name, value in data.items():
        key = f"{prefix}{name}" if prefix else name
        if isinstance(value, float | int):
            found.numbers[key] = value
        elif isinstance(value, str):
            found.texts[key] = value
        elif isinstance(value, Mapping) and len(above) <= MAX_DEPTH and id(value) not in above:
            _sort_into(found, value, f"{key}/", above)
        elif (image := _pillow_image(value)) is not None:
            found.images[key] = image
        elif (array := _numbers(value)) is not None:
            if array.size == 1:
                found.numbers[key] = array.item()
            else:
                found.distributions[key] = array
        elif _is_list_of_texts(value):
            found.texts[key] = "\n\n".join(value)
        else:
            found.numbers[key] = value


def _numbers(value: Any) -> np.ndarray | None:
    if not (isinstance(value, list | tuple) or hasattr(value, "shape")):
        return None
    try:
        return as_array(value)
    except Exception as error:  # whatever a value does when it is looked at, it is refused by name later
        log.debug("not taken as numbers: %s", type(error).__name__)
        return None


def _pillow_image(value: Any) -> np.ndarray | None:
    if not type(value).__module__.startswith("PIL."):
        return None
    try:
        return np.asarray(value.convert("RGB"))
    except (AttributeError, OSError, ValueError, TypeError):  # no image, or one whose file is gone
        return None


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(item, str) for item in value)
