"""Speed of an update (forward and backward of the PPO loss) against the plain way, in the same run.

    python benchmarks/update_speed.py                               # a tiny random model
    python benchmarks/update_speed.py --model models/smollm2-135m-instruct --prompts 4 --n 4

The plain way asks the model for the logits of every position, takes a log-softmax of all and gathers; entropy is
computed on both sides. Tokens are response tokens. Gradients of both sides are compared. Memory is the growth of the
largest resident size of the process while a side runs, ours first.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from speed_settings import headline, load_measured, speed_parser

from verl.models.batching import ModelBatch, pad_batch
from verl.models.logprobs import token_logprobs
from verl.models.policy import PolicyModel


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and a random response."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]


def random_rows(vocabulary_size: int, prompts: int, n: int, prompt_length: int, response_length: int) -> list[Row]:
    """Groups of n responses of unequal length (half to all of `response_length`) to each prompt."""
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(3, vocabulary_size, (count,), generator=generator).tolist()

    rows = []
    for _ in range(prompts):
        prompt = ids(prompt_length)
        for sample in range(n):
            length = response_length - (response_length // 2) * sample // max(n - 1, 1)
            rows.append(Row(prompt, ids(length), [1] * length))
    return rows


def ppo_loss(logprobs_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Clipped loss with made-up advantages; the ratio is near 1."""
    old_BT = logprobs_BT.detach() + 0.01
    advantages_BT = torch.linspace(-1, 1, logprobs_BT.numel()).view_as(logprobs_BT)
    ratio_BT = torch.exp(logprobs_BT - old_BT)
    losses_BT = torch.max(-advantages_BT * ratio_BT, -advantages_BT * ratio_BT.clamp(0.8, 1.2))
    return (losses_BT * mask_BT).sum() / mask_BT.sum()


def our_update(policy: PolicyModel, batch: ModelBatch) -> None:
    """Through `token_logprobs`."""
    ppo_loss(token_logprobs(policy, batch, 1.0).logprobs_BT, batch.response_mask_BT).backward()


def plain_update(policy: PolicyModel, batch: ModelBatch) -> None:
    """Through the logits of all positions."""
    output = policy.transformer(
        input_ids=batch.input_ids_BL, attention_mask=batch.attention_mask_BL.long(), use_cache=False
    )
    logprobs_BLV = torch.log_softmax(output.logits[:, :-1].float(), dim=-1)
    with torch.no_grad():
        torch.linalg.vecdot(logprobs_BLV.exp(), logprobs_BLV)  # the entropy, which both sides compute
    chosen_BL = logprobs_BLV.gather(2, batch.input_ids_BL[:, 1:, None]).squeeze(2)
    ppo_loss(chosen_BL.gather(1, batch.predictor_BT), batch.response_mask_BT).backward()


@dataclass(frozen=True, slots=True)
class Cost:
    """What one update costs."""

    wall_seconds: float
    cpu_seconds: float
    memory_mib: float
    gradients: list[torch.Tensor | None]


def measure(policy: PolicyModel, update: Callable[[], None], repeats: int) -> Cost:
    """The best of `repeats` updates, after one that warms up."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    runs = []
    for _ in range(repeats + 1):
        policy.network.zero_grad()
        wall, cpu = time.perf_counter(), time.process_time()
        update()
        runs.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu_seconds, wall_seconds = min(runs[1:])
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    gradients = [None if p.grad is None else p.grad.clone() for p in policy.network.parameters()]
    return Cost(wall_seconds, cpu_seconds, memory, gradients)


def largest_difference(ours: Cost, theirs: Cost) -> float:
    """Largest difference of a gradient, relative to the largest gradient."""
    pairs = [(a, b) for a, b in zip(ours.gradients, theirs.gradients, strict=True) if a is not None and b is not None]
    scale = max(float(b.abs().max()) for _, b in pairs)
    return max(float((a - b).abs().max()) for a, b in pairs) / scale


def main() -> None:
    parser = speed_parser(__doc__)
    parser.add_argument("--prompt-length", type=int, default=48)
    parser.add_argument("--response-length", type=int, default=32)
    arguments = parser.parse_args()
    policy, _ = load_measured(arguments)
    rows = random_rows(
        policy.head.weight.shape[0],
        arguments.prompts,
        arguments.n,
        arguments.prompt_length,
        arguments.response_length,
    )
    batch = pad_batch(rows)
    tokens = sum(len(row.response_ids) for row in rows)
    print(headline(policy, f"{len(rows)} trajectories, {tokens} response tokens", arguments.threads))
    ours = measure(policy, lambda: our_update(policy, batch), arguments.repeats)
    theirs = measure(policy, lambda: plain_update(policy, batch), arguments.repeats)
    for name, cost in (("token_logprobs", ours), ("logits of all tokens", theirs)):
        print(
            f"{name:<22} {tokens / cost.wall_seconds:>9.1f} tokens per second   "
            f"{tokens / cost.cpu_seconds:>9.1f} per CPU second   {cost.memory_mib:>7.0f} MiB more"
        )
    print(
        f"ratio {theirs.cpu_seconds / ours.cpu_seconds:.2f} (by CPU second); "
        f"largest relative difference of gradients {largest_difference(ours, theirs):.1e}"
    )


if __name__ == "__main__":
    main()
