"""The values of this package: a prompt, and the data set that holds many of them compactly."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np


@dataclass(frozen=True, slots=True)
class Row:
    """One well-formed row of a data file, before tokenization.

    Attributes:
        file: File as the user would name it, or "built-in".
        place: Where in that file: "line 3" (JSONL) or "row 2 (counted from 0)" (Parquet).
        messages: Chat messages; a plain text prompt is one user message.
    """

    file: str
    place: str
    messages: list[dict[str, Any]]
    data_source: str
    ground_truth: Any
    extra_info: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as the policy sees it.

    Example: `Prompt(index=0, data_source="stocks", messages=[{"role": "user", "content": "Up?"}],
    ids=[1, 5, 9], text="<user>Up?<assistant>", ground_truth="up", extra_info={})`.

    Attributes:
        index: Position in its `PromptDataset` (`dataset[i].index == i`).
        data_source: Where it comes from; validation metrics are grouped by it.
        messages: Chat messages, without the response.
        ids: Token ids of the rendered prompt.
        text: The rendered prompt, as the ids spell it.
        ground_truth: What the reward compares with; None if the file has none.
        extra_info: Further fields of the row, for reward functions.
    """

    index: int
    data_source: str
    messages: list[dict[str, Any]]
    ids: list[int]
    text: str
    ground_truth: Any
    extra_info: dict[str, Any]


class PromptDataset(Sequence[Prompt]):
    """An immutable list of prompts; token ids are kept in one flat array.

    Args:
        ids: Token ids per row, one int32 array each.

    Attributes:
        notices: Sentences the user should see once (a built-in default, prompts dropped, ...).
        warnings: Sentences on data that was asked for and not used (bad rows that were skipped).
    """

    def __init__(
        self,
        rows: Sequence[Row],
        ids: Sequence[np.ndarray],
        texts: Sequence[str],
        notices: Sequence[str] = (),
        warnings: Sequence[str] = (),
    ) -> None:
        if not len(rows) == len(ids) == len(texts):
            raise ValueError(f"{len(rows)} rows, {len(ids)} id lists and {len(texts)} texts: the counts must be equal")
        self._rows = tuple(rows)
        self._texts = tuple(texts)
        self._ends = np.cumsum([len(row_ids) for row_ids in ids], dtype=np.int64)
        self._flat_ids = np.concatenate([*ids, np.empty(0, np.int32)], dtype=np.int32)
        self.notices = tuple(notices)
        self.warnings = tuple(warnings)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        row = self._rows[position]
        return Prompt(
            index=position,
            data_source=row.data_source,
            messages=row.messages,
            ids=self._ids_of(position).tolist(),
            text=self._texts[position],
            ground_truth=row.ground_truth,
            extra_info=row.extra_info,
        )

    def __iter__(self) -> Iterator[Prompt]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"PromptDataset({len(self)} prompts, {self.counts})"

    def _ids_of(self, position: int) -> np.ndarray:
        begin = int(self._ends[position - 1]) if position else 0
        return self._flat_ids[begin : int(self._ends[position])]

    @property
    def counts(self) -> dict[str, int]:
        """Prompts per data source, in order of first appearance."""
        return dict(Counter(row.data_source for row in self._rows))

    @property
    def has_ground_truth(self) -> bool:
        """Whether every prompt has a ground truth."""
        return all(row.ground_truth is not None for row in self._rows)

    @property
    def lengths(self) -> np.ndarray:
        """Prompt lengths in tokens, shape (num_prompts,)."""
        return np.diff(self._ends, prepend=0)

    def origin(self, index: int) -> str:
        """Names file and row of a prompt, for messages: `train.jsonl, line 3`."""
        row = self._rows[index]
        return f"{row.file}, {row.place}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the content in its order: messages, sources, ground truths, extra fields, token ids."""
        digest = hashlib.sha256()
        for row in self._rows:
            content = [row.messages, row.data_source, row.ground_truth, row.extra_info]
            digest.update(json.dumps(content, sort_keys=True, default=repr).encode())
            digest.update(b"\n")
        digest.update(self._ends.astype("<i8", copy=False).data)
        digest.update(self._flat_ids.astype("<i4", copy=False).data)
        return digest.hexdigest()
