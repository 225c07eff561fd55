"""A conversation becomes one text, with a chat template or without."""

import subprocess
import sys
from typing import Any

import pytest

from verl.testing.models import tiny_tokenizer
from verl.tracing.conversation import RefusedConversationError, render_conversation

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
]


def test_a_template_renders_and_may_open_the_next_turn():
    tokenizer = tiny_tokenizer()
    closed = render_conversation(MESSAGES, tokenizer, add_generation_prompt=False)
    assert closed == "<s>Be brief.\n<u>2+2?\n<a>4\n"
    assert render_conversation(MESSAGES, tokenizer, add_generation_prompt=True) == closed + "<a>"


@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_without_template_contents_are_joined_by_blank_lines(add_generation_prompt):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    text = render_conversation(MESSAGES, tokenizer, add_generation_prompt=add_generation_prompt)
    assert text == "Be brief.\n\n2+2?\n\n4"


def test_a_message_without_content_is_empty_text():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    messages: list[dict[str, Any]] = [{"role": "user", "content": None}, {"role": "assistant"}]
    assert render_conversation(messages, tokenizer, add_generation_prompt=False) == "\n\n"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("{{ messages[0]['content'] + 1 }}", "can only concatenate str"),
        ("{{ messages[7]['content'] }}", "has no element 7"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_a_refusal_names_roles_and_reason(template, reason):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    refusal = r"the tokenizer's chat template refuses the messages \(roles: system, user, assistant\): .*"
    with pytest.raises(RefusedConversationError, match=refusal + reason):
        render_conversation(MESSAGES, tokenizer, add_generation_prompt=False)


def test_the_module_is_light():
    code = "import sys, verl.tracing.conversation; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
