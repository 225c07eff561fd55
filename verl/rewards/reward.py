"""The reward of a batch: functions and a reward model, weighted and summed, every part kept.

    total = sum of weight_i * score_i over the functions that apply to the sample

A function that returns None does not apply: its term is left out of the sum (the other weights stay as
they are) and it has no part. A sample to which nothing applies is an error, never a silent 0.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, SupportsFloat

import numpy as np

from verl.config.checks import MODEL_PART
from verl.errors import RewardError
from verl.rewards.functions import RewardFunction, blamed_frame
from verl.rewards.inputs import RewardInput, RewardResult, ScoredText, TextScorer

_SHOWN_RESPONSE = 200
_SHOWN_VALUE = 80
_LARGEST_TOTAL = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one function says of one sample; `score` is None where it does not apply."""

    score: float | None
    parts: dict[str, float]
    details: dict[str, str]


class RewardComputer:
    """Computes rewards.

    Args:
        functions: Reward functions; may be empty if there is a scorer.
        scorer: Reward model, or None.
        scorer_weight: Weight of its score.
        num_workers: Most calls of functions at once. 1 calls them one after the other in the calling
            thread (where signals and debuggers work); more use threads, and async functions
            are awaited so many at once. The results do not depend on it.
        notices: Sentences the user should see once.
    """

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        scorer: TextScorer | None,
        scorer_weight: float,
        num_workers: int,
        notices: Sequence[str] = (),
    ) -> None:
        if not functions and scorer is None:
            raise ValueError("a RewardComputer needs at least one function or a scorer")
        self.functions = tuple(functions)
        self.scorer = scorer
        self.scorer_weight = scorer_weight
        self.num_workers = num_workers
        self.notices = tuple(notices)

    async def compute(self, samples: Sequence[RewardInput]) -> list[RewardResult]:
        """Computes the rewards of finished responses, in their order.

        Raises:
            RewardError: A function raised or gave something that is not a finite number, nothing
                applies to a sample, the reward model gave a score that is not finite, or a weighted sum is
                beyond the range of float32, in which advantages are computed.
        """
        if self.num_workers == 1:
            outcomes = [[await _evaluate(f, sample) for f in self.functions] for sample in samples]
        else:
            outcomes = await self._compute_in_threads(samples)
        scores = self._model_scores(samples)
        return [self._combine(sample, own, score) for sample, own, score in zip(samples, outcomes, scores, strict=True)]

    async def _compute_in_threads(self, samples: Sequence[RewardInput]) -> list[list[_Outcome]]:
        limit = asyncio.Semaphore(self.num_workers)
        with ThreadPoolExecutor(self.num_workers, thread_name_prefix="verl-reward") as pool:

            async def job(function: RewardFunction, sample: RewardInput) -> _Outcome:
                async with limit:
                    return await _evaluate(function, sample, pool)

            tasks = [asyncio.ensure_future(job(f, sample)) for sample in samples for f in self.functions]
            try:
                await _first_failure_or_all(tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            flat = iter([task.result() for task in tasks])
            return [[next(flat) for _ in self.functions] for _ in samples]

    def _model_scores(self, samples: Sequence[RewardInput]) -> list[float | None]:
        if self.scorer is None:
            return [None] * len(samples)
        texts = [ScoredText([*s.messages, {"role": "assistant", "content": s.response}]) for s in samples]
        scores = self.scorer.score(texts)
        if len(scores) != len(samples):
            raise RewardError(f"The reward model gave {len(scores)} scores for {len(samples)} responses.")
        for sample, score in zip(samples, scores, strict=True):
            if not math.isfinite(score):
                raise RewardError(
                    f"The reward model gave {score} for {_describe(sample)}.\n"
                    "Check its weights; in lower precision scores can overflow: try reward.model.dtype=float32."
                )
        return list(scores)

    def _combine(self, sample: RewardInput, outcomes: Sequence[_Outcome], model_score: float | None) -> RewardResult:
        parts: dict[str, float] = {}
        details: dict[str, str] = {}
        terms: list[float] = []
        for function, outcome in zip(self.functions, outcomes, strict=True):
            if outcome.score is not None:
                parts[function.name] = outcome.score
                terms.append(function.weight * outcome.score)
            parts |= outcome.parts
            details |= outcome.details
        if model_score is not None:
            parts[MODEL_PART] = model_score
            terms.append(self.scorer_weight * model_score)
        if not terms:
            names = ", ".join(function.name for function in self.functions)
            raise RewardError(
                f"No reward applies to {_describe(sample)}: every function ({names}) returned None.\n"
                "Add a function for this data source, or remove its rows from the data."
            )
        return RewardResult(_total(sample, terms, parts), parts, details)


def _total(sample: RewardInput, terms: Sequence[float], parts: Mapping[str, float]) -> float:
    try:
        total = math.fsum(terms)
    except (OverflowError, ValueError):  # a partial sum beyond float64, or infinite terms of both signs
        total = math.inf
    if not abs(total) <= _LARGEST_TOTAL:
        shown = ", ".join(f"{name}={value:g}" for name, value in parts.items())
        raise RewardError(
            f"The weighted sum of the rewards for {_describe(sample)} is beyond the range of float32 "
            f"(\u00b1{_LARGEST_TOTAL:.2g}); the parts are {shown}.\n"
            "Scale the functions or their weights so that the sum stays small."
        )
    return total


async def _first_failure_or_all(tasks: Sequence[asyncio.Task[_Outcome]]) -> None:
    """Waits for all tasks, or raises the error of the first failing one in their order.

    After a failure the later tasks are cancelled and the earlier ones awaited, so the error is the
    one that calling them one after the other would give.
    """
    failed: int | None = None
    pending = set(tasks)
    while pending:
        await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
        failures = (i for i, task in enumerate(tasks) if task.done() and not task.cancelled() and task.exception())
        failed = next(failures, None)
        if failed is None:
            return
        for task in tasks[failed + 1 :]:
            task.cancel()
        pending = {task for task in tasks[:failed] if not task.done()}
    if failed is not None:
        tasks[failed].result()


async def _evaluate(function: RewardFunction, sample: RewardInput, pool: ThreadPoolExecutor | None = None) -> _Outcome:
    """Calls a function, waits for its result and checks it."""
    if pool is None:
        called = _call(function, sample)
    else:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        called = await loop.run_in_executor(pool, lambda: context.run(_call, function, sample))
    value, error = called
    if error is None and inspect.isawaitable(value):
        try:
            value = await value
        except (Exception, SystemExit) as raised:  # as in _call
            error = raised
    if error is not None:
        raise RewardError(_raised(function, sample, error)) from error
    return _outcome(function, sample, value)


def _call(function: RewardFunction, sample: RewardInput) -> tuple[Any, BaseException | None]:
    """Gives result and exception as values: a StopIteration cannot travel through a future."""
    try:
        return function.call(sample), None
    except (Exception, SystemExit) as error:  # the user's code may raise anything; it stops the run with its place
        return None, error


def _outcome(function: RewardFunction, sample: RewardInput, value: Any) -> _Outcome:
    if not isinstance(value, Mapping):
        return _Outcome(None if value is None else _number(function, sample, value, "it"), {}, {})
    if "score" not in value:
        raise _wrong_value(function, sample, f"a dict without 'score' (keys: {', '.join(map(repr, value)) or 'none'})")
    parts: dict[str, float] = {}
    details: dict[str, str] = {}
    for key, item in value.items():
        if key == "score" or item is None:
            continue
        name = _text(f"{function.name}/{key}")
        if isinstance(item, SupportsFloat):
            parts[name] = _number(function, sample, item, f"its {key!r}")
        else:
            details[name] = _detail(function, sample, item, key)
    score = None if value["score"] is None else _number(function, sample, value["score"], "its 'score'")
    return _Outcome(score, parts, details)


def _detail(function: RewardFunction, sample: RewardInput, value: Any, key: Any) -> str:
    try:
        text = str(value)
    except Exception as error:  # the user's code may raise anything
        raise _wrong_value(
            function, sample, f"{_shown(value)} as its {key!r}, which cannot be made text ({_reason(error)})"
        ) from error
    return _text(text)


def _text(text: str) -> str:
    """`text` in UTF-8: lone surrogates, which no file can hold, as `\\udc80`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _reason(error: BaseException) -> str:
    """Type and message of an error of the user's, whose own `__str__` may fail."""
    try:
        message = str(error)
    except Exception as second:
        message = f"its message cannot be shown ({type(second).__name__})"
    return _text(f"{type(error).__name__}: {message}")


def _number(function: RewardFunction, sample: RewardInput, value: Any, what: str) -> float:
    """Takes Python, NumPy and torch numbers and one-element arrays; text is no number."""
    if type(value) is float and math.isfinite(value):  # nearly always
        return value
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if not isinstance(value, SupportsFloat):
        raise _wrong_value(
            function, sample, f"{_shown(value)} of type {type(value).__name__} where {what} must be a number"
        )
    try:
        number = float(value)
    except Exception as error:  # the user's code, or that of an array library, may raise anything
        raise _wrong_value(function, sample, f"{_shown(value)}, which is not one number ({_reason(error)})") from error
    if not math.isfinite(number):
        raise _wrong_value(function, sample, f"{number} where {what} must be a finite number")
    return number


def _wrong_value(function: RewardFunction, sample: RewardInput, gave: str) -> RewardError:
    return RewardError(
        f"Reward function {function.name!r} ({function.origin}) gave {gave}, for {_describe(sample)}.\n"
        "Allowed are a finite number, a dict with 'score', or None where the function does not apply."
    )


def _raised(function: RewardFunction, sample: RewardInput, error: BaseException) -> str:
    frame = blamed_frame(error, function.origin.rpartition(":")[0])
    where = f"  {frame.filename}:{frame.lineno}: {frame.line}\n" if frame else ""
    return (
        f"Reward function {function.name!r} ({function.origin}) raised {_reason(error)}\n"
        f"{where}for {_describe(sample)}.\n"
        "Mend the function: a wrong or unreadable answer should give a number such as 0.0, and None says that the "
        "function does not apply."
    )


def _describe(sample: RewardInput) -> str:
    text = sample.response
    shown = repr(text) if len(text) <= _SHOWN_RESPONSE else f"{text[:_SHOWN_RESPONSE]!r}... ({len(text)} characters)"
    origin = f" ({sample.origin})" if sample.origin else ""
    return f"data source {sample.data_source!r}, row {sample.index}{origin}, response {shown}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # the user's code may raise anything
        return f"a value whose repr raises {type(error).__name__}"
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}..."
