"""Log-prob and entropy of response tokens.

Shapes: B trajectories, L prompt + response, T response, N selected tokens,
X hidden width or vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verl.models.batching import ModelBatch
from verl.models.chunked_head import linear_logprobs, logits_logprobs
from verl.models.policy import PolicyModel


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Facts of each response token; 0 where `response_mask_BT` is false.

    Attributes:
        logprobs_BT: Natural log-prob of the token under the temperature-scaled softmax, float32.
        entropy_BT: Entropy in nats of the distribution the token was drawn from, float32.
    """

    logprobs_BT: torch.Tensor
    entropy_BT: torch.Tensor


def token_logprobs(
    policy: PolicyModel, batch: ModelBatch, temperature: float, *, entropy_gradient: bool = False
) -> TokenLogprobs:
    """Scores the policy's own tokens; the head runs at their positions only.

    The result does not depend on padding or on what else is in the batch (to float32 rounding). Masked tokens cost
    no head computation and get 0.

    Example: `token_logprobs(policy, pad_batch(trajectories), temperature=1.0).logprobs_BT`.

    Args:
        policy: Model to score with; gradients flow unless the caller turned them off.
        batch: From `pad_batch`, on the policy's device.
        temperature: As at sampling; 0 (greedy) counts as 1.
        entropy_gradient: Let gradients flow through the entropy too.
    """
    scale = temperature if temperature > 0 else 1.0
    rows_N, index_N = batch.response_mask_BT.nonzero(as_tuple=True)
    target_N = batch.response_ids_BT[rows_N, index_N]
    outputs_NX = policy.response_outputs(batch, (rows_N, index_N))
    if policy.has_plain_head:
        logprob_N, entropy_N = linear_logprobs(outputs_NX, policy.head.weight, policy.head.bias, target_N, scale)
    else:
        logprob_N, entropy_N = logits_logprobs(outputs_NX, target_N, scale)
    if not entropy_gradient:
        entropy_N = entropy_N.detach()
    empty_BT = torch.zeros(batch.response_mask_BT.shape, device=logprob_N.device)
    return TokenLogprobs(
        logprobs_BT=empty_BT.index_put((rows_N, index_N), logprob_N),
        entropy_BT=empty_BT.index_put((rows_N, index_N), entropy_N),
    )
