"""Which names of settings, flags and variables hold a secret."""

from __future__ import annotations

import re
from functools import lru_cache

# A name is split into words: "hfToken", "hf-token" and "HF_TOKEN" are (hf, token).
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset(
    "password passwd pwd passphrase secret secrets apikey accesskey secretkey privatekey authtoken accesstoken "
    "hftoken apitoken credential credentials bearer".split()
)
_SECRET_ENDS = frozenset({"auth", "authorization", "token"})
_KEY_OWNERS = frozenset(
    "api access private secret auth account signing encryption ssh subscription master wandb openai anthropic swanlab "
    "hf huggingface".split()
)
_TOKENS_OWNERS = frozenset("api access auth secret hf bearer refresh".split())
# Last words that say the name is about a secret, not one itself: `password_file`, `api_key_env`.
_ABOUT_ENDS = frozenset(
    "file path dir folder env var variable name names id ids count length len min max type kind mode method header "
    "required enabled ttl expires expiry policy prompt field column url uri".split()
)
_VALUE_ENDS = frozenset("value string str text base64 b64".split())
# `eos_token`, `kl_per_token`: tokens of language, not of access.
_LANGUAGE_OWNERS = frozenset(
    "eos bos pad unk sep cls mask special stop start end begin first last next prev previous per num max min mean avg "
    "total image video audio vision think thinking tool new old prompt response decoder encoder forced suppress ignore "
    "prediction target control word subword sub input output in out by each single extra additional added fake "
    "placeholder turn assistant user system role answer label truncated reward value score final this that every any "
    "sample sampled generated seq sequence chat text im loss kl grad logprob entropy advantage".split()
)


@lru_cache(maxsize=8192)
def is_secret_name(name: str) -> bool:
    """Whether a key, flag or variable of this name holds a secret.

    True for `password`, `hf_token`, `--api-key`, `AWS_SECRET_ACCESS_KEY`; false for `max_tokens`,
    `eos_token`, `token2text`, `tokenizer`, `password_file`.
    """
    words = [word.lower() for word in _WORD.findall(name[-256:])]
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _VALUE_ENDS):
        words.pop()
    if not words or words[-1] in _ABOUT_ENDS:
        return False
    last, owner = words[-1], words[-2] if len(words) > 1 else ""
    if last == "token":
        return owner not in _LANGUAGE_OWNERS and not owner.isdigit()
    if last == "tokens":
        return owner in _TOKENS_OWNERS
    if last in ("key", "keys"):
        return owner in _KEY_OWNERS
    return last in _SECRET_ENDS or not _SECRET_WORDS.isdisjoint(words)
