"""An engine that says what a script tells it to: for tests of trainers, rewards and agents without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from verl.rollout.engine import Completion, FinishReason, GenerateRequest
from verl.rollout.request_checks import check_requests
from verl.rollout.stop_strings import StopStringMatcher


class ScriptedEngine:
    """Answers each request with the tokens of a given text, then the end token, within the request's limits.

    Example: `ScriptedEngine(tokenizer, lambda request: "yes" if request.seed % 2 else "no")`.

    Args:
        tokenizer: Encodes the texts; its end token ends each response.
        respond: The text for a request; let it depend on the request alone.
        logprob: Log-prob given to every token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        respond: Callable[[GenerateRequest], str],
        *,
        logprob: float = -0.5,
    ) -> None:
        self._tokenizer = tokenizer
        self._respond = respond
        self._logprob = logprob
        self._matcher = StopStringMatcher(tokenizer)
        self._version = 0

    async def generate(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """One scripted completion per request, in order.

        Raises:
            DataError: A prompt is empty.
            ConfigError: A limit is below 1, or a stop string is empty.
        """
        check_requests(requests)
        return [self._completion(request) for request in requests]

    async def update_weights(self, policy_version: int) -> None:
        """Stamps what follows with `policy_version`."""
        self._version = policy_version

    async def close(self) -> None:
        """Nothing is held."""

    def _completion(self, request: GenerateRequest) -> Completion:
        end_id = self._tokenizer.eos_token_id
        text_ids = self._tokenizer.encode(self._respond(request), add_special_tokens=False)
        ids: list[int] = []
        reason = FinishReason.LENGTH
        for token_id in [*text_ids, end_id][: request.sampling.max_new_tokens]:
            ids.append(token_id)
            if token_id == end_id:
                reason = FinishReason.STOP
                break
            if request.sampling.stop and self._matcher.contains(ids, request.sampling.stop):
                reason = FinishReason.STOP_STRING
                break
        return Completion(tuple(ids), (self._logprob,) * len(ids), reason, self._version)
