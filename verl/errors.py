"""Errors meant for the person who runs the program.

    VerlError                     shown as one message, never as a traceback
    ├── ConfigError               a setting is wrong                     (exit code 2)
    ├── DataError                 a data file or row is wrong            (exit code 2)
    ├── ModelError                a model folder or hub name is wrong    (exit code 2)
    ├── RewardError               a reward raised or gave a non-number   (exit code 1)
    ├── HookError                 a user's hook raised                   (exit code 1)
    ├── JournalError              the run directory cannot be written    (exit code 1)
    ├── CheckpointError           a checkpoint cannot be saved or read   (exit code 1)
    ├── HealthStopError           a health rule ended the run            (exit code 1)
    ├── RanksError                the processes of a run do not agree    (exit code 1)
    └── TrackerError              a tracker is unknown or unusable       (exit code 2)

Every message says what was given, what is allowed and what to do. To add an error, subclass
`VerlError`, choose the exit code, and draw it in the tree above.
"""

from __future__ import annotations


class VerlError(Exception):
    """Base of all errors that a user can cause or mend.

    Attributes:
        exit_code: What the command line returns: 2 for wrong input, 1 for a run that failed.
    """

    exit_code = 1


class ConfigError(VerlError, ValueError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another."""

    exit_code = 2


class DataError(VerlError, ValueError):
    """A data file is missing, empty or malformed; the message names file and row."""

    exit_code = 2


class ModelError(VerlError, ValueError):
    """A model folder is incomplete, or a hub name cannot be loaded."""

    exit_code = 2


class TrackerError(VerlError, ValueError):
    """A tracker is unknown, or its package, key or login is missing."""

    exit_code = 2


class RewardError(VerlError, RuntimeError):
    """A reward function raised or returned something that is not a finite number."""


class HookError(VerlError, RuntimeError):
    """A hook raised; the message names hook and event."""


class JournalError(VerlError, OSError):
    """The run directory or its journal cannot be written or read."""


class CheckpointError(VerlError, RuntimeError):
    """A checkpoint cannot be written, read, or does not fit the run."""
