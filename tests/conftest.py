"""What many tests share: one tiny model folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from verl.testing.models import make_tiny_model_folder

# A busy machine is no failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of some 30 thousand parameters with its tokenizer."""
    return make_tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny", seed=1)
