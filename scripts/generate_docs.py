"""Writes the generated parts of the docs; with `--check`, only says which are out of date (exit code 1).

A generated part stands between `<!-- generated: NAME -->` and `<!-- end of generated: NAME -->`. To add one,
write a function that returns its text, append it to `PARTS`, and put the two marks into a page.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

# The checkout that this script lies in comes first, installed or not.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from verl.config.aliases import ALIASES, VALUE_ALIASES
from verl.config.environment import VARIABLES
from verl.config.keys import groups_of, keys_of
from verl.config.recipes import RECIPES
from verl.config.schema import PPOConfig
from verl.config.show import one_line
from verl.tracking.table import support_matrix

ROOT = Path(__file__).resolve().parent.parent


def configuration_keys() -> str:
    """A table of keys for each top group."""
    lines: list[str] = []
    for group, description in groups_of(PPOConfig).items():
        if "." in group:
            continue
        lines += [f"### `{group}`", "", description, "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
        for path, key in keys_of(PPOConfig).items():
            if path.startswith(f"{group}."):
                default = "must be given" if key.required else f"`{one_line(key.default)}`"
                lines.append(_row(f"`{path.removeprefix(f'{group}.')}`", default, key.allowed, key.description))
        lines.append("")
    return "\n".join(lines)


def configuration_recipes() -> str:
    """The recipes, each with what it sets."""
    lines = ["| `algorithm.type` | what it is | sets | published in |", "|---|---|---|---|"]
    for recipe in RECIPES.values():
        values = "<br>".join(f"`{key}={one_line(value)}`" for key, value in recipe.values.items())
        lines.append(_row(f"`{recipe.name}`", recipe.summary, values, "<br>".join(recipe.papers)))
    return "\n".join(lines) + "\n"


def configuration_aliases() -> str:
    """Other spellings of keys and of values."""
    lines = ["| also accepted | sets | how |", "|---|---|---|"]
    for alias in ALIASES:
        names = ", ".join(f"`{name}`" for name in alias.names)
        targets = ", ".join(f"`{target}`" for target in alias.targets)
        lines.append(_row(names, targets, alias.meaning or "as it is"))
    lines += ["", "| key | value also accepted | means |", "|---|---|---|"]
    for key, values in VALUE_ALIASES.items():
        lines += [_row(f"`{key}`", f"`{one_line(given)}`", f"`{one_line(value)}`") for given, value in values.items()]
    return "\n".join(lines) + "\n"


def configuration_environment() -> str:
    """The environment variables."""
    lines = ["| variable | meaning | read by |", "|---|---|---|"]
    lines += [_row(f"`{variable.name}`", variable.meaning, variable.reader) for variable in VARIABLES]
    return "\n".join(lines) + "\n"


PARTS: Mapping[str, Callable[[], str]] = {
    "configuration keys": configuration_keys,
    "configuration recipes": configuration_recipes,
    "configuration aliases": configuration_aliases,
    "configuration environment": configuration_environment,
    "what each tracker shows": support_matrix,
}


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def generated(page: str) -> str:
    """`page` with all its generated parts written anew.

    Raises:
        KeyError: The page marks a part that is not in `PARTS`.
    """

    def write(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- generated: {name} -->\n\n{PARTS[name]().rstrip()}\n\n<!-- end of generated: {name} -->"

    marked = r"<!-- generated: (?P<name>[^>]+?) -->.*?<!-- end of generated: (?P=name) -->"
    return re.sub(marked, write, page, flags=re.DOTALL)


def main() -> int:
    """Writes or checks all pages under docs/; returns the exit code."""
    parser = argparse.ArgumentParser(description="Writes the generated parts of the docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is out of date")
    check = parser.parse_args().check
    outdated: list[Path] = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        new = generated(page)
        if new != page:
            outdated.append(path.relative_to(ROOT))
            if not check:
                path.write_text(new, encoding="utf-8")
    for path in outdated:
        sys.stdout.write(f"{path}: {'out of date; run scripts/generate_docs.py' if check else 'written'}\n")
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
