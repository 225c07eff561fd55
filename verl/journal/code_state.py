"""The state of the code that ran: commit, branch and uncommitted changes of a git repository."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

_TIME_LIMIT_SECONDS = 3.0
_MAX_DIFF_BYTES = 512 * 1024
_MAX_CHANGED_FILES = 200


@dataclass(frozen=True, slots=True)
class CodeState:
    """A repository as it was.

    Attributes:
        root: Its folder. commit, branch: Nothing in a repository without commits, or detached.
        remote: Address of `origin`.
        changed_files: Status code and name of each changed or new file (at most 200).
        diff: `git diff HEAD`, at most 512 KiB; `is_diff_cut` tells whether that was not all.
    """

    root: str
    commit: str | None
    branch: str | None
    remote: str | None
    changed_files: tuple[str, ...]
    diff: str
    is_diff_cut: bool


def read_code_state(folder: Path) -> CodeState | None:
    """State of the repository that a folder is in; nothing if it is in none.

    Raises:
        OSError: git is not installed.
        subprocess.SubprocessError: git failed or took longer than three seconds.
    """
    if not any((place / ".git").exists() for place in (folder, *folder.parents)):
        return None
    root = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
    lines = _git(root, "status", "--porcelain=v2", "--branch").splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# ") and " " in line[2:])
    changed = tuple(_status_and_name(line) for line in lines if not line.startswith("# "))
    commit, branch = headers.get("branch.oid"), headers.get("branch.head")
    has_commit = commit is not None and not commit.startswith("(")
    diff = _git(root, "diff", "--no-ext-diff", "--no-textconv", "HEAD") if changed and has_commit else ""
    return CodeState(
        root=str(root),
        commit=commit if has_commit else None,
        branch=branch if branch is not None and not branch.startswith("(") else None,
        remote=_remote(root),
        changed_files=changed[:_MAX_CHANGED_FILES],
        diff=diff[:_MAX_DIFF_BYTES],
        is_diff_cut=len(diff) > _MAX_DIFF_BYTES,
    )


def _remote(folder: Path) -> str | None:
    try:
        return _git(folder, "config", "--get", "remote.origin.url").strip()
    except subprocess.CalledProcessError:  # it has none
        return None


def _status_and_name(line: str) -> str:
    """`1 .M N... 100644 ... name` and `? name` as `.M name` and `?? name`."""
    parts = line.split(" ")
    if parts[0] == "?":
        return f"?? {line[2:]}"
    skipped = {"1": 8, "2": 9, "u": 10}.get(parts[0], 1)
    return f"{parts[1]} {' '.join(parts[skipped:])}"


def _git(folder: Path, *arguments: str) -> str:
    """Output of a git command that changes nothing and runs no program of the repository, cut when too long."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "-C", str(folder), *arguments]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        timer = threading.Timer(_TIME_LIMIT_SECONDS, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            output = process.stdout.read(_MAX_DIFF_BYTES + 1)
            is_cut = len(output) > _MAX_DIFF_BYTES
            if is_cut:
                process.kill()
            code = process.wait()
        finally:
            timer.cancel()
    if code != 0 and not is_cut:
        raise subprocess.CalledProcessError(code, f"git {arguments[0]}")
    return output.decode("utf-8", "replace")
