"""What all command lines of the package share: reading `--config FILE key=value ...`, and ending with the right code.

Light on purpose (`verl --help` goes through here): the schema is imported when a configuration is read.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from verl.errors import ConfigError, VerlError

if TYPE_CHECKING:
    from verl.config.schema import PPOConfig

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells have it."""

BROKEN_PIPE = 141
"""Exit code when the reader of our output has gone (`| head`): 128 + SIGPIPE."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are `ConfigError`, shown like every other error."""

    def error(self, message: str) -> NoReturn:
        """Raises `ConfigError` with `message` and where to get help."""
        raise ConfigError(f"{message}; see `{self.prog} --help`")


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--config FILE` and `key=value ...`, which then stand in `config` and `overrides`."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings, on top of the defaults")
    parser.add_argument(
        "overrides",
        metavar="key=value",
        nargs="*",
        help="settings on top of the file, such as trainer.total_steps=100; values are YAML;"
        " `verl config --describe` lists all keys",
    )


def read_arguments(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """Reads `argv`; options and `key=value` may come in any order.

    Options that `parser` does not know join the overrides, where they are told with everything else that is wrong.
    """
    arguments, unknown = parser.parse_known_intermixed_args(list(argv))
    arguments.overrides = [*arguments.overrides, *unknown]
    return arguments


def parse_arguments(argv: Sequence[str], prog: str = "verl train") -> PPOConfig:
    """The configuration of `[--config FILE] [key=value ...]`, in any order.

    Args:
        argv: Arguments without the program's name.
        prog: How the program is called, for `--help` and errors.

    Raises:
        ConfigError: An argument is unknown, the file cannot be read, or settings are wrong.
        SystemExit: Code 0, after `--help`.
    """
    parser = Parser(prog=prog, description="Settings come from the defaults, the recipe, FILE and key=value.")
    add_config_arguments(parser)
    arguments = read_arguments(parser, argv)
    # The schema (pydantic, OmegaConf) is loaded only now, so that --help answers at once.
    from verl.config.load import load_config

    return load_config(arguments.config, arguments.overrides)


def run_command(command: Callable[[], int]) -> int:
    """Runs a command and turns how it ends into an exit code.

    A `VerlError` is one message on stderr and its own exit code, Ctrl-C is 130, a closed pipe on stdout ends
    quietly, and anything else is a bug of ours: it keeps its traceback.
    """
    try:
        code = command()
        sys.stdout.flush()
    except VerlError as error:
        return _report(error)
    except KeyboardInterrupt:
        sys.stderr.write("verl: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        _silence_stdout()
        return BROKEN_PIPE
    return code


def _report(error: VerlError) -> int:
    # What was printed before the error comes first, as the reader expects it.
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
    sys.stderr.write(f"verl: error: {error}\n")
    return error.exit_code


def _reader_has_gone() -> bool:
    """Whether stdout is a pipe that nobody reads: then it is what broke, not a connection of the command."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poller.poll(0))


def _silence_stdout() -> None:
    # Else Python flushes what is left when it ends, and complains.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
