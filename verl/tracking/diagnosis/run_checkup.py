"""What is to be said about a run itself, found by reading its journal once: its end, its gaps, its damaged lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from verl.config.secrets import mask_text
from verl.errors import JournalError
from verl.journal import JournalReader, Kind, Problem, RunDirectory, RunInfo
from verl.tracking.diagnosis.tracker_checkup import disk
from verl.tracking.logger import Check

_MOST_STEPS_NAMED = 5


@dataclass(slots=True)
class JournalFacts:
    """What a journal says of its run.

    Attributes:
        records: Number of records.
        problems: Lines that are no records. num_problems: How many there are.
        torn: Unfinished last lines that were cut off and kept, by file.
        interval: `trainer.log_step_interval`, if a configuration names it.
        steps: Steps with metrics.
        total_steps: Steps of the run, if known.
        ends: Attempt -> its `finish` record's error.
    """

    records: int = 0
    problems: list[Problem] = field(default_factory=list)
    num_problems: int = 0
    torn: list[str] = field(default_factory=list)
    interval: int | None = None
    steps: set[int] = field(default_factory=set)
    total_steps: int | None = None
    ends: dict[int, str | None] = field(default_factory=dict)


def read_journal(directory: RunDirectory) -> JournalFacts:
    """Read a journal from beginning to end.

    Raises:
        JournalError: It cannot be read.
    """
    facts = JournalFacts(torn=sorted(path.name for path in directory.journal.glob("*.torn")))
    reader = JournalReader(directory)
    for record in reader.records():
        facts.records += 1
        if record.kind == Kind.METRICS:
            if record.step is not None:
                facts.steps.add(record.step)
        elif record.kind == Kind.CONFIG:
            facts.interval = _interval(record.fields.get("config"))
        elif record.kind == Kind.RUN:
            facts.total_steps = record.fields.get("total_steps")
        elif record.kind == Kind.FINISH:
            facts.ends[record.attempt] = record.fields.get("error")
    facts.problems, facts.num_problems = reader.problems, reader.num_problems
    return facts


def checkup(directory: RunDirectory, info: RunInfo) -> list[Check]:
    """What is to be said about a run, whatever its trackers."""
    try:
        facts = read_journal(directory)
    except JournalError as error:
        return [Check("journal", "error", str(error)), disk(directory.path)]
    return [_ending(info, facts), *_journal(facts), *_steps(facts), disk(directory.path)]


def _ending(info: RunInfo, facts: JournalFacts) -> Check:
    number, status = info.last_attempt, info.status
    reached = (
        f"step {max(facts.steps)}" + (f" of {facts.total_steps}" if facts.total_steps else "") if facts.steps else ""
    )
    found = ", ".join(filter(None, [status, f"attempt {number}" if number > 1 else "", reached]))
    if status == "crashed":
        again = "look at the end of its output for why; go on with trainer.resume_from_checkpoint=auto"
        return Check("run", "warning", f"{found}: its process died without a word", again)
    if status == "failed":
        return Check("run", "warning", f"{found}: {mask_text(facts.ends.get(number) or 'without an error on record')}")
    return Check("run", "ok", found)


def _journal(facts: JournalFacts) -> list[Check]:
    checks = []
    if facts.num_problems:
        bad = "1 line that is none" if facts.num_problems == 1 else f"{facts.num_problems:,} lines that are none"
        found = f"{facts.records:,} records, and {bad}, the last: {facts.problems[-1]}"
        checks.append(Check("journal", "warning", found, "all others are used; such lines come from a failing disk"))
    else:
        checks.append(Check("journal", "ok", f"{facts.records:,} records"))
    if facts.torn:
        found = f"a line was cut off in the middle when the process died: {', '.join(facts.torn)}"
        checks.append(Check("torn", "ok", f"{found}; nothing that was complete is missing"))
    return checks


def _steps(facts: JournalFacts) -> list[Check]:
    """Whether steps are "missing" because metrics exist only for each so many steps."""
    interval, steps = facts.interval, facts.steps
    if not interval or not steps:
        return []
    checks = []
    if interval > 1:
        found = (
            f"metrics are logged every {interval} steps (trainer.log_step_interval={interval}); those between have none"
        )
        checks.append(Check("interval", "ok", found, "for every step: trainer.log_step_interval=1"))
    expected = range(-(-max(min(steps), 1) // interval) * interval, max(steps) + 1, interval)
    missing = [step for step in expected if step not in steps]
    if missing:
        named = ", ".join(map(str, missing[:_MOST_STEPS_NAMED])) + (", ..." if len(missing) > _MOST_STEPS_NAMED else "")
        checks.append(
            Check("interval", "warning", f"no metrics for {len(missing)} steps that should have them: {named}")
        )
    return checks


def _interval(config: object) -> int | None:
    trainer = config.get("trainer") if isinstance(config, dict) else None
    interval = trainer.get("log_step_interval") if isinstance(trainer, dict) else None
    return interval if isinstance(interval, int) and interval > 0 else None
