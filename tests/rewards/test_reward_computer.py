"""The weighted sum, its parts, and what stops a run."""

from __future__ import annotations

import asyncio
import contextvars
import re
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.config.schema import RewardConfig
from verl.errors import ConfigError, RewardError
from verl.rewards import (
    RewardComputer,
    RewardFunction,
    RewardInput,
    RewardResult,
    ScoredText,
    build_reward,
    load_reward_functions,
    make_reward_function,
)

WORKERS = pytest.mark.parametrize("num_workers", [1, 4])


def wrap(function: Callable[..., Any], weight: float = 1.0, name: str = "f") -> RewardFunction:
    return make_reward_function(function, name, weight, {}, "reward.functions[0]")


def compute(
    functions: Sequence[RewardFunction | Callable[..., Any]],
    samples: Sequence[RewardInput],
    num_workers: int = 1,
    scorer: Any = None,
    scorer_weight: float = 1.0,
) -> list[RewardResult]:
    wrapped = [f if isinstance(f, RewardFunction) else wrap(f) for f in functions]
    return asyncio.run(RewardComputer(wrapped, scorer, scorer_weight, num_workers).compute(samples))


def error_of(function: RewardFunction | Callable[..., Any], given: RewardInput, num_workers: int = 1) -> str:
    with pytest.raises(RewardError) as caught:
        compute([function], [given], num_workers)
    return str(caught.value)


class Lengths:
    """Scores by the length of the last message."""

    def __init__(self) -> None:
        self.seen: list[ScoredText] = []

    def score(self, texts: list[ScoredText]) -> list[float]:
        self.seen += texts
        return [float(len(text.messages[-1]["content"])) for text in texts]


# Sums and parts


@WORKERS
def test_the_total_is_the_weighted_sum_and_parts_are_unweighted(sample, num_workers):
    functions = [wrap(lambda: 1.0, 2.0, "a"), wrap(lambda: 0.5, -1.0, "b")]
    scorer = Lengths()
    (result,) = compute(functions, [sample(response="abc")], num_workers, scorer, 0.1)
    assert result.total == pytest.approx(2.0 * 1.0 - 1.0 * 0.5 + 0.1 * 3)
    assert result.parts == {"a": 1.0, "b": 0.5, "model_score": 3.0}


def test_a_dict_gives_the_score_and_further_named_parts_and_details(sample):
    def f():
        return {"score": 1, "format": np.float32(0.5), "acc": True, "pred": "up", "skipped": None}

    (result,) = compute([f], [sample()])
    assert result.total == 1.0
    assert result.parts == {"f": 1.0, "f/format": 0.5, "f/acc": 1.0}
    assert result.details == {"f/pred": "up"}


def test_a_function_that_does_not_apply_leaves_the_sum(sample):
    functions = [wrap(lambda: None, 5.0, "a"), wrap(lambda: 0.5, 2.0, "b"), wrap(lambda: {"score": None}, 1.0, "c")]
    (result,) = compute(functions, [sample()])
    assert result == RewardResult(total=1.0, parts={"b": 0.5})


def test_a_sample_to_which_nothing_applies_stops_the_run(sample):
    message = error_of(lambda: None, sample())
    assert message.startswith(
        "No reward applies to data source 'sums', row 17, response 'It is 4.': every function (f) returned None."
    )


def test_a_reward_model_alone_is_enough_and_sees_the_conversation_with_the_response(sample):
    scorer = Lengths()
    results = compute([], [sample(response="ab"), sample(response="")], scorer=scorer, scorer_weight=2.0)
    assert [result.total for result in results] == [4.0, 0.0]
    assert scorer.seen[0].messages == [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "ab"},
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, 1.0),
        (3, 3.0),
        (-0.5, -0.5),
        (np.float64(2.5), 2.5),
        (np.int8(-3), -3.0),
        (np.bool_(True), 1.0),
        (np.array(1.5), 1.5),
        (np.array([1.5]), 1.5),
        (torch.tensor(0.25), 0.25),
        (torch.tensor([0.25], dtype=torch.bfloat16), 0.25),
        (Decimal("0.75"), 0.75),
    ],
)
def test_numbers_of_all_kinds_are_taken(sample, value, expected):
    (result,) = compute([lambda: value], [sample()])
    assert result.total == expected
    assert type(result.total) is float
    assert type(result.parts["f"]) is float


