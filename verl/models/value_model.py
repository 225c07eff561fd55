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
from verl.models.policy import autocast
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

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.value_head.weight.device

    def forward(self, input_ids_BL: torch.Tensor) -> torch.Tensor:
        """Decoder output [B, L, H] of right-padded rows (see `PolicyModel.hidden_states` on the mask)."""
        with autocast(self.device, self.compute_dtype):
            mask_BL = torch.ones_like(input_ids_BL)
            return self.backbone(input_ids=input_ids_BL, attention_mask=mask_BL, use_cache=False).last_hidden_state

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
    hidden_NH = model(batch.input_ids_BL)[rows_N, batch.predictor_BT[rows_N, index_N]]
    value_N = model.value_head(hidden_NH.float()).squeeze(-1)
    return torch.zeros(batch.response_mask_BT.shape, device=value_N.device).index_put((rows_N, index_N), value_N)
