"""How token losses become one number, exactly, whatever the micro-batch size and rank count.

Divide by counts of the *whole* mini-batch: make one `LossDenominator` for it (summed over ranks), and
add up `aggregate(...)` of its micro-batches. An engine that averages gradients over data-parallel
ranks (DDP, FSDP) needs the result times the number of those ranks.

To add a mode, write one function of the sequence lengths and the denominator and name it in
`_SEQUENCE_WEIGHTS`.

Shapes: B trajectories, T response tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from verl.algorithms.masking import boolean_mask, masked_sum
from verl.errors import ConfigError

AggregationMode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, slots=True)
class LossDenominator:
    """Counts of one whole mini-batch, over all its micro-batches and ranks.

    Example: a mask `[[1, 1, 0], [1, 0, 0], [0, 0, 0]]` gives `LossDenominator(num_tokens=3, num_sequences=2)`.

    Attributes:
        num_tokens: Trainable tokens.
        num_sequences: Sequences with at least one trainable token: a padding row, or one whose
            tokens are all masked, is no sequence.
        scale_length: Constant length of `seq-mean-token-sum-norm`, in tokens.
    """

    num_tokens: int
    num_sequences: int
    scale_length: int | None = None

    @classmethod
    def of(cls, mask_BT: Tensor, scale_length: int | None = None) -> LossDenominator:
        """Counts the trainable tokens and the sequences that have any."""
        lengths_B = boolean_mask(mask_BT).sum(dim=1)
        return cls(int(lengths_B.sum()), int((lengths_B > 0).sum()), scale_length)

    def __add__(self, other: LossDenominator) -> LossDenominator:
        if self.scale_length != other.scale_length:
            raise ValueError(f"scale_length must be one constant, got {self.scale_length} and {other.scale_length}")
        return LossDenominator(
            self.num_tokens + other.num_tokens, self.num_sequences + other.num_sequences, self.scale_length
        )


def aggregate(loss_BT: Tensor, mask_BT: Tensor, mode: AggregationMode, denominator: LossDenominator) -> Tensor:
    """The share of these trajectories in the loss of the mini-batch that `denominator` counts.

    Summed over the micro-batches of the mini-batch this is its loss:

        token-mean               sum_i sum_t L_it / sum_i |y_i|          (DAPO, arXiv:2503.14476)
        seq-mean-token-mean      1/N sum_i 1/|y_i| sum_t L_it            (GRPO, arXiv:2402.03300)
        seq-mean-token-sum       1/N sum_i sum_t L_it
        seq-mean-token-sum-norm  1/N sum_i 1/L_const sum_t L_it          (Dr. GRPO, arXiv:2503.20783)

    with N sequences that have a trainable token and |y_i| their trainable tokens.

    Args:
        loss_BT: Loss of each token; what stands at masked positions is ignored.
        mask_BT: 1 where the token is trainable. A row is one whole trajectory.
        mode: One of the names above.
        denominator: Counts of the whole mini-batch.

    Returns:
        Scalar; 0 with zero gradient if no token is trainable.

    Raises:
        ConfigError: The mode is unknown, or needs a `scale_length` that the denominator lacks.
    """
    weights_B = sequence_weights(mask_BT, mode, denominator).to(loss_BT.dtype)
    return (masked_sum(loss_BT, mask_BT, dim=1) * weights_B).sum()


def sequence_weights(mask_BT: Tensor, mode: AggregationMode, denominator: LossDenominator) -> Tensor:
    """Weight that each trainable token of a sequence has in the loss, shape B, float64.

    `loss_BT * weights_B[:, None]` is what each token contributes to the loss of the mini-batch.

    Raises:
        ConfigError: As `aggregate`.
    """
    if mode not in _SEQUENCE_WEIGHTS:
        raise ConfigError(f"loss_agg_mode is {mode!r}; allowed are {', '.join(_SEQUENCE_WEIGHTS)}")
    # At least 1, so that no sequences give a weight and not a division by zero.
    lengths_B = boolean_mask(mask_BT).sum(dim=1).clamp_min(1).double()
    return _SEQUENCE_WEIGHTS[mode](lengths_B, denominator)


def _token_mean(lengths_B: Tensor, denominator: LossDenominator) -> Tensor:
    return lengths_B.new_ones(lengths_B.shape) / max(denominator.num_tokens, 1)


def _seq_mean_token_mean(lengths_B: Tensor, denominator: LossDenominator) -> Tensor:
    return 1.0 / (lengths_B * max(denominator.num_sequences, 1))


def _seq_mean_token_sum(lengths_B: Tensor, denominator: LossDenominator) -> Tensor:
    return lengths_B.new_ones(lengths_B.shape) / max(denominator.num_sequences, 1)


def _seq_mean_token_sum_norm(lengths_B: Tensor, denominator: LossDenominator) -> Tensor:
    if denominator.scale_length is None or denominator.scale_length < 1:
        raise ConfigError(
            "seq-mean-token-sum-norm divides by a constant length, but scale_length is "
            f"{denominator.scale_length}; give a number of tokens, such as data.max_response_length"
        )
    return _seq_mean_token_sum(lengths_B, denominator) / denominator.scale_length


_SEQUENCE_WEIGHTS: dict[str, Callable[[Tensor, LossDenominator], Tensor]] = {
    "token-mean": _token_mean,
    "seq-mean-token-mean": _seq_mean_token_mean,
    "seq-mean-token-sum": _seq_mean_token_sum,
    "seq-mean-token-sum-norm": _seq_mean_token_sum_norm,
}
