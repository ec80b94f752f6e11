"""Rows hold every token once, in its place; plans hold every input; batches are mixtures."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t0.scoring.batch_planning import BatchLimits, Costs
from t0.scoring.packed_batches import PackedPlan, PackedShape, Rows, pack, plan_packed, token_counts
from t0.scoring.reading import AnswerChoice, MultipleChoiceExample, choice_groups

COSTS = Costs(input_token=2, input_pair=0.01, target_token=5, target_pair=0.01, lowering=1000)
COUNTS = st.dictionaries(
    st.tuples(st.integers(1, 1024), st.integers(1, 300)), st.integers(1, 500), min_size=1
)


@st.composite
def batches(draw):
    """Inputs [B, L] and targets [B, C, T] of any lengths, some of them empty."""
    many, choices = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    inputs, targets = np.zeros((many, 12), np.int32), np.zeros((many, choices, 5), np.int32)
    for row in (*inputs, *targets.reshape(-1, 5)):
        length = rng.integers(0, len(row) + 1)
        row[:length] = rng.integers(1, 99, length)
    return inputs, targets


@settings(max_examples=150)
@given(batches(), st.integers(1, 3), st.integers(0, 20))
def test_rows_hold_every_token_once(batch, rows, spare):
    inputs, targets = batch
    lengths, written = token_counts(inputs, targets)
    shape = PackedShape(rows, int(lengths.sum()) + spare, max(1, int(written.sum())) + spare)
    packed = pack(inputs, targets, shape)
    assert packed.inputs.shape == packed.input_numbers.shape == (rows, shape.inputs)
    assert packed.targets.shape == packed.choice_inputs.shape == (rows, shape.targets)
    found = collections.Counter()
    for row in range(rows):
        of_tokens = packed.owners[row]
        for owner in np.unique(of_tokens[of_tokens >= 0]):
            b, c = divmod(int(owner), targets.shape[1])
            (places,) = np.nonzero(of_tokens == owner)
            ids = targets[b, c, : written[b, c]]
            assert packed.targets[row, places].tolist() == ids.tolist()
            assert packed.decoder_inputs[row, places].tolist() == [0, *ids[:-1]]
            assert len(set(packed.choice_numbers[row, places])) == 1
            (number,) = set(packed.choice_inputs[row, places].tolist())
            own = packed.inputs[row, packed.input_numbers[row] == number]
            assert own.tolist() == inputs[b, : lengths[b]].tolist()
            found[b, c] += 1
        for numbers in (packed.input_numbers, packed.choice_numbers, packed.choice_inputs):
            real = numbers[row][numbers[row] > 0]
            assert (np.diff(real) >= 0).all()
            assert (numbers[row][len(real) :] == 0).all()
        assert set(packed.input_numbers[row]) - {0} == set(
            range(1, packed.input_numbers[row].max() + 1)
        )
        sizes = np.bincount(packed.input_numbers[row])[1:]
        assert (np.diff(sizes) >= 0).all()  # sorted, so that parts of a row have little padding
    assert found == dict.fromkeys(zip(*np.nonzero(written), strict=True), 1)


@given(batches())
def test_scores_are_sums_over_the_tokens_of_a_choice(batch):
    inputs, targets = batch
    lengths, written = token_counts(inputs, targets)
    packed = pack(inputs, targets, PackedShape(1, int(lengths.sum()), int(written.sum()) + 3))
    ones = np.where(packed.owners >= 0, 1.0, np.nan)  # padding may have any value
    np.testing.assert_array_equal(packed.scores(ones), written)


def test_inputs_without_room_are_refused():
    inputs, targets = np.ones((3, 4), np.int32), np.ones((3, 1, 2), np.int32)
    assert pack(inputs, targets, PackedShape(3, 4, 2)).owners.tolist() == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(ValueError, match=r"no room for input 2 with \(4, 2\) tokens"):
        pack(inputs, targets, PackedShape(2, 7, 9))
    with pytest.raises(ValueError, match="no room for input 1"):
        pack(inputs, targets, PackedShape(1, 99, 3))


@settings(max_examples=80)
@given(
    st.lists(COUNTS, min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(1, 4000),
    st.sampled_from([1, 3]),
)
def test_every_input_fits_a_row_of_its_task(tasks, most, tokens, replicas):
    plan = plan_packed(tasks, COSTS, BatchLimits(tokens, 0, replicas), most_shapes=most)
    assert 1 <= len(plan.shapes) <= most
    assert plan.padding > 0.99
    assert set(plan.of_tasks) == set(range(len(plan.shapes)))
    for index, counts in zip(plan.of_tasks, tasks, strict=True):
        shape = plan.shapes[index]
        assert shape.rows == replicas
        longest = max(max(both) for both in counts) * 2
        room = shape.inputs + shape.targets
        assert len(tasks) > 1 or room <= max(tokens / replicas, 2 * longest) * 1.05 + 2
        assert all(Rows(shape).add(*size) == 0 for size in counts)


def test_a_run_that_fits_one_batch_has_no_padding():
    plan = plan_packed([{(71, 6): 10, (80, 8): 2}], COSTS, BatchLimits(1000, 0), most_shapes=9)
    assert plan.shapes == (PackedShape(1, 870, 76),)
    assert plan.padding == 1.0


def test_a_task_with_many_target_tokens_has_rows_of_its_own_if_it_pays():
    limits = BatchLimits(4096, 0)
    few = [{(100, 100): 3}, {(100, 4): 3}, {(99, 4): 3}]
    many = [dict.fromkeys(counts, 20_000) for counts in few]
    one, two = (plan_packed(tasks, COSTS, limits, most_shapes=9) for tasks in (few, many))
    assert one.of_tasks == (0, 0, 0)
    assert two.of_tasks == (1, 0, 0)
    assert two.shapes[0].targets < 300 < 1500 < two.shapes[1].targets
    assert two.padding < 1.1
    least = plan_packed(many, COSTS, limits, most_shapes=1)
    assert len(least.shapes) == 1
    assert least.padding > 1.2


def group(task, number, inputs, targets):
    tokens = np.arange(1, targets + 1)
    choice = AnswerChoice(text="", tokens=tokens, is_correct=True, inputs=np.arange(1, inputs + 1))
    (found,) = choice_groups(task, number, MultipleChoiceExample(number, (choice,)))
    return found


@st.composite
def runs(draw):
    """Tasks, each with the (input tokens, target tokens) of its examples."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    tasks = []
    for _ in range(draw(st.integers(1, 5))):
        longest = rng.integers(1, 60, 2)
        tasks.append(
            [tuple(rng.integers(1, longest + 1).tolist()) for _ in range(rng.integers(90))]
        )
    return tasks


