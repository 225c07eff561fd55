import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from verl.rollout.stop_strings import StopStringMatcher
from verl.testing.models import tiny_tokenizer


@pytest.fixture(scope="module")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with a few merges: characters outside ASCII are split between tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<eos>", *alphabet])}
    merges = [("<", "/"), ("a", "n"), ("an", "s"), ("Ġ", "x"), ("Ċ", "Ċ")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


@pytest.fixture(scope="module")
def piece_tokenizer() -> PreTrainedTokenizerFast:
    """As SentencePiece: a space belongs to the next piece, and the first one loses it when decoded."""
    pieces = ["<eos>", "▁", "▁the", "▁end", ".", "▁a", "e", "n", "d"]
    backend = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token="<eos>"))
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


def first_match(tokenizer, ids: list[int], stop: tuple[str, ...]) -> int | None:
    """Tokens sampled when the engine would stop; the cheap test must not hide a match."""
    matcher = StopStringMatcher(tokenizer)
    for count in range(1, len(ids) + 1):
        if matcher.contains(ids[:count], stop):
            assert matcher.could_complete(ids[count - 1], stop)
            return count
    return None


def reference(tokenizer, ids: list[int], stop: tuple[str, ...]) -> int | None:
    """The same by decoding everything at every token."""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if any(string in text for string in stop):
            return count
    return None


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("so the answer is 4</s> and more", ("</s>",)),
        ("one\n\ntwo", ("\n\n",)),
        ("answers", ("ans",)),
        ("answers", ("swe",)),
        ("café crème", ("é c",)),
        ("日本語テキスト", ("本語",)),
        ("🙂🙃🙂", ("🙃",)),
        ("a" * 300 + " x", (" x",)),
        ("never", ("absent",)),
        ("first or second", ("second", "first")),
    ],
)
def test_a_match_across_tokens_is_found_at_once(byte_tokenizer, text, stop):
    ids = byte_tokenizer.encode(text)
    assert len(ids) > 1
    found = first_match(byte_tokenizer, ids, stop)
    assert found == reference(byte_tokenizer, ids, stop)
    assert (found is not None) == any(string in text for string in stop)


def test_a_stop_string_inside_one_token_is_found(byte_tokenizer):
    ids = byte_tokenizer.convert_tokens_to_ids(["b", "ans"])
    assert first_match(byte_tokenizer, ids, ("n",)) == 2


def test_spaces_of_pieces_count(piece_tokenizer):
    ids = piece_tokenizer.convert_tokens_to_ids(["▁the", "▁end", ".", "▁a"])
    for stop in [("the end",), (" end",), ("d.",), (". a",), (" a",)]:
        assert first_match(piece_tokenizer, ids, stop) == reference(piece_tokenizer, ids, stop) is not None


def test_a_stop_string_that_ends_in_a_space_is_found(piece_tokenizer):
    ids = piece_tokenizer.convert_tokens_to_ids(["▁the", "▁", "e"])
    assert first_match(piece_tokenizer, ids, ("the ",)) == reference(piece_tokenizer, ids, ("the ",)) == 2


def test_special_tokens_are_text_here():
    tokenizer = tiny_tokenizer()
    ids = [*tokenizer.encode("ab"), tokenizer.bos_token_id]
    assert first_match(tokenizer, ids, ("b<bos>",)) == 3


def test_most_tokens_need_no_decoding(byte_tokenizer):
    matcher = StopStringMatcher(byte_tokenizer)
    ids = byte_tokenizer.encode("hello world")
    assert [matcher.could_complete(token, ("</s>",)) for token in ids] == [False] * len(ids)
