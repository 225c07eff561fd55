from __future__ import annotations

import re
import sys
from pathlib import Path

import yaml

from verl.config.schema import RewardConfig
from verl.rewards.functions import OFFERED

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    exec(compile(code, "docs/rewards.md", "exec"), {"__name__": "docs"})


def test_the_configuration_of_the_page_is_valid():
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert RewardConfig.model_validate(yaml.safe_load(block)["reward"]).num_workers == 4


def test_the_page_lists_exactly_the_arguments_that_are_offered():
    table = PAGE.split("| argument |")[1].split("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)) == OFFERED
