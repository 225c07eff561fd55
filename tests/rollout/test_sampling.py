import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from verl.rollout.engine import SamplingParams
from verl.rollout.sampling import SamplingPlan, invert_cumulative, request_uniforms, sample_tokens

CPU = torch.device("cpu")
# Probabilities 0.4, 0.05, 0.3, 0.2, 0.05.
LOGITS = torch.tensor([0.4, 0.05, 0.3, 0.2, 0.05]).log()


def draw(params: SamplingParams, uniforms: torch.Tensor, logits: torch.Tensor = LOGITS):
    rows = len(uniforms)
    plan = SamplingPlan.build([params] * rows, CPU)
    return sample_tokens(logits.expand(rows, -1).clone(), plan, uniforms)


def support(**params) -> set[int]:
    uniforms = torch.linspace(0, 1 - 1e-9, 1001, dtype=torch.float64)
    return set(draw(SamplingParams(max_new_tokens=1, **params), uniforms)[0].tolist())


def test_a_uniform_number_picks_by_cumulative_probability():
    uniforms = torch.tensor([0.0, 0.39, 0.41, 0.46, 0.74, 0.76, 0.94, 0.96, 0.999], dtype=torch.float64)
    tokens, logprobs = draw(SamplingParams(max_new_tokens=1), uniforms)
    assert tokens.tolist() == [0, 0, 1, 2, 2, 3, 3, 4, 4]
    torch.testing.assert_close(logprobs, LOGITS[tokens])


def test_frequencies_pass_a_chi_square_test():
    uniforms = torch.tensor([request_uniforms(seed, 1)[0] for seed in range(20_000)])
    tokens, _ = draw(SamplingParams(max_new_tokens=1), uniforms)
    observed = np.bincount(tokens.numpy(), minlength=5)
    assert stats.chisquare(observed, np.array([8000, 1000, 6000, 4000, 1000])).pvalue > 1e-3


def test_frequencies_after_top_p_are_those_of_what_is_kept():
    uniforms = torch.tensor([request_uniforms(seed, 1)[0] for seed in range(20_000)])
    tokens, _ = draw(SamplingParams(max_new_tokens=1, top_p=0.8), uniforms)
    observed = np.bincount(tokens.numpy(), minlength=5)
    assert observed[[1, 4]].sum() == 0
    expected = np.array([4, 3, 2]) / 9 * 20_000
    assert stats.chisquare(observed[[0, 2, 3]], expected).pvalue > 1e-3


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 2}),
        ({"top_k": 3}, {0, 2, 3}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.39}, {0}),
        ({"top_p": 0.41}, {0, 2}),
        ({"top_p": 0.71}, {0, 2, 3}),
        ({"top_p": 1e-9}, {0}),
        ({"top_p": 0.99}, {0, 1, 2, 3, 4}),
        # Of 0.4 and 0.3 the first alone has 4/7 = 0.571 of the probability.
        ({"top_k": 2, "top_p": 0.57}, {0}),
        ({"top_k": 2, "top_p": 0.58}, {0, 2}),
        ({"temperature": 0.0}, {0}),
        ({"temperature": 0.0, "top_p": 0.5, "top_k": 3}, {0}),
    ],
)
def test_what_can_be_drawn(params, expected):
    assert support(**params) == expected


def test_top_p_is_taken_after_the_temperature():
    # At temperature 2 the probabilities are proportional to their roots: 0.304, 0.108, 0.264, 0.215, 0.108.
    assert support(top_p=0.35) == {0}
    assert support(top_p=0.35, temperature=2.0) == {0, 2}


def test_equal_probabilities_keep_exactly_k():
    plan = SamplingPlan.build([SamplingParams(max_new_tokens=1, top_k=2)] * 101, CPU)
    tokens, _ = sample_tokens(torch.zeros(101, 5), plan, torch.linspace(0, 0.999, 101, dtype=torch.float64))
    assert len(set(tokens.tolist())) == 2


def test_rows_keep_their_own_parameters():
    params = [
        SamplingParams(max_new_tokens=1),
        SamplingParams(max_new_tokens=1, top_k=1),
        SamplingParams(max_new_tokens=1, top_p=0.5),
        SamplingParams(max_new_tokens=1, temperature=0.0),
    ]
    plan = SamplingPlan.build(params, CPU)
    tokens, _ = sample_tokens(LOGITS.expand(4, -1), plan, torch.full((4,), 0.97, dtype=torch.float64))
    assert tokens.tolist() == [4, 0, 2, 0]
    kept = plan.select(torch.tensor([2, 0]))
    tokens, _ = sample_tokens(LOGITS.expand(2, -1), kept, torch.full((2,), 0.97, dtype=torch.float64))
    assert tokens.tolist() == [2, 4]


def test_a_row_that_cuts_nothing_keeps_its_rarest_token_beside_a_row_that_cuts():
    logits = torch.tensor([1e-8, 1.0]).log()
    params = [SamplingParams(max_new_tokens=1), SamplingParams(max_new_tokens=1, top_p=0.5)]
    plan = SamplingPlan.build(params, CPU)
    tokens, _ = sample_tokens(logits.expand(2, -1), plan, torch.full((2,), 1e-9, dtype=torch.float64))
    assert tokens.tolist() == [0, 1]


def test_log_probs_are_of_the_whole_distribution_at_the_temperature():
    uniforms = torch.zeros(1, dtype=torch.float64)
    _, cut = draw(SamplingParams(max_new_tokens=1, top_k=1, top_p=0.3), uniforms)
    assert cut.item() == pytest.approx(np.log(0.4))
    _, cooled = draw(SamplingParams(max_new_tokens=1, temperature=0.5), uniforms)
    assert cooled.item() == pytest.approx(np.log(0.16 / (0.16 + 0.0025 + 0.09 + 0.04 + 0.0025)))
    _, greedy = draw(SamplingParams(max_new_tokens=1, temperature=0.0), uniforms)
    assert greedy.item() == pytest.approx(np.log(0.4))


@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 1e-7, 0.3, 1.0, 1e6]), min_size=1, max_size=8).filter(any),
    uniform=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53, 1 - 2**-24])),
)
def test_a_token_of_probability_zero_is_never_drawn(weights, uniform):
    index = invert_cumulative(torch.tensor([weights]), torch.tensor([uniform], dtype=torch.float64)).item()
    assert weights[index] > 0


def test_uniforms_depend_on_the_seed_alone_and_longer_draws_begin_alike():
    assert request_uniforms(7, 5).tolist() == request_uniforms(7, 9)[:5].tolist()
    assert request_uniforms(7, 5).tolist() != request_uniforms(8, 5).tolist()
    # Seeds that differ in their high bits only differ too; negative and huge ones are fine.
    assert request_uniforms(7, 5).tolist() != request_uniforms(7 + 2**32, 5).tolist()
    assert 0 <= request_uniforms(-1, 1)[0] < 1
    assert 0 <= request_uniforms(2**70, 1)[0] < 1
