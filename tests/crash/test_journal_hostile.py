"""Whatever stands in the files of a journal, reading and reopening go on with what is whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.journal import JournalReader, JournalWriter, Record
from verl.journal.records import MalformedRecordError, decode, encode

LINES = [
    encode(Record(1, 1, 1.0, 1, "metrics", 1, {"metrics": {"a": 0.5, "b": float("nan")}})),
    encode(Record(1, 2, 2.0, 1, "metrics", 2, {"metrics": {"a": 0.25}})),
    encode(Record(1, 3, 3.0, 1, "metrics", 3, {"metrics": {"中文": 1}})),
]
GARBAGE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"\x00" * 4096, b"\xff\xfe", b"\xe4\xb8", b"\n\n\n", b"\r\n", b"{}", b'"', b"\x1a", b"[" * 3000]),
    st.sampled_from(
        [b"[1]\n", b"null\n", b"NaN\n", b'{"v":1,"seq":1e999}\n', LINES[0][:20], LINES[1][:-1], LINES[2][5:]]
    ),
    st.just(b'{"v":1,"seq":-5,"t":0,"attempt":0,"kind":"","step":null}\n'),
)


def whole_lines(content: bytes) -> list[bytes]:
    """Records by the simplest reading there is: complete lines that decode."""
    lines = content.split(b"\n")[:-1]
    return [line for line in lines if is_record(line)]


def is_record(line: bytes) -> bool:
    try:
        decode(line)
    except MalformedRecordError:
        return False
    return True


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(LINES), GARBAGE), max_size=12), st.lists(GARBAGE, max_size=2))
def test_every_whole_line_is_read_and_the_writer_goes_on(parts: list[bytes], later: list[bytes]) -> None:
    content, rest = b"".join(parts), b"".join(later)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal" / "metrics-rank0.jsonl"
        path.parent.mkdir()
        path.write_bytes(content)
        expected = len(whole_lines(content))
        reader = JournalReader(folder)
        assert len(list(reader.records())) == expected
        assert reader.num_problems == content.count(b"\n") - expected
        assert len(reader.follow()[0]) == expected
        (path.parent / "events-rank0.jsonl").write_bytes(rest)

        with JournalWriter(folder, attempt=2) as journal:
            written = journal.append("metrics", 9, metrics={"a": 9.0})
        after = list(JournalReader(folder).records())
        assert written in after
        repaired = path.read_bytes()
        assert repaired.startswith(content[: content.rfind(b"\n") + 1])
        assert repaired.endswith(b"\n")
        torn = content[content.rfind(b"\n") + 1 :]
        if torn:
            assert path.with_name("metrics-rank0.jsonl.torn").read_bytes() == torn + b"\n"


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_one_wrong_byte_costs_at_most_its_own_lines(position: int, change: int) -> None:
    content = bytearray(b"".join(LINES * 4))
    position %= len(content)
    content[position] ^= change
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "journal").mkdir()
        (Path(folder) / "journal" / "metrics-rank0.jsonl").write_bytes(content)
        assert len(list(JournalReader(folder).records())) >= 10


@pytest.mark.parametrize("cut", range(0, len(LINES[2]), 7))
def test_a_file_cut_anywhere_even_within_a_character_goes_on(tmp_path: Path, cut: int) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "metrics-rank0.jsonl").write_bytes(LINES[0] + LINES[1] + LINES[2][:cut])
    with JournalWriter(tmp_path, attempt=2) as journal:
        journal.append("metrics", 4, metrics={"a": 4.0})
    reader = JournalReader(tmp_path)
    assert [record.step for record in reader.records() if record.kind == "metrics"] == [1, 2, 4]
    assert reader.problems == []


def test_a_huge_line_of_garbage_does_not_stop_anything(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    path = tmp_path / "journal" / "events-rank0.jsonl"
    with path.open("wb") as file:
        file.truncate(70 * 2**20)  # zeros, as a power loss can leave them, longer than any record
        file.seek(0, 2)
        file.write(b"\n" + encode(Record(1, 5, 1.0, 1, "note", None, {"text": "after", "level": "info"})))
    with JournalWriter(tmp_path, attempt=2) as journal:
        assert journal.next_seq == 6
    reader = JournalReader(tmp_path)
    assert [record.fields["text"] for record in reader.records()] == ["after"]
    assert reader.num_problems == 1


def test_other_files_in_the_journal_folder_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    strangers = [
        "metrics-rank0.jsonl.gz",
        "metrics-.jsonl",
        "metrics-rank0.01.jsonl",
        "metrics-rank0.0.jsonl",
        "x",
        ".jsonl",
    ]
    for name in strangers:
        (folder / name).write_text("mine")
    (folder / "events-rank0.jsonl.d").mkdir()
    with JournalWriter(tmp_path, attempt=1) as journal:
        journal.append("note", text="x", level="info")
    assert len(list(JournalReader(tmp_path).records())) == 1
    assert all((folder / name).read_text() == "mine" for name in strangers)
