"""`verl <command> ...`: one table of commands, each a module that is imported when its command runs.

To add a command, write a module with `run(argv: list[str]) -> int` and append a line to `COMMANDS`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from verl.config.command_line import run_command, write_output
from verl.config.nearest import nearest_name
from verl.errors import ConfigError
from verl.version import __version__


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `verl`.

    Attributes:
        module: Module whose `run(argv)` does it.
        summary: What it does, for `verl --help`.
    """

    module: str
    summary: str


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "train": Command("verl.cli.train", "train a policy with PPO or GRPO"),
        "config": Command("verl.cli.config", "show the resolved configuration, all keys, or the environment"),
        "metrics": Command("verl.cli.metrics", "list the metrics that a run logs"),
        "export": Command("verl.cli.export", "turn a checkpoint into a model folder"),
        "runs": Command("verl.cli.runs", "list runs, and what each tracker lacks of them"),
        "sync": Command("verl.cli.sync", "complete what trackers lack of a run, or show it in another tracker"),
        "doctor": Command("verl.cli.doctor", "find out what keeps trackers from working, or which one to choose"),
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `verl` with the arguments of the process, or with `argv`; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: _dispatch(arguments))


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        write_output(_help())
        return 0
    name, *rest = arguments
    if name in ("-V", "--version", "version"):
        write_output(f"verl {__version__}\n")
        return 0
    if name not in COMMANDS:
        raise ConfigError(_unknown(name))
    return importlib.import_module(COMMANDS[name].module).run(rest)


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "".join(f"  {name:<{width}}  {command.summary}\n" for name, command in COMMANDS.items())
    return (
        "usage: verl COMMAND ...\n\n"
        "Post-train language models with reinforcement learning, and see everything that happened.\n\n"
        f"commands:\n{commands}\n"
        "options:\n  -h, --help     this text; `verl COMMAND --help` says more\n  -V, --version  the version\n"
    )


def _unknown(name: str) -> str:
    nearest = nearest_name(name, COMMANDS)
    what = "an option" if name.startswith("-") else "a command"
    suggestion = f"did you mean `{nearest}`?" if nearest else f"the commands are {', '.join(COMMANDS)}"
    return f"`{name}` is not {what} of verl; {suggestion}"


if __name__ == "__main__":
    sys.exit(main())
