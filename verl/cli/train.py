"""`verl train [--config FILE] [key=value ...]`: trains a policy."""

from __future__ import annotations

from verl.config.command_line import parse_arguments


def run(argv: list[str]) -> int:
    """Trains with the configuration of the command line; returns the exit code of the run.

    Raises:
        VerlError: The configuration, the data or the model is wrong, or the run failed.
    """
    config = parse_arguments(argv, prog="verl train")
    # torch loads here: a wrong setting is told before that.
    from verl.trainer.launch import run as launch

    return launch(config)
