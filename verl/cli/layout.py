"""Plain text for terminals of any width and for pipes: aligned columns, wrapped sentences, a little colour."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len, set_cell_size

from verl.config.command_line import printable
from verl.config.environment import wants_color

GREEN, YELLOW, RED, BOLD, DIM = "32", "33", "31", "1", "2"
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its heading.
        narrowest: Cells that it needs where room is short; its content may be cut down to that.
        weight: How much it matters: columns of the lowest weight are left out first where room is short.
        is_number: Whether it is aligned to the right.
    """

    title: str
    narrowest: int
    weight: int
    is_number: bool = False


def width_of(stream: TextIO) -> int | None:
    """Width of the terminal that a stream leads to; nothing = no terminal, lines may be of any length."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def height_of(stream: TextIO) -> int | None:
    """Lines of the terminal that a stream leads to; nothing = no terminal."""
    return shutil.get_terminal_size().lines if stream.isatty() else None


def painted(text: str, colour: str, stream: TextIO | None = None) -> str:
    """The text in a colour, if a terminal that may be coloured shows it."""
    shown_on = sys.stdout if stream is None else stream
    return f"\x1b[{colour}m{text}\x1b[0m" if shown_on.isatty() and wants_color() else text


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Lines of a table with a heading; where it is too wide, columns are cut, then left out."""
    shown, widths = _fitted(columns, rows, width)
    lines = []
    for row in ([column.title for column in columns], *rows):
        cells = [
            _aligned(row[index], widths[index], is_right=columns[index].is_number, is_last=index == shown[-1])
            for index in shown
        ]
        lines.append(_GAP.join(cells).rstrip())
    return lines


def wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
    """Lines of at most `width` cells, the first one as it is, the others indented."""
    if width is None:
        return [printable(text)]
    text = printable(text)
    lines, line = [], " " * (len(text) - len(text.lstrip(" ")))
    for word in text.lstrip(" ").split(" "):
        room = width - cell_len(line)
        if line.strip() and cell_len(word) + 1 > room:
            lines.append(line)
            line = indent
        line += word if not line.strip() else f" {word}"
        while cell_len(line) > width:
            head = set_cell_size(line, width).rstrip(" ") if cell_len(indent) < width else line[:width]
            lines.append(head)
            line = indent + line[len(head) :]
    return [*lines, line]


def cut(text: str, width: int) -> str:
    """The text in at most so many cells; what is cut is shown as "…"."""
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)).rstrip(" ") + "…"


def _fitted(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> tuple[list[int], dict[int, int]]:
    """Columns that fit, and their widths."""
    widths = {
        index: max([cell_len(column.title), *(cell_len(row[index]) for row in rows)])
        for index, column in enumerate(columns)
    }
    shown = list(widths)
    if width is None:
        return shown, widths
    smallest = {index: min(widths[index], columns[index].narrowest) for index in shown}
    while len(shown) > 1 and _total(shown, smallest) > width:
        shown.remove(min(shown, key=lambda index: columns[index].weight))
    # The widest gives first, cell by cell, down to what it needs.
    while (excess := _total(shown, widths) - width) > 0:
        givers = [index for index in shown if widths[index] > smallest[index]]
        if not givers:
            break
        widest = max(givers, key=lambda index: widths[index])
        others = [widths[index] for index in givers if index != widest]
        widths[widest] -= min(excess, max(1, widths[widest] - max([smallest[widest], *others])))
    return shown, widths


def _total(shown: Sequence[int], widths: dict[int, int]) -> int:
    return sum(widths[index] for index in shown) + len(_GAP) * (len(shown) - 1)


def _aligned(text: str, width: int, *, is_right: bool, is_last: bool) -> str:
    text = cut(text, width)
    space = " " * (width - cell_len(text))
    return space + text if is_right else text if is_last else text + space
