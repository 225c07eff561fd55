from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from verl.config.secrets import MASK, is_secret_name, mask, mask_command_line, mask_text

HEX_40 = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "name",
    [
        "password", "passwd", "db_password", "secret", "client_secret", "SECRET_KEY", "api_key", "apikey", "apiKey",
        "x-api-key",
        "OPENAI_API_KEY", "access_key", "AWS_SECRET_ACCESS_KEY", "private_key", "auth", "basic_auth", "authorization",
        "Authorization", "credential", "credentials", "bearer", "token", "hf_token", "HF_TOKEN", "hfToken",
        "auth_token",
        "--hf-token", "HUGGING_FACE_HUB_TOKEN", "trainer.wandb.api_key", "MLFLOW_TRACKING_PASSWORD", "API_KEY_2",
        "api_tokens",
        "slack_bot_token", "password_value",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens", "token2text", "num_tokens", "tokenizer", "eos_token", "pad_token", "bos_token", "token_ids",
        "eos_token_id",
        "tokens", "tokens_per_second", "throughput/tokens_per_second", "max_new_tokens", "per_token", "kl_per_token",
        "prompt_key", "key", "keys", "sort_key", "author", "authors", "monkey", "secretary", "passes", "compass",
        "password_file",
        "api_key_env", "token_type_ids", "TOKENIZERS_PARALLELISM", "", "image_token", "stop_token", "SSH_AUTH_SOCK",
        "public_key",
    ],
)  # fmt: skip
def test_names_that_only_look_like_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_values_under_secret_names_are_masked_at_every_depth() -> None:
    config = {
        "trainer": {"hf_token": "short", "logger": ["console"], "wandb": {"api_key": "abc", "entity": "team"}},
        "credentials": {"user": "me", "codes": ["one", 2]},
        "servers": [{"password": 123456, "host": "h"}, ("x", {"auth": "a:b"})],
        "max_tokens": 128,
        "eos_token": "</s>",
        "tokenizer": "gpt2",
    }
    assert mask(config) == {
        "trainer": {"hf_token": MASK, "logger": ["console"], "wandb": {"api_key": MASK, "entity": "team"}},
        "credentials": {"user": MASK, "codes": [MASK, MASK]},
        "servers": [{"password": MASK, "host": "h"}, ("x", {"auth": MASK})],
        "max_tokens": 128,
        "eos_token": "</s>",
        "tokenizer": "gpt2",
    }


def test_mask_returns_a_copy_and_leaves_the_original() -> None:
    original = {"a": {"password": "x"}, "b": [1.0, 2.0]}
    masked = mask(original)
    masked["b"].append(3.0)
    masked["a"]["password"] = "y"
    assert original == {"a": {"password": "x"}, "b": [1.0, 2.0]}


def test_switches_and_absent_values_under_secret_names_stay() -> None:
    value = {
        "auth": True,
        "token": None,
        "password": "",
        "image_token": "<image>",
        "my_token": "<|x|>",
        "cost_token": 0.1,
    }
    assert mask(value) == value


def test_deep_nesting_ends_masked_instead_of_in_a_recursion_error() -> None:
    deep: list[object] = []
    deep.append(deep)
    assert MASK in str(mask({"config": deep}))


