"""From the configuration to prompts: templates, lengths, the built-in set."""

from __future__ import annotations

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from verl.config.schema import DataConfig
from verl.data import PromptDataset, load_train_prompts, load_val_prompts
from verl.errors import DataError, ModelError
from verl.testing.models import tiny_tokenizer


def load(tokenizer: PreTrainedTokenizerFast, context_length: int | None = None, **keys) -> PromptDataset:
    return load_train_prompts(DataConfig(train_batch_size=1, **keys), tokenizer, context_length)


def error_of(tokenizer: PreTrainedTokenizerFast, context_length: int | None = None, **keys) -> str:
    with pytest.raises(DataError) as caught:
        load(tokenizer, context_length, **keys)
    return str(caught.value)


# Rendering


def test_a_prompt_is_rendered_by_the_chat_template_with_the_opening_of_the_answer(write_rows, tokenizer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    path = write_rows("a.jsonl", [{"prompt": messages, "answer": "4"}])
    (prompt,) = load(tokenizer, train_files=[str(path)])
    assert prompt.text == "<s>Be brief.\n<u>2+2?\n<a>"
    assert prompt.ids == tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert (prompt.index, prompt.data_source, prompt.ground_truth, prompt.extra_info) == (0, "a", "4", {})
    assert prompt.messages == messages


def test_a_tokenizer_without_template_gets_plain_text_and_a_notice(write_rows, plain_tokenizer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    path = write_rows("a.jsonl", [{"prompt": messages}])
    data = load(plain_tokenizer, train_files=[str(path)])
    assert data[0].text == "Be brief.\n\n2+2?"
    assert data.notices == (
        "The tokenizer has no chat template: prompts are plain text (the contents of the messages joined by "
        "blank lines).",
    )


def test_plain_text_keeps_the_start_token_and_stays_open_at_the_end(write_rows, plain_tokenizer):
    plain_tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    (prompt,) = load(plain_tokenizer, train_files=[str(write_rows("a.jsonl", [{"prompt": "ab"}]))])
    assert plain_tokenizer.convert_ids_to_tokens(prompt.ids) == ["<bos>", "a", "b"]


def test_a_template_gets_no_second_start_token(write_rows, tokenizer):
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    (prompt,) = load(tokenizer, train_files=[str(write_rows("a.jsonl", [{"prompt": "ab"}]))])
    assert 1 not in prompt.ids


def test_a_template_that_refuses_a_row_names_file_row_and_reason(write_rows, tokenizer):
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    path = write_rows("a.jsonl", [{"prompt": "ab"}])
    message = error_of(tokenizer, train_files=[str(path)])
    assert message.startswith(f"{path}, line 1: the tokenizer's chat template refuses the messages (roles: user): ")
    assert "no system role" in message


def test_rows_that_the_template_refuses_are_skipped_with_the_malformed_ones_in_one_warning(write_rows, tokenizer):
    tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    system = [{"role": "system", "content": "a"}]
    path = write_rows("a.jsonl", [{"prompt": system}, {"prompt": None}, {"prompt": "good"}])
    data = load(tokenizer, train_files=[str(path)], bad_rows="skip")
    assert [prompt.text for prompt in data] == ["good"]
    (warning,) = data.warnings
    assert warning.startswith(f"{path}: skipped 2 of 3 rows as malformed: line 2: 'prompt' is None")
    assert "; line 1: the tokenizer's chat template refuses the messages (roles: system): no system role" in warning


def test_a_file_of_which_the_template_refuses_all_is_an_error_even_when_skipping(write_rows, tokenizer):
    tokenizer.chat_template = "{{ raise_exception('never') }}"
    path = write_rows("a.jsonl", [{"prompt": "a"}, {"prompt": None}])
    assert f"{path}: all 2 rows are malformed" in error_of(tokenizer, train_files=[str(path)], bad_rows="skip")


def test_a_prompt_without_tokens_is_an_error(write_rows, plain_tokenizer):
    plain_tokenizer.backend_tokenizer.normalizer = None
    path = write_rows("a.jsonl", [{"prompt": "ab"}])
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ '' }}"
    assert f"{path}, line 1: the prompt '' gives no tokens" in error_of(tokenizer, train_files=[str(path)])


