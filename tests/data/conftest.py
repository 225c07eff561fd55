from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerFast

from verl.testing.models import tiny_tokenizer

WriteRows = Callable[[str, Sequence[dict[str, Any]]], Path]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """One token per character; the template renders <u>text, a line break, and <a> at the end."""
    return tiny_tokenizer()


@pytest.fixture
def plain_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    return tokenizer


@pytest.fixture
def write_rows(tmp_path: Path) -> WriteRows:
    """Writes rows as JSONL or Parquet, by the extension of the name."""

    def write(name: str, rows: Sequence[dict[str, Any]]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(list(rows)), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
