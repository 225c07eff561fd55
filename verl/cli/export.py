"""`verl export CHECKPOINT --to DIR`: turns a checkpoint into a model folder."""

from __future__ import annotations

from pathlib import Path

from verl.config.command_line import Parser, write_output


def run(argv: list[str]) -> int:
    """Writes the policy of a checkpoint to a folder that transformers loads, and prints the folder; returns 0.

    Raises:
        CheckpointError: There is no checkpoint, it is incomplete, or the folder holds something.
        ModelError: The base model of an adapter cannot be loaded.
    """
    parser = Parser(prog="verl export", description="Turns the policy of a checkpoint into a model folder.")
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", type=Path, help="a global_step_N folder, or a run directory (its newest)"
    )
    parser.add_argument("--to", metavar="DIR", type=Path, required=True, help="folder to make; empty if it exists")
    arguments = parser.parse_args(argv)
    # torch loads here, so that --help answers at once.
    from verl.trainer.export import export

    write_output(f"{export(arguments.checkpoint, arguments.to)}\n")
    return 0
