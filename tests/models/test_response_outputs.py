import pytest
import torch
from sequences import Sequence

from verl.config.schema import CriticConfig, LoraConfig, ModelConfig
from verl.models.batching import pad_batch
from verl.models.loading import load_critic, load_policy
from verl.models.logprobs import token_logprobs
from verl.models.lora import trainable_parameters
from verl.models.policy import can_cache
from verl.models.value_model import token_values
from verl.testing.models import ARCHITECTURES, make_tiny_model_folder, tiny_tokenizer

TOLERANCE = 2e-5


def groups(seed: int = 0) -> list[Sequence]:
    """Two groups of five with long prompts of unequal length (longer than the sliding windows), in mixed order."""
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> list[int]:
        return torch.randint(3, 90, (count,), generator=generator).tolist()

    prompts = [ids(20), ids(13)]
    rows = []
    for index in range(10):
        length = 1 + index % 6
        rows.append(Sequence(prompts[index % 2], ids(length), [1] * (length - 1) + [index % 3 != 0]))
    return rows


def apart(rows: list[Sequence], score) -> torch.Tensor:
    """Scores each row in a batch of its own, where nothing can be shared."""
    width = max(len(row.response_ids) for row in rows)
    scored = [score(pad_batch([row]))[0] for row in rows]
    return torch.stack([torch.nn.functional.pad(values, (0, width - len(values))) for values in scored])


def tokens_read(module: torch.nn.Module, run) -> int:
    """Token positions that go through the input embeddings."""
    counts = []
    handle = module.register_forward_hook(lambda _, inputs, output: counts.append(inputs[0].numel()))
    try:
        run()
    finally:
        handle.remove()
    return sum(counts)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_shared_prompts_give_the_log_probs_and_gradients_of_separate_ones(policies, architecture):
    policy, rows = policies[architecture], groups()
    parameters = list(policy.network.parameters())

    def score(batch):
        return token_logprobs(policy, batch, 1.0).logprobs_BT

    together, separate = score(pad_batch(rows)), apart(rows, score)
    torch.testing.assert_close(together, separate, atol=TOLERANCE, rtol=TOLERANCE)
    weights = torch.linspace(-0.01, 0.02, together.numel()).view_as(together)
    ours = torch.autograd.grad((together * weights).sum(), parameters, allow_unused=True)
    theirs = torch.autograd.grad((separate * weights).sum(), parameters, allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_shared_prompts_give_the_values_of_separate_ones(tmp_path, architecture):
    folder = make_tiny_model_folder(tmp_path / "m", architecture)
    critic = load_critic(CriticConfig(), ModelConfig(path=str(folder)), "cpu")
    torch.nn.init.normal_(critic.value_head.weight, generator=torch.Generator().manual_seed(0))
    rows = groups()
    with torch.no_grad():
        together = token_values(critic, pad_batch(rows))
        separate = apart(rows, lambda batch: token_values(critic, batch))
    torch.testing.assert_close(together, separate, atol=TOLERANCE, rtol=TOLERANCE)


def test_the_prompt_of_a_group_is_read_once(policies):
    policy, rows = policies["llama"], groups()
    batch = pad_batch(rows)
    read = tokens_read(policy.transformer.get_input_embeddings(), lambda: token_logprobs(policy, batch, 1.0))
    # 2 prompts of 20 columns and 10 responses of 6, the last column of which predicts nothing.
    assert read == 2 * 20 + 10 * 5


def test_prompts_that_are_not_shared_are_read_with_their_responses(policies):
    policy = policies["llama"]
    batch = pad_batch([Sequence([5] * 9, [6] * 3, [1] * 3), Sequence([7] * 9, [6] * 3, [1] * 3)])
    read = tokens_read(policy.transformer.get_input_embeddings(), lambda: token_logprobs(policy, batch, 1.0))
    assert read == 2 * 12


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_responses_of_one_token_need_the_prompt_only(policies, architecture):
    policy = policies[architecture]
    rows = [Sequence([5, 6, 7, 8], [token], [1]) for token in (9, 10, 11)]
    with torch.no_grad():
        batch = pad_batch(rows)
        together = token_logprobs(policy, batch, 1.0).logprobs_BT
        separate = apart(rows, lambda one: token_logprobs(policy, one, 1.0).logprobs_BT)
        read = tokens_read(policy.transformer.get_input_embeddings(), lambda: token_logprobs(policy, batch, 1.0))
    torch.testing.assert_close(together, separate, atol=TOLERANCE, rtol=TOLERANCE)
    assert read == 4


def test_recomputed_activations_leave_no_cache_to_share_and_the_gradients_agree(tmp_path):
    folder = make_tiny_model_folder(tmp_path / "m")
    gradients = []
    for checkpointing in (True, False):
        config = ModelConfig(path=str(folder), gradient_checkpointing=checkpointing)
        policy = load_policy(config, "cpu", tokenizer=tiny_tokenizer())
        assert can_cache(policy.network) != checkpointing
        (token_logprobs(policy, pad_batch(groups()), 1.0).logprobs_BT.sum() * 0.01).backward()
        gradients.append([parameter.grad for parameter in policy.network.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-3)


def test_an_adapter_is_trained_through_shared_prompts(tmp_path):
    config = ModelConfig(path=str(make_tiny_model_folder(tmp_path / "m")), lora=LoraConfig(rank=2))
    policy = load_policy(config, "cpu", tokenizer=tiny_tokenizer())
    for parameter in trainable_parameters(policy):
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(0))
    rows = groups()

    def score(batch):
        return token_logprobs(policy, batch, 1.0).logprobs_BT

    ours = torch.autograd.grad(score(pad_batch(rows)).sum() * 0.01, trainable_parameters(policy))
    theirs = torch.autograd.grad(apart(rows, score).sum() * 0.01, trainable_parameters(policy))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)


def test_junk_in_masked_positions_behind_the_last_trainable_token_changes_nothing(policies):
    policy, rows = policies["llama"], groups()
    with torch.no_grad():
        before = token_logprobs(policy, pad_batch(rows), 1.0).logprobs_BT
        longer = [Sequence(row.prompt_ids, [*row.response_ids, 50, 51], [*row.response_mask, 0, 0]) for row in rows]
        after = token_logprobs(policy, pad_batch(longer), 1.0).logprobs_BT
    torch.testing.assert_close(after[:, : before.shape[1]], before, atol=TOLERANCE, rtol=TOLERANCE)
