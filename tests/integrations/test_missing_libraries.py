"""An integration without its library says in one sentence what to install; `import verl` needs none of them."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "libraries"),
    [("transformers_callback", ["transformers"]), ("lightning_logger", ["lightning", "pytorch_lightning"])],
)
def test_a_missing_library_is_one_sentence(module: str, libraries: list[str]) -> None:
    program = f"import sys\nfor name in {libraries}: sys.modules[name] = None\nimport verl.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: verl.integrations.{module} needs ")
    assert f"pip install {libraries[0]}" in done.stderr.splitlines()[-1]


def test_the_logger_takes_the_package_pytorch_lightning_where_lightning_is_not() -> None:
    pytest.importorskip("pytorch_lightning")
    program = (
        "import sys; sys.modules['lightning'] = None\n"
        "from verl.integrations.lightning_logger import VerlLogger\n"
        "from pytorch_lightning.loggers import Logger\n"
        "assert issubclass(VerlLogger, Logger)"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True)
