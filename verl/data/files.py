"""From the names in the configuration to rows: globs, formats, and the errors of whole files."""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verl.data.formats import RawRow, parquet_columns, read_jsonl, read_parquet, unused_media
from verl.data.prompts import Row
from verl.data.rows import BadRowError, BadRows, parse_row
from verl.errors import DataError

SUFFIXES = (".parquet", ".jsonl")

_ADVICE = {
    ".json": "A .json file is one document: write one object per line and name it .jsonl.",
    ".ndjson": "Rename it to .jsonl.",
    ".csv": "Convert it: pandas.read_csv(...).to_parquet(...).",
    ".gz": "Unpack it first.",
    ".zst": "Unpack it first.",
}


@dataclass(frozen=True, slots=True)
class FileRows:
    """What one file gave.

    Attributes:
        num_rows: Rows in the file, bad ones included.
        rows: The well-formed ones.
        bad: Account of the others; tokenization may add to it.
        unused: Columns with media, which are not used.
    """

    file: str
    num_rows: int
    rows: list[Row]
    bad: BadRows
    unused: tuple[str, ...]


def find_files(names: Sequence[str], setting: str) -> list[Path]:
    """Resolves file names and glob patterns (`*`, `**`, `?`, `[..]`), in the given order, each pattern sorted.

    Args:
        setting: Key of the configuration that named them, for messages: `data.train_files`.

    Raises:
        DataError: Nothing matches, or something is a folder or has a wrong extension.
    """
    found: list[Path] = []
    for name in names:
        path = Path(os.path.expanduser(name))
        # A file whose name happens to hold brackets is that file, not a pattern.
        matches = (
            [path] if os.path.exists(path) else [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        )
        if not matches:
            raise DataError(_no_such_file(name, path, setting))
        for match in matches:
            _check_kind(match, setting)
        found += matches
    return found


def read_file(path: Path, prompt_key: str, bad_rows: Literal["error", "skip"]) -> FileRows:
    """Reads and checks one file.

    Args:
        prompt_key: Column with the prompt.
        bad_rows: Stop at the first malformed row, or collect them in `FileRows.bad`.

    Raises:
        DataError: The file is unreadable, empty, lacks the prompt column, or (all) its rows are malformed.
    """
    bad = BadRows(str(path), bad_rows)
    rows: list[Row] = []
    num_rows = 0
    unused: list[str] = []
    is_parquet = path.suffix.lower() == ".parquet"
    raw_rows: Iterator[RawRow] = read_parquet(path, prompt_key) if is_parquet else read_jsonl(path)
    for place, raw in raw_rows:
        num_rows += 1
        try:
            if isinstance(raw, BadRowError):
                raise raw
            if num_rows == 1 and not is_parquet:
                unused = unused_media(raw)
            rows.append(parse_row(raw, file=str(path), place=place, stem=path.stem, prompt_key=prompt_key))
        except BadRowError as error:
            bad.add(place, str(error))
    if not num_rows:
        raise DataError(f"{path} is empty: it has no rows. Give at least one row with a {prompt_key!r} column.")
    bad.raise_if_all(num_rows)
    if is_parquet:
        unused = unused_media(parquet_columns(path))
    return FileRows(str(path), num_rows, rows, bad, tuple(unused))


def _no_such_file(name: str, path: Path, setting: str) -> str:
    if "://" in name:
        return f"{setting}: {name!r} is an address; give a local {' or '.join(SUFFIXES)} file (download it first)."
    if glob.has_magic(name):
        return f"{setting}: no file matches {name!r}.{_neighbours(path)}"
    return f"{setting}: no such file: {name!r}.{_neighbours(path)}"


def _neighbours(path: Path) -> str:
    """Names what is in the folder, the most similar first."""
    folder = path.parent
    while not os.path.isdir(folder) and folder != folder.parent:
        folder = folder.parent
    if folder != path.parent:
        return f" The folder {str(path.parent)!r} does not exist; the nearest that does is {str(folder)!r}."
    names = _readable_names(folder)
    if not names:
        return f" The folder {str(folder)!r} has no {' or '.join(SUFFIXES)} file."
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.3)
    listed = ", ".join(near or names[:5])
    return f" In {str(folder)!r} there is: {listed}." if not near else f" Did you mean {listed} in {str(folder)!r}?"


def _readable_names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.suffix.lower() in SUFFIXES)
    except OSError:  # a folder that may not be listed has no names to suggest
        return []


def _check_kind(path: Path, setting: str) -> None:
    if path.is_dir():
        names = _readable_names(path)
        pattern = str(path / "*.parquet")
        inside = f"it holds {', '.join(names[:5])}" if names else f"it holds no {' or '.join(SUFFIXES)} file"
        raise DataError(f"{setting}: {str(path)!r} is a folder ({inside}); name its files, e.g. {pattern!r}.")
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return
    hint = _ADVICE.get(suffix, "Convert it.")
    raise DataError(
        f"{setting}: {str(path)!r} has the extension {path.suffix or '(none)'!r}; "
        f"allowed are {' and '.join(SUFFIXES)}. {hint}"
    )
