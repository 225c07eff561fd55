"""Reading Parquet and JSONL: the schema, and every way in which a file can be wrong."""

from __future__ import annotations

import json
import os
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.data.files import FileRows, find_files, read_file
from verl.errors import DataError

ROW: dict[str, Any] = {
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}],
    "data_source": "sums",
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "train", "index": 7},
}
SUFFIXES = ("jsonl", "parquet")


def read(path: Path, bad_rows: Any = "error", prompt_key: str = "prompt") -> FileRows:
    return read_file(path, prompt_key, bad_rows)


def error_of(path: Path, **kwargs: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(path, **kwargs)
    return str(caught.value)


# The schema


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_upstream_schema_is_read(write_rows, suffix):
    (row,) = read(write_rows(f"a.{suffix}", [ROW])).rows
    assert row.messages == ROW["prompt"]
    assert row.data_source == "sums"
    assert row.ground_truth == "4"
    assert row.extra_info == {"split": "train", "index": 7, "ability": "math"}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_only_the_prompt_is_required_and_the_file_name_is_the_source(write_rows, suffix):
    (row,) = read(write_rows(f"gsm.{suffix}", [{"prompt": "2+2?"}])).rows
    assert row.messages == [{"role": "user", "content": "2+2?"}]
    assert (row.data_source, row.ground_truth, row.extra_info) == ("gsm", None, {})


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("column", ["reward_model.ground_truth", "ground_truth", "answer"])
def test_a_ground_truth_may_stand_in_a_plain_column(write_rows, suffix, column):
    (row,) = read(write_rows(f"a.{suffix}", [{"prompt": "2+2?", column: "4"}])).rows
    assert row.ground_truth == "4"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_reward_model_column_wins_over_plain_columns(write_rows, suffix):
    row = {"prompt": "2+2?", "answer": "wrong", "ground_truth": "wrong", "reward_model": {"ground_truth": "4"}}
    assert read(write_rows(f"a.{suffix}", [row])).rows[0].ground_truth == "4"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_prompt_column_can_have_another_name(write_rows, suffix):
    path = write_rows(f"a.{suffix}", [{"question": "2+2?"}])
    assert read(path, prompt_key="question").rows[0].messages[0]["content"] == "2+2?"


def test_keys_that_a_parquet_struct_fills_with_none_are_left_out_of_messages(write_rows):
    messages = [{"role": "user", "content": "a", "name": "Ann"}, {"role": "assistant", "content": "b"}]
    (row,) = read(write_rows("a.parquet", [{"prompt": messages}])).rows
    assert row.messages == messages


def test_an_assistant_message_with_tool_calls_needs_no_content(write_rows):
    call = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": call}]
    (row,) = read(write_rows("a.jsonl", [{"prompt": messages}])).rows
    assert row.messages[1] == {"role": "assistant", "tool_calls": call}


def test_a_byte_order_mark_windows_line_ends_and_blank_lines_are_tolerated(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}')
    rows = read(path).rows
    assert [(row.place, row.messages[0]["content"]) for row in rows] == [("line 1", "a"), ("line 3", "b")]


def test_unicode_line_separators_within_a_text_do_not_end_the_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a\u2028b\u0085c"}\n', encoding="utf-8")
    assert read(path).rows[0].messages[0]["content"] == "a\u2028b\u0085c"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_media_columns_are_named_as_unused(write_rows, suffix):
    assert read(write_rows(f"a.{suffix}", [{"prompt": "a", "images": ["x.png"]}])).unused == ("images",)


# Names of files


def test_globs_and_several_files_keep_their_order(write_rows, tmp_path):
    for name in ("b/2.jsonl", "b/1.jsonl", "a.parquet"):
        write_rows(name, [{"prompt": "a"}])
    found = find_files([str(tmp_path / "b" / "*.jsonl"), str(tmp_path / "a.parquet")], "data.train_files")
    assert [path.name for path in found] == ["1.jsonl", "2.jsonl", "a.parquet"]


def test_a_file_name_with_brackets_is_no_pattern(write_rows):
    path = write_rows("part[1].jsonl", [{"prompt": "a"}])
    assert find_files([str(path)], "data.train_files") == [path]


def test_a_file_in_the_home_folder_is_found(write_rows, tmp_path, monkeypatch):
    path = write_rows("a.jsonl", [{"prompt": "a"}])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_files(["~/a.jsonl"], "data.train_files") == [path]


def names_error(*names: str | Path) -> str:
    with pytest.raises(DataError) as caught:
        find_files([str(name) for name in names], "data.train_files")
    return str(caught.value)


def test_a_missing_file_names_the_nearest_ones(write_rows, tmp_path):
    write_rows("stock_train.parquet", [{"prompt": "a"}])
    write_rows("zebra.jsonl", [{"prompt": "a"}])
    missing = tmp_path / "stocks_train.parquet"
    assert names_error(missing) == (
        f"data.train_files: no such file: {str(missing)!r}. Did you mean stock_train.parquet in {str(tmp_path)!r}?"
    )


def test_a_missing_file_unlike_all_others_lists_what_there_is(write_rows, tmp_path):
    write_rows("zebra.jsonl", [{"prompt": "a"}])
    assert names_error(tmp_path / "q").endswith(f"In {str(tmp_path)!r} there is: zebra.jsonl.")


def test_a_missing_folder_names_the_nearest_that_exists(tmp_path):
    missing = tmp_path / "no" / "where" / "a.parquet"
    expected = f"The folder {str(missing.parent)!r} does not exist; the nearest that does is {str(tmp_path)!r}."
    assert expected in names_error(missing)


def test_a_folder_without_data_says_so(tmp_path):
    assert names_error(tmp_path / "a.jsonl").endswith(f"The folder {str(tmp_path)!r} has no .parquet or .jsonl file.")


def test_a_pattern_without_a_match_says_so(tmp_path):
    assert f"no file matches {str(tmp_path / '*.jsonl')!r}" in names_error(tmp_path / "*.jsonl")


def test_a_folder_is_refused_with_the_pattern_for_its_files(write_rows, tmp_path):
    write_rows("a.jsonl", [{"prompt": "a"}])
    message = names_error(tmp_path)
    assert "is a folder (it holds a.jsonl)" in message
    assert str(tmp_path / "*.parquet") in message


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a.json", "write one object per line and name it .jsonl"),
        ("a.csv", "pandas.read_csv"),
        ("a.jsonl.gz", "Unpack it first"),
        ("a", "extension '(none)'"),
    ],
)
def test_a_wrong_extension_says_what_is_allowed(tmp_path, name, hint):
    (tmp_path / name).write_text("x")
    message = names_error(tmp_path / name)
    assert "allowed are .parquet and .jsonl" in message
    assert hint in message


