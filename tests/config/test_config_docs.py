"""The generated parts of the docs are up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_configuration_page_has_all_its_generated_parts() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for name in ("keys", "recipes", "aliases", "environment"):
        assert page.count(f"<!-- generated: configuration {name} -->") == 1
        assert page.count(f"<!-- end of generated: configuration {name} -->") == 1
