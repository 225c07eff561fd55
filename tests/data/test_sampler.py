from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl.data import batch_indices, num_steps, ordered_batches, steps_per_epoch

sizes = st.integers(1, 40)
seeds = st.integers(-(2**70), 2**70)


def stream(num_prompts: int, batch_size: int, steps: int, seed: int, shuffle: bool) -> list[int]:
    return [i for step in range(steps) for i in batch_indices(num_prompts, batch_size, step, seed, shuffle)[1]]


@given(sizes, sizes, seeds, st.booleans())
def test_each_epoch_is_a_permutation_whatever_the_batch_size(num_prompts, batch_size, seed, shuffle):
    drawn = stream(num_prompts, batch_size, num_steps(num_prompts, batch_size, epochs=3), seed, shuffle)
    for epoch in range(3):
        assert sorted(drawn[epoch * num_prompts : (epoch + 1) * num_prompts]) == list(range(num_prompts))


@given(sizes, sizes, st.integers(0, 1000), seeds)
def test_a_batch_depends_on_its_step_alone(num_prompts, batch_size, step, seed):
    before = np.random.get_state()[1].copy()
    batch = batch_indices(num_prompts, batch_size, step, seed, True)
    batch_indices(num_prompts, batch_size, step + 1, seed, True)
    assert batch_indices(num_prompts, batch_size, step, seed, True) == batch
    assert (np.random.get_state()[1] == before).all()


@given(sizes, sizes, st.integers(0, 10), seeds)
def test_the_batch_size_cuts_one_and_the_same_stream(num_prompts, batch_size, step, seed):
    single = stream(num_prompts, 1, (step + 1) * batch_size, seed, True)
    assert batch_indices(num_prompts, batch_size, step, seed, True)[1] == single[step * batch_size :]


@given(sizes, sizes, st.integers(0, 50), seeds)
def test_the_epoch_is_that_of_the_first_prompt(num_prompts, batch_size, step, seed):
    assert batch_indices(num_prompts, batch_size, step, seed, True)[0] == step * batch_size // num_prompts


def test_the_order_is_fixed_for_good():
    # A change here breaks the resumption of every run that was made before.
    assert batch_indices(8, 8, 0, 0, True) == (0, [0, 2, 1, 5, 4, 3, 6, 7])
    assert batch_indices(8, 8, 1, 0, True) == (1, [5, 3, 7, 2, 4, 1, 0, 6])


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [tuple(batch_indices(30, 30, epoch, seed, True)[1]) for epoch in range(5) for seed in (0, 1, -1)]
    assert len(set(orders)) == len(orders)


def test_the_shuffle_is_uniform():
    first = np.bincount([batch_indices(4, 1, 4 * epoch, 0, True)[1][0] for epoch in range(4000)], minlength=4)
    assert (np.abs(first - 1000) < 150).all()


def test_without_shuffling_the_order_is_that_of_the_file():
    assert batch_indices(5, 3, 0, 9, False) == (0, [0, 1, 2])
    assert batch_indices(5, 3, 1, 9, False) == (0, [3, 4, 0])
    assert batch_indices(5, 3, 2, 9, False) == (1, [1, 2, 3])


def test_a_batch_larger_than_the_data_set_repeats_it():
    assert batch_indices(2, 5, 0, 0, False) == (0, [0, 1, 0, 1, 0])
    assert batch_indices(2, 5, 1, 0, False) == (2, [1, 0, 1, 0, 1])


def test_steps_are_counted_over_all_epochs_together():
    assert steps_per_epoch(100, 32) == 4
    assert num_steps(100, 32, epochs=8) == 25
    assert steps_per_epoch(3, 32) == 1


@pytest.mark.parametrize("arguments", [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_impossible_counts_are_refused(arguments):
    with pytest.raises(ValueError, match="must be at least 1, the step at least 0"):
        batch_indices(*arguments, seed=0, shuffle=True)


def test_ordered_batches_hold_each_prompt_once():
    assert [list(batch) for batch in ordered_batches(5, 2)] == [[0, 1], [2, 3], [4]]
    assert [list(batch) for batch in ordered_batches(5, None)] == [[0, 1, 2, 3, 4]]
    assert list(ordered_batches(0, None)) == []
