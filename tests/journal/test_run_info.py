from __future__ import annotations

import pytest

from verl.errors import JournalError
from verl.journal import Attempt, RunInfo


def test_attempts_are_found_by_number_wherever_they_stand() -> None:
    attempts = (Attempt(3, 0.0, 1, "h", status="killed"), Attempt(4, 0.0, 1, "h", status="finished"))
    info = RunInfo("abc", "p", "e", 0.0, attempts)
    assert info.attempt(3).status == "killed"
    assert info.last_attempt == 4
    with pytest.raises(JournalError, match=r"has no attempt 1; it has \[3, 4\]"):
        info.attempt(1)
    assert RunInfo("abc", "p", "e", 0.0).last_attempt == 0
