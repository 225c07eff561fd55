"""What the project promises about itself: names, layers, lightness, and a README that tells the truth."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import verl

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "verl"
MODULES = sorted(PACKAGE.rglob("*.py"))
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "manager", "base", "core", "impl"}
THIRD_PARTY = {
    "wandb",
    "mlflow",
    "swanlab",
    "tensorboard",
    "trackio",
    "torch",
    "transformers",
    "vllm",
    "ray",
    "peft",
    "rich",
}


def test_public_names_are_what_the_package_says():
    assert sorted(verl.__all__) == ["PPOConfig", "PPOTrainer", "__version__"]
    for name in verl.__all__:
        assert getattr(verl, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        verl.nothing  # noqa: B018


def test_no_module_has_a_name_that_says_nothing_or_shadows_a_package():
    names = {path.stem for path in MODULES} | {path.name for path in PACKAGE.rglob("*") if path.is_dir()}
    assert not names & FORBIDDEN_NAMES
    assert not names & THIRD_PARTY


def test_every_module_says_what_it_is():
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in MODULES
        if path.read_text().strip() and not path.read_text().lstrip().startswith('"""')
    ]
    assert not silent


@pytest.mark.parametrize("package", ["config", "journal", "tracking", "tracing"])
def test_the_light_half_never_loads_torch(package):
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (PACKAGE / package).rglob("*.py")]
    modules = [name.removesuffix(".__init__") for name in modules if not name.endswith("__main__")]
    program = f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
    program += "assert not {'torch', 'transformers'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_import_verl_loads_nothing_heavy():
    program = "import verl, sys; print(sorted({'torch', 'numpy', 'pydantic', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_file_tree_in_the_readme_is_the_real_one():
    tree = re.search(r"## Where things are\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert tree is not None
    named = set(re.findall(r"^  ([a-z_]+(?:\.py|/))  ", tree[1], re.MULTILINE))
    real = {path.name + ("/" if path.is_dir() else "") for path in PACKAGE.iterdir() if not path.name.startswith("__")}
    assert named == real - {"py.typed", "version.py"}
    for folder in re.findall(r"^([a-z]+)/  ", tree[1], re.MULTILINE):
        assert (ROOT / folder).is_dir(), folder


def test_links_in_the_docs_lead_somewhere():
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
        if not target.startswith(("http://", "https://")) and not (page.parent / target).exists()
    ]
    assert not broken


def test_places_named_in_the_architecture_exist():
    text = (ROOT / "docs/architecture.md").read_text()
    places = set(re.findall(r"`((?:verl|tests|docs|examples)/[a-z_/]+(?:\.py|\.md|/))`", text))
    assert len(places) > 15
    assert not [place for place in places if not (ROOT / place).exists()]


def test_layers_of_the_linter_are_those_of_the_architecture():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    text = (ROOT / "docs/architecture.md").read_text()
    assert "\n".join(layers) in text


def test_ci_runs_the_test_command_of_the_readme():
    assert "make test" in (ROOT / ".ci/run").read_text().splitlines()
    assert re.search(r"^make test ", (ROOT / "README.md").read_text(), re.MULTILINE)
