from __future__ import annotations

import subprocess
import sys

import verl.journal

HEAVY = ("torch", "transformers", "tensorboard", "pandas", "pyarrow", "wandb", "mlflow", "swanlab")


def test_importing_the_journal_is_light() -> None:
    script = f"import sys, verl.journal; print([name for name in {HEAVY} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_public_names_exist() -> None:
    assert verl.journal.__all__ == sorted(verl.journal.__all__, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(verl.journal, name) for name in verl.journal.__all__)
