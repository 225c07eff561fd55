"""How much of its memory limit the container of this process uses, by its control groups (versions 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_NO_LIMIT = 2**60
"""Version 1 writes a number near 2**63 where there is no limit."""


def memory_used_fractions(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> list[float]:
    """The used fraction of each limit that this process is under; empty where there is none.

    The file cache that the kernel can drop does not count as used.

    Args:
        root: Where the control groups are mounted.
        membership: Which groups the process is in.
    """
    fractions: list[float] = []
    for folder, limit_name, usage_name, cache_name in _groups(root, membership):
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is not None and usage is not None and 0 < limit < _NO_LIMIT:
            fractions.append(max(usage - _statistic(folder / "memory.stat", cache_name), 0) / limit)
    return fractions


def _groups(root: Path, membership: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Each existing folder from the group of this process up to the root, with the names of what is in it."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mount, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Within a container the path may be that outside of it; then only the root is there.
        inner = PurePosixPath(path.lstrip("/"))
        for folder in (inner, *inner.parents) if ".." not in inner.parts else (PurePosixPath("."),):
            if (mount / folder / names[0]).exists():
                yield mount / folder, *names


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None


def _statistic(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        return 0
    return 0
