"""Drawing tokens: temperature, top-k, top-p, greedy; one uniform number per token from the request's own seed.

Shapes: R rows, V vocabulary, C candidates (the most probable tokens, sorted).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from verl.rollout.engine import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Sampling parameters of all rows as columns; a part that no row needs is nothing, and costs nothing.

    Attributes:
        temperature_R1: Divisor of the logits, 1 for greedy rows; nothing if 1 for all.
        is_greedy_R: Nothing if no row is greedy.
        top_k_R1: Tokens kept, V for all; nothing if no row cuts.
        top_p_R1: Probability kept; nothing if no row cuts.
    """

    temperature_R1: torch.Tensor | None
    is_greedy_R: torch.Tensor | None
    top_k_R1: torch.Tensor | None
    top_p_R1: torch.Tensor | None

    @classmethod
    def build(cls, params: Sequence[SamplingParams], device: torch.device) -> SamplingPlan:
        """Columns for rows with these parameters."""
        temperature = torch.tensor([row.temperature if row.temperature > 0 else 1.0 for row in params], device=device)
        is_greedy = torch.tensor([row.temperature == 0 for row in params], device=device)
        whole = torch.iinfo(torch.long).max
        top_k = torch.tensor([row.top_k if row.top_k > 0 else whole for row in params], device=device)
        top_p = torch.tensor([row.top_p for row in params], device=device)
        return cls(
            temperature_R1=None if bool((temperature == 1).all()) else temperature[:, None],
            is_greedy_R=is_greedy if bool(is_greedy.any()) else None,
            top_k_R1=None if bool((top_k == whole).all()) else top_k[:, None],
            top_p_R1=None if bool((top_p >= 1).all()) else top_p[:, None],
        )

    def select(self, index: torch.Tensor) -> SamplingPlan:
        """The plan for some of the rows."""
        return SamplingPlan(
            *(
                None if column is None else column[index]
                for column in (self.temperature_R1, self.is_greedy_R, self.top_k_R1, self.top_p_R1)
            )
        )


def request_uniforms(seed: int, count: int) -> np.ndarray:
    """`count` uniform numbers in [0, 1) of a request: always the same for the seed, and a prefix of any longer draw."""
    return np.random.Generator(np.random.Philox(key=seed % 2**64)).random(count)


def sample_tokens(
    logits_RV: torch.Tensor, plan: SamplingPlan, uniform_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws one token per row by inverting the cumulative distribution at `uniform_R`.

    Top-k cuts first, then top-p on what is left, renormalised (the order of transformers and vLLM). Top-p keeps the
    smallest set of most probable tokens whose probability reaches p.

    Returns:
        Tokens [R], and their log-probs [R] under the temperature-scaled softmax over the whole vocabulary.
    """
    if plan.temperature_R1 is not None:
        logits_RV = logits_RV / plan.temperature_R1
    logprobs_RV = torch.log_softmax(logits_RV, dim=-1)
    if plan.is_greedy_R is not None and bool(plan.is_greedy_R.all()):
        token_R = logprobs_RV.argmax(dim=-1)
    else:
        probability_RV = logprobs_RV.exp()
        if plan.top_k_R1 is not None or plan.top_p_R1 is not None:
            probability_RV = _cut(probability_RV, plan)
        token_R = invert_cumulative(probability_RV, uniform_R)
        if plan.is_greedy_R is not None:
            token_R = torch.where(plan.is_greedy_R, logprobs_RV.argmax(dim=-1), token_R)
    return token_R, logprobs_RV.gather(1, token_R[:, None]).squeeze(1)


def invert_cumulative(weight_RV: torch.Tensor, uniform_R: torch.Tensor) -> torch.Tensor:
    """First index whose cumulative weight exceeds `uniform * total`; never one of weight 0.

    Several times quicker than `torch.multinomial` on a CPU, and one uniform number per draw.
    """
    cumulative_RV = weight_RV.cumsum(dim=-1)
    total_R = cumulative_RV[:, -1]
    # In float32 the product may round up to the total, which no index exceeds.
    below_total_R = torch.nextafter(total_R, torch.zeros_like(total_R))
    target_R = torch.minimum(uniform_R.to(total_R.dtype) * total_R, below_total_R)
    index_R = torch.searchsorted(cumulative_RV, target_R[:, None], right=True).squeeze(1)
    # Only NaN leads past the end; it must not become an index out of range.
    return index_R.clamp(max=weight_RV.shape[1] - 1)


def _cut(probability_RV: torch.Tensor, plan: SamplingPlan) -> torch.Tensor:
    """Probabilities with the tokens that are cut set to 0, still in the order of the vocabulary: what a row draws
    does not depend on whether other rows cut."""
    sorted_RC, token_RC = _sorted_candidates(probability_RV, plan)
    if plan.top_k_R1 is not None:
        rank_C = torch.arange(sorted_RC.shape[1], device=sorted_RC.device)
        sorted_RC = sorted_RC * (rank_C < plan.top_k_R1)
    if plan.top_p_R1 is not None:
        cumulative_RC = sorted_RC.cumsum(dim=-1)
        # A token stays while the more probable ones have not reached p of what top-k left; the first always stays.
        is_kept_RC = cumulative_RC - sorted_RC < plan.top_p_R1 * cumulative_RC[:, -1:]
        is_kept_RC[:, 0] = True
        sorted_RC = sorted_RC * (is_kept_RC | (plan.top_p_R1 >= 1))
    return torch.zeros_like(probability_RV).scatter_(1, token_RC, sorted_RC)


def _sorted_candidates(probability_RV: torch.Tensor, plan: SamplingPlan) -> tuple[torch.Tensor, torch.Tensor]:
    vocabulary = probability_RV.shape[1]
    largest = vocabulary if plan.top_k_R1 is None else min(int(plan.top_k_R1.max()), vocabulary)
    if largest < vocabulary:
        return torch.topk(probability_RV, largest, dim=-1)
    return torch.sort(probability_RV, dim=-1, descending=True, stable=True)
