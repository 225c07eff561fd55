from __future__ import annotations

import re
from pathlib import Path

from verl.config.schema import DataConfig
from verl.data.files import SUFFIXES
from verl.data.rows import GROUND_TRUTH_COLUMNS, MEDIA_COLUMNS, OTHER_COLUMNS, ROLES

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    exec(compile(code, "docs/data.md", "exec"), {"__name__": "docs"})


def test_the_page_names_all_columns_roles_policies_and_keys_that_exist():
    for name in (*ROLES, *GROUND_TRUTH_COLUMNS, *OTHER_COLUMNS, *MEDIA_COLUMNS):
        assert f"`{name}`" in PAGE
    for policy in ("error", "drop", "truncate_left", "truncate_right"):
        assert f"| `{policy}` |" in PAGE
    assert all(suffix.removeprefix(".") in PAGE.lower() for suffix in SUFFIXES)
    assert set(re.findall(r"`data\.(\w+)", PAGE)) <= set(DataConfig.model_fields)
