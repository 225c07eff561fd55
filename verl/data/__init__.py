"""Prompts: reading files, tokenizing, and the order in which they are drawn.

The tokenizer is an object passed in; this package loads no model.
"""

from __future__ import annotations

from verl.data.loading import load_train_prompts, load_val_prompts
from verl.data.prompts import Prompt, PromptDataset
from verl.data.sampler import batch_indices, num_steps, ordered_batches, steps_per_epoch

__all__ = [
    "Prompt",
    "PromptDataset",
    "batch_indices",
    "load_train_prompts",
    "load_val_prompts",
    "num_steps",
    "ordered_batches",
    "steps_per_epoch",
]
