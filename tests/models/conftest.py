from pathlib import Path

import pytest

from verl.models.policy import PolicyModel
from verl.testing.models import ARCHITECTURES, load_tiny_policy, make_tiny_model_folder


@pytest.fixture(scope="session")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PolicyModel]:
    """One tiny policy per architecture; tests must not change their weights."""
    folder = tmp_path_factory.mktemp("policies")
    return {name: load_tiny_policy(folder / name, name)[0] for name in ARCHITECTURES}


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return make_tiny_model_folder(tmp_path / "model")
