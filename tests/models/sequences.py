"""Random prompts and responses for the tests of models."""

from dataclasses import dataclass

import torch


@dataclass
class Sequence:
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]


def random_sequences(count: int, seed: int = 0, vocabulary_size: int = 90) -> list[Sequence]:
    """Prompts of 1 to 12 and responses of 1 to 9 tokens, about a fifth of them masked."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, size: int) -> list[int]:
        return torch.randint(low, high, (size,), generator=generator).tolist()

    made = []
    for _ in range(count):
        prompt_length, response_length = integers(1, 13, 1)[0], integers(1, 10, 1)[0]
        mask = [int(value > 0) for value in integers(0, 5, response_length)]
        made.append(
            Sequence(integers(3, vocabulary_size, prompt_length), integers(3, vocabulary_size, response_length), mask)
        )
    return made
