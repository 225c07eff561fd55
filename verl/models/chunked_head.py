"""Log-probs and entropy of a linear head without keeping the logits of all tokens.

Shapes: N tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

# Logits held at once: 32 MiB of float32 on a CPU, near its caches; 512 MiB on a GPU, which needs large matrices.
_LOGITS_PER_CHUNK = {"cpu": 2**23, "cuda": 2**27}
_MIN_TOKENS_PER_CHUNK = 128


def chunk_length(vocabulary_size: int, device: torch.device) -> int:
    """Tokens whose logits are held at once."""
    return max(_MIN_TOKENS_PER_CHUNK, _LOGITS_PER_CHUNK[device.type] // vocabulary_size)


def _chunk_logprobs(
    hidden_NH: torch.Tensor, weight_VH: torch.Tensor, bias_V: torch.Tensor | None, temperature: float
) -> torch.Tensor:
    logits_NV = torch.nn.functional.linear(hidden_NH, weight_VH, bias_V)
    if temperature != 1.0:
        logits_NV.div_(temperature)
    # Twenty times quicker on a CPU than logsumexp.
    return torch.log_softmax(logits_NV, dim=-1)


class _ChunkedHead(torch.autograd.Function):
    """With z = (W h + b) / temperature and p = softmax(z):

    logprob = z[target] - logsumexp(z)          d logprob / dz = onehot(target) - p
    entropy = -sum p log p                      d entropy / dz = -p (log p + entropy)

    The backward pass computes z again, chunk by chunk (as the fused heads of Hsu et al. 2024, "Liger Kernel", do for
    cross-entropy).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        target_N: torch.Tensor,
        temperature: float,
        chunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = hidden_NH.shape[0]
        logprob_N, entropy_N = hidden_NH.new_empty(tokens), hidden_NH.new_empty(tokens)
        for start in range(0, tokens, chunk):
            part = slice(start, start + chunk)
            logprobs_NV = _chunk_logprobs(hidden_NH[part], weight_VH, bias_V, temperature)
            logprob_N[part] = logprobs_NV.gather(1, target_N[part, None]).squeeze(1)
            entropy_N[part] = -torch.linalg.vecdot(logprobs_NV.exp(), logprobs_NV)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, target_N, entropy_N)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)
        return logprob_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, target_N, entropy_N = ctx.saved_tensors
        logprob_gradient_N, entropy_gradient_N = gradients
        if logprob_gradient_N is None:
            logprob_gradient_N = torch.zeros_like(entropy_N)
        grad_hidden = torch.empty_like(hidden_NH) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight_VH) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias_V) if ctx.needs_input_grad[2] else None
        for start in range(0, hidden_NH.shape[0], ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logprobs_NV = _chunk_logprobs(hidden_NH[part], weight_VH, bias_V, ctx.temperature)
            scale_N1 = (logprob_gradient_N[part] / ctx.temperature)[:, None]
            if entropy_gradient_N is None:
                grad_logits_NV = logprobs_NV.exp_().mul_(-scale_N1)
            else:
                probability_NV = logprobs_NV.exp()
                entropy_scale_N1 = (entropy_gradient_N[part] / ctx.temperature)[:, None]
                factor_NV = logprobs_NV.add_(entropy_N[part, None]).mul_(entropy_scale_N1).add_(scale_N1)
                grad_logits_NV = probability_NV.mul_(factor_NV).neg_()
            grad_logits_NV.scatter_add_(1, target_N[part, None], scale_N1)
            if grad_hidden is not None:
                torch.mm(grad_logits_NV, weight_VH, out=grad_hidden[part])
            if grad_weight is not None:
                grad_weight.addmm_(grad_logits_NV.t(), hidden_NH[part])
            if grad_bias is not None:
                grad_bias.add_(grad_logits_NV.sum(0))
        return grad_hidden, grad_weight, grad_bias, None, None, None


def linear_logprobs(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    target_N: torch.Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of `target_N` and entropy under softmax((W h + b) / temperature), both differentiable.

    Args:
        hidden_NH: Decoder outputs; used in float32.
        weight_VH, bias_V: The head.
        target_N: Ids whose log-prob is wanted.
        temperature: Above 0.
        chunk: Tokens whose logits are held at once; nothing = by the vocabulary's size.

    Returns:
        Log-probs [N] and entropies [N] in nats, float32.
    """
    with torch.autocast(hidden_NH.device.type, enabled=False):
        return _ChunkedHead.apply(
            hidden_NH.float(),
            weight_VH.float(),
            None if bias_V is None else bias_V.float(),
            target_N,
            temperature,
            chunk_length(weight_VH.shape[0], hidden_NH.device) if chunk is None else chunk,
        )


def logits_logprobs(
    logits_NV: torch.Tensor, target_N: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same from given logits, for models whose logits are more than a linear head.

    Returns:
        Log-probs [N] and entropies [N] in nats, float32, both differentiable.
    """
    logprobs_NV = torch.log_softmax(logits_NV.float() / temperature, dim=-1)
    entropy_N = -torch.linalg.vecdot(logprobs_NV.exp(), logprobs_NV)
    return logprobs_NV.gather(1, target_N[:, None]).squeeze(1), entropy_N
