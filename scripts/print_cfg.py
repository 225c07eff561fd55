"""Prints the resolved configuration, what differs from the defaults marked; fails on a wrong key.

python scripts/print_cfg.py --config config/experiment.yaml algorithm.type=grpo
"""

from __future__ import annotations

import sys
from pathlib import Path

# The checkout that this script lies in comes first, installed or not.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from verl.config import parse_arguments, render, run_command
from verl.config.command_line import write_output


def main() -> int:
    """Prints the configuration of the command line; returns 0."""
    write_output(render(parse_arguments(sys.argv[1:], prog="print_cfg.py")))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
