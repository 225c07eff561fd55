import pytest

from verl.testing.models import ARCHITECTURES, load_tiny_policy


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory):
    """Policy and tokenizer per architecture; tests must not change the weights."""
    folder = tmp_path_factory.mktemp("policies")
    return {name: load_tiny_policy(folder / name, name) for name in ARCHITECTURES}
