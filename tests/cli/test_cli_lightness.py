"""What is loaded when: help and version answer without pydantic, a configuration is read without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers")


def loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that are loaded after `code` in a fresh process."""
    report = "import sys; sys.stderr.write('\\nMODULES ' + ' '.join(sys.modules))"
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit: pass\n{report}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = done.stderr.rpartition("MODULES ")[2].split()
    assert "sys" in modules
    return {name.partition(".")[0] for name in modules}


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_by("import verl") & {*HEAVY, "pydantic", "omegaconf", "numpy", "yaml"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"], ["export", "--help"], ["nope"]])
def test_help_and_version_load_no_schema(arguments: list[str]) -> None:
    loaded = loaded_by(f"from verl.cli.main import main; main({arguments!r})")
    assert not loaded & {*HEAVY, "pydantic", "omegaconf", "yaml", "numpy", "rich"}


def test_the_environment_is_read_without_the_schema() -> None:
    assert not loaded_by("from verl.config import process_rank, resolve_log_dir") & {*HEAVY, "pydantic", "omegaconf"}


@pytest.mark.parametrize(
    "code",
    [
        "from verl.trainer.ppo_config import PPOConfig; PPOConfig(total_steps=3)",
        "from verl.cli.main import main; main(['config'])",
        "from verl.cli.main import main; main(['train', 'trainer.sede=1'])",
        "from verl.cli.main import main; main(['metrics'])",
    ],
)
def test_configurations_are_made_without_torch(code: str) -> None:
    assert not loaded_by(code) & set(HEAVY)


def test_python_code_needs_no_omegaconf() -> None:
    assert "omegaconf" not in loaded_by("from verl.trainer.ppo_config import PPOConfig; PPOConfig(total_steps=3)")
