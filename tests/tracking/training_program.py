"""A training program for tests that kill it: logs steps for ever, and says each one after it was logged.

python training_program.py RUN_DIRECTORY FIRST_STEP TRACKER...
"""

from __future__ import annotations

import itertools
import os
import sys
import time

from verl.tracking import Tracking


def main() -> None:
    tracking = Tracking("p", "e", sys.argv[3:], {"lr": 0.1}, log_dir=sys.argv[1])
    first = int(sys.argv[2])
    with tracking:
        if first > 1:
            tracking.rewind(first - 1)
        for step in itertools.count(first):
            tracking.progress(step)
            tracking.log_metrics({"loss": float(step), "attempt": float(first)}, step)
            tracking.log_text("sample", f"text {step}", step)
            os.write(2, f"{step}\n".encode())
            time.sleep(0.002)  # a step takes a moment


if __name__ == "__main__":
    main()
