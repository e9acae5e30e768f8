"""The training loop divides steps into chunks that end where evaluations and saves are due."""

import itertools

import pytest

from flaxformer.training.loop import chunk_steps, train_chunks


class Counter:
    """Compiled functions whose state is the number of steps taken."""

    def chunks(self, run, first, last, steps):
        return [("data", min(steps, last - at)) for at in range(first, last, steps)]

    def advance(self, state, run, steps, source):
        return state + steps, {"loss": list(range(state, state + steps))}


@pytest.mark.parametrize(("first", "last", "size"), [(0, 12, 5), (0, 12, 12), (3, 12, 5), (5, 12, 5), (11, 12, 5)])
def test_chunks_take_every_step_once_and_end_at_multiples_of_their_size(first, last, size):
    chunks = list(train_chunks(Counter(), None, first, first, last, size))
    assert [loss for chunk in chunks for loss in chunk.curves["loss"]] == list(range(first, last))
    ends = [step for step in range(first + 1, last + 1) if step % size == 0 or step == last]
    assert [(chunk.step, chunk.state) for chunk in chunks] == [(end, end) for end in ends]
    assert [chunk.steps for chunk in chunks] == [end - begin for begin, end in itertools.pairwise([first, *ends])]


def test_nothing_is_left_of_a_run_that_has_ended():
    assert list(train_chunks(Counter(), None, 12, 12, 12, 5)) == []


def test_a_chunk_is_the_largest_divisor_of_all_intervals():
    for most, *intervals in itertools.product(range(1, 14), range(1, 13), range(1, 13)):
        divisors = [n for n in range(1, most + 1) if all(interval % n == 0 for interval in intervals)]
        assert chunk_steps(most, *intervals) == max(divisors)
