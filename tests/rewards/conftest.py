from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl.rewards import RewardInput

MakeSample = Callable[..., RewardInput]


@pytest.fixture
def sample() -> MakeSample:
    """Makes one sample; keywords replace single fields."""

    def make(**fields: Any) -> RewardInput:
        given: dict[str, Any] = {
            "index": 17,
            "data_source": "sums",
            "messages": [{"role": "user", "content": "2+2?"}],
            "prompt": "<u>2+2?\n<a>",
            "response": "It is 4.",
            "finish_reason": "stop",
            "ground_truth": "4",
            "extra_info": {"level": 1},
        }
        return RewardInput(**{**given, **fields})

    return make


@pytest.fixture
def write_code(tmp_path: Path) -> Callable[..., Path]:
    def write(code: str, name: str = "my_reward.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        return path

    return write
