"""What all command lines of the package share: reading `--config FILE key=value ...`, and ending with the right code.

Light on purpose (`verl --help` goes through here): the schema is imported when a configuration is read.
"""

from __future__ import annotations

import argparse
import io
import os
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from verl.config.secrets import mask_text
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


def write_output(text: str) -> None:
    """Writes what a command was asked for to stdout.

    Raises:
        VerlError: It cannot be written, such as to a full disk.
        BrokenPipeError: Its reader has gone.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _silence_stdout()
        raise VerlError(f"the output cannot be written to stdout: {error.strerror}") from None


def run_command(command: Callable[[], int]) -> int:
    """Runs a command and turns how it ends into an exit code.

    A `VerlError` is one message on stderr (secrets masked) and its own exit code, Ctrl-C is 130, a closed pipe on
    stdout ends quietly, and anything else is a bug of ours: it keeps its traceback. Where stdout or stderr is closed,
    what goes there is lost, and the command ends as it would have.
    """
    _open_closed_streams()
    try:
        return _finished(command)
    except VerlError as error:
        return _report(error)
    except KeyboardInterrupt:
        _write_error("verl: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        _silence_stdout()
        return BROKEN_PIPE


def _finished(command: Callable[[], int]) -> int:
    try:
        code = command()
    except SystemExit:  # argparse, after --help
        write_output("")
        raise
    write_output("")
    return code


def _report(error: VerlError) -> int:
    # What was printed before the error comes first, as the reader expects it.
    try:
        sys.stdout.flush()
    except OSError:
        _silence_stdout()
    _write_error(f"verl: error: {printable(mask_text(str(error)))}\n")
    return error.exit_code


def printable(text: str) -> str:
    r"""`text` with characters that would steer a terminal (all but line breaks and tabs) as `\x1b`."""
    return text.translate(_ESCAPES)


def _write_error(text: str) -> None:
    with suppress(OSError):  # nobody can be told
        sys.stderr.write(text)
        sys.stderr.flush()


# C0, DEL and C1 controls, and the marks that change the direction of text.
_ESCAPES = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}


def _open_closed_streams() -> None:
    """Puts the null device where 0, 1 or 2 is closed (`>&-`).

    Else the next file of the run gets that number, and what a library or child process prints ends in it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            os.set_inheritable(descriptor, True)
    # Python has None there, on which every `write` fails.
    if sys.stdout is None:
        sys.stdout = _null_stream()
    if sys.stderr is None:
        sys.stderr = _null_stream()


def _null_stream() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")


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
