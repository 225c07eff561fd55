"""`verl export CHECKPOINT --to DIR`: turns a checkpoint into a model folder."""

from __future__ import annotations

from pathlib import Path

from verl.config.command_line import Parser


def run(argv: list[str]) -> int:
    """Writes the model of a checkpoint to a folder that transformers loads; returns 0.

    Raises:
        CheckpointError: There is no checkpoint, or it is incomplete.
    """
    parser = Parser(prog="verl export", description="Turns a checkpoint into a model folder.")
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", type=Path, help="a folder such as checkpoints/global_step_100"
    )
    parser.add_argument("--to", metavar="DIR", type=Path, required=True, help="folder to write; it must not exist yet")
    arguments = parser.parse_args(argv)
    # torch loads here, so that --help answers at once.
    from verl.trainer.export import export

    export(arguments.checkpoint, arguments.to)
    return 0
