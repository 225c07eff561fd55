from __future__ import annotations

import re
from pathlib import Path

import pytest

from verl.journal import Kind
from verl.journal.records import decode

PAGE = (Path(__file__).parents[2] / "docs" / "journal.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_code_block_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert len(blocks("python")) == 4
    for block in blocks("python"):
        exec(compile(block, "docs/journal.md", "exec"), names)
    assert capsys.readouterr().out.splitlines()[:4] == ["1 metrics 1", "2 metrics 2", "3 metrics 3", "4 text 3"]


def test_the_example_line_is_a_record() -> None:
    assert decode(blocks("json")[0].encode()).fields == {"metrics": {"loss/policy_loss": 0.031}}


def test_every_kind_is_documented() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(Kind)
