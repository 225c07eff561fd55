import pytest
import torch
from sequences import Sequence, random_sequences

from verl.models.batching import pad_batch
from verl.models.logprobs import token_logprobs
from verl.models.policy import PolicyModel
from verl.testing.models import ARCHITECTURES

TOLERANCE = 2e-5
PLAIN_HEADS = {"llama", "mistral", "qwen2", "qwen3", "opt", "gpt2"}

every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def naive_rows(policy: PolicyModel, row: Sequence, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Full logits of one unpadded row, straight from transformers."""
    logits = policy.transformer(torch.tensor([row.prompt_ids + row.response_ids])).logits[0].float() / temperature
    logprobs = torch.log_softmax(logits, -1)[len(row.prompt_ids) - 1 : -1]
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, torch.tensor(row.response_ids)[:, None]).squeeze(1), entropy


@every_architecture
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_padded_batch_scores_as_each_row_alone_in_transformers(policies, architecture, temperature):
    policy, rows = policies[architecture], random_sequences(7)
    with torch.no_grad():
        scored = token_logprobs(policy, pad_batch(rows), temperature)
        for index, row in enumerate(rows):
            logprobs, entropy = naive_rows(policy, row, temperature)
            mask = torch.tensor(row.response_mask)
            length = len(row.response_ids)
            torch.testing.assert_close(
                scored.logprobs_BT[index, :length], logprobs * mask, atol=TOLERANCE, rtol=TOLERANCE
            )
            torch.testing.assert_close(
                scored.entropy_BT[index, :length], entropy * mask, atol=TOLERANCE, rtol=TOLERANCE
            )


@every_architecture
def test_masked_and_padded_positions_are_exactly_zero(policies, architecture):
    rows = random_sequences(5, seed=2)
    batch = pad_batch(rows)
    with torch.no_grad():
        scored = token_logprobs(policies[architecture], batch, 1.0)
    assert (scored.logprobs_BT[~batch.response_mask_BT] == 0).all()
    assert (scored.entropy_BT[~batch.response_mask_BT] == 0).all()
    assert (scored.logprobs_BT[batch.response_mask_BT] < 0).all()


@every_architecture
def test_a_row_scores_the_same_in_any_company(policies, architecture):
    policy, rows = policies[architecture], random_sequences(6, seed=4)
    with torch.no_grad():
        alone = token_logprobs(policy, pad_batch(rows[:1]), 1.0).logprobs_BT[0]
        wide = Sequence([5] * 40, [6] * 30, [1] * 30)
        padded = token_logprobs(policy, pad_batch([wide, *reversed(rows)]), 1.0).logprobs_BT[-1]
    torch.testing.assert_close(padded[: len(alone)], alone, atol=TOLERANCE, rtol=TOLERANCE)


@every_architecture
def test_padding_on_the_left_would_score_the_same(policies, architecture):
    policy, row = policies[architecture], Sequence([5, 6, 7, 8], [9, 10, 11], [1, 1, 1])
    ids = torch.tensor([[0, 0, 0, *row.prompt_ids, *row.response_ids]])
    mask = torch.tensor([[0, 0, 0] + [1] * 7])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = policy.transformer(ids, attention_mask=mask, position_ids=positions).logits[0, 6:9]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(row.response_ids)[:, None]).squeeze(1)
        actual = token_logprobs(policy, pad_batch([row]), 1.0).logprobs_BT[0]
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=TOLERANCE)


@every_architecture
def test_gradients_equal_those_of_the_full_logits(policies, architecture):
    policy, rows = policies[architecture], random_sequences(4, seed=6)
    parameters = list(policy.network.parameters())

    def weighted(logprobs_BT: torch.Tensor) -> torch.Tensor:
        return (logprobs_BT * torch.linspace(-0.01, 0.02, logprobs_BT.numel()).view_as(logprobs_BT)).sum()

    scored = token_logprobs(policy, pad_batch(rows), 1.0).logprobs_BT
    naive_BT = torch.zeros_like(scored)
    for index, row in enumerate(rows):
        logprobs, _ = naive_rows(policy, row, 1.0)
        naive_BT[index, : len(logprobs)] = logprobs * torch.tensor(row.response_mask)
    actual = torch.autograd.grad(weighted(scored), parameters, allow_unused=True)
    expected = torch.autograd.grad(weighted(naive_BT), parameters, allow_unused=True)
    for ours, theirs in zip(actual, expected, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=2e-4)


def test_soft_capped_and_scaled_logits_are_found_out_at_load(policies):
    assert {name for name, policy in policies.items() if policy.has_plain_head} == PLAIN_HEADS


def test_temperature_zero_counts_as_one(policies):
    batch = pad_batch(random_sequences(3))
    with torch.no_grad():
        greedy = token_logprobs(policies["llama"], batch, 0.0)
        plain = token_logprobs(policies["llama"], batch, 1.0)
    assert torch.equal(greedy.logprobs_BT, plain.logprobs_BT)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_entropy_has_a_gradient_only_when_asked(policies, architecture):
    policy, batch = policies[architecture], pad_batch(random_sequences(3))
    assert not token_logprobs(policy, batch, 1.0).entropy_BT.requires_grad
    entropy = token_logprobs(policy, batch, 1.0, entropy_gradient=True).entropy_BT.sum()
    gradients = torch.autograd.grad(entropy, list(policy.network.parameters()), allow_unused=True)
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_a_batch_without_trainable_tokens_scores_zero_and_still_has_a_graph(policies, architecture):
    scored = token_logprobs(policies[architecture], pad_batch([Sequence([5, 6], [7, 8], [0, 0])]), 1.0)
    assert scored.logprobs_BT.tolist() == [[0.0, 0.0]]
    scored.logprobs_BT.sum().backward()
    policies[architecture].network.zero_grad()


@every_architecture
def test_scoring_twice_in_train_mode_is_bit_equal(policies, architecture):
    """No dropout is left: the ratio before the first update is exactly 1."""
    policy, batch = policies[architecture], pad_batch(random_sequences(3))
    assert policy.network.training
    with torch.no_grad():
        first = token_logprobs(policy, batch, 1.0).logprobs_BT
        second = token_logprobs(policy, batch, 1.0).logprobs_BT
    assert torch.equal(first, second)
