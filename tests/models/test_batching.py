import pytest
import torch
from sequences import Sequence

from verl.errors import DataError
from verl.models.batching import pad_batch, pad_rows


def test_rows_are_padded_on_the_right_and_predictors_point_one_before_each_response_token():
    batch = pad_batch([Sequence([5, 6], [7, 8], [1, 0]), Sequence([9], [10, 11, 12], [1, 1, 1])])
    assert batch.input_ids_BL.tolist() == [[5, 6, 7, 8], [9, 10, 11, 12]]
    assert batch.attention_mask_BL.tolist() == [[True] * 4, [True] * 4]
    assert batch.position_ids_BL.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert batch.response_ids_BT.tolist() == [[7, 8, 0], [10, 11, 12]]
    assert batch.response_mask_BT.tolist() == [[True, False, False], [True, True, True]]
    assert batch.predictor_BT.tolist() == [[1, 2, 0], [0, 1, 2]]


def test_padding_is_not_attended():
    batch = pad_batch([Sequence([5], [6], [1]), Sequence([5, 5], [6, 6], [1, 1])])
    assert batch.attention_mask_BL.tolist() == [[True, True, False, False], [True] * 4]


def test_a_response_may_be_empty():
    batch = pad_batch([Sequence([5], [], []), Sequence([5], [6], [1])])
    assert batch.response_mask_BT.tolist() == [[False], [True]]


def test_an_empty_prompt_is_refused():
    with pytest.raises(DataError, match=r"trajectory 1 has an empty prompt"):
        pad_batch([Sequence([5], [6], [1]), Sequence([], [6], [1])])


def test_a_mask_of_the_wrong_length_is_refused():
    with pytest.raises(DataError, match=r"trajectory 0 has 2 response tokens but a response mask of 1"):
        pad_batch([Sequence([5], [6, 7], [1])])


def test_no_rows_give_an_empty_batch():
    assert pad_batch([]).input_ids_BL.shape == (0, 0)


def test_rows_can_be_padded_to_a_width():
    assert torch.equal(pad_rows([[1], [2, 3]], width=3), torch.tensor([[1, 0, 0], [2, 3, 0]]))
