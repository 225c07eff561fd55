"""The pages on tracking cannot lie: their code runs, and their table is made from the trackers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from verl.journal import JournalReader, RunDirectory
from verl.tracking import Tracking
from verl.tracking.writer import Writer

PAGE = Path(__file__).parents[2] / "docs" / "tracking.md"


def snippet(name: str) -> str:
    found = re.search(rf"<!-- tested: {name} -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_a_loop_of_ones_own_works_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VERL_LOG_DIR", str(tmp_path / "run"))
    exec(compile(snippet("own loop"), "tracking.md", "exec"), {})
    series = JournalReader(tmp_path / "run").metrics()["loss"]
    assert series.values.tolist() == [0.35, 0.35, 0.35]  # (0.5 * 8 + 0.3 * 24) / 32
    assert "step 3/3  loss 0.35" in capsys.readouterr().out
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))


def test_a_tracker_of_ones_own_works_as_written_and_is_short(tmp_path: Path) -> None:
    code = snippet("own tracker")
    assert len([line for line in code.partition("class")[2].splitlines() if line.strip()]) <= 15
    names: dict[str, Any] = {}
    exec(compile(code, "tracking.md", "exec"), names)
    with Tracking("p", "e", [names["CsvLogger"]], {"lr": 1}, log_dir=str(tmp_path)) as tracking:
        tracking.log_metrics({"loss": 0.5}, 3)
        tracking.log_text("t", "x", 3)
    config, row = (tmp_path / "metrics.csv").read_text().splitlines()
    assert config == "# {'lr': 1}"
    assert row.endswith(",3,loss,0.5")
    assert RunDirectory.open(tmp_path).status == "finished"


def test_methods_that_are_not_shown_are_named() -> None:
    page = PAGE.read_text(encoding="utf-8")
    not_shown = {name for name, method in vars(Writer).items() if (method.__doc__ or "").startswith("Not recorded")}
    assert len(not_shown) == 11
    for name in not_shown - {"add_pr_curve_raw"}:
        assert name.removesuffix("_multilinechart").removesuffix("_marginchart") in page
