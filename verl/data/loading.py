"""The two calls of the trainer: training prompts and validation prompts, from the configuration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from verl.config.schema import DataConfig
from verl.data.builtin import heldout_rows, train_rows
from verl.data.files import FileRows, find_files, read_file
from verl.data.prompts import PromptDataset, Row
from verl.data.rows import BadRows
from verl.data.tokenize import Encoded, LengthRule, Tokenizer, encode_rows
from verl.errors import DataError


def load_train_prompts(config: DataConfig, tokenizer: Tokenizer, context_length: int | None) -> PromptDataset:
    """Loads the training prompts: `data.train_files`, or the built-in set if none are given.

    Args:
        tokenizer: A transformers tokenizer (of the policy).
        context_length: Most tokens that the policy can hold (prompt and response); None = unbounded.

    Raises:
        DataError: A file or row is wrong, or a prompt does not fit; the message names file and row.
    """
    if config.train_files:
        return _load(config.train_files, "data.train_files", config, tokenizer, context_length, None)
    rows = train_rows()
    notice = (
        f"No data.train_files given: training on the built-in set of {len(rows)} short prompts. "
        "For your own, set data.train_files to Parquet or JSONL files with a 'prompt' column."
    )
    return _tokenize([_builtin(rows)], [notice], "data.train_files", config, tokenizer, context_length)


def load_val_prompts(config: DataConfig, tokenizer: Tokenizer, context_length: int | None) -> PromptDataset | None:
    """Loads the validation prompts, at most `data.max_val_samples`.

    Returns:
        The prompts of `data.val_files`; without them the built-in held-out set if training uses the
        built-in set, else None (no validation).

    Raises:
        DataError: As `load_train_prompts`.
    """
    limit = config.max_val_samples
    if config.val_files:
        return _load(config.val_files, "data.val_files", config, tokenizer, context_length, limit)
    if config.train_files:
        return None
    return _tokenize([_builtin(heldout_rows()[:limit])], [], "data.val_files", config, tokenizer, context_length)


def batch_notice(num_prompts: int, batch_size: int) -> str | None:
    """Says that a batch is larger than the data set, or None."""
    if batch_size <= num_prompts:
        return None
    return (
        f"data.train_batch_size={batch_size} is larger than the data set ({num_prompts} prompts): "
        "every batch holds prompts several times, each as a group of its own."
    )


def _builtin(rows: list[Row]) -> FileRows:
    return FileRows("built-in set", len(rows), rows, BadRows("built-in set", "error"), ())


def _load(
    names: Sequence[str],
    setting: str,
    config: DataConfig,
    tokenizer: Tokenizer,
    context_length: int | None,
    limit: int | None,
) -> PromptDataset:
    notices: list[str] = []
    files: list[FileRows] = []
    paths = find_files(names, setting)
    doubled = sorted({str(path) for path in paths if paths.count(path) > 1})
    if doubled:
        notices.append(f"{setting} names {', '.join(doubled)} more than once: its prompts count as often.")
    left = limit
    for path in paths:
        file = read_file(path, config.prompt_key, config.bad_rows)
        if file.unused:
            notices.append(f"{path}: columns not used (text only): {', '.join(file.unused)}.")
        if left is not None:
            file = FileRows(file.file, file.num_rows, file.rows[:left], file.bad, file.unused)
            left -= len(file.rows)
        files.append(file)
    return _tokenize(files, notices, setting, config, tokenizer, context_length)


def _tokenize(
    files: Sequence[FileRows],
    notices: list[str],
    setting: str,
    config: DataConfig,
    tokenizer: Tokenizer,
    context_length: int | None,
) -> PromptDataset:
    rule = LengthRule(config.max_prompt_length, config.overlong_prompts)
    kept: list[Encoded] = []
    for file in files:
        for encoded in encode_rows(file.rows, tokenizer):
            if encoded.error is not None:
                file.bad.add(encoded.row.place, str(encoded.error))
                continue
            fitting = rule.apply(encoded, tokenizer)
            if fitting is not None:
                kept.append(fitting)
        file.bad.raise_if_all(file.num_rows)
    num_prompts = sum(len(file.rows) for file in files)
    if not tokenizer.chat_template:
        notices.append(
            "The tokenizer has no chat template: prompts are plain text (the contents of the messages joined by "
            "blank lines)."
        )
    dropped = rule.notice(num_prompts)
    if dropped:
        notices.append(dropped)
    if not kept:
        raise DataError(f"{setting}: no prompt is left. {dropped or ''} Raise data.max_prompt_length.")
    _check_context(kept, config, context_length)
    warnings = [warning for file in files if (warning := file.bad.warning(file.num_rows))]
    return PromptDataset([e.row for e in kept], [e.ids for e in kept], [e.text for e in kept], notices, warnings)


def _check_context(kept: Sequence[Encoded], config: DataConfig, context_length: int | None) -> None:
    """Checks that the longest prompt and a whole response fit into the model."""
    if context_length is None:
        return
    longest = kept[int(np.argmax([len(encoded.ids) for encoded in kept]))]
    length, response = len(longest.ids), config.max_response_length
    if length + response <= context_length:
        return
    if length >= context_length:
        raise DataError(
            f"{longest.row.file}, {longest.row.place}: the prompt has {length} tokens and the model's context is "
            f"{context_length}: no room for a response.\n"
            f"Set data.max_prompt_length below {context_length} with data.overlong_prompts=drop or truncate_left, "
            "or use a model with a longer context."
        )
    raise DataError(
        f"{longest.row.file}, {longest.row.place}: the prompt has {length} tokens and data.max_response_length is "
        f"{response}: {length + response} together, more than the model's context of {context_length}.\n"
        f"Lower data.max_response_length to {context_length - length}, or data.max_prompt_length to "
        f"{max(context_length - response, 1)} with data.overlong_prompts=drop or truncate_left."
    )