HOSTILE = [
    "\0\x1b[31m\u202e",
    "<eos><pad><bos>",
    "{{ 7*7 }}{% for %}",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u0301\u0301",
    "a" * 20_000,
    "\\u0000 \\n </s>",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_hostile_text_is_kept_as_it_is(write_rows, tokenizer, suffix, text):
    path = write_rows(f"a.{suffix}", [{"prompt": text, "answer": text}])
    (prompt,) = load(tokenizer, train_files=[str(path)], max_prompt_length=100_000)
    assert prompt.messages == [{"role": "user", "content": text}]
    assert prompt.text == f"<u>{text}\n<a>"
    assert prompt.ground_truth == text


# Lengths: "<u>" + text + "\n<a>" is the length of the text plus 7


def test_an_overlong_prompt_names_file_row_length_and_limit(write_rows, tokenizer):
    path = write_rows("a.jsonl", [{"prompt": "abc"}, {"prompt": "abcd"}])
    message = error_of(tokenizer, train_files=[str(path)], max_prompt_length=10)
    assert message.startswith(
        f"{path}, line 2: the prompt has 11 tokens, more than data.max_prompt_length=10.\nRaise data.max_prompt_length"
    )


def test_overlong_prompts_can_be_dropped_and_are_counted(write_rows, tokenizer):
    path = write_rows("a.jsonl", [{"prompt": "abc"}, {"prompt": "abcd"}, {"prompt": "abcdefg"}])
    data = load(tokenizer, train_files=[str(path)], max_prompt_length=10, overlong_prompts="drop")
    assert [prompt.text for prompt in data] == ["<u>abc\n<a>"]
    assert data.notices == (
        "Dropped 2 of 3 prompts that are longer than data.max_prompt_length=10 (the longest has 14 tokens).",
    )


@pytest.mark.parametrize(
    ("policy", "text"), [("truncate_left", "c\n<a>"), ("truncate_right", "<u>ab")], ids=["left", "right"]
)
def test_overlong_prompts_can_be_cut_and_text_and_ids_agree(write_rows, tokenizer, policy, text):
    path = write_rows("a.jsonl", [{"prompt": "abc"}])
    data = load(tokenizer, train_files=[str(path)], max_prompt_length=5, overlong_prompts=policy)
    assert data[0].text == text
    assert tokenizer.decode(data[0].ids) == text
    assert data.notices == (
        "Cut 1 of 1 prompts that are longer than data.max_prompt_length=5 (the longest has 10 tokens).",
    )


def test_dropping_everything_is_an_error(write_rows, tokenizer):
    path = write_rows("a.jsonl", [{"prompt": "abc"}])
    message = error_of(tokenizer, train_files=[str(path)], max_prompt_length=5, overlong_prompts="drop")
    assert message == (
        "data.train_files: no prompt is left. Dropped 1 of 1 prompts that are longer than data.max_prompt_length=5 "
        "(the longest has 10 tokens). Raise data.max_prompt_length."
    )


def test_when_all_read_rows_are_refused_the_length_is_not_blamed(write_rows, tokenizer):
    tokenizer.chat_template = "{% if messages[0].content == 'bad' %}{{ raise_exception('no') }}{% endif %}ok"
    path = write_rows("a.jsonl", [{"prompt": "bad"}, {"prompt": "good"}])
    config = DataConfig(val_files=[str(path)], max_val_samples=1, bad_rows="skip")
    with pytest.raises(DataError) as raised:
        load_val_prompts(config, tokenizer, None)
    message = str(raised.value)
    assert message.startswith(f"data.val_files: no prompt is left. {path}: skipped 1 of 2 rows as malformed: line 1: ")
    assert message.endswith(": no. Correct these rows, or raise data.max_val_samples.")
    assert "max_prompt_length" not in message


def test_a_prompt_longer_than_the_context_is_an_error_with_the_numbers(write_rows, tokenizer):
    path = write_rows("a.jsonl", [{"prompt": "a"}, {"prompt": "a" * 50}])
    message = error_of(tokenizer, 57, train_files=[str(path)])
    assert message.startswith(
        f"{path}, line 2: the prompt has 57 tokens and the model's context is 57: no room for a response."
    )


def test_a_response_that_does_not_fit_is_an_error_with_the_numbers(write_rows, tokenizer):
    path = write_rows("a.jsonl", [{"prompt": "a" * 43}])
    message = error_of(tokenizer, 177, train_files=[str(path)], max_response_length=128)
    assert message.startswith(
        f"{path}, line 1: the prompt has 50 tokens and data.max_response_length is 128: 178 together, more than the "
        "model's context of 177.\nLower data.max_response_length to 127, or data.max_prompt_length to 49"
    )
    assert len(load(tokenizer, 178, train_files=[str(path)], max_response_length=128)) == 1


# Notices, validation, the built-in set


def test_a_batch_larger_than_the_data_set_gives_a_notice(write_rows, tokenizer):
    path = write_rows("a.jsonl", [{"prompt": "a"}])
    data = load_train_prompts(DataConfig(train_files=[str(path)], train_batch_size=4), tokenizer, None)
    assert data.notices[0].startswith("data.train_batch_size=4 is larger than the data set (1 prompts)")


def test_a_file_named_twice_counts_twice_and_says_so(write_rows, tokenizer):
    path = str(write_rows("a.jsonl", [{"prompt": "a"}]))
    data = load(tokenizer, train_files=[path, path])
    assert len(data) == 2
    assert f"data.train_files names {path} more than once" in data.notices[0]


def test_media_columns_give_a_notice(write_rows, tokenizer):
    path = write_rows("a.jsonl", [{"prompt": "a", "images": []}])
    assert load(tokenizer, train_files=[str(path)]).notices == (f"{path}: columns not used (text only): images.",)


def test_without_files_the_built_in_sets_are_used_and_a_notice_says_so(tokenizer):
    config = DataConfig()
    train, val = load_train_prompts(config, tokenizer, 2048), load_val_prompts(config, tokenizer, 2048)
    assert val is not None
    assert train.notices[0].startswith(f"No data.train_files given: training on the built-in set of {len(train)} short")
    assert 200 <= len(train) <= 500
    assert 30 <= len(val) <= 100
    assert train.counts.keys() == val.counts.keys()
    assert train.has_ground_truth
    assert not {p.text for p in train} & {p.text for p in val}
    assert len({p.text for p in train}) == len(train)


def test_the_built_in_set_is_the_same_at_every_call(tokenizer):
    assert (
        load_train_prompts(DataConfig(), tokenizer, None).fingerprint
        == load_train_prompts(DataConfig(), tokenizer, None).fingerprint
    )


def test_built_in_prompts_fit_the_defaults_even_with_one_token_per_character(tokenizer):
    assert load_train_prompts(DataConfig(), tokenizer, 256).lengths.max() <= 128


def test_training_files_without_validation_files_give_no_validation(write_rows, tokenizer):
    config = DataConfig(train_files=[str(write_rows("a.jsonl", [{"prompt": "a"}]))])
    assert load_val_prompts(config, tokenizer, None) is None


def test_validation_takes_the_first_rows_of_all_files_together(write_rows, tokenizer):
    paths = [str(write_rows(f"{name}.jsonl", [{"prompt": f"{name}{i}"} for i in range(3)])) for name in "ab"]
    data = load_val_prompts(DataConfig(val_files=paths, max_val_samples=4), tokenizer, None)
    assert data is not None
    assert [prompt.messages[0]["content"] for prompt in data] == ["a0", "a1", "a2", "b0"]


def test_validation_of_the_built_in_set_is_limited_too(tokenizer):
    data = load_val_prompts(DataConfig(max_val_samples=3), tokenizer, None)
    assert data is not None
    assert len(data) == 3


def test_an_error_in_a_validation_file_names_its_setting(tokenizer):
    with pytest.raises(DataError, match=r"data\.val_files: no such file"):
        load_val_prompts(DataConfig(val_files=["none.jsonl"]), tokenizer, None)


# The data set


def test_a_data_set_behaves_like_a_list(write_rows, tokenizer):
    rows = [{"prompt": text, "data_source": source} for text, source in [("a", "x"), ("bcd", "y"), ("ef", "x")]]
    path = write_rows("a.parquet", rows)
    data = load(tokenizer, train_files=[str(path)])
    assert len(data) == 3
    assert data[-1] == data[2] == list(data)[2]
    assert [prompt.index for prompt in data[1:]] == [1, 2]
    assert data.counts == {"x": 2, "y": 1}
    assert data.lengths.tolist() == [8, 10, 9]
    assert [len(prompt.ids) for prompt in data] == [8, 10, 9]
    assert data.origin(1) == f"{path}, row 1 (counted from 0)"
    assert not data.has_ground_truth
    with pytest.raises(IndexError):
        data[3]


def test_the_fingerprint_follows_the_content(write_rows, tokenizer):
    def fingerprint(name: str, rows: list[dict]) -> str:
        return load(tokenizer, train_files=[str(write_rows(name, rows))]).fingerprint

    rows = [{"prompt": "a", "answer": "1", "data_source": "s"}, {"prompt": "b", "answer": "2", "data_source": "s"}]
    first = fingerprint("a.jsonl", rows)
    assert fingerprint("b.parquet", rows) == first
    assert fingerprint("a.jsonl", rows[::-1]) != first
    assert fingerprint("a.jsonl", [{**rows[0], "answer": "3"}, rows[1]]) != first
    assert fingerprint("a.jsonl", [{**rows[0], "prompt": "c"}, rows[1]]) != first
    assert fingerprint("a.jsonl", [{**rows[0], "extra_info": {"k": 1}}, rows[1]]) != first


@pytest.mark.parametrize("bad_rows", ["error", "skip"])
@pytest.mark.parametrize("template", ["hello\n{% for m in %}", "hello\n{{ messages | no_such_filter }}"])
def test_a_template_that_is_wrong_in_itself_is_not_blamed_on_a_row(write_rows, tokenizer, template, bad_rows):
    tokenizer.chat_template = template
    path = write_rows("a.jsonl", [{"prompt": "1+1?"}])
    with pytest.raises(ModelError, match=r"^the tokenizer's chat template is not valid, line 2: ") as caught:
        load(tokenizer, train_files=[str(path)], bad_rows=bad_rows)
    assert "chat_template.jinja" in str(caught.value)
    assert "row" not in str(caught.value)
