"""The configuration as text: marks, masks, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl.config import PPOConfig, changed_keys, load_config, render
from verl.config.keys import Key, keys_of
from verl.config.layers import default_values
from verl.config.show import describe, describe_environment, plain_values
from verl.errors import ConfigError


def line_of(config: PPOConfig, key: str) -> str:
    """The rendered line of the first key with this name."""
    return next(line.strip() for line in render(config).splitlines() if line.strip().startswith(f"{key}:"))


# Marks.


def test_a_default_has_no_mark() -> None:
    assert line_of(PPOConfig(), "train_batch_size") == "train_batch_size: 32"


def test_a_change_names_the_default() -> None:
    assert line_of(PPOConfig(total_steps=3), "total_steps") == "total_steps: 3  # default: null"


def test_a_value_of_the_recipe_names_the_recipe() -> None:
    config = PPOConfig(algorithm={"type": "grpo"})
    assert line_of(config, "adv_estimator") == "adv_estimator: grpo  # from recipe grpo; default: gae"


def test_a_change_of_a_value_of_the_recipe_names_both() -> None:
    config = PPOConfig(algorithm={"lam": 0.9})
    assert line_of(config, "lam") == "lam: 0.9  # recipe ppo: 0.95; default: 1.0"


def test_going_back_to_the_default_against_the_recipe_is_marked() -> None:
    config = PPOConfig(algorithm={"lam": 1.0})
    assert line_of(config, "lam") == "lam: 1.0  # recipe ppo: 0.95; default: 1.0"


def test_the_head_counts_the_changes() -> None:
    assert render(PPOConfig(total_steps=3)).startswith("# 3 of ")


def test_changed_keys_are_those_that_differ_from_the_schema() -> None:
    assert changed_keys(PPOConfig(total_steps=3)) == {
        "algorithm.lam": 0.95,
        "algorithm.use_kl_in_reward": True,
        "trainer.total_steps": 3,
    }
    assert changed_keys(PPOConfig(**default_values(PPOConfig))) == {}


def test_every_key_is_shown() -> None:
    assert load_keys(render(PPOConfig())) == set(default_values(PPOConfig))


def load_keys(text: str) -> set[str]:
    """The dotted keys of rendered YAML, from its indentation."""
    keys: set[str] = set()
    groups: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, value = line.strip().partition(":")
        groups = [*groups[:depth], name]
        if value:
            keys.add(".".join(groups))
    return keys


# Secrets.


def test_secrets_are_masked_everywhere() -> None:
    config = PPOConfig(
        trainer={"wandb_proxy": "http://user:hunter2hunter2@proxy.example:8080"},
        reward={"functions": [{"path": "a.py:f", "kwargs": {"api_key": "abcdef1234567890", "scale": 2}}]},
    )
    for text in (render(config), str(changed_keys(config))):
        assert "hunter2" not in text
        assert "abcdef1234567890" not in text
        assert "***" in text
        assert "proxy.example:8080" in text
    assert "scale: 2" in render(config)


def test_nothing_in_a_default_configuration_looks_like_a_secret() -> None:
    assert "***" not in render(PPOConfig())


# The way back.

# `???` is OmegaConf's mark of a value that must be given, and has no escape.
TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t\\${}:#'\" ")
).filter(lambda text: text != "???")
WORDS = st.sampled_from(
    ["null", "on", "1e3", "0x10", "1_000", ".5", "~", "-", "2024-01-01", "${a.b}", "\\${x}", "a: b"]
)


def values_of(key: Key) -> st.SearchStrategy[Any]:
    """Values that the key's type takes; rules between keys may still refuse them."""
    options: list[st.SearchStrategy[Any]] = []
    for kind in key.kinds:
        if kind is type(None):
            options.append(st.none())
        elif kind is bool:
            options.append(st.booleans())
        elif kind is int:
            options.append(st.integers(1, 10**9))
        elif kind is float:
            options.append(st.floats(0.001, 0.999))
        elif kind is str:
            options.append(TEXT | WORDS)
        elif kind == list[str]:
            options.append(st.lists(TEXT | WORDS, max_size=3))
    return st.one_of(options) if options else st.nothing()


SETTABLE = {
    path: key
    for path, key in keys_of(PPOConfig).items()
    if not key.in_list and not values_of(key).is_empty and path not in ("algorithm.type",)
}
FUNCTIONS = st.lists(
    st.fixed_dictionaries(
        {"path": TEXT, "weight": st.floats(-10, 10), "kwargs": st.dictionaries(TEXT, TEXT | st.integers(), max_size=2)}
    ),
    max_size=2,
)


@st.composite
def settings_of(draw: st.DrawFn) -> dict[str, Any]:
    """A few settings, some of them text that YAML or OmegaConf could take for something else."""
    paths = draw(st.lists(st.sampled_from(sorted(SETTABLE)), max_size=6, unique=True))
    values = {path: draw(values_of(SETTABLE[path])) for path in paths}
    if draw(st.booleans()):
        values["reward.functions"] = draw(FUNCTIONS)
    return values | {"algorithm.type": draw(st.sampled_from(["ppo", "grpo"]))}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=settings_of())
def test_what_is_printed_is_the_configuration_when_read_again(values: dict[str, Any], tmp_path: Path) -> None:
    try:
        config = PPOConfig(**values)
    except ConfigError:
        return
    text = render(config)
    if "***" in text:
        return
    file = tmp_path / "printed.yaml"
    file.write_text(text, encoding="utf-8")
    read_again = load_config(file)
    assert plain_values(read_again) == plain_values(config)
    assert read_again == config


@pytest.mark.parametrize(
    "text", ["${a.b}", r"\${a.b}", r"\\${a.b}", "a\nb", "1e-6", "on", "null", " x ", "股票", "x # y"]
)
def test_text_that_looks_like_something_else_comes_back(tmp_path: Path, text: str) -> None:
    config = PPOConfig(data={"prompt_key": text, "train_files": [text]}, experiment_name=text)
    file = tmp_path / "printed.yaml"
    file.write_text(render(config), encoding="utf-8")
    assert load_config(file) == config


# Lists of what there is.


def test_describe_names_every_key_with_default_and_meaning() -> None:
    text = describe()
    for path, key in keys_of(PPOConfig).items():
        assert f"  {path}  (" in text
        assert key.description in text
        assert key.description, path
    assert "data.train_batch_size  (default 32; a whole number of at least 1)" in text
    assert "reward.functions[].path  (must be given; text)" in text
    assert "arXiv:2402.03300" in text


def test_the_environment_table_names_every_variable() -> None:
    assert "VERL_LOG_DIR" in describe_environment()
    assert len(describe_environment().splitlines()) > 4
