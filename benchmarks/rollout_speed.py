"""Sampling speed of the in-process engine against plain `generate` of transformers, in the same run.

    python benchmarks/rollout_speed.py                              # a tiny random model
    python benchmarks/rollout_speed.py --model models/smollm2-135m-instruct --max-new-tokens 32

Both sides sample `--n` responses to each of `--prompts` chat prompts at temperature 1 until an end token. The baseline
repeats each prompt n times, as trainers without shared prefill do. Tokens after an end token do not count. CPU seconds
are those of the process, so with one thread other programs on the machine disturb them little.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from speed_settings import headline, load_measured, speed_parser
from transformers import PreTrainedTokenizerBase

from verl.models.policy import PolicyModel
from verl.rollout.engine import GenerateRequest, SamplingParams
from verl.rollout.hf_engine import HfEngine


@dataclass(frozen=True, slots=True)
class Speed:
    """Useful tokens per second."""

    tokens: int
    wall_seconds: float
    cpu_seconds: float

    def line(self, name: str) -> str:
        return (
            f"{name:<22} {self.tokens:>7} tokens   {self.tokens / self.wall_seconds:>9.1f} per second   "
            f"{self.tokens / self.cpu_seconds:>9.1f} per CPU second"
        )


def measure(sample: Callable[[], int], repeats: int) -> Speed:
    """The best of `repeats` runs, after one that warms up."""
    sample()
    runs = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = sample()
        runs.append(Speed(tokens, time.perf_counter() - wall, time.process_time() - cpu))
    return max(runs, key=lambda run: run.tokens / run.cpu_seconds)


def chat_prompts(tokenizer: PreTrainedTokenizerBase, count: int) -> list[tuple[int, ...]]:
    """Sums of growing length, so that prompts differ in length."""
    prompts = []
    for index in range(count):
        numbers = " + ".join(str(7 + index + term) for term in range(2 + index % 3))
        messages = [{"role": "user", "content": f"What is {numbers}? Reply with only the number."}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        prompts.append(tuple(ids))  # pyright: ignore[reportArgumentType]
    return prompts


def engine_sampler(
    policy: PolicyModel, tokenizer: PreTrainedTokenizerBase, prompts: list[tuple[int, ...]], n: int, new_tokens: int
) -> Callable[[], int]:
    engine = HfEngine(policy, tokenizer)
    params = SamplingParams(max_new_tokens=new_tokens)
    requests = [GenerateRequest(prompt, params, seed=i) for prompt in prompts for i in range(n)]
    return lambda: sum(len(completion.token_ids) for completion in asyncio.run(engine.generate(requests)))


def generate_sampler(
    policy: PolicyModel, tokenizer: PreTrainedTokenizerBase, prompts: list[tuple[int, ...]], n: int, new_tokens: int
) -> Callable[[], int]:
    rows = [prompt for prompt in prompts for _ in range(n)]
    width = max(len(row) for row in rows)
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    end_id = tokenizer.eos_token_id

    @torch.inference_mode()
    def sample() -> int:
        torch.manual_seed(0)
        policy.network.eval()
        output = policy.transformer.generate(  # pyright: ignore[reportCallIssue]
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new_tokens,
            eos_token_id=end_id,
            pad_token_id=0,
        )
        policy.network.train()
        new = output[:, width:]
        return int(((new == end_id).cumsum(-1) - (new == end_id).long() == 0).sum())

    return sample


def main() -> None:
    parser = speed_parser(__doc__)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    policy, tokenizer = load_measured(arguments)
    prompts = chat_prompts(tokenizer, arguments.prompts)
    print(headline(policy, f"{len(prompts)} prompts x {arguments.n}", arguments.threads))
    shape = (policy, tokenizer, prompts, arguments.n, arguments.max_new_tokens)
    ours = measure(engine_sampler(*shape), arguments.repeats)
    print(ours.line("HfEngine"), flush=True)
    theirs = measure(generate_sampler(*shape), arguments.repeats)
    print(theirs.line("transformers generate"))
    ratio = (ours.tokens / ours.cpu_seconds) / (theirs.tokens / theirs.cpu_seconds)
    print(f"ratio {ratio:.2f} (by CPU second)")


if __name__ == "__main__":
    main()
