"""The outputs that predict the response tokens, each prompt of a group read only once.

Shapes: B trajectories, L prompt + response, T response, P unique prompts, K prompt tokens, N selected tokens,
X outputs (hidden width, or vocabulary for logits).
"""

from __future__ import annotations

import torch
from transformers import DynamicCache, PreTrainedConfig

from verl.models.batching import ModelBatch, pad_batch
from verl.models.causal_forward import CausalForward

# Two passes and a mask cost something too, so sharing must save at least this share of the tokens.
_WORTHWHILE_SAVING = 0.2
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 1e-1}


def response_outputs(
    forward: CausalForward,
    config: PreTrainedConfig,
    batch: ModelBatch,
    selected: tuple[torch.Tensor, torch.Tensor],
    *,
    can_share: bool,
) -> torch.Tensor:
    """Outputs [N, X] that predict the response tokens `selected` = (row, index in the response).

    If it pays, the prompts of a group (equal prompts) are read once into a key-value cache through which gradients
    flow, and the responses are read on top of it: the same numbers from fewer tokens.

    Args:
        forward: The module to run.
        config: Its configuration (kind of cache).
        batch: From `pad_batch`.
        selected: Two index tensors [N].
        can_share: Whether the module gives the same both ways (see `probe_sharing`).
    """
    if can_share and _saving(batch) >= _WORTHWHILE_SAVING:
        return _shared(forward, config, batch, selected)
    rows_N, index_N = selected
    column_N = batch.predictor_BT[rows_N, index_N]
    width = batch.input_ids_BL.shape[1]
    first = int(column_N.min()) if column_N.numel() else max(width - 1, 0)
    # All ones on purpose: to the right of the last real token a causal model sees nothing of the padding, and
    # without padding in the mask attention takes its quick causal path.
    outputs_BLX = forward(batch.input_ids_BL, torch.ones_like(batch.input_ids_BL), last=width - first)
    return outputs_BLX[rows_N, column_N - first]


def _saving(batch: ModelBatch) -> float:
    """Share of the token positions that sharing saves."""
    whole = batch.input_ids_BL.numel()
    shared = batch.prompt_ids_PK.numel() + batch.response_ids_BT[:, 1:].numel()
    return 1 - shared / whole if whole else 0.0


def _shared(
    forward: CausalForward,
    config: PreTrainedConfig,
    batch: ModelBatch,
    selected: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    prompt_B, length_P = batch.prompt_index_B, batch.prompt_mask_PK.sum(-1)
    cache = DynamicCache(config=config)
    first_PX = read_prompts(forward, batch.prompt_ids_PK, batch.prompt_mask_PK, cache)
    cache.reorder_cache(prompt_B)  # type: ignore[arg-type]
    # The last response token predicts nothing.
    read_BT = batch.response_ids_BT[:, :-1]
    later_BTX = first_PX.new_empty(len(prompt_B), 0, first_PX.shape[-1])
    if read_BT.shape[1]:
        mask = torch.cat([batch.prompt_mask_PK[prompt_B], torch.ones_like(read_BT)], dim=1)
        position_BT = length_P[prompt_B][:, None] + torch.arange(read_BT.shape[1], device=read_BT.device)
        later_BTX = forward(read_BT, mask, position_ids_BL=position_BT, cache=cache)
    outputs_X = torch.cat([first_PX, later_BTX.flatten(0, 1)])
    rows_N, index_N = selected
    later_N = len(first_PX) + rows_N * read_BT.shape[1] + index_N - 1
    return outputs_X[torch.where(index_N == 0, prompt_B[rows_N], later_N)]


def read_prompts(
    forward: CausalForward, ids_PK: torch.Tensor, mask_PK: torch.Tensor, cache: DynamicCache
) -> torch.Tensor:
    """Reads left-padded prompts into `cache`; outputs [P, X] at their last token."""
    position_PK = (mask_PK.cumsum(-1) - 1).clamp(min=0)
    return forward(ids_PK, mask_PK, position_ids_BL=position_PK, cache=cache, last=1)[:, -1]


def probe_sharing(forward: CausalForward, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a padded prompt, and what follows it over a cache, gives what plain rows give, and can be trained.

    Some architectures (recurrent ones above all) cannot read several tokens on from a cache, or overwrite their
    state in place, which the backward pass refuses: those raise here.

    Call it under the autocast that is used later, with the module in eval mode.
    """
    rows = [_ProbeRow([1, 2, 3, 4, 5, 6, 7]), _ProbeRow([1, 2, 3]), _ProbeRow([1, 2, 3])]
    batch = pad_batch(rows, device)
    rows_N, index_N = batch.response_mask_BT.nonzero(as_tuple=True)
    selected = (rows_N, index_N)
    trained = next((parameter for parameter in forward.module.parameters() if parameter.requires_grad), None)
    try:
        with torch.set_grad_enabled(trained is not None):
            shared = _shared(forward, config, batch, selected).float()
        if trained is not None:
            torch.autograd.grad(shared.sum(), trained, allow_unused=True)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError):
        return False
    with torch.no_grad():
        plain = response_outputs(forward, config, batch, selected, can_share=False).float()
    return is_close(shared.detach(), plain, dtype)


def is_close(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether outputs of one model differ no more than by rounding in `dtype`."""
    return bool((one - other).abs().max() <= _PROBE_TOLERANCE[dtype] * other.abs().max().clamp(min=1e-3))


class _ProbeRow:
    def __init__(self, prompt_ids: list[int]) -> None:
        self.prompt_ids = prompt_ids
        self.response_ids = [3, 2, 1]
        self.response_mask = [1, 1, 1]