def test_an_extension_in_capitals_is_the_same(write_rows):
    path = write_rows("a.jsonl", [{"prompt": "a"}])
    capital = path.rename(path.with_name("A.JSONL"))
    assert len(read(find_files([str(capital)], "data.train_files")[0]).rows) == 1


def test_an_address_is_refused():
    assert "is an address; give a local" in names_error("s3://bucket/a.parquet")


@pytest.mark.parametrize("name", ["\0", "a" * 5000, "~nobody-of-that-name/a.jsonl"])
def test_impossible_names_give_the_same_error(name):
    assert "no such file" in names_error(name)


# Whole files


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_jsonl_file_is_an_error(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    assert error_of(path) == f"{path} is empty: it has no rows. Give at least one row with a 'prompt' column."


def test_an_empty_parquet_file_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)
    assert f"{path} is empty" in error_of(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_prompt_column_lists_the_columns_and_the_nearest(write_rows, suffix):
    path = write_rows(f"a.{suffix}", [{"prompts": "a", "label": 1}])
    message = error_of(path)
    assert message.startswith(str(path))
    assert "no column 'prompt'; found: 'prompts', 'label'. Did you mean data.prompt_key=prompts?" in message


def test_a_missing_prompt_column_without_a_near_one_names_the_setting(write_rows):
    assert "Name the right one with data.prompt_key." in error_of(write_rows("a.parquet", [{"zzz": 1}]))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"PAR1" + b"\0" * 64 + b"PAR1"])
def test_a_corrupt_parquet_file_is_an_error(tmp_path, content):
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    message = error_of(path)
    assert message.startswith(f"{path} cannot be read as Parquet: ")
    assert "cut off or of another format" in message


def test_a_parquet_file_with_a_broken_page_is_an_error(write_rows):
    path = write_rows("a.parquet", [{"prompt": f"text {i}"} for i in range(2000)])
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(bytes(content))
    assert error_of(path).startswith(f"{path} cannot be read as Parquet: ")


