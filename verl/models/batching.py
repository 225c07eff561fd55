"""From trajectories to tensors: one right-padded batch with an index of the predicting positions.

Shapes: B trajectories, L prompt + response, T response, P unique prompts, K prompt tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch

from verl.errors import DataError


class TokenSequence(Protocol):
    """What a batch is built from; `verl.tracing.trajectory.Trajectory` is one."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """Ids of the prompt, at least one."""
        ...

    @property
    def response_ids(self) -> Sequence[int]:
        """Ids after the prompt."""
        ...

    @property
    def response_mask(self) -> Sequence[int]:
        """1 where the policy sampled the token, as long as `response_ids`."""
        ...


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """Right-padded token ids. Position t of the response is predicted at column `predictor_BT[:, t]`.

    Example: prompt `[5, 6]` and response `[7, 8]` give `input_ids_BL = [5, 6, 7, 8]` and `predictor_BT = [1, 2]`.

    Attributes:
        input_ids_BL: Prompt, response, padding.
        attention_mask_BL: True for prompt and response, false for padding.
        position_ids_BL: 0, 1, 2, ... (padding too: a causal model never sees it from a real token).
        response_ids_BT: Response, padded with 0.
        response_mask_BT: True where the token is the policy's own (trainable).
        predictor_BT: Column of `input_ids_BL` whose output predicts the response token; 0 at padding.
        prompt_ids_PK: Each prompt once, left-padded. prompt_mask_PK: 1 for prompt, 0 for padding.
        prompt_index_B: Which of them each trajectory continues.
    """

    input_ids_BL: torch.Tensor
    attention_mask_BL: torch.Tensor
    position_ids_BL: torch.Tensor
    response_ids_BT: torch.Tensor
    response_mask_BT: torch.Tensor
    predictor_BT: torch.Tensor
    prompt_ids_PK: torch.Tensor
    prompt_mask_PK: torch.Tensor
    prompt_index_B: torch.Tensor

    def to(self, device: torch.device | str) -> ModelBatch:
        """The same batch on `device`."""
        return ModelBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def pad_rows(rows: Sequence[Sequence[int]], width: int | None = None) -> torch.Tensor:
    """Integer rows as one tensor, right-padded with 0 to the longest row (or to `width`).

    Returns:
        Tensor [rows, width] of int64 on the CPU.
    """
    width = max((len(row) for row in rows), default=0) if width is None else width
    padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.long)
    return padded.view(len(rows), width)


def pad_left(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Integer rows left-padded with 0, and a mask of 1 where they are."""
    width = max((len(row) for row in rows), default=0)
    ids = torch.tensor([[*[0] * (width - len(row)), *row] for row in rows], dtype=torch.long)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    return ids.view(len(rows), width), (torch.arange(width) >= width - lengths[:, None]).long()


def pad_batch(trajectories: Sequence[TokenSequence], device: torch.device | str = "cpu") -> ModelBatch:
    """Builds the batch that `token_logprobs` and `token_values` take.

    Args:
        trajectories: Prompts and responses; `Trajectory` objects or anything with the same three fields.
        device: Where the tensors go.

    Raises:
        DataError: A prompt is empty, or a mask is not as long as its response.
    """
    for index, row in enumerate(trajectories):
        if not row.prompt_ids:
            raise DataError(f"trajectory {index} has an empty prompt; a prompt needs at least one token")
        if len(row.response_mask) != len(row.response_ids):
            raise DataError(
                f"trajectory {index} has {len(row.response_ids)} response tokens but a response mask of "
                f"{len(row.response_mask)}; they must be equally long"
            )
    input_ids_BL = pad_rows([[*row.prompt_ids, *row.response_ids] for row in trajectories])
    response_ids_BT = pad_rows([row.response_ids for row in trajectories])
    prompt_length_B = torch.tensor([len(row.prompt_ids) for row in trajectories], dtype=torch.long)
    response_length_B = torch.tensor([len(row.response_ids) for row in trajectories], dtype=torch.long)
    position_L = torch.arange(input_ids_BL.shape[1])
    index_T = torch.arange(response_ids_BT.shape[1])
    is_response_BT = index_T < response_length_B[:, None]
    prompts = [tuple(row.prompt_ids) for row in trajectories]
    number_of = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    prompt_ids_PK, prompt_mask_PK = pad_left(list(number_of))
    return ModelBatch(
        input_ids_BL=input_ids_BL,
        attention_mask_BL=position_L < (prompt_length_B + response_length_B)[:, None],
        position_ids_BL=position_L.expand_as(input_ids_BL),
        response_ids_BT=response_ids_BT,
        response_mask_BT=pad_rows([row.response_mask for row in trajectories], response_ids_BT.shape[1]).bool(),
        predictor_BT=torch.where(is_response_BT, index_T + prompt_length_B[:, None] - 1, 0),
        prompt_ids_PK=prompt_ids_PK,
        prompt_mask_PK=prompt_mask_PK,
        prompt_index_B=torch.tensor([number_of[prompt] for prompt in prompts], dtype=torch.long),
    ).to(device)
