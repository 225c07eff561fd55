"""No two names are spelled alike, and what can stand as it is does."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.tracking.spelling import Spelling

FORBIDDEN = re.compile(r"[^\w/.]|^/|/$")


def spelling(longest: int = 1000) -> Spelling:
    return Spelling(FORBIDDEN, longest)


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("loss/policy_loss", "loss/policy_loss"),
        ("val/mean@8", "val/mean_at_8"),
        ("a b", "a_x20_b"),
        ("/a/", "_x2f_a_x2f_"),
        ("mean_at_8", "mean_x5f_at_8"),
        ("look_at", "look_at"),
        ("a_x40_b", "a_x5f_x40_b"),
        ("snake_case_name", "snake_case_name"),
    ],
)
def test_names_are_spelled_as_little_as_possible(name: str, spelled: str) -> None:
    assert spelling()(name) == spelled


def test_what_was_changed_is_listed() -> None:
    spell = spelling()
    for name in ("a", "b@", "b@", "c"):
        spell(name)
    assert spell.renamed == {"b@": "b_at_"}


@pytest.mark.parametrize(
    ("one", "other"), [("pass_at@5", "pass@at_5"), ("?at_", "_x3f@"), ("_at_", "@"), ("_@", "__at_")]
)
def test_names_that_nearly_read_the_same_do_not(one: str, other: str) -> None:
    assert spelling()(one) != spelling()(other)


NAMES = st.text(st.sampled_from("_@ atx405fh/?"), max_size=8)


def read_back(spelled: str) -> str:
    """The name that a spelling means, read from left to right."""
    pattern = re.compile(r"_at_|_x([0-9a-f]+)_|(.)", re.DOTALL)
    return "".join(found[2] or (chr(int(found[1], 16)) if found[1] else "@") for found in pattern.finditer(spelled))


@given(NAMES)
def test_every_spelling_can_be_read_back(name: str) -> None:
    if name:
        assert read_back(spelling()(name)) == name


@given(st.text(min_size=1))
def test_every_spelling_keeps_the_rules(name: str) -> None:
    assert not FORBIDDEN.search(spelling()(name))


@given(st.lists(st.text(st.sampled_from("ab_@"), min_size=1, max_size=60), unique=True, max_size=20))
def test_long_names_stay_within_the_limit_and_apart(names: list[str]) -> None:
    spell = spelling(longest=30)
    spelled = [spell(name) for name in names]
    assert len(set(spelled)) == len(names)
    assert all(len(each) <= 30 for each in spelled)
