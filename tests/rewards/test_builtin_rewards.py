from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.data.builtin import heldout_rows, train_rows
from verl.rewards.builtin import builtin_rule, contains_answer, default_score, exact_match, format


@pytest.mark.parametrize(
    ("response", "truth", "expected"),
    [
        ("Paris", "Paris", 1.0),
        ("  paris.\n", "Paris", 1.0),
        ("New   York", "new york", 1.0),
        ("Paris, France", "Paris", 0.0),
        ("4", 4, 1.0),
        ("4", 4.0, 1.0),
        ("4.0", 4.0, 1.0),
        ("4", 5, 0.0),
        ("b", ["a", "b"], 1.0),
        ("True", True, 1.0),
        ("1", True, 0.0),
        ("", "Paris", 0.0),
    ],
)
def test_exact_match(response, truth, expected):
    assert exact_match(response, truth) == expected


@pytest.mark.parametrize(
    ("response", "truth", "expected"),
    [
        ("The answer is 4.", "4", 1.0),
        ("The answer is (4)!", 4, 1.0),
        ("2+2=4", "4", 1.0),
        ("so,4", "4", 1.0),
        ("14", "4", 0.0),
        ("4.5", "4", 0.0),
        ("4,000", "4", 0.0),
        ("1,4", "4", 0.0),
        ("-4", "4", 0.0),
        ("it is -4", "-4", 1.0),
        ("It is in PARIS today", "Paris", 1.0),
        ("Parisian", "Paris", 0.0),
        ("New\nYork", "new york", 1.0),
        ("a.c", "a.c", 1.0),
        ("abc", "a.c", 0.0),
        ("It is b", ["a", "b"], 0.0 + 1.0),
        ("anything", ".", 0.0),
        ("", "4", 0.0),
    ],
)
def test_contains_answer(response, truth, expected):
    assert contains_answer(response, truth) == expected


@pytest.mark.parametrize("truth", [None, {"a": 1}, [], [None]])
def test_a_ground_truth_that_cannot_be_compared_is_an_error(truth):
    with pytest.raises(TypeError, match="this reward needs a text, a number, or a list"):
        exact_match("a", truth)


def test_format_checks_the_whole_response():
    assert format("<think>a\nb</think>\n<answer>4</answer>") == 1.0
    assert format("Well: <think>a</think><answer>4</answer>") == 0.0
    assert format("yes!", pattern="(yes|no)!") == 1.0
    assert format("yes! no!", pattern="(yes|no)!") == 0.0


@pytest.mark.parametrize(
    ("rule", "response", "expected"),
    [
        ({"rule": "max_words", "limit": 4}, "one two three four", 1.0),
        ({"rule": "max_words", "limit": 4}, "a b c d e f g h", 0.5),
        ({"rule": "lower_case"}, "all small, 1 2", 1.0),
        ({"rule": "lower_case"}, "aB", 0.5),
        ({"rule": "lower_case"}, "漢字", 1.0),
        ({"rule": "contains", "word": "rain"}, "Rain falls.", 1.0),
        ({"rule": "contains", "word": "rain"}, "train", 0.5),
        ({"rule": "contains", "word": "rain"}, "ran", 0.375),
        ({"rule": "contains", "word": "rain"}, "xyz", 0.0),
        ({"rule": "ends_with", "text": "."}, "It rains. \n", 1.0),
        ({"rule": "ends_with", "text": "."}, "a.bc", 0.25),
        ({"rule": "ends_with", "text": "."}, "abc", 0.0),
    ],
)
def test_rules_score_by_degrees(rule, response, expected):
    assert builtin_rule(response, rule) == expected


@pytest.mark.parametrize("response", ["", "  \n", "...", "123."])
@pytest.mark.parametrize("row", train_rows()[:4])
def test_a_response_without_letters_scores_nothing_under_every_rule(row, response):
    assert builtin_rule(response, row.ground_truth) == 0.0


def test_an_unknown_rule_is_an_error():
    with pytest.raises(ValueError, match="unknown rule 'rhyme'; there are max_words, lower_case, contains, ends_with"):
        builtin_rule("a", {"rule": "rhyme"})


@given(st.text(max_size=80))
def test_every_built_in_prompt_scores_any_text_between_zero_and_one(text):
    for row in heldout_rows():
        assert 0.0 <= default_score(text, row.ground_truth) <= 1.0


@given(st.one_of(st.text(max_size=20), st.integers(), st.booleans()), st.text(max_size=40))
def test_the_default_takes_any_plain_ground_truth(truth: Any, text: str):
    assert default_score(text, truth) in (0.0, 1.0)


def test_each_built_in_rule_can_be_met():
    answer = {"max_words": "short", "lower_case": "small", "ends_with": "It is."}
    for row in train_rows():
        rule = row.ground_truth
        response = answer.get(rule["rule"]) or f"It is {rule['word']}."
        assert default_score(response, rule) == 1.0