def test_utf16_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a"}\n', encoding="utf-16")
    assert error_of(path) == f"{path} is UTF-16 text; JSONL must be UTF-8. Convert it: iconv -f UTF-16 -t UTF-8"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_without_permission_is_an_error(write_rows, suffix):
    path = write_rows(f"a.{suffix}", [{"prompt": "a"}])
    path.chmod(0)
    assert "ermission" in error_of(path)


# Rows

BAD_LINES = {
    '{"prompt": "a"': "malformed JSON at character 14: Expecting ',' delimiter; the line: '{\"prompt\": \"a\"'",
    '["a"]': "a list (['a']) where one JSON object per line is needed",
    '"a"': "a str ('a') where one JSON object per line is needed",
    r'{"prompt": "half \ud83d"}': "half of a surrogate pair ('\\ud83d'), which is not valid Unicode; the line: ",
    r'{"prompt": "a", "extra_info": {"b": ["\udc00"]}}': "half of a surrogate pair ('\\udc00')",
    "[" * 100_000: "malformed JSON: nested too deeply",
    '{"prompt": ' + "1" * 5000 + "}": "malformed JSON: Exceeds the limit",
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items(), ids=range(len(BAD_LINES)))
def test_a_malformed_line_is_reported_with_file_and_line(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "good"}\n' + line + "\n")
    message = error_of(path)
    assert message.startswith(f"{path}, line 2: {reason}")
    assert "set data.bad_rows=skip" in message
    assert len(message) < 700


def test_a_line_that_is_not_utf8_is_reported_with_the_byte(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"prompt": "é"}\n'.encode("latin-1"))
    assert f"{path}, line 1: not UTF-8: byte 0xe9 at position 12 of the line" in error_of(path)


BAD_PROMPTS: list[tuple[Any, str]] = [
    (None, "'prompt' is None; give a text or a list of {role, content} messages"),
    ("", "'prompt' is empty"),
    (" \n", "'prompt' holds only white space (' \\n')"),
    (5, "'prompt' is of type int (5); allowed are a text or a list of {role, content} messages"),
    ({"role": "user"}, "'prompt' is of type dict ({'role': 'user'}); allowed are"),
    ([], "'prompt' is an empty list; give at least one message"),
    (["a"], "message 0 of 'prompt' is of type str ('a'); it must be {role, content}"),
    ([{"content": "a"}], "message 0 of 'prompt' has no 'role'; it has 'content'"),
    ([{"role": "user", "text": "a"}], "message 0 of 'prompt' has no 'content'; it has 'role', 'text'"),
    ([{"role": "user", "content": ""}], "the content of message 0 of 'prompt' is empty"),
    ([{"role": "user", "content": ["a"]}], "the content of message 0 of 'prompt' is of type list (['a'])"),
    (
        [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}],
        "message 1 of 'prompt' has the role 'bot'; allowed are system, developer, user, assistant, tool",
    ),
    ('[{"role": "user", "content": "a"}]', "'prompt' is a text that spells a list of messages"),
    ("[{'content': 'a', 'role': 'user'}]", "'prompt' is a text that spells a list of messages"),
]


@pytest.mark.parametrize(("prompt", "reason"), BAD_PROMPTS, ids=range(len(BAD_PROMPTS)))
def test_a_malformed_prompt_is_reported_with_file_and_line(write_rows, prompt, reason):
    path = write_rows("a.jsonl", [{"prompt": "good"}, {"prompt": prompt}])
    assert error_of(path).startswith(f"{path}, line 2: {reason}")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"data_source": 5}, "'data_source' is 5; it must be a text that is not empty"),
        ({"data_source": ""}, "'data_source' is ''; it must be a text that is not empty"),
        ({"reward_model": "rule"}, "'reward_model' is of type str ('rule'); it must be a struct with 'ground_truth'"),
        ({"extra_info": "x"}, "'extra_info' is of type str ('x'); it must be a struct (JSON object)"),
    ],
)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_malformed_other_column_is_reported(write_rows, suffix, row, reason):
    path = write_rows(f"a.{suffix}", [{"prompt": "good", **row}])
    place = "line 1" if suffix == "jsonl" else "row 0 (counted from 0)"
    assert error_of(path).startswith(f"{path}, {place}: {reason}")


def test_a_parquet_row_is_reported_with_its_number(write_rows):
    path = write_rows("a.parquet", [{"prompt": "a"}, {"prompt": None}])
    assert error_of(path).startswith(f"{path}, row 1 (counted from 0): 'prompt' is None")


