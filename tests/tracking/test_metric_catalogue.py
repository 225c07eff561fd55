"""The catalogue of built-in metrics, and names made of data sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.tracking import CATALOGUE, Direction, Reduction, lookup, sanitize_name
from verl.tracking.catalogue import catalogue_markdown

ROOT = Path(__file__).parents[2]

PROMISED = [
    "reward/episode_reward_mean",
    "kl/kl_divergence",
    "loss/policy_loss",
    "loss/value_loss",
    "throughput/rollout_per_second",
    "throughput/step_per_second",
    "grad_norm/actor",
    "grad_norm/critic",
    "reward/parts/accuracy",
    "policy/entropy",
    "policy/clip_fraction",
    "policy/ratio_max",
    "advantage/std",
    "value/explained_variance",
    "lr/actor",
    "length/truncated_fraction",
    "timing/rollout",
    "timing/step",
    "timing/my_phase",
    "mismatch/logprob_diff_max",
    "progress/epoch",
    "system/memory_bytes",
    "val/reward_mean",
    "val/gsm8k/reward_mean",
    "val/gsm8k/accuracy",
    "val/length/response_mean",
    "val/truncated_fraction",
]


@pytest.mark.parametrize("key", PROMISED)
def test_promised_metrics_are_declared(key: str) -> None:
    assert lookup(key) is not None


@pytest.mark.parametrize("key", ["my_metric", "reward/skewness", "reward/parts/", "timing/", ""])
def test_other_keys_are_the_users(key: str) -> None:
    assert lookup(key) is None


def test_an_exact_key_wins_over_a_pattern() -> None:
    spec = lookup("val/length/response_mean")
    assert spec is not None
    assert spec.key == "val/length/response_mean"
    assert spec.unit == "tokens"


@pytest.mark.parametrize(
    ("key", "reduction"),
    [
        ("reward/episode_reward_min", Reduction.MIN),
        ("policy/ratio_max", Reduction.MAX),
        ("timing/update_actor", Reduction.SUM),
        ("lr/actor", Reduction.LAST),
        ("val/stocks/format", Reduction.MEAN),
    ],
)
def test_reductions(key: str, reduction: Reduction) -> None:
    spec = lookup(key)
    assert spec is not None
    assert spec.reduction is reduction


def test_every_metric_says_what_it_is() -> None:
    for key, spec in CATALOGUE.items():
        assert key == spec.key
        assert re.fullmatch(r"[a-z0-9_/<>]+", key)
        assert spec.description[0].isupper(), key
        assert spec.description.endswith("."), key
        assert isinstance(spec.direction, Direction)


def test_the_page_is_made_from_the_catalogue() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == catalogue_markdown(), "run: python -m verl.tracking.catalogue > docs/metrics.md"


@pytest.mark.parametrize("name", ["gsm8k", "math_500", "a", "length", "0"])
def test_a_plain_name_stays(name: str) -> None:
    assert sanitize_name(name) == name


def test_names_that_look_alike_stay_apart() -> None:
    names = ["openai/gsm8k", "openai-gsm8k", "openai gsm8k", "OpenAI/gsm8k", "openai_gsm8k", "数学", "物理", "", " "]
    assert len({sanitize_name(name) for name in names}) == len(names)
    assert sanitize_name("openai/gsm8k") == "openai/gsm8k"
    assert sanitize_name("openai gsm8k").startswith("openai_gsm8k_")


@given(st.text(max_size=200))
def test_any_text_becomes_a_name(text: str) -> None:
    name = sanitize_name(text)
    assert re.fullmatch(r"[A-Za-z0-9_./-]{1,64}", name)
    assert all(part and part not in (".", "..") for part in name.split("/"))
    assert sanitize_name(text) == name
    assert sanitize_name(name) == name


@pytest.mark.parametrize("name", ["reward_mean", "response_mean", "a/reward_mean"])
def test_a_part_cannot_take_the_place_of_a_built_in_metric(name: str) -> None:
    assert sanitize_name(name) != name