def test_no_samples_give_no_results():
    assert compute([lambda: 1.0], [], 1) == compute([lambda: 1.0], [], 4) == []


def test_neither_functions_nor_scorer_is_a_mistake():
    with pytest.raises(ValueError, match="at least one function or a scorer"):
        RewardComputer([], None, 1.0, 1)


# Threads and async


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-1000, 1000), max_size=30), st.integers(1, 8))
def test_results_keep_the_order_of_the_samples_whatever_the_number_of_workers(values, num_workers):
    samples = [
        RewardInput(
            index=i,
            data_source="s",
            messages=[],
            prompt="",
            response=str(value),
            finish_reason="stop",
            ground_truth=None,
            extra_info={},
        )
        for i, value in enumerate(values)
    ]

    async def doubled(solution_str):
        await asyncio.sleep(0)
        return 2 * int(solution_str)

    functions = [wrap(lambda solution_str: int(solution_str), name="single"), wrap(doubled, name="double")]
    results = compute(functions, samples, num_workers)
    assert [result.parts for result in results] == [{"single": v, "double": 2 * v} for v in values]


def test_workers_call_at_the_same_time(sample):
    # Each call waits for the other: with one worker this would not end.
    barrier = threading.Barrier(2, timeout=30)

    def f():
        barrier.wait()
        return 1.0

    assert len(compute([f], [sample(), sample()], num_workers=2)) == 2


def test_async_calls_overlap_up_to_the_number_of_workers(sample):
    running: list[int] = []
    most: list[int] = []

    async def f():
        running.append(1)
        most.append(len(running))
        for _ in range(20):
            await asyncio.sleep(0.001)
        running.pop()
        return 1.0

    compute([f], [sample()] * 9, num_workers=3)
    assert max(most) == 3


def test_one_worker_calls_in_the_main_thread(sample):
    seen: list[threading.Thread] = []
    compute([lambda: seen.append(threading.current_thread()) or 1.0], [sample()])
    assert seen == [threading.main_thread()]


@WORKERS
def test_functions_see_the_context_of_the_caller(sample, num_workers):
    variable = contextvars.ContextVar("variable", default=0.0)

    async def run() -> list[RewardResult]:
        variable.set(7.0)
        return await RewardComputer([wrap(lambda: variable.get())], None, 1.0, num_workers).compute([sample()])

    assert asyncio.run(run())[0].total == 7.0


# What stops a run


@WORKERS
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_function_that_raises_is_shown_with_sample_exception_and_line(tmp_path, sample, kind, num_workers):
    path = tmp_path / "my_reward.py"
    keyword = "async def" if kind == "async" else "def"
    path.write_text(f"import json\n\n{keyword} score(solution_str):\n    return float(json.loads(solution_str))\n")
    (function,) = load_reward_functions(RewardConfig(functions=[f"{path}:score"]).functions)  # type: ignore[list-item]
    message = error_of(function, sample(response="abc" * 200), num_workers)
    assert message == (
        f"Reward function 'score' ({path}:3) raised JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n"
        f"  {path}:4: return float(json.loads(solution_str))\n"
        f"for data source 'sums', row 17, response '{('abc' * 200)[:200]}'... (600 characters).\n"
        "Mend the function: a wrong or unreadable answer should give a number such as 0.0, and None says that the "
        "function does not apply."
    )


@WORKERS
@pytest.mark.parametrize("error", [StopIteration("s"), SystemExit(1), AssertionError(), TimeoutError("t")])
def test_exceptions_of_every_kind_become_reward_errors(sample, error, num_workers):
    def f():
        raise error

    assert f"raised {type(error).__name__}: " in error_of(f, sample(), num_workers)


def test_the_file_of_the_prompt_is_named_when_it_is_known(sample):
    message = error_of(lambda: float("nan"), sample(origin="train.jsonl, line 18"))
    assert "for data source 'sums', row 17 (train.jsonl, line 18), response 'It is 4.'." in message


