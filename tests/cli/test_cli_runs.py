"""`verl runs`: what it says of runs, whatever state they are in, and how little it reads for it."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from verl.cli.layout import Column, cut, table, wrapped
from verl.cli.main import main
from verl.journal import Cursor, JournalWriter, Kind, Position, RunDirectory
from verl.journal.run_listing import (
    count_after,
    find_runs,
    latest_run_record,
    latest_step,
    latest_time,
    size_of,
)
from verl.tracking import Tracking


def make_run(path: Path, *, steps: int = 3, trackers: list[str] | None = None, experiment: str = "first") -> Path:
    names = ["tensorboard"] if trackers is None else trackers
    with Tracking("stocks", experiment, names, log_dir=str(path), total_steps=steps, async_log=False) as tracking:
        for step in range(1, steps + 1):
            tracking.log_metrics({"loss": 1.0 / step}, step)
    return path


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def logs(tmp_path: Path, made: Path) -> Path:
    """A folder with one run, `a`, that is finished and complete in TensorBoard."""
    shutil.copytree(made, tmp_path / "logs" / "a")
    return tmp_path / "logs"


def listed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> list[str]:
    assert main(["runs", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, dict[str, Any]]:
    assert main(["runs", "--json", *map(str, arguments)]) == 0
    return {run["name"]: run for run in json.loads(capsys.readouterr().out)}


def test_a_run_is_listed_with_all_that_is_known(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heading, line = listed(capsys, logs)
    assert heading.split() == [
        "run", "experiment", "project", "status", "attempts", "step", "started", "duration", "size", "trackers",
    ]  # fmt: skip
    cells = line.split()
    assert cells[:6] == ["a", "first", "stocks", "finished", "1", "3/3"]
    assert cells[-1] == "ok"
    run = as_json(capsys, logs)["a"]
    assert run["run_id"] == RunDirectory.open(logs / "a").run_id
    assert run["size"] == sum(path.stat().st_size for path in (logs / "a").rglob("*") if path.is_file())
    assert run["trackers"] == [
        {"name": "tensorboard", "condition": "complete", "behind": 0, "in_short": "ok", "error": ""}
    ]


def test_the_folder_itself_and_the_default_folder(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(listed(capsys, logs / "a")) == 2
    monkeypatch.chdir(logs.parent)
    assert len(listed(capsys)) == 2


def test_what_trackers_lack_is_told(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = logs / "a/relay/tensorboard.json"
    edit(state, status="feeding", cursor={"events-rank0": [0, 0], "metrics-rank0": [0, 0]})
    number = count_after(logs / "a/journal", Cursor()).lines
    assert number >= 5
    assert listed(capsys, logs)[1].endswith(f"tensorboard {number} behind")
    edit(state, status="retrying", last_error="flush: ConnectionError: no \x1b[31mroute")
    line = listed(capsys, logs)[1]
    assert line.endswith("tensorboard failing: flush: ConnectionError: no �[31mroute")
    run = as_json(capsys, logs)["a"]
    assert run["trackers"][0]["behind"] == number
    state.unlink()
    assert listed(capsys, logs)[1].endswith("tensorboard has nothing")
    state.write_text("{")
    assert listed(capsys, logs)[1].endswith("tensorboard state file damaged")


def test_refused_records_are_told(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(logs / "a/relay/tensorboard.json", num_skipped=2)
    assert listed(capsys, logs)[1].endswith("tensorboard 2 refused")


def test_a_run_of_a_dead_process_is_crashed_and_its_time_ends_with_its_last_record(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads((logs / "a/run.json").read_text())
    attempt = raw["attempts"][0]
    last = latest_time(logs / "a/journal")
    assert last is not None
    attempt.update(status="running", ended=None, pid=2**22 - 1, started=last - 90)
    (logs / "a/run.json").write_text(json.dumps(raw))
    run = as_json(capsys, logs)["a"]
    assert run["status"] == "crashed"
    assert run["seconds"] == pytest.approx(90, abs=0.01)


def test_damaged_and_empty_runs_are_lines_like_others(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (logs / "b").mkdir()
    (logs / "b/run.json").write_text('{"run_id": ')
    RunDirectory.create(logs / "c", project="p", experiment="e")
    (logs / "c/journal/metrics-rank0.jsonl").write_bytes(b"garbage\n\xff\xfe\n{}")
    runs = as_json(capsys, logs)
    assert set(runs) == {"a", "b", "c"}
    assert (runs["b"]["status"], runs["c"]["status"]) == ("damaged", "created")
    assert "run.json is damaged" in runs["b"]["problems"][0]
    assert runs["c"]["step"] is None
    lines = listed(capsys, logs)
    assert any("b" in line and "is damaged" in line for line in lines)


def test_hostile_names_are_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "x\x1b[2J\nfake 100/100 ok‮"
    make_run(tmp_path / name, experiment="e\x07" * 300, trackers=[])
    lines = listed(capsys, tmp_path)
    assert len(lines) == 2
    assert all(char.isprintable() for char in lines[1])
    assert lines[1].endswith("none")
    assert len(lines[1]) < 500


def test_a_folder_without_runs_and_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, tmp_path) == [
        f"No runs under {tmp_path}. A run is a folder with run.json and journal/ in it."
    ]
    assert main(["runs", str(tmp_path / "none")]) == 1
    assert "There is no folder" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["runs", str(tmp_path / "file")]) == 1
    assert "cannot be read: Not a directory" in capsys.readouterr().err


def test_only_the_newest_are_listed_unless_all_are_wanted(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = json.loads((logs / "a/run.json").read_text())
    for number in range(30):
        (logs / f"more/r{number:02d}/journal").mkdir(parents=True)
        raw["attempts"][0]["started"] = 1_000_000 + number
        (logs / f"more/r{number:02d}/run.json").write_text(json.dumps(raw))
    lines = listed(capsys, logs)
    assert [line.split()[0] for line in lines[1:4]] == ["a", "more/r29", "more/r28"]
    assert lines[-1] == f"... and 11 older; all of them: verl runs --all {logs}"
    assert len(lines) == 22
    assert len(listed(capsys, "--all", logs)) == 32
    assert len(as_json(capsys, logs)) == 31


def test_a_thousand_runs_take_seconds(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = made / "journal/metrics-rank0.jsonl"
    line = journal.read_bytes().splitlines(keepends=True)[-1]
    for number in range(1000):
        run = tmp_path / f"{number // 100}" / f"{number:04d}"
        (run / "relay").mkdir(parents=True)
        for name in ("run.json", "relay/tensorboard.json"):
            os.link(made / name, run / name)
        (run / "journal").mkdir()
        os.link(made / "journal/events-rank0.jsonl", run / "journal/events-rank0.jsonl")
        if number:
            os.link(tmp_path / "0/0000/journal/metrics-rank0.jsonl", run / "journal/metrics-rank0.jsonl")
        else:  # 20 MB each: reading them whole would take minutes
            (run / "journal/metrics-rank0.jsonl").write_bytes(line * (20_000_000 // len(line)))
    began = time.monotonic()
    assert len(listed(capsys, tmp_path)) == 22
    newest = time.monotonic() - began
    assert len(listed(capsys, "--all", tmp_path)) == 1001
    assert newest < 10
    assert time.monotonic() - began < 60


# What is read of a journal.


def test_runs_are_found_below_folders_but_not_inside_runs(logs: Path) -> None:
    shutil.copytree(logs / "a", logs / "project/team/b")
    shutil.copytree(logs / "a", logs / "a/checkpoints/c")
    shutil.copytree(logs / "a", logs / ".hidden")
    shutil.copytree(logs / "a", logs / "1/2/3/4/too deep")
    (logs / "0loop").symlink_to(logs)
    (logs / "0latest").symlink_to(logs / "project/team/b")
    shutil.copytree(logs / "a", logs.parent / "scratch")
    (logs / "linked").symlink_to(logs.parent / "scratch")
    assert [str(path.relative_to(logs)) for path in find_runs(logs)] == ["a", "linked", "project/team/b"]


@pytest.mark.parametrize("max_bytes", [None, 100, 1_000_000])
def test_lines_after_a_cursor_are_counted_over_segments(tmp_path: Path, max_bytes: int | None) -> None:
    for index, (name, lines) in enumerate(
        [("metrics-rank0.jsonl", 100), ("metrics-rank0.1.jsonl", 50), ("events-rank0.jsonl", 30)]
    ):
        (tmp_path / name).write_bytes(b'{"a":1}\n' * lines + (b"torn" if index == 1 else b""))
    everything = count_after(tmp_path, Cursor(), max_bytes)
    some = count_after(
        tmp_path, Cursor({"metrics-rank0": Position(1, 80), "events-rank0": Position(0, 240)}), max_bytes
    )
    if max_bytes == 100:
        assert not everything.is_exact
        assert everything.lines == pytest.approx(180, rel=0.2)
        assert str(everything).startswith("about ")
    else:
        assert (everything.lines, everything.is_exact) == (180, True)
    assert some.lines == pytest.approx(40, rel=0.2 if max_bytes == 100 else 0)
    assert count_after(tmp_path / "none", Cursor()).lines == 0


def test_the_newest_run_record_is_found_wherever_it_stands(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, project="p", experiment="e")
    filler = '{"kind":"run"} ' * 1000  # looks like one inside a text
    with JournalWriter(directory, attempt=1) as writer:
        writer.append(Kind.RUN, None, trackers=["first"])
        for _ in range(40):
            writer.append(Kind.TEXT, 1, tag="t", text=filler)
    record = latest_run_record(directory.journal)
    assert record is not None
    assert record.fields["trackers"] == ["first"]
    with JournalWriter(directory, attempt=2) as writer:
        for number in range(300):
            writer.append(Kind.CONFIG, None, config={"kind": "run"})
            writer.append(Kind.TEXT, 1, tag="t", text="x" * (7000 + number))
            writer.append(Kind.RUN, None, trackers=[str(number)])
            found = latest_run_record(directory.journal)
            assert found is not None
            assert found.fields["trackers"] == [str(number)]
        for _ in range(300):
            writer.append(Kind.TEXT, 1, tag="t", text=filler)
    found = latest_run_record(directory.journal)
    assert found is not None
    assert found.fields["trackers"] == ["299"]


def test_the_latest_step_is_that_of_the_newest_metrics(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, project="p", experiment="e")
    assert latest_step(directory.journal) is None
    assert latest_run_record(directory.journal) is None
    assert latest_time(directory.journal) is None
    with JournalWriter(directory, attempt=1) as writer:
        writer.append(Kind.METRICS, 9, metrics={"a": 1.0})
        writer.append(Kind.REWIND, None, to=3)
        writer.append(Kind.METRICS, 4, metrics={"a": 1.0})
    with open(directory.journal / "metrics-rank0.jsonl", "ab") as file:
        file.write(b'garbage\n{"v":1,"seq"')
    assert latest_step(directory.journal) == 4


def test_sizes_follow_no_links(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_bytes(b"x" * 1000)
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")
    assert 1000 <= size_of(tmp_path / "a") < 1200


# How it is laid out.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [24, 40, 80, 200])
def test_lines_fit_the_terminal_and_the_newest_stay_in_sight(
    columns: int, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        shutil.copytree(logs / "a", logs / f"股票分析-{number:02d}")
    edit(logs / "股票分析-03/relay/tensorboard.json", status="broken", last_error="open: " + "很长" * 100)
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "20")
    assert main(["runs", str(logs)]) == 0
    lines = screen.getvalue().splitlines()
    from rich.cells import cell_len

    assert max(map(cell_len, lines)) <= columns
    assert len(lines) < 20
    assert lines[0].startswith("run")
    if columns == 200:
        assert lines[0].split()[-1] == "trackers"


def test_columns_are_cut_and_then_left_out_by_weight() -> None:
    columns = [Column("name", 4, 9), Column("n", 1, 1, is_number=True), Column("text", 6, 5)]
    rows = [["abcdefgh", "7", "some words"], ["b", "10", ""]]
    assert table(columns, rows, None) == ["name       n  text", "abcdefgh   7  some words", "b         10"]
    assert table(columns, rows, 20) == ["name      n  text", "abcdef…   7  some w…", "b        10"]
    assert table(columns, rows, 12) == ["name  text", "abc…  some…", "b"]
    assert table(columns, rows, 5) == ["name", "abcd…", "b"]


def test_text_is_wrapped_by_cells_and_keeps_every_character() -> None:
    text = "  one two 三三三三三三 " + "x" * 30
    lines = wrapped(text, 12, "    ")
    from rich.cells import cell_len

    assert max(map(cell_len, lines)) <= 12
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert lines[0] == "  one two"
    assert wrapped(text, None) == [text]
    assert cut("三三三", 4) == "三…"