@settings(max_examples=60)
@given(runs(), st.integers(60, 900), st.sampled_from([1, 2]))
def test_batches_hold_every_group_once(tasks, tokens, replicas):
    counts = [collections.Counter(task) for task in tasks]
    plan = plan_packed(counts, COSTS, BatchLimits(tokens, 0, replicas), most_shapes=3)
    queues, made = plan.queues(), []
    for task, sizes in enumerate(tasks):
        for number, size in enumerate(sizes):
            made.extend(queues.add(group(task, number, *size)))
        before = len(made)
        made.extend(queues.flush(task))
        assert all(batch.groups[0].keys[0][0] < task for batch in made[before:])
    made.extend(queues.flush())
    assert not list(queues.flush())
    seen = collections.Counter()
    for batch in made:
        room = Rows(batch.shape)
        assert all(room.add(*one.tokens) is not None for one in batch.groups)
        seen.update(key for keys in batch.keys for key in keys)
    assert seen == {(t, i, 0): 1 for t, sizes in enumerate(tasks) for i in range(len(sizes))}


def test_a_batch_is_a_mixture_that_fills_both_kinds_of_room():
    # One prompt after the other: first all inputs with few target tokens, then those with many.
    sizes = [(40, 2)] * 200 + [(40, 38)] * 200
    plan = PackedPlan((PackedShape(1, 2000, 1010),), (0,), 1.0)
    queues, made = plan.queues(), []
    for number, size in enumerate(sizes):
        made.extend(queues.add(group(0, number, *size)))
    made.extend(queues.flush())
    filled = [sum(one.tokens[0] for one in batch.groups) / 2000 for batch in made]
    # Of 8 batches without any room left; 12 if they were filled in the order of the inputs.
    assert len(made) <= 9
    assert np.mean(filled[:-1]) > 0.9


def test_no_group_waits_for_long():
    # The middle one is the last that a mixture would take.
    sizes = [(40, 20), *[(40, 2), (40, 38)] * 600]
    plan = PackedPlan((PackedShape(1, 2000, 1010),), (0,), 1.0)
    queues, made = plan.queues(), []
    for number, size in enumerate(sizes):
        made.extend(queues.add(group(0, number, *size)))
    places = {key[1]: place for place, batch in enumerate(made) for (key,) in batch.keys}
    assert places[0] == 0
    waited = [number / 50 - place for number, place in places.items()]
    assert -8 < min(waited) <= max(waited) < 8


def test_a_batch_is_scored_in_the_shape_of_its_plan():
    asked = []

    class Scorer:
        def log_likelihoods(self, *given):
            asked.append(given)
            return np.zeros(given[1].shape[:2])

    plan = plan_packed([{(3, 2): 1, (1, 4): 1}], COSTS, BatchLimits(99, 0), most_shapes=1)
    queues = plan.queues()
    for number, size in enumerate([(3, 2), (1, 4)]):
        assert not list(queues.add(group(0, number, *size)))
    (batch,) = queues.flush()
    assert batch.scored_by(Scorer()).shape == (2, 1)
    ((inputs, targets, shape),) = asked
    assert {tuple(row) for row in inputs.tolist()} == {(1, 2, 3), (1, 0, 0)}
    assert targets.shape == (2, 1, 4)
    assert shape == plan.shapes[0] == PackedShape(1, 4, 6)