def test_an_interrupt_is_not_swallowed(sample):
    def f():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute([f], [sample()])


@WORKERS
def test_the_first_failing_sample_is_the_one_reported(sample, num_workers):
    def f(solution_str):
        if solution_str in ("2", "3"):
            raise ValueError(solution_str)
        return 1.0

    barrier = threading.Barrier(2, timeout=30)

    def both(solution_str):
        if num_workers > 1 and solution_str in ("2", "3"):
            barrier.wait()
        return f(solution_str)

    with pytest.raises(RewardError, match="raised ValueError: 2\n"):
        compute([both], [sample(response=str(i)) for i in range(4)], num_workers)


def test_an_earlier_sample_that_fails_later_is_still_the_one_reported(sample):
    async def f(solution_str):
        if solution_str == "1":
            for _ in range(100):
                await asyncio.sleep(0)
        raise ValueError(solution_str)

    with pytest.raises(RewardError, match="raised ValueError: 1\n"):
        compute([f], [sample(response="1"), sample(response="2")], num_workers=2)


def test_after_a_failure_no_further_samples_are_started(sample):
    called: list[str] = []

    def f(solution_str):
        called.append(solution_str)
        raise ValueError

    with pytest.raises(RewardError):
        compute([f], [sample(response=str(i)) for i in range(500)], num_workers=2)
    assert len(called) < 100


BAD_VALUES: list[tuple[Any, str]] = [
    (float("nan"), "gave nan where it must be a finite number"),
    (float("-inf"), "gave -inf where it must be a finite number"),
    (np.float32("inf"), "gave inf where it must be a finite number"),
    (torch.tensor(float("nan")), "gave nan where it must be a finite number"),
    ("1.0", "gave '1.0' of type str where it must be a number"),
    ([1.0], "gave [1.0] of type list where it must be a number"),
    (1j, "gave 1j of type complex where it must be a number"),
    (np.array([1.0, 2.0]), "which is not one number"),
    (torch.tensor([1.0, 2.0]), "which is not one number"),
    (10**400, "which is not one number (OverflowError: int too large to convert to float)"),
    ({}, "gave a dict without 'score' (keys: none)"),
    ({"reward": 1.0}, "gave a dict without 'score' (keys: 'reward')"),
    ({"score": "1"}, "gave '1' of type str where its 'score' must be a number"),
    ({"score": 1.0, "format": float("nan")}, "gave nan where its 'format' must be a finite number"),
]


@pytest.mark.parametrize(("value", "reason"), BAD_VALUES, ids=range(len(BAD_VALUES)))
def test_what_is_not_a_finite_number_stops_the_run(sample, value, reason):
    message = error_of(lambda: value, sample())
    assert message.startswith("Reward function 'f' (")
    assert reason in message
    assert "for data source 'sums', row 17, response 'It is 4.'." in message
    assert message.endswith(
        "Allowed are a finite number, a dict with 'score', or None where the function does not apply."
    )


def test_a_generator_is_not_a_number(sample):
    def f():
        yield 1.0

    assert "of type generator where it must be a number" in error_of(f, sample())


@pytest.mark.parametrize("response", ["\0\x1b[2J", "\ud83d", "'\"\n", "{}%s"])
def test_hostile_responses_are_shown_escaped_on_one_line(sample, response):
    message = error_of(lambda: float("nan"), sample(response=response))
    assert re.search(r"response (.+)\.$", message.splitlines()[0])
    assert message.isprintable() or set(message) - set("\n") <= set(filter(str.isprintable, message))


def test_a_score_of_the_reward_model_that_is_not_finite_stops_the_run(sample):
    class Broken:
        def score(self, texts: list[ScoredText]) -> list[float]:
            return [0.0, float("nan")]

    with pytest.raises(RewardError, match=r"^The reward model gave nan for data source 'sums', row 2, "):
        compute([], [sample(index=1), sample(index=2)], scorer=Broken())


def test_a_scorer_with_the_wrong_number_of_scores_stops_the_run(sample):
    class Short:
        def score(self, texts: list[ScoredText]) -> list[float]:
            return [0.0]

    with pytest.raises(RewardError, match="gave 1 scores for 2 responses"):
        compute([], [sample(), sample()], scorer=Short())


