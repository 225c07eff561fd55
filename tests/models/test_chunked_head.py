import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl.models.chunked_head import chunk_length, linear_logprobs, logits_logprobs


def naive(hidden, weight, bias, target, temperature):
    logprobs = torch.log_softmax(torch.nn.functional.linear(hidden, weight, bias) / temperature, dim=-1)
    return logprobs[torch.arange(len(target)), target], -(logprobs.exp() * logprobs).sum(-1)


def inputs(tokens: int, width: int, vocabulary: int, *, has_bias: bool, seed: int):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator, requires_grad=True)
    weight = torch.randn(vocabulary, width, generator=generator, requires_grad=True)
    bias = torch.randn(vocabulary, generator=generator, requires_grad=True) if has_bias else None
    return hidden, weight, bias, torch.randint(vocabulary, (tokens,), generator=generator)


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.integers(1, 12),
    vocabulary=st.integers(2, 30),
    chunk=st.integers(1, 13),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    has_bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_equal_those_of_the_full_softmax(tokens, vocabulary, chunk, temperature, has_bias, seed):
    hidden, weight, bias, target = inputs(tokens, 5, vocabulary, has_bias=has_bias, seed=seed)
    leaves = [leaf for leaf in (hidden, weight, bias) if leaf is not None]
    factors = torch.linspace(-1.0, 2.0, tokens)

    def loss(pair):
        return (factors * pair[0]).sum() + 0.7 * (factors.flip(0) * pair[1]).sum()

    expected = naive(hidden, weight, bias, target, temperature)
    actual = linear_logprobs(hidden, weight, bias, target, temperature, chunk)
    expected_gradients = torch.autograd.grad(loss(expected), leaves)
    actual_gradients = torch.autograd.grad(loss(actual), leaves)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(actual_gradients, expected_gradients, atol=5e-5, rtol=1e-4)


def test_the_gradient_of_log_probs_alone_is_that_of_the_full_softmax_to_1e_6():
    hidden, weight, _, target = inputs(50, 16, 40, has_bias=False, seed=3)
    scale = 0.1 / 50
    expected = torch.autograd.grad(naive(hidden * 0.2, weight, None, target, 1.0)[0].sum() * scale, [hidden, weight])
    actual = torch.autograd.grad(
        linear_logprobs(hidden * 0.2, weight, None, target, 1.0, 7)[0].sum() * scale, [hidden, weight]
    )
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-6


def test_a_frozen_head_gets_no_gradient():
    hidden, weight, _, target = inputs(4, 5, 6, has_bias=False, seed=0)
    weight = weight.detach()
    linear_logprobs(hidden, weight, None, target)[0].sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_hand_worked_value():
    # Two tokens with logits 0 and ln 3 have probabilities 1/4 and 3/4.
    weight = torch.tensor([[0.0], [1.0]])
    hidden = torch.tensor([[3.0]]).log()
    logprob, entropy = linear_logprobs(hidden, weight, None, torch.tensor([0]))
    assert logprob.item() == pytest.approx(-1.3862944)
    assert entropy.item() == pytest.approx(0.5623351)


def test_large_logits_stay_finite():
    weight = torch.tensor([[1.0], [0.0]])
    hidden = torch.tensor([[1e4]], requires_grad=True)
    logprob, entropy = linear_logprobs(hidden, weight, None, torch.tensor([1]))
    (logprob + entropy).sum().backward()
    assert logprob.item() == -1e4
    assert entropy.item() == 0.0
    assert torch.isfinite(hidden.grad).all()


def test_no_tokens_give_no_values_and_zero_gradients():
    hidden = torch.zeros(0, 5, requires_grad=True)
    weight = torch.zeros(6, 5, requires_grad=True)
    logprob, _ = linear_logprobs(hidden, weight, None, torch.zeros(0, dtype=torch.long))
    logprob.sum().backward()
    assert logprob.shape == (0,)
    assert torch.equal(weight.grad, torch.zeros(6, 5))


def test_given_logits_give_the_same():
    hidden, weight, bias, target = inputs(7, 5, 11, has_bias=True, seed=1)
    torch.testing.assert_close(
        logits_logprobs(torch.nn.functional.linear(hidden, weight, bias), target, 0.5),
        naive(hidden, weight, bias, target, 0.5),
    )


def test_autocast_does_not_reach_the_head():
    hidden, weight, _, target = inputs(7, 64, 11, has_bias=False, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        actual = linear_logprobs(hidden, weight, None, target)
    torch.testing.assert_close(actual, naive(hidden, weight, None, target, 1.0), atol=1e-5, rtol=1e-5)


def test_large_vocabularies_get_short_chunks():
    cpu = torch.device("cpu")
    assert chunk_length(100, cpu) > chunk_length(50_000, cpu) >= 128
