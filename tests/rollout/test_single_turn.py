import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.data.prompts import Prompt
from verl.rollout.engine import SamplingParams
from verl.rollout.single_turn import build_requests, collect, derive_seed
from verl.testing.engines import ScriptedEngine
from verl.testing.models import tiny_tokenizer

SAMPLING = SamplingParams(max_new_tokens=6)


def prompt(index: int, text: str = "hi") -> Prompt:
    return Prompt(
        index=index,
        data_source="letters",
        messages=[{"role": "user", "content": text}],
        ids=tiny_tokenizer().encode(text),
        text=text,
        ground_truth="yes",
        extra_info={"level": 3},
    )


def test_requests_come_group_by_group():
    requests = build_requests([prompt(4, "ab"), prompt(9, "c")], 3, SAMPLING, seed=1, step=2)
    assert [(r.prompt.index, r.rollout_n) for r in requests] == [(4, 0), (4, 1), (4, 2), (9, 0), (9, 1), (9, 2)]
    assert requests[0].request.prompt_ids == requests[2].request.prompt_ids == tuple(prompt(4, "ab").ids)
    assert len({r.request.seed for r in requests}) == 6


def test_seeds_are_a_function_of_what_is_sampled_and_not_of_the_order():
    forward = build_requests([prompt(4), prompt(9)], 2, SAMPLING, seed=1, step=2)
    backward = build_requests([prompt(9), prompt(4)], 2, SAMPLING, seed=1, step=2)
    by_sample = {(r.prompt.index, r.rollout_n): r.request.seed for r in forward}
    assert by_sample == {(r.prompt.index, r.rollout_n): r.request.seed for r in backward}


def test_a_prompt_that_comes_twice_is_sampled_anew():
    requests = build_requests([prompt(4), prompt(4)], 2, SAMPLING, seed=1, step=2)
    assert len({r.request.seed for r in requests}) == 4
    assert [r.rollout_n for r in requests] == [0, 1, 2, 3]


def test_the_seed_never_changes_between_versions():
    """A resumed run must sample what it would have sampled; this number is part of the format."""
    assert derive_seed(0, 1, 2, 3, False) == 3620530098955804529


@given(
    first=st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4, st.booleans()),
    second=st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4, st.booleans()),
)
def test_different_samples_have_different_seeds(first, second):
    assert 0 <= derive_seed(*first) < 2**63
    assert (derive_seed(*first) == derive_seed(*second)) == (first == second)


def test_trajectories_hold_what_was_asked_and_answered():
    tokenizer = tiny_tokenizer()
    engine = ScriptedEngine(
        tokenizer, lambda request: "no" if request.prompt_ids[0] == tokenizer.encode("h")[0] else ""
    )
    asyncio.run(engine.update_weights(7))
    requests = build_requests([prompt(4), prompt(5, "a")], 2, SAMPLING, seed=0, step=3, validate=True)
    trajectories = asyncio.run(collect(engine, requests, tokenizer))
    first = trajectories[0]
    assert (first.step, first.sample_index, first.rollout_n, first.validate) == (3, 4, 0, True)
    assert first.messages == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "no"}]
    assert first.response_text == "no"
    assert first.response_ids == [*tokenizer.encode("no"), tokenizer.eos_token_id]
    assert first.response_mask == [1, 1, 1]
    assert first.rollout_logprobs == [-0.5] * 3
    assert (first.finish_reason, first.policy_version, first.is_truncated) == ("stop", 7, False)
    assert (first.prompt_text, first.ground_truth, first.extra_info) == ("hi", "yes", {"level": 3})
    assert [t.response_text for t in trajectories] == ["no", "no", "", ""]
    assert [t.rollout_n for t in trajectories] == [0, 1, 0, 1]


def test_a_trajectory_does_not_share_its_messages_with_the_prompt():
    tokenizer, asked = tiny_tokenizer(), prompt(1)
    requests = build_requests([asked], 1, SAMPLING, seed=0, step=0)
    asyncio.run(collect(ScriptedEngine(tokenizer, lambda request: "x"), requests, tokenizer))
    assert len(asked.messages) == 1


def test_a_cut_response_is_truncated():
    tokenizer = tiny_tokenizer()
    requests = build_requests([prompt(1)], 1, SAMPLING, seed=0, step=0)
    trajectory = asyncio.run(collect(ScriptedEngine(tokenizer, lambda request: "x" * 50), requests, tokenizer))[0]
    assert trajectory.is_truncated
    assert trajectory.response_text == "x" * 6


def test_no_prompts_give_no_trajectories():
    tokenizer = tiny_tokenizer()
    assert asyncio.run(collect(ScriptedEngine(tokenizer, lambda request: "x"), [], tokenizer)) == []


@pytest.mark.parametrize("n", [1, 5])
def test_n_samples_per_prompt(n):
    assert len(build_requests([prompt(1), prompt(2)], n, SAMPLING, seed=0, step=0)) == 2 * n
