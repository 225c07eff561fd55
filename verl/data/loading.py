"""The two calls of the trainer: training prompts and validation prompts, from the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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
    loading = _Loading("data.train_files", config, tokenizer, context_length)
    if config.train_files:
        files = loading.read(config.train_files, limit=None)
    else:
        files = [_builtin(train_rows())]
        loading.notices.append(
            f"No data.train_files given: training on the built-in set of {files[0].num_rows} short prompts. "
            "For your own, set data.train_files to Parquet or JSONL files with a 'prompt' column."
        )
    if not tokenizer.chat_template:
        loading.notices.append(
            "The tokenizer has no chat template: prompts are plain text (the contents of the messages joined by "
            "blank lines)."
        )
    kept = loading.encode(files)
    if config.train_batch_size > len(kept):
        loading.notices.append(
            f"data.train_batch_size={config.train_batch_size} is larger than the data set ({len(kept)} prompts): "
            "every batch holds prompts several times, each as a group of its own."
        )
    return loading.finish(files, kept)


def load_val_prompts(config: DataConfig, tokenizer: Tokenizer, context_length: int | None) -> PromptDataset | None:
    """Loads the validation prompts, at most `data.max_val_samples`.

    Returns:
        The prompts of `data.val_files`; without them the built-in held-out set if training uses the
        built-in set, else None (no validation).

    Raises:
        DataError: As `load_train_prompts`.
    """
    if config.train_files and not config.val_files:
        return None
    loading = _Loading("data.val_files", config, tokenizer, context_length)
    if config.val_files:
        files = loading.read(config.val_files, config.max_val_samples)
    else:
        files = [_builtin(heldout_rows()[: config.max_val_samples])]
    return loading.finish(files, loading.encode(files))


def _builtin(rows: list[Row]) -> FileRows:
    return FileRows(rows[0].file, len(rows), rows, BadRows(rows[0].file, "error"), ())


@dataclass(slots=True)
class _Loading:
    """The steps from file names to prompts; collects what the user should be told."""

    setting: str
    config: DataConfig
    tokenizer: Tokenizer
    context_length: int | None
    notices: list[str] = field(default_factory=list)

    def read(self, names: Sequence[str], limit: int | None) -> list[FileRows]:
        """Reads the files; keeps the first `limit` rows of all together."""
        paths = find_files(names, self.setting)
        doubled = sorted({str(path) for path in paths if paths.count(path) > 1})
        if doubled:
            self.notices.append(
                f"{self.setting} names {', '.join(doubled)} more than once: its prompts count as often."
            )
        files: list[FileRows] = []
        left = limit
        for path in paths:
            file = read_file(path, self.config.prompt_key, self.config.bad_rows)
            if file.unused:
                self.notices.append(f"{path}: columns not used (text only): {', '.join(file.unused)}.")
            if left is not None:
                file = replace(file, rows=file.rows[:left])
                left -= len(file.rows)
            files.append(file)
        return files

    def encode(self, files: Sequence[FileRows]) -> list[Encoded]:
        """Tokenizes; applies `data.overlong_prompts` and `data.bad_rows`."""
        rule = LengthRule(self.config.max_prompt_length, self.config.overlong_prompts)
        kept: list[Encoded] = []
        for file in files:
            for encoded in encode_rows(file.rows, self.tokenizer):
                if encoded.error is not None:
                    file.bad.add(encoded.row.place, str(encoded.error))
                    continue
                fitting = rule.apply(encoded, self.tokenizer)
                if fitting is not None:
                    kept.append(fitting)
            file.bad.raise_if_all(file.num_rows)
        notice = rule.notice(sum(len(file.rows) for file in files))
        if notice:
            self.notices.append(notice)
        if not kept:
            raise DataError(f"{self.setting}: no prompt is left. {' '.join(_why_none_is_left(files, notice))}")
        _check_context(kept, self.config, self.context_length)
        return kept

    def finish(self, files: Sequence[FileRows], kept: Sequence[Encoded]) -> PromptDataset:
        """Makes the data set."""
        rows, ids, texts = [e.row for e in kept], [e.ids for e in kept], [e.text for e in kept]
        return PromptDataset(rows, ids, texts, self.notices, _warnings(files))


def _warnings(files: Sequence[FileRows]) -> list[str]:
    return [warning for file in files if (warning := file.bad.warning(file.num_rows))]


def _why_none_is_left(files: Sequence[FileRows], overlong: str | None) -> list[str]:
    reasons = [f"{warning}." for warning in _warnings(files)]
    if overlong is None:
        # A file without a single good row is refused before, so the good ones stand behind the limit.
        return [*reasons, "Correct these rows, or raise data.max_val_samples."]
    return [*reasons, overlong, "Raise data.max_prompt_length."]


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
