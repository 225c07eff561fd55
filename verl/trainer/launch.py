"""Running a trainer from the command line: arguments, errors as sentences, exit codes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from verl.config import PPOConfig, parse_arguments
from verl.config.command_line import run_command

STOP_EXIT_CODES = {"SIGTERM": 128 + signal.SIGTERM, "SIGINT": 128 + signal.SIGINT}


def run(config: PPOConfig) -> int:
    """Trains and returns the exit code: 0, or 128 + signal if a signal stopped the run.

    Raises:
        VerlError: As the trainer does; the caller turns it into a message and an exit code.
    """
    from verl.trainer.ppo_trainer import PPOTrainer  # torch loads only once the configuration is known to be good

    outcome = PPOTrainer(config=config).train()
    return 0 if outcome.stopped_by is None else STOP_EXIT_CODES[outcome.stopped_by]


def main(arguments: Sequence[str] | None = None) -> int:
    """`--config FILE key=value ...` as a whole command: trains, prints errors, returns the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: run(parse_arguments(given)))
