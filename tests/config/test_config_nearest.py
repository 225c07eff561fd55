"""Which name was meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.config.nearest import edit_distance, nearest_keys, nearest_name

WORD = st.text("abc", max_size=6)


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("seed", "seed", 0),
        ("sede", "seed", 1),  # one swap
        ("sed", "seed", 1),  # one insertion
        ("sees", "seed", 1),  # one replacement
        ("kitten", "sitting", 3),
        ("ca", "abc", 3),  # no edits inside a swap
    ],
)
def test_edit_distance_counts_edits(left: str, right: str, distance: int) -> None:
    assert edit_distance(left, right) == distance


@given(WORD, WORD)
def test_edit_distance_is_symmetric_and_bounded(left: str, right: str) -> None:
    distance = edit_distance(left, right)
    assert distance == edit_distance(right, left)
    assert abs(len(left) - len(right)) <= distance <= max(len(left), len(right))
    assert (distance == 0) == (left == right)


def test_nothing_is_near_if_everything_is_far() -> None:
    assert nearest_name("frobnicate", ["seed", "device"]) is None
    assert nearest_name("x", []) is None
    # The shared groups do not make up for it.
    assert (
        nearest_name("actor_rollout_ref.rollout.trace.frobnicate", ["actor_rollout_ref.rollout.trace.backend"]) is None
    )


def test_case_does_not_count() -> None:
    assert nearest_name("GRPO", ["ppo", "grpo"]) == "grpo"


def test_the_same_name_in_another_group_is_near() -> None:
    assert nearest_keys("data.device", ["trainer.device", "data.seed"]) == ["trainer.device"]
    assert nearest_keys("optim.lr", ["critic.optim.lr", "lr"]) == ["critic.optim.lr", "lr"]
