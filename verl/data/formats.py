"""Reading one file row by row: Parquet in batches, JSONL line by line, never the whole file at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from verl.data.rows import GROUND_TRUTH_COLUMNS, MEDIA_COLUMNS, OTHER_COLUMNS, BadRowError, missing_column, shorten
from verl.errors import DataError

RawRow = tuple[str, Mapping[str, Any] | BadRowError]
"""Place of a row in its file, and its columns or the reason why it cannot be read."""

_BATCH_ROWS = 2048
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def read_parquet(path: Path, prompt_key: str) -> Iterator[RawRow]:
    """Yields the rows of a Parquet file; only the columns that are used are read.

    Raises:
        DataError: The file is not readable as Parquet, or has no prompt column.
    """
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if prompt_key not in names:
                raise DataError(f"{path}: {missing_column(prompt_key, names)}")
            wanted = {prompt_key, *GROUND_TRUTH_COLUMNS, *OTHER_COLUMNS}
            columns = [name for name in names if name in wanted]
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                for row in _batch_rows(batch):
                    yield f"row {number} (counted from 0)", row
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} cannot be read as Parquet: {_first_line(error)}\n"
            "The file may be cut off or of another format; write it again, or check its first and last four bytes "
            "(PAR1 in every Parquet file)."
        ) from error


def _batch_rows(batch: pa.RecordBatch) -> Iterator[Mapping[str, Any] | BadRowError]:
    try:
        yield from batch.to_pylist(maps_as_pydicts="lossy")
    except UnicodeDecodeError:  # raised before the first row is given, so no row comes twice
        for number in range(batch.num_rows):
            try:
                yield batch.slice(number, 1).to_pylist(maps_as_pydicts="lossy")[0]
            except UnicodeDecodeError as error:
                yield BadRowError(
                    f"a text is not UTF-8: byte 0x{error.object[error.start]:02x} in {error.object[:40]!r}"
                )


def parquet_columns(path: Path) -> list[str]:
    """Names the columns of a Parquet file (the file is known to be readable)."""
    return pq.read_schema(path).names


def read_jsonl(path: Path) -> Iterator[RawRow]:
    """Yields the rows of a JSONL file; blank lines are passed over.

    Raises:
        DataError: The file cannot be opened, or is not UTF-8 as a whole.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = _without_mark(path, line)
                line = line.strip()
                if line:
                    yield f"line {number}", _parse_line(line)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def unused_media(columns: Mapping[str, Any] | list[str]) -> list[str]:
    """Names the columns with images, videos or sound: they are not used."""
    return [name for name in MEDIA_COLUMNS if name in columns]


def _without_mark(path: Path, line: bytes) -> bytes:
    if line.startswith(_UTF16_MARKS):
        raise DataError(f"{path} is UTF-16 text; JSONL must be UTF-8. Convert it: iconv -f UTF-16 -t UTF-8")
    return line.removeprefix(_UTF8_MARK)


def _parse_line(line: bytes) -> Mapping[str, Any] | BadRowError:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRowError(f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start} of the line")
    except json.JSONDecodeError as error:
        return BadRowError(f"malformed JSON at character {error.pos}: {error.msg}; the line: {_show(line)}")
    except RecursionError:
        return BadRowError(f"malformed JSON: nested too deeply; the line: {_show(line)}")
    except ValueError as error:  # an integer of thousands of digits
        return BadRowError(f"malformed JSON: {error}; the line: {_show(line)}")
    if b"\\u" in line and (half := _half_of_a_pair(value)):
        return BadRowError(f"half of a surrogate pair ({half!a}), which is not valid Unicode; the line: {_show(line)}")
    if not isinstance(value, dict):
        return BadRowError(
            f"a {type(value).__name__} ({shorten(value)}) where one JSON object per line is needed, "
            'such as {"prompt": "..."}'
        )
    return value


def _half_of_a_pair(value: Any) -> str | None:
    """Finds a character that JSON can spell and no file, tokenizer or tracker can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return error.object[error.start]
    return None


def _show(line: bytes) -> str:
    return shorten(line.decode("utf-8", errors="replace").strip())


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
