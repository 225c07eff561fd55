"""Keys and values with room for the tokens to come.

Shapes: R rows, A key-value heads, K cached positions, D head width.
"""

from __future__ import annotations

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class _RoomyLayer(DynamicLayer):
    """A dynamic layer that writes new tokens into memory set aside for them, where the original copies everything
    it holds at each token. `keys` and `values` are views [R, A, K, D] of the filled part."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, index_R: torch.Tensor, capacity: int) -> None:
        super().__init__()
        self.device = keys.device
        self.dtype = keys.dtype
        self._key_memory = _take(keys, index_R, capacity)
        self._value_memory = _take(values, index_R, capacity)
        self._show(keys.shape[-2])
        self.is_initialized = True

    def _show(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._key_memory[:, :, :length], self._value_memory[:, :, :length]
        self.keys, self.values = keys, values
        return keys, values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends new keys and values; returns all."""
        start = self.get_seq_length()
        keys, values = self._show(start + key_states.shape[-2])
        keys[:, :, start:] = key_states
        values[:, :, start:] = value_states
        return keys, values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Keeps the rows `beam_idx`."""
        length, capacity = self.get_seq_length(), self._key_memory.shape[-2]
        keys, values = self._show(length)
        self._key_memory = _take(keys, beam_idx, capacity)
        self._value_memory = _take(values, beam_idx, capacity)
        self._show(length)


def _take(states: torch.Tensor, index_R: torch.Tensor, capacity: int) -> torch.Tensor:
    _, heads, length, width = states.shape
    memory = states.new_empty(len(index_R), heads, capacity, width)
    memory[:, :, :length] = states[index_R]
    return memory


def share_out(cache: DynamicCache, index_R: torch.Tensor, room: int) -> None:
    """Gives row r of the cache what row `index_R[r]` held, with room for `room` more tokens.

    Layers that are not plain (sliding windows, recurrent states) stay what they are.
    """
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.is_initialized:
            keys, values = layer.keys, layer.values
            cache.layers[number] = _RoomyLayer(keys, values, index_R, keys.shape[-2] + room)  # type: ignore[union-attr, arg-type]
        else:
            layer.reorder_cache(index_R)  # type: ignore[arg-type]