# From the configuration


def test_without_any_reward_the_default_compares_with_the_ground_truth_and_says_so(sample):
    computer = build_reward(RewardConfig(), None, has_ground_truth=True)
    assert computer.notices[0].startswith("No reward.functions and no reward.model.path given: a response scores 1 if")
    results = asyncio.run(computer.compute([sample(), sample(response="5")]))
    assert [result.parts for result in results] == [{"default": 1.0}, {"default": 0.0}]


def test_without_any_reward_and_ground_truth_the_run_does_not_start():
    with pytest.raises(ConfigError, match=r"There is no reward: neither reward\.functions nor reward\.model\.path"):
        build_reward(RewardConfig(), None, has_ground_truth=False)


def test_configured_functions_and_model_are_used_with_their_weights(sample):
    config = RewardConfig.model_validate(
        {
            "functions": [{"path": "verl.rewards.builtin:contains_answer", "name": "right", "weight": 2.0}],
            "model": {"weight": 0.5},
        }
    )
    computer = build_reward(config, Lengths(), has_ground_truth=False)
    assert computer.notices == ()
    (result,) = asyncio.run(computer.compute([sample()]))
    assert result == RewardResult(total=2.0 + 0.5 * 8, parts={"right": 1.0, "model_score": 8.0})


# What no sentence could be made of


class Hostile:
    """Nothing about it can be asked."""

    def __float__(self) -> float:
        raise SystemError("no float")

    def __str__(self) -> str:
        raise SystemError("no text")

    __repr__ = __str__


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemError("no text")


class NoText:
    def __str__(self) -> str:
        raise SystemError("no text")


def raise_unspeakable(*_: Any, **__: Any) -> float:
    raise Unspeakable


@pytest.mark.parametrize("value", [1e200, -1e200, 3.5e38])
def test_a_sum_beyond_float32_is_an_error(sample: Callable[..., RewardInput], value: float) -> None:
    message = error_of(lambda *_, **__: value, sample())
    assert "is beyond the range of float32 (±3.4e+38); the parts are f=" in message


def test_a_sum_that_overflows_is_an_error(sample: Callable[..., RewardInput]) -> None:
    functions = [wrap(lambda *_, **__: 1.7e308, name=name) for name in "ab"]
    with pytest.raises(RewardError, match=r"the parts are a=1\.7e\+308, b=1\.7e\+308"):
        compute(functions, [sample()])
    functions = [wrap(lambda *_, **__: 1e308, weight, name) for weight, name in ((1e10, "a"), (-1e10, "b"))]
    with pytest.raises(RewardError, match="beyond the range of float32"):
        compute(functions, [sample()])


def test_the_largest_sum_is_allowed(sample: Callable[..., RewardInput]) -> None:
    assert compute([lambda *_, **__: 3.4e38], [sample()])[0].total == 3.4e38


@WORKERS
def test_an_error_without_words_is_told(sample: Callable[..., RewardInput], num_workers: int) -> None:
    message = error_of(raise_unspeakable, sample(), num_workers)
    assert "raised Unspeakable: its message cannot be shown (SystemError)" in message


def test_a_value_that_refuses_everything_is_told(sample: Callable[..., RewardInput]) -> None:
    message = error_of(lambda *_, **__: Hostile(), sample())
    assert "gave a value whose repr raises SystemError, which is not one number (SystemError: no float)" in message


def test_a_detail_that_cannot_be_text_is_told(sample: Callable[..., RewardInput]) -> None:
    message = error_of(lambda *_, **__: {"score": 1.0, "why": NoText()}, sample())
    assert "as its 'why', which cannot be made text (SystemError: no text)" in message


def test_a_detail_with_a_lone_surrogate_can_be_stored(sample: Callable[..., RewardInput]) -> None:
    (result,) = compute([lambda *_, **__: {"score": 1.0, "why\ud800": "a\udc80ü"}], [sample()])
    assert result.details == {"f/why\\ud800": "a\\udc80ü"}
    assert "\n".join([*result.details, *result.details.values()]).encode("utf-8")
