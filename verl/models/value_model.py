"""The critic: a transformer backbone and a linear value head that starts at zero.

Shapes: B trajectories, L prompt + response, T response, H hidden.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from verl.models.batching import ModelBatch
from verl.models.causal_forward import CausalForward
from verl.models.policy import autocast, can_cache
from verl.models.response_outputs import probe_sharing, response_outputs
from verl.models.source import quiet_transformers

HEAD_FILE = "value_head.safetensors"


class ValueModel(nn.Module):
    """Gives one value per token.

    Attributes:
        backbone: Transformers model without a head.
        value_head: Linear H -> 1, zero at first, so that training starts from value 0 everywhere.
        compute_dtype: float32, or bfloat16 (autocast over float32 weights).
    """

    def __init__(self, backbone: PreTrainedModel, hidden_size: int, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.backbone = backbone
        self.value_head = nn.Linear(hidden_size, 1, device=backbone.device)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        self.compute_dtype = compute_dtype
        self._forward = CausalForward(backbone, "last_hidden_state")
        backbone.eval()
        with autocast(backbone.device, compute_dtype):
            self._can_pad = probe_sharing(self._forward, backbone.config, backbone.device, compute_dtype)
        backbone.train()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.value_head.weight.device

    def response_outputs(self, batch: ModelBatch, selected: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Hidden states [N, H] before the selected response tokens."""
        can_share = self._can_pad and can_cache(self.backbone)
        with autocast(self.device, self.compute_dtype):
            return response_outputs(self._forward, self.backbone.config, batch, selected, can_share=can_share)

    def save_pretrained(self, path: str | Path) -> None:
        """Writes a folder that `load_critic` reads: the backbone as transformers does, the head beside it."""
        with quiet_transformers():
            self.backbone.save_pretrained(path)
        save_file({name: value.detach().cpu() for name, value in self.value_head.state_dict().items()}, _head(path))

    def load_head(self, path: str | Path) -> None:
        """Takes over the head of a folder written by `save_pretrained`, if it has one."""
        if _head(path).exists():
            self.value_head.load_state_dict(load_file(_head(path), device=str(self.device)))


def _head(path: str | Path) -> Path:
    return Path(path) / HEAD_FILE


def token_values(model: ValueModel, batch: ModelBatch) -> torch.Tensor:
    """Value of the state before each of the policy's own tokens.

    Returns:
        Values [B, T], float32; 0 where `response_mask_BT` is false.
    """
    rows_N, index_N = batch.response_mask_BT.nonzero(as_tuple=True)
    hidden_NH = model.response_outputs(batch, (rows_N, index_N))
    value_N = model.value_head(hidden_NH.float()).squeeze(-1)
    return torch.zeros(batch.response_mask_BT.shape, device=value_N.device).index_put((rows_N, index_N), value_N)
