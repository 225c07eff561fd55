"""The journal: everything that happens in a run, as typed records in its directory."""

from verl.journal.canonical import canonical
from verl.journal.cursor import Cursor, Position
from verl.journal.environment import (
    Environment,
    capture_environment,
    write_config_yaml,
    write_environment,
    write_environment_in_background,
)
from verl.journal.reader import JournalReader, MetricSeries
from verl.journal.records import SCHEMA_VERSION, Draft, Kind, MalformedRecordError, Record, Stream, stream_of
from verl.journal.run_directory import RunDirectory
from verl.journal.run_info import Attempt, RunInfo
from verl.journal.tail import Problem
from verl.journal.writer import JournalWriter

__all__ = [
    "SCHEMA_VERSION",
    "Attempt",
    "Cursor",
    "Draft",
    "Environment",
    "JournalReader",
    "JournalWriter",
    "Kind",
    "MalformedRecordError",
    "MetricSeries",
    "Position",
    "Problem",
    "Record",
    "RunDirectory",
    "RunInfo",
    "Stream",
    "canonical",
    "capture_environment",
    "stream_of",
    "write_config_yaml",
    "write_environment",
    "write_environment_in_background",
]
