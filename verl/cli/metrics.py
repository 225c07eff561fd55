"""`verl metrics`: the catalogue of metrics."""

from __future__ import annotations

from verl.config.command_line import Parser, write_output


def run(argv: list[str]) -> int:
    """Prints every built-in metric with its reduction, unit, direction and meaning; returns 0."""
    Parser(prog="verl metrics", description="Lists the metrics that a run logs, with what each means.").parse_args(argv)
    # Imported here, so that --help answers at once.
    from verl.tracking.catalogue import CATALOGUE

    rows = [("key", "reduction", "unit", "better", "meaning")]
    rows += [
        (spec.key, spec.reduction.value, spec.unit or "-", spec.direction.value, spec.description)
        for spec in CATALOGUE.values()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = []
    for *cells, meaning in rows:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{padded}  {meaning}\n")
    write_output("".join(lines))
    return 0
