"""Checks that every engine makes before it samples."""

from __future__ import annotations

from collections.abc import Sequence

from verl.errors import ConfigError, DataError
from verl.rollout.engine import GenerateRequest


def check_requests(requests: Sequence[GenerateRequest], max_positions: int | None = None) -> None:
    """Checks prompts, limits and stop strings.

    Args:
        requests: What is to be sampled.
        max_positions: Longest sequence of the model; nothing = no limit.

    Raises:
        DataError: A prompt is empty.
        ConfigError: A limit is below 1, prompt and limit together exceed the model, or a stop string is empty.
    """
    for index, request in enumerate(requests):
        sampling = request.sampling
        if not request.prompt_ids:
            raise DataError(f"request {index} has an empty prompt; a prompt needs at least one token")
        if sampling.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {sampling.max_new_tokens}; a response has at least one token")
        if "" in sampling.stop:
            raise ConfigError("actor_rollout_ref.rollout.stop holds an empty string: it ends every response")
        needed = len(request.prompt_ids) + sampling.max_new_tokens
        if max_positions is not None and needed > max_positions:
            raise ConfigError(
                f"a prompt of {len(request.prompt_ids)} tokens and {sampling.max_new_tokens} new ones need {needed} "
                f"positions, but the model has {max_positions}; lower data.max_prompt_length or "
                f"data.max_response_length"
            )