def test_a_parquet_text_that_is_not_utf8_is_reported_with_its_row(tmp_path):
    path = tmp_path / "a.parquet"
    prompts = pa.array([b"good", b"caf\xe9", b"too"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"prompt": prompts}), path)
    assert error_of(path).startswith(f"{path}, row 1 (counted from 0): a text is not UTF-8: byte 0xe9 in b'caf\\xe9'")
    assert [row.place[:5] for row in read(path, bad_rows="skip").rows] == ["row 0", "row 2"]


def test_whole_surrogate_pairs_are_one_character(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(r'{"prompt": "\ud83d\ude00"}')
    assert read(path).rows[0].messages[0]["content"] == "\U0001f600"


def test_parquet_numbers_as_prompts_are_reported(write_rows):
    assert "'prompt' is of type int (5)" in error_of(write_rows("a.parquet", [{"prompt": 5}]))


def test_skipping_keeps_the_good_rows_and_gives_one_warning_that_names_the_first_bad_ones(write_rows):
    path = write_rows("a.jsonl", [{"prompt": "a"}, *[{"prompt": None}] * 7, {"prompt": "b"}])
    file = read(path, bad_rows="skip")
    assert [row.place for row in file.rows] == ["line 1", "line 9"]
    warning = file.bad.warning(file.num_rows)
    assert warning is not None
    assert warning.startswith(f"{path}: skipped 7 of 9 rows as malformed: line 2: 'prompt' is None")
    assert "line 6: " in warning
    assert "line 7: " not in warning
    assert warning.endswith("; and 2 more")


def test_good_files_give_no_warning(write_rows):
    file = read(write_rows("a.jsonl", [{"prompt": "a"}]), bad_rows="skip")
    assert file.bad.warning(file.num_rows) is None


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_bad_rows_alone_is_an_error_even_when_skipping(write_rows, suffix):
    path = write_rows(f"a.{suffix}", [{"prompt": ""}] * 3)
    message = error_of(path, bad_rows="skip")
    assert message.startswith(f"{path}: all 3 rows are malformed. The first: ")
    assert "'prompt' is empty" in message


# Equivalence, and size

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip())
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": texts}),
    min_size=1,
    max_size=3,
)
row_lists = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": messages,
            "data_source": texts,
            "reward_model": st.fixed_dictionaries({"ground_truth": texts}),
            "extra_info": st.fixed_dictionaries({"index": st.integers(0, 2**40), "note": st.none() | texts}),
        }
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(row_lists)
def test_jsonl_and_parquet_give_the_same_rows(rows):
    with tempfile.TemporaryDirectory() as folder:
        jsonl, parquet = Path(folder, "a.jsonl"), Path(folder, "a.parquet")
        jsonl.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        pq.write_table(pa.Table.from_pylist(rows), parquet)
        contents = [
            [(row.messages, row.data_source, row.ground_truth, row.extra_info) for row in read(path).rows]
            for path in (jsonl, parquet)
        ]
    assert contents[0] == contents[1]
    assert [row[0] for row in contents[0]] == [row["prompt"] for row in rows]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_rows_or_a_data_error(content):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.jsonl", "a.parquet"):
            path = Path(folder, name)
            path.write_bytes(content)
            message = str(path)
            try:
                assert read(path, bad_rows="skip").rows
            except DataError as error:
                message = str(error)
            assert str(path) in message


def write_many(path: Path, num_rows: int) -> Path:
    row = {"prompt": [{"role": "user", "content": "x" * 200}], "answer": "4"}
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]).take([0] * num_rows), path)
    else:
        path.write_text((json.dumps(row) + "\n") * num_rows)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_hundred_thousand_rows_are_read_quickly(tmp_path, suffix):
    path = write_many(tmp_path / f"a.{suffix}", 100_000)
    begin = time.process_time()
    assert len(read(path).rows) == 100_000
    assert time.process_time() - begin < 15


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_reading_holds_the_rows_and_little_more(tmp_path, suffix):
    num_rows = 10_000
    path = write_many(tmp_path / f"a.{suffix}", num_rows)
    tracemalloc.start()
    try:
        kept = read(path)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept.rows) == num_rows
    # About a kilobyte per row stays; reading adds one batch of rows to it, not the file once more.
    assert held < 1200 * num_rows
    assert peak - held < 4_000_000
