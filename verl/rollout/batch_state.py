"""What has been sampled for the rows of one batch, and which rows go on.

Shapes: R rows, T new tokens. "Row" is a request of the batch; "slot" its place among those still computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from verl.errors import VerlError
from verl.rollout.engine import Completion, FinishReason, GenerateRequest
from verl.rollout.sampling import SamplingPlan, request_uniforms, sample_tokens
from verl.rollout.stop_strings import StopStringMatcher


class BatchState:
    """Draws tokens for the rows and notices which end.

    Attributes:
        max_new_tokens: Most steps that any row may take.
        num_running: Rows that have not ended.
    """

    def __init__(
        self,
        requests: Sequence[GenerateRequest],
        end_ids: torch.Tensor,
        matcher: StopStringMatcher,
    ) -> None:
        device, rows = end_ids.device, len(requests)
        self.max_new_tokens = max(request.sampling.max_new_tokens for request in requests)
        self.num_running = rows
        self._end_ids = end_ids
        self._matcher = matcher
        self._stops = [request.sampling.stop for request in requests]
        self._plan = SamplingPlan.build([request.sampling for request in requests], device)
        self._limit_R = torch.tensor([request.sampling.max_new_tokens for request in requests], device=device)
        uniforms = np.zeros((rows, self.max_new_tokens))
        for row, request in enumerate(requests):
            uniforms[row, : request.sampling.max_new_tokens] = request_uniforms(
                request.seed, request.sampling.max_new_tokens
            )
        self._uniform_RT = torch.from_numpy(uniforms).to(device)
        self._token_RT = torch.zeros(rows, self.max_new_tokens, dtype=torch.long, device=device)
        self._logprob_RT = torch.zeros(rows, self.max_new_tokens, device=device)
        self._reason = [FinishReason.LENGTH] * rows
        self._length = [0] * rows
        self._row_of_slot = torch.arange(rows, device=device)
        self._is_running = torch.ones(rows, dtype=torch.bool, device=device)

    @property
    def num_slots(self) -> int:
        """Rows still computed, ended ones among them."""
        return len(self._row_of_slot)

    def draw(self, step: int, logits_RV: torch.Tensor) -> torch.Tensor:
        """Draws and records token `step` of each slot; returns the tokens [R]."""
        token_R, logprob_R = sample_tokens(logits_RV, self._plan, self._uniform_RT[:, step])
        self._token_RT[self._row_of_slot, step] = token_R
        self._logprob_RT[self._row_of_slot, step] = logprob_R
        is_end = torch.isin(token_R, self._end_ids)
        is_last = self._limit_R == step + 1
        reasons = self._matched_stops(step, token_R, self._is_running & ~is_end) if any(self._stops) else {}
        for slot in ((is_end | is_last) & self._is_running).nonzero().squeeze(1).tolist():
            reasons.setdefault(slot, FinishReason.STOP if is_end[slot] else FinishReason.LENGTH)
        self._finish(step, reasons)
        return token_R

    def compact(self) -> torch.Tensor:
        """Drops the ended rows; returns which slots stay."""
        keep = self._is_running.nonzero().squeeze(1)
        self._row_of_slot, self._is_running = self._row_of_slot[keep], self._is_running[keep]
        self._limit_R, self._uniform_RT = self._limit_R[keep], self._uniform_RT[keep]
        self._plan = self._plan.select(keep)
        return keep

    def completions(self, policy_version: int) -> list[Completion]:
        """One completion per request.

        Raises:
            VerlError: A token was drawn from NaN.
        """
        if self._logprob_RT.isnan().any():
            raise VerlError(
                f"the policy (version {policy_version}) gives NaN instead of probabilities: training has diverged. "
                f"Resume from an earlier checkpoint with a lower actor_rollout_ref.actor.optim.lr"
            )
        tokens, logprobs = self._token_RT.tolist(), self._logprob_RT.tolist()
        return [
            Completion(tuple(tokens[row][:length]), tuple(logprobs[row][:length]), reason, policy_version)
            for row, (length, reason) in enumerate(zip(self._length, self._reason, strict=True))
        ]

    def _finish(self, step: int, reasons: dict[int, FinishReason]) -> None:
        if not reasons:
            return
        slots = list(reasons)
        for row, reason in zip(self._row_of_slot[slots].tolist(), reasons.values(), strict=True):
            self._reason[row], self._length[row] = reason, step + 1
        self._is_running[slots] = False
        self.num_running -= len(slots)

    def _matched_stops(self, step: int, token_R: torch.Tensor, may_match: torch.Tensor) -> dict[int, FinishReason]:
        matched = {}
        columns = zip(self._row_of_slot.tolist(), token_R.tolist(), may_match.tolist(), strict=True)
        for slot, (row, token, is_candidate) in enumerate(columns):
            stop = self._stops[row]
            if (
                stop
                and is_candidate
                and self._matcher.could_complete(token, stop)
                and self._matcher.contains(self._token_RT[row, : step + 1].tolist(), stop)
            ):
                matched[slot] = FinishReason.STOP_STRING
        return matched