def test_secret_keys_of_a_dictionary_are_masked_and_none_is_lost() -> None:
    keys = ["hf_abcdefghijklmnop1", "hf_abcdefghijklmnop2", "plain"]
    assert list(mask(dict.fromkeys(keys, 1)).values()) == [1, 1, 1]
    assert not any("abcdef" in key for key in mask(dict.fromkeys(keys, 1)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key sk-abcdEFGH1234567890abcd end", f"key {MASK} end"),
        ("sk-proj-abc_DEF-1234567890123456", MASK),
        ("sk-ant-api03-AbCdEf1234567890abcdef", MASK),
        ("login hf_abcdefghijklmnopqrstuvwx12", f"login {MASK}"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ012345", MASK),
        ("github_pat_11ABCDEFG0123456789_abcdefghijk", MASK),
        ("AKIAIOSFODNN7EXAMPLE", MASK),
        ("xoxb-123456789012-abcdefghij", MASK),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.dBjftJeZ4CVPmB92K27uhbUJU1p1r", MASK),
        ("Authorization: Bearer abcdef123456", f"Authorization: Bearer {MASK}"),
        ("authorization: Basic dXNlcjpwYXNz", f"authorization: Basic {MASK}"),
        ('{"Authorization": "token abcd"}', f'{{"Authorization": "{MASK}"}}'),
        (f"wandb login {HEX_40}", f"wandb login {MASK}"),
        (f"wandb: paste your API key: {HEX_40}", f"wandb: paste your API key: {MASK}"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE+/=\nab12\n-----END RSA PRIVATE KEY-----\nafter", f"{MASK}\nafter"),
        ("cut: -----BEGIN PRIVATE KEY-----\nMIIEabcd\nefgh", f"cut: {MASK}"),
        (r"'-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n'", rf"'{MASK}\n'"),
        ("mysql://root:p@ss:w0rd@db:3306/x", f"mysql://root:{MASK}@db:3306/x"),
        ("http://:only@h", f"http://:{MASK}@h"),
        ("https://h/p?api_key=abc&x=1&token=d#f", f"https://h/p?api_key={MASK}&x=1&token={MASK}#f"),
        ("https://s3/x?X-Amz-Signature=abcdef&a=b", f"https://s3/x?X-Amz-Signature={MASK}&a=b"),
        ("export HF_TOKEN=abcdefgh1", f"export HF_TOKEN={MASK}"),
        ("PASSWORD=correcthorse", f"PASSWORD={MASK}"),
        ('password = "x"', f'password = "{MASK}"'),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPx", f"aws_secret_access_key = {MASK}"),
        ('{"api_key": "abc", "n": 1}', f'{{"api_key": "{MASK}", "n": 1}}'),
        ("+  api_key: abcdefgh\n", f"+  api_key: {MASK}\n"),
        ("run --hf-token abc --n 3", f"run --hf-token {MASK} --n 3"),
        ("trainer.wandb.api_key=abcdefgh12", f"trainer.wandb.api_key={MASK}"),
        ("k=password=hunter2222", f"k=password={MASK}"),
        ("İ password=hunter2222", f"İ password={MASK}"),
    ],
)
def test_secrets_in_text(text: str, expected: str) -> None:
    assert mask_text(text) == expected
    assert mask_text(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "The password is checked by the server; the secret: practice. Keys: a, b.",
        "Bearer securities are rare. The bearer of this letter",
        "password: choose one with eight letters or more",
        "token=hf_token, api_key=settings.api_key, token = tokenizer.eos_token",
        "client(api_key=os.environ['OPENAI_API_KEY'], password=get_password())",
        'api_key: "${oc.env:HF_TOKEN}" token: <your token> PASSWORD=$1',
        '{"token": "hello", "logprob": -0.5}',
        "eos_token: '</s>' pad_token='[PAD]' max_tokens=12345678 tokenizer=gpt2-medium",
        f"commit {HEX_40}",
        "risk-adjusted-returns-1234567890 task-1234567890123456789 sk-short",
        "http://localhost:6006/data?run=a&tag=b  https://example.org/a:b@c",
        "hf_model_path_or_name hf_hub ghp_ AKIA eyJ xox",
        "import wandb; sort(key=lambda row: row[0])",
        "def f(key=value, author=me): ...",
        "价格：100，密码学",
        "",
        "a",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert mask_text(text) == text


def test_values_of_secret_environment_variables_are_masked_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWANLAB_API_KEY", "Zq9!vW3(kT")
    monkeypatch.setenv("DB_PASSWORD", "short")
    monkeypatch.setenv("HARMLESS", "ordinary-value")
    assert mask_text("x Zq9!vW3(kT y short z ordinary-value") == f"x {MASK} y short z ordinary-value"
    assert mask({"reply": ["it is Zq9!vW3(kT."]}) == {"reply": [f"it is {MASK}."]}
    monkeypatch.delenv("SWANLAB_API_KEY")
    assert mask_text("Zq9!vW3(kT") == "Zq9!vW3(kT"


def test_of_two_environment_secrets_the_longer_is_masked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abcdefgh")
    monkeypatch.setenv("B_TOKEN", "abcdefghij")
    assert mask_text("abcdefghij abcdefgh") == f"{MASK} {MASK}"


def test_command_line_flags_and_their_values() -> None:
    arguments = [
        "train.py",
        "--hf-token",
        "x",
        "--password=y1234567",
        "--n",
        "3",
        "--api-key",
        "--verbose",
        "a.token=abcdefgh1",
    ]
    assert mask_command_line(arguments) == [
        "train.py", "--hf-token", MASK, f"--password={MASK}", "--n", "3", "--api-key", "--verbose", f"a.token={MASK}",
    ]  # fmt: skip


SECRETS = st.sampled_from(
    [
        "sk-abcdEFGH1234567890abcd", "hf_abcdefghijklmnopqrst12", "AKIAIOSFODNN7EXAMPLE", "password=hunter2222",
        "Bearer abcdef123456", "http://u:pw@h", "?token=abc", '"api_key": "v"', "--hf-token v",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----", "wandb key ", HEX_40, MASK, "\n", " ", "=", "'", '"', "://", "@",
    ]
)  # fmt: skip


@settings(max_examples=200)
@example(["--hf-token v", "password=hunter2222"])
@example(["password=abcdefgh1=", "abcdefgh2"])
@given(st.lists(st.one_of(SECRETS, st.text(max_size=8)), max_size=12))
def test_masking_twice_changes_nothing_more(parts: list[str]) -> None:
    once = mask_text("".join(parts))
    assert mask_text(once) == once


@given(st.lists(st.text(max_size=5), max_size=5), st.lists(st.text(max_size=5), max_size=5))
def test_a_known_shape_is_masked_whatever_words_surround_it(before: list[str], after: list[str]) -> None:
    text = " ".join([*before, "hf_abcdefghijklmnopqrstuvwx12", *after])
    assert "hf_abcdefghijklmnopqrstuvwx12" not in mask_text(text)


@given(st.text(alphabet="abcdefgh keytokn.,;!\n价格é", max_size=300))
def test_prose_stays(text: str) -> None:
    assert mask_text(text) == text


@pytest.mark.parametrize(
    "unit",
    [
        "a", "key=", 'key="', "key='key=\"", "api_key=key", "--api-key ", "sk-", "://", "://a:", "a:", "eyJ",
        "eyJaaaaaaaa.", "bearer ",
        "authorization: ", "?token=", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY----- ",
        "wandb key " + "a" * 39 + " ",
        "token ", "password: ", "\n", "é", "İ", "+ ", "_", ".", "hf_",
    ],
)  # fmt: skip
def test_cost_is_linear_in_hostile_text(unit: str) -> None:
    def seconds(length: int) -> float:
        text = "key token " + unit * (length // len(unit))
        start = time.process_time()
        mask_text(text)
        return time.process_time() - start

    # Eight times the text: linear cost is about 8 times, quadratic 64 times.
    assert seconds(160_000) < 25 * max(seconds(20_000), 0.004)
