"""What is found out about a run and its trackers, and which tracker is recommended."""

from __future__ import annotations

import os
import re
from collections import namedtuple
from itertools import product
from pathlib import Path

import pytest

from verl.config.environment import VARIABLES
from verl.errors import ConfigError
from verl.journal import Cursor, JournalWriter, Kind, RunDirectory
from verl.journal.cursor import Position
from verl.journal.locks import OwnedLock
from verl.tracking.diagnosis.choice import QUESTIONS, Recommendation, choose, matters, read_answer, read_answers
from verl.tracking.diagnosis.run_checkup import checkup
from verl.tracking.diagnosis.tracker_checkup import (
    ONLY_BY_ITS_PROGRAM,
    Condition,
    Standing,
    all_trackers_of,
    completeness,
    disk,
    feeder_of,
    hint,
    is_known_by_name,
    proxy_checks,
    standing_of,
    trackers_of,
    trainer_settings_of,
)
from verl.tracking.logger import Check, Omission
from verl.tracking.relay.feed_state import FeedState, Skipped, state_path
from verl.tracking.table import BUILTIN, chosen_proxies

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run of ten steps that finished, whose trackers are `console` and `wandb`."""
    directory = RunDirectory.create(tmp_path / "run", project="p", experiment="e")
    attempt = directory.start_attempt()
    with JournalWriter(directory, attempt=attempt) as writer:
        writer.append(Kind.RUN, None, trackers=["console", "wandb"], total_steps=10)
        for step in range(1, 11):
            writer.append(Kind.METRICS, step, metrics={"loss": 1.0})
        writer.append(Kind.FINISH, 10, status="finished", error=None)
    directory.finish_attempt("finished")
    return directory


def stand(directory: RunDirectory, **fields: object) -> Standing:
    """How `wandb` stands, with these fields in its state file."""
    path = state_path(directory, "wandb")
    path.parent.mkdir(exist_ok=True)
    FeedState("wandb", **fields).save(path)  # type: ignore[arg-type]
    return standing_of(directory, directory.info, "wandb")


def at_the_end(directory: RunDirectory) -> Cursor:
    sizes = {path.stem: path.stat().st_size for path in directory.journal.glob("*.jsonl")}
    return Cursor({name: Position(0, size) for name, size in sizes.items()})


def named(checks: list[Check], question: str) -> Check:
    (check,) = [check for check in checks if check.question == question]
    return check


def told(standing: Standing, directory: RunDirectory, question: str = "complete") -> Check:
    return named(completeness(standing, directory.info, "RUN", {}), question)


# How a tracker stands.


def test_trackers_of_a_run_are_those_of_its_record_without_the_console(directory: RunDirectory) -> None:
    assert trackers_of(directory) == ["wandb"]


def test_trackers_that_it_was_shown_in_later_are_known_too(directory: RunDirectory) -> None:
    stand(directory)
    path = state_path(directory, "package.module:Class")
    FeedState("package.module:Class").save(path)
    assert all_trackers_of(directory) == ["wandb", "package.module:Class"]
    state_path(directory, "wandb").write_text("{")
    assert all_trackers_of(directory) == ["wandb", "package.module:Class"]
    assert trackers_of(directory) == ["wandb"]


def test_without_a_record_they_are_those_of_the_state_files(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, project="p", experiment="e")
    assert trackers_of(directory) == []
    path = state_path(directory, "package.module:Class")
    path.parent.mkdir()
    FeedState("package.module:Class").save(path)
    assert trackers_of(directory) == ["package.module:Class"]


def test_a_tracker_that_was_finished_is_complete_whatever_notes_come_after_the_end(directory: RunDirectory) -> None:
    standing = stand(directory, status="finished", cursor=at_the_end(directory))
    with JournalWriter(directory, attempt=1) as writer:
        writer.append(Kind.NOTE, None, text="late", level="warning")
    standing = standing_of(directory, directory.info, "wandb")
    assert (standing.condition, standing.is_complete, standing.in_short) == (Condition.COMPLETE, True, "ok")
    assert told(standing, directory).result == "ok"


def test_a_later_attempt_makes_it_incomplete(directory: RunDirectory) -> None:
    stand(directory, status="finished", cursor=at_the_end(directory))
    attempt = directory.start_attempt()
    with JournalWriter(directory, attempt=attempt) as writer:
        writer.append(Kind.METRICS, 11, metrics={"loss": 1.0})
    standing = standing_of(directory, directory.info, "wandb")
    assert (standing.condition, standing.in_short) == (Condition.BEHIND, "1 behind")
    assert told(standing, directory) == Check("complete", "ok", "1 records behind; the run's relay is at it")
    directory.finish_attempt("failed")
    check = told(standing, directory)
    assert check.result == "error"
    assert "`verl sync RUN --to wandb`" in check.advice


def test_one_that_lacks_only_the_end(directory: RunDirectory) -> None:
    standing = stand(directory, status="feeding", cursor=at_the_end(directory))
    assert (standing.condition, standing.in_short) == (Condition.UNFINISHED, "lacks the end")
    assert told(standing, directory).result == "error"


def test_one_that_is_up_to_date_with_a_run_that_goes_on(directory: RunDirectory) -> None:
    directory.start_attempt()
    standing = stand(directory, status="feeding", cursor=at_the_end(directory))
    assert (standing.condition, standing.in_short) == (Condition.CURRENT, "ok")
    assert not standing.is_complete
    directory.finish_attempt("finished")


def test_one_that_fails_says_why_and_what_to_do(directory: RunDirectory) -> None:
    standing = stand(directory, status="retrying", failures=3, last_error="flush: 401 https://me:geheim123@host")
    assert standing.condition is Condition.FAILING
    assert "geheim123" not in standing.in_short
    check = told(standing, directory)
    assert check.result == "error"
    assert check.found == "12 records behind, 3 failed tries: flush: 401 https://me:***@host"
    assert check.advice == "check the key, and log in again; then `verl sync RUN --to wandb`"


def test_one_that_was_never_fed_or_whose_state_is_damaged(directory: RunDirectory) -> None:
    standing = standing_of(directory, directory.info, "wandb")
    assert (standing.condition, standing.behind.lines) == (Condition.ABSENT, 12)
    assert told(standing, directory).found == "it has nothing of this run"
    stand(directory)
    state_path(directory, "wandb").write_text('{"tracker"')
    standing = standing_of(directory, directory.info, "wandb")
    assert standing.condition is Condition.DAMAGED
    assert "is damaged" in told(standing, directory).found


def test_what_it_refused_left_out_and_renamed_is_told(directory: RunDirectory) -> None:
    skipped = [Skipped("events-rank0", 0, 0, 5, "table", 3, "too large")]
    names = {f"val/x@{number}": f"val/x_at_{number}" for number in range(7)}
    standing = stand(
        directory,
        status="finished",
        num_skipped=1,
        skipped=skipped,
        renamed=names,
        outages=2,
        failures=9,
        last_error="no route",
        omissions={"a": Omission(3, 7, "no emoji")},
    )
    assert not standing.is_complete
    assert standing.in_short == "1 refused"
    refused = told(standing, directory, "refused")
    assert "1 records were refused for good, such as table of step 3: too large" in refused.found
    assert "--fresh" in refused.advice
    assert "1 name: a (3 times: no emoji)" in told(standing, directory, "left out").found
    assert "7 names are spelled otherwise" in told(standing, directory, "names").found
    assert told(standing, directory, "names").found.endswith("; and 2 more")
    assert told(standing, directory, "outages").result == "ok"


def test_where_to_look_has_the_ids(directory: RunDirectory) -> None:
    standing = stand(directory, status="finished", where="https://here")
    checks = completeness(standing, directory.info, "RUN", {"run_id": "abc", "files": ["x"]})
    assert named(checks, "where").found == "run_id abc; https://here"
    checks = completeness(standing, directory.info, "RUN", {"url": "https://here"})
    assert named(checks, "where").found == "url https://here"


def test_who_feeds_a_tracker_now(directory: RunDirectory) -> None:
    assert feeder_of(directory, "wandb") is None
    directory.relay.mkdir()
    lock = OwnedLock(state_path(directory, "wandb").with_suffix(".lock"), "feeds")
    lock.acquire()
    feeder = feeder_of(directory, "wandb")
    assert feeder is not None
    assert feeder.pid == os.getpid()
    lock.release()
    assert feeder_of(directory, "wandb") is None
    state_path(directory, "wandb").with_suffix(".lock").write_text('{"pid": 4194303, "host": "x", "since": 1}')
    assert feeder_of(directory, "wandb") is None


@pytest.mark.parametrize(
    ("error", "part"),
    [
        ("HTTP 401", "log in"),
        ("permission denied for project", "log in"),
        ("Read timed out", "proxy"),
        ("[Errno 111] Connection refused", "proxy"),
        ("Name or service not known: cannot resolve host", "proxy"),
        ("disk full", ""),
    ],
)
def test_a_hint_follows_the_words_of_the_error(error: str, part: str) -> None:
    assert part in hint(error)
    assert bool(part) == bool(hint(error))


def with_proxy(directory: RunDirectory, proxy: object) -> object:
    """What the run's configuration is, once it names a proxy for W&B."""
    with JournalWriter(directory, attempt=1) as writer:
        writer.append(Kind.CONFIG, None, config={"trainer": {"wandb_proxy": proxy}})
    return trainer_settings_of(directory)


