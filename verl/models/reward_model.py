"""A reward model as loaded; `verl.rewards` scores with it."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, eq=False)
class RewardModel:
    """A frozen sequence classifier with one label, in eval mode, and its own tokenizer."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
