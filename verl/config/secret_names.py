"""Which names of settings, flags and environment variables hold a secret.

A name is split into words ("hfToken", "--hf-token" and "HF_TOKEN" are all hf, token), and the words
decide: a language model's `eos_token` and `max_tokens` are no secrets, an `hf_token` is one.
"""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LONGEST_NAME = 256


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Anywhere in the name.
_SECRET_WORDS = _words(
    "password passwd pwd passphrase secret secrets apikey accesskey secretkey privatekey authtoken accesstoken "
    "hftoken apitoken credential credentials bearer"
)
# As the last word.
_SECRET_ENDS = frozenset({"auth", "authorization"})
# Before a last word `key`: `api_key`, but not `prompt_key`.
_KEY_OWNERS = _words(
    "api access private secret auth account signing encryption ssh subscription master wandb openai anthropic swanlab "
    "hf huggingface"
)
# Before a last word `tokens`.
_TOKENS_OWNERS = _words("api access auth secret hf bearer refresh")
# Before a last word `token`: these are tokens of text.
_TEXT_OWNERS = _words(
    "eos bos pad unk sep cls mask special stop start end begin first last next prev previous per num max min mean avg "
    "total image video audio vision think thinking tool new old prompt response decoder encoder forced suppress ignore "
    "prediction target control word subword in out by each single extra additional added placeholder turn assistant "
    "truncated sampled generated seq sequence im loss kl grad logprob entropy advantage"
)
# Last words of names that are about a secret without being one: `password_file`, `api_key_env`.
_ABOUT_ENDS = _words(
    "file path dir folder env var variable name names id ids count length len min max type kind mode method header "
    "required enabled ttl expires expiry policy prompt field column url uri"
)
# Last words that change nothing: `api_key_value`, `PASSWORD_2`.
_VALUE_ENDS = _words("value base64 b64")


@lru_cache(maxsize=8192)
def is_secret_name(name: str) -> bool:
    """Whether a key, flag or variable of this name holds a secret.

    True for `password`, `hf_token`, `--api-key`, `AWS_SECRET_ACCESS_KEY`; false for `max_tokens`,
    `eos_token`, `token2text`, `tokenizer`, `password_file`.
    """
    words = [word.lower() for word in _WORD.findall(name[-_LONGEST_NAME:])]
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _VALUE_ENDS):
        words.pop()
    if not words or words[-1] in _ABOUT_ENDS:
        return False
    last, owner = words[-1], words[-2] if len(words) > 1 else ""
    if last == "token":
        return owner not in _TEXT_OWNERS and not owner.isdigit()
    if last == "tokens":
        return owner in _TOKENS_OWNERS
    if last in ("key", "keys"):
        return owner in _KEY_OWNERS
    return last in _SECRET_ENDS or not _SECRET_WORDS.isdisjoint(words)