def test_the_proxy_of_the_configuration_comes_before_that_of_the_environment(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = BUILTIN["wandb"].proxy_variable
    assert variable in {known.name for known in VARIABLES}
    monkeypatch.delenv(variable, raising=False)
    assert chosen_proxies(trainer_settings_of(directory)) == {}
    trainer = with_proxy(directory, "http://proxy:1")
    assert chosen_proxies(trainer) == {"wandb": "http://proxy:1"}
    monkeypatch.setenv(variable, "http://proxy:2")
    assert chosen_proxies(trainer) == {"wandb": "http://proxy:1"}
    for nothing in (None, {}, {"wandb_proxy": 3}, with_proxy(directory, None)):
        assert chosen_proxies(nothing) == {"wandb": "http://proxy:2"}
    assert proxy_checks(trainer) == {}


def test_a_proxy_without_its_password_is_not_used_and_that_is_said(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VERL_WANDB_PROXY", raising=False)
    trainer = with_proxy(directory, "http://me:***@proxy:1")
    assert chosen_proxies(trainer) == {}
    check = proxy_checks(trainer)["wandb"]
    assert (check.result, check.advice) == ("warning", "set VERL_WANDB_PROXY")
    assert "trainer.wandb_proxy stands here without its password" in check.found
    monkeypatch.setenv("VERL_WANDB_PROXY", "http://proxy:2")
    assert chosen_proxies(trainer) == {"wandb": "http://proxy:2"}
    assert proxy_checks(trainer)["wandb"].result == "ok"
    assert proxy_checks(trainer)["wandb"].found.endswith("; that of VERL_WANDB_PROXY is")


def test_a_tracker_that_only_its_program_can_feed_gets_no_command(directory: RunDirectory) -> None:
    path = state_path(directory, "ListLogger")
    path.parent.mkdir(exist_ok=True)
    FeedState("ListLogger", status="retrying", last_error="no").save(path)
    standing = standing_of(directory, directory.info, "ListLogger")
    (check,) = completeness(standing, directory.info, "RUN", {})
    assert (check.result, check.advice) == ("error", ONLY_BY_ITS_PROGRAM)
    assert [is_known_by_name(name) for name in ("ListLogger", "wandb", "a.b:C")] == [False, True, True]


def test_commands_can_be_pasted(directory: RunDirectory) -> None:
    standing = standing_of(directory, directory.info, "a b:$(C)")
    assert "verl sync RUN --to 'a b:$(C)'" in told(standing, directory).advice


# What is to be said about a run itself.


def test_a_healthy_run(directory: RunDirectory) -> None:
    checks = checkup(directory, directory.info)
    assert named(checks, "run").found == "finished, step 10 of 10"
    assert named(checks, "journal") == Check("journal", "ok", "12 records")
    assert not [check for check in checks if check.question in ("interval", "torn")]


def test_a_crashed_and_a_failed_run(directory: RunDirectory) -> None:
    attempt = directory.start_attempt()
    with JournalWriter(directory, attempt=attempt) as writer:
        writer.append(Kind.FINISH, 10, status="failed", error="ValueError: key sk-abcdefgh1234567890abcd")
    directory.finish_attempt("crashed")
    crashed = named(checkup(directory, directory.info), "run")
    assert crashed.result == "warning"
    assert "trainer.resume_from_checkpoint=auto" in crashed.advice
    directory.finish_attempt("failed", attempt)
    failed = named(checkup(directory, directory.info), "run")
    assert "failed, attempt 2" in failed.found
    assert "ValueError" in failed.found
    assert "sk-abcd" not in failed.found


def test_damaged_and_torn_lines(directory: RunDirectory) -> None:
    with open(directory.journal / "metrics-rank0.jsonl", "ab") as file:
        file.write(b"garbage\n")
    (directory.journal / "events-rank0.jsonl.torn").write_text('{"v":')
    checks = checkup(directory, directory.info)
    assert named(checks, "journal").result == "warning"
    assert (
        "12 records, and 1 line that is none, the last: metrics-rank0.jsonl at byte" in named(checks, "journal").found
    )
    assert "events-rank0.jsonl.torn" in named(checks, "torn").found


@pytest.mark.parametrize(
    ("interval", "steps", "found"),
    [
        (1, range(1, 21), []),
        (5, [5, 10, 15, 20], ["metrics are logged every 5 steps (trainer.log_step_interval=5)"]),
        (5, [3, 5, 10, 15, 18], ["metrics are logged every 5 steps"]),
        (1, [1, 2, 5, 6], ["no metrics for 2 steps that should have them: 3, 4"]),
        (2, [2, 4, 20], ["metrics are logged every 2", "no metrics for 7 steps that should have them: 6, 8, 10, 12,"]),
        (None, [1, 50, 100], []),
    ],
)
def test_steps_that_seem_missing_are_explained(
    interval: int | None, steps: list[int], found: list[str], tmp_path: Path
) -> None:
    directory = RunDirectory.create(tmp_path, project="p", experiment="e")
    with JournalWriter(directory, attempt=1) as writer:
        writer.append(Kind.CONFIG, None, config={"trainer": {"log_step_interval": interval}} if interval else "text")
        for step in steps:
            writer.append(Kind.METRICS, step, metrics={"loss": 1.0})
    checks = [check for check in checkup(directory, directory.info) if check.question == "interval"]
    assert len(checks) == len(found)
    assert all(check.found.startswith(text) for check, text in zip(checks, found, strict=True))


@pytest.mark.parametrize(("free", "result"), [(50 * 2**30, "ok"), (2**30, "warning"), (10 * 2**20, "error")])
def test_a_disk_that_is_nearly_full(free: int, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(100 * 2**30, 0, free))
    check = disk(tmp_path)
    assert check.result == result
    assert bool(check.advice) == (result != "ok")


# Which tracker to choose.

ALL = [
    dict(zip((question.name for question in QUESTIONS), answers, strict=True))
    for answers in product(*(question.answers for question in QUESTIONS))
]


def expected(answers: dict[str, str]) -> str:
    """The tree of the article, with one more branch for one person alone."""
    if answers["scope"] == "local":
        return "tensorboard"
    if answers["team"] == "china":
        return "swanlab"
    return "mlflow" if answers["privacy"] == "high" else "wandb"


@pytest.mark.parametrize("answers", ALL, ids=lambda answers: "-".join(answers.values()))
def test_every_path_of_the_tree(answers: dict[str, str]) -> None:
    found = choose(answers)
    assert found.tracker == expected(answers)
    assert found.tracker in BUILTIN
    assert found.reason
    assert found.cost
    commands = list(found.commands)
    tracker = BUILTIN[found.tracker]
    assert f"pip install {tracker.package}" in commands
    assert max(map(len, commands)) <= 100
    goes_later = f"verl sync RUN --to {found.tracker}" in commands
    assert goes_later or f"verl train ... 'trainer.logger=[console,{found.tracker}]'" in commands
    if goes_later:
        assert answers["network"] == "offline"
        assert commands.index("verl train ... 'trainer.logger=[console]'") < commands.index(
            f"pip install {tracker.package}"
        )


def test_every_tracker_that_is_recommended_is_in_the_table() -> None:
    for answers in ALL:
        found = choose(answers)
        named = re.findall(r"--to (\S+)|\[console,(\w+)\]", "\n".join(found.commands))
        names = {name for names in named for name in names if name}
        assert names == {found.tracker}
        assert found.tracker in BUILTIN
        packages = [command.removeprefix("pip install ") for command in found.commands if command.startswith("pip ")]
        assert packages == [BUILTIN[found.tracker].package]
        if found.alternative:
            assert found.alternative.partition(" ")[0].lower() in BUILTIN


def test_the_cost_says_what_the_article_says() -> None:
    assert "infrastructure" in for_answers("elsewhere", "high", "us").cost
    assert "uploads data" in for_answers("elsewhere", "normal").cost
    assert "infrastructure" in for_answers("china", "high").cost
    assert any("SWANLAB_API_HOST" in command for command in for_answers("china", "high").commands)


def for_answers(*given: str) -> Recommendation:
    return choose(read_answers(given))


def test_no_answer_is_the_first_one() -> None:
    first = {question.name: next(iter(question.answers)) for question in QUESTIONS}
    assert read_answers([]) == read_answers(["", " ", ""]) == first


@pytest.mark.parametrize("text", ["high", "HIGH", " hi ", "2"])
def test_an_answer_is_a_word_its_beginning_or_its_number(text: str) -> None:
    assert read_answer(QUESTIONS[1], text) == "high"


@pytest.mark.parametrize("text", ["3", "0", "-1", "maybe", "hihg"])
def test_another_answer_is_refused_with_those_that_can_be_given(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no answer to 'privacy' .*(answers are|did you mean)"):
        read_answer(QUESTIONS[1], text)


def test_too_many_answers_are_refused() -> None:
    with pytest.raises(ConfigError, match="the order is team,privacy,operator,network,scope"):
        read_answers(["china"] * 6)


def test_questions_that_change_nothing_are_not_asked() -> None:
    team, privacy, operator, network, scope = QUESTIONS
    assert matters(team, {})
    assert matters(privacy, {"team": "china"})
    assert not matters(operator, {"team": "china", "privacy": "normal"})
    assert matters(network, {"team": "china", "privacy": "normal", "operator": "nobody"})
    assert not matters(network, {"team": "elsewhere", "privacy": "high", "operator": "nobody"})
    assert matters(scope, {"team": "china", "privacy": "high", "operator": "us", "network": "online"})
