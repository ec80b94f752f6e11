"""Plans hold every group; batches hold every choice once, within the limits, in every form."""

import collections
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t0.evaluation.batching import (
    BatchLimits,
    BatchQueues,
    Costs,
    FreeTokens,
    PackedPlan,
    PackedShape,
    SortedPlan,
    model_costs,
    pack_groups,
    plan_packed,
    plan_padded,
)
from t0.evaluation.ranked_examples import (
    AnswerChoice,
    ChoiceGroup,
    MultipleChoiceExample,
    choice_groups,
)


class Counted(NamedTuple):
    """The counts of a task by which batches are planned."""

    sizes: dict
    tokens: dict


def counted(tasks):
    return [Counted({}, tokens) for tokens in tasks]


COSTS = Costs(input_token=2, target_token=5, lowering=1000)
BATCH_LIMITS = BatchLimits(tokens=4096, target_tokens=2048)

sizes = st.dictionaries(
    st.tuples(st.integers(1, 20), st.integers(0, 1024), st.integers(1, 256)),
    st.integers(1, 500),
    min_size=1,
    max_size=60,
)


@settings(max_examples=80)
@given(
    sizes, st.integers(1, 12), st.integers(1, 4000), st.integers(1, 900), st.sampled_from([1, 3])
)
def test_padded_batching_fits_every_group_within_limits(
    counts, most, tokens, target_tokens, replicas
):
    limits = BatchLimits(tokens, target_tokens, replicas)
    plan = plan_padded([Counted(counts, {})], limits, most_shapes=most)
    padded = {size: plan.padded_size(size) for size in counts}
    assert 1 <= len(set(padded.values())) <= most
    for size, larger in padded.items():
        assert all(a <= b for a, b in zip(size, larger, strict=True))
    for choices, inputs, targets in padded.values():
        groups, written = plan.static_groups[choices, inputs, targets], choices * targets
        assert groups % replicas == 0
        if groups > replicas:
            assert groups * (inputs + written) <= tokens
            assert groups * written <= target_tokens


def test_padded_batching_last_batch_is_nearly_full():
    def count(groups, limits):
        plan = plan_padded([Counted({(2, 96, 4): groups}, {})], limits, most_shapes=1)
        return plan.static_groups[2, 96, 4]

    limits = BatchLimits(tokens=1040, target_tokens=10**6)
    assert count(10, limits) == 10
    assert count(11, limits) == 6
    assert count(11, BatchLimits(1040, 10**6, replicas=4)) == 8
    assert count(1, BatchLimits(1, 1, replicas=4)) == 4


def test_padded_batching_rounds_lengths_to_few_shapes():
    counts = {(2, inputs, targets): 1 for inputs in range(1, 200) for targets in (1, 2, 3)}

    def lengths(most):
        plan = plan_padded([Counted(counts, {})], BATCH_LIMITS, most_shapes=most)
        assert plan.padded_size((2, 199, 3)) == (2, 199, 3)
        return sorted({plan.padded_size(size)[1] for size in counts})

    assert lengths(40) == [32, 64, 96, 128, 160, 192, 199]
    assert lengths(4) == [64, 128, 192, 199]
    assert lengths(1) == [199]


@settings(max_examples=60)
@given(
    st.integers(0, 999), st.integers(1, 400), st.sampled_from([1, 3]), st.sampled_from([None, 2])
)
def test_sorted_batching_has_every_choice_once_within_limits(seed, tokens, replicas, most):
    rng = np.random.default_rng(seed)
    limits = BatchLimits(tokens, tokens, replicas)
    plan = SortedPlan(limits)
    if most:
        sizes = {(1, 1, 1): 1, (4, 60, 9): 1}
        plan = plan_padded([Counted(sizes, {})], limits, most_shapes=most)
    queues, made, wanted = BatchQueues(plan), [], collections.Counter()
    for number in range(int(rng.integers(1, 90))):
        inputs, count = rng.integers(1, 99, rng.integers(1, 60)), int(rng.integers(1, 5))
        choices = [(inputs, rng.integers(1, 99, rng.integers(1, 9))) for _ in range(count)]
        for group in choice_groups(number // 20, number, example(number, choices)):
            wanted.update(group.keys)
            made.extend(queues.add(group))
        made.extend(queues.flush(number // 20 - 2))
    made.extend(queues.flush())
    assert not list(queues.flush())
    assert collections.Counter(
        key for batch in made for group in batch.groups for key in group.keys
    ) == (wanted)
    # Lengths are rounded up, so sizes repeat: at most 4 numbers of choices, 2 lengths of
    # inputs and 3 of targets.
    sizes = {batch.size for batch in made}
    assert not most or len(sizes) <= 4 * 2 * 3
    for batch in made:
        choices, inputs, longest = batch.size
        assert batch.rows % replicas == 0
        assert len(batch.groups) <= replicas or (
            batch.rows * (inputs + choices * longest) <= tokens
        )


def test_model_costs_are_counted_for_tied_and_untied_embeddings():
    tied = {
        "shared/embedding": (100, 8),
        "encoder/block_000/layer_000/SelfAttention/q": (8, 6),
        "encoder/block_000/layer_000/rms_norm/scale": (8,),
        "decoder/block_000/layer_000/SelfAttention/q": (8, 6),
        "decoder/block_000/layer_001/EncDecAttention/q": (8, 6),
        "decoder/block_000/layer_001/EncDecAttention/k": (8, 6),
    }
    costs = model_costs(tied)
    assert (costs.input_token, costs.target_token) == (2 * 96, 2 * (96 + 800))
    untied = model_costs({**tied, "decoder/logits/kernel": (8, 50)})
    assert untied.target_token == 2 * (96 + 400)


def example(idx, choices):
    """`choices` is [(input ids, target ids)]."""
    return MultipleChoiceExample(
        idx,
        tuple(
            AnswerChoice(
                text="", tokens=np.array(tokens), is_correct=i == 0, inputs=np.array(inputs)
            )
            for i, (inputs, tokens) in enumerate(choices)
        ),
    )


def ids(longest):
    return st.lists(st.integers(1, 99), min_size=1, max_size=longest)


@st.composite
def examples(draw):
    made = []
    for idx in range(draw(st.integers(1, 12))):
        shared, number = draw(ids(40)), draw(st.integers(1, 7))
        each = [draw(ids(40)) if draw(st.integers(0, 9)) == 0 else shared for _ in range(number)]
        made.append(example(idx, [(inputs, draw(ids(9))) for inputs in each]))
    return made


PLANS = [
    SortedPlan(BatchLimits(90, 40)),
    plan_padded([Counted({(7, 40, 9): 9, (2, 9, 1): 9}, {})], BatchLimits(90, 40), most_shapes=9),
]


@settings(max_examples=60)
@given(st.lists(examples(), min_size=1, max_size=4), st.sampled_from(PLANS))
def test_batching_has_every_choice_once(tasks, plan):
    queues, made = BatchQueues(plan), []
    for task, content in enumerate(tasks):
        for number, one in enumerate(content):
            for group in choice_groups(task, number, one):
                made.extend(queues.add(group))
    made.extend(queues.flush())
    assert not list(queues.flush())

    seen = collections.Counter()
    for batch in made:
        inputs, targets = batch.lay_out()
        rows, choices, _ = targets.shape
        for b in range(rows):
            keys = batch.groups[b].keys if b < len(batch.groups) else ()
            assert bool(keys) == inputs[b].any()
            for c in range(choices):
                if c >= len(keys):
                    assert not targets[b, c].any()
                    continue
                task, number, choice = keys[c]
                seen[keys[c]] += 1
                wanted = tasks[task][number].choices[choice]
                assert unpadded(targets[b, c]) == list(wanted.tokens)
                assert unpadded(inputs[b]) == list(wanted.inputs)
    assert seen == {
        (t, i, n): 1
        for t, content in enumerate(tasks)
        for i, one in enumerate(content)
        for n in range(len(one.choices))
    }


def unpadded(row):
    length = np.flatnonzero(row)[-1] + 1
    return list(row[:length])


def test_choice_groups_share_one_input():
    shared = example(0, [([5, 6], [7, 1]), ([5, 6], [8, 1])])
    own = example(1, [([5, 6], [7, 1]), ([6, 5], [8, 4, 1])])
    assert [group.keys for group in choice_groups(3, 0, shared)] == [((3, 0, 0), (3, 0, 1))]
    assert [group.keys for group in choice_groups(3, 1, own)] == [((3, 1, 0),), ((3, 1, 1),)]
    assert [group.size for group in choice_groups(3, 1, own)] == [(1, 2, 2), (1, 2, 3)]


def test_batching_flush_only_if_an_old_task_waits():
    queues = BatchQueues(SortedPlan(BatchLimits(1000, 1000)))
    small, large = ([5], [1]), (list(range(1, 40)), [1])
    for task, content in ((1, small), (2, large)):
        (group,) = choice_groups(task, 0, example(0, [content]))
        assert not list(queues.add(group))
    assert not list(queues.flush(1))
    (batch,) = queues.flush(2)
    assert [group.keys[0][0] for group in batch.groups] == [2, 1]
    assert not list(queues.flush())


COUNTS = st.dictionaries(
    st.tuples(st.integers(1, 1024), st.integers(1, 300)), st.integers(1, 500), min_size=1
)


@st.composite
def grouped(draw):
    """Groups of any lengths, some of them empty."""
    many, choices = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 999)))

    def ids(most):
        return rng.integers(1, 99, rng.integers(0, most + 1)).astype(np.int32)

    return [
        ChoiceGroup(
            ids(12),
            tuple(ids(5) for _ in range(choices)),
            tuple((0, number, choice) for choice in range(choices)),
        )
        for number in range(many)
    ]


def room_for(groups, rows=1, spare=0):
    inputs, targets = np.sum([group.tokens for group in groups], axis=0).tolist()
    return PackedShape(rows, inputs + spare, max(1, targets) + spare)


@settings(max_examples=150)
@given(grouped(), st.integers(1, 3), st.integers(0, 20))
def test_packing_rows_have_every_token_once(groups, rows, spare):
    shape, choices = room_for(groups, rows, spare), len(groups[0].targets)
    packed, owners = pack_groups(groups, shape).lay_out()
    assert packed.inputs.shape == packed.input_numbers.shape == (rows, shape.inputs)
    assert packed.targets.shape == packed.choice_inputs.shape == (rows, shape.targets)
    found = collections.Counter()
    for row in range(rows):
        of_tokens = owners[row]
        for owner in np.unique(of_tokens[of_tokens >= 0]):
            b, c = divmod(int(owner), choices)
            (places,) = np.nonzero(of_tokens == owner)
            ids = groups[b].targets[c]
            assert packed.targets[row, places].tolist() == ids.tolist()
            assert packed.decoder_inputs[row, places].tolist() == [0, *ids[:-1]]
            assert len(set(packed.choice_numbers[row, places])) == 1
            (number,) = set(packed.choice_inputs[row, places].tolist())
            own = packed.inputs[row, packed.input_numbers[row] == number]
            assert own.tolist() == (groups[b].inputs.tolist() or [0])
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
    written = (
        (b, c) for b, group in enumerate(groups) for c, ids in enumerate(group.targets) if len(ids)
    )
    assert found == dict.fromkeys(written, 1)


@given(grouped())
def test_packing_score_is_sum_over_tokens_of_a_choice(groups):
    shape = room_for(groups, spare=3)
    batch = pack_groups(groups, shape)
    tokens, owners = batch.lay_out()
    assert tokens.targets.shape == (1, shape.targets)
    ones = np.where(tokens.targets > 0, 1.0, np.nan)  # padding may have any value
    found = batch.sum_choices(ones, owners)
    assert found.tolist() == [list(map(len, group.targets)) for group in groups]


def test_packing_inputs_without_room_are_refused():
    groups = [group(0, number, 4, 2) for number in range(3)]
    assert pack_groups(groups, PackedShape(3, 4, 2)).rows == (0, 1, 2)
    with pytest.raises(ValueError, match=r"no room for input 2 with \(4, 2\) tokens"):
        pack_groups(groups, PackedShape(2, 7, 9))
    with pytest.raises(ValueError, match="no room for input 1"):
        pack_groups(groups, PackedShape(1, 99, 3))


@settings(max_examples=80)
@given(
    st.lists(COUNTS, min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(1, 4000),
    st.sampled_from([1, 3]),
)
def test_packed_plan_fits_every_input_in_a_row_of_its_task(tasks, most, tokens, replicas):
    plan = plan_packed(counted(tasks), COSTS, BatchLimits(tokens, 0, replicas), most_shapes=most)
    assert 1 <= len(plan.shapes) <= most
    assert plan.padding > 0.99
    assert set(plan.of_tasks) == set(range(len(plan.shapes)))
    for index, counts in zip(plan.of_tasks, tasks, strict=True):
        shape = plan.shapes[index]
        assert shape.rows == replicas
        longest = max(max(both) for both in counts) * 2
        room = shape.inputs + shape.targets
        assert len(tasks) > 1 or room <= max(tokens / replicas, 2 * longest) * 1.05 + 2
        assert all(FreeTokens(shape).take(*size) == 0 for size in counts)


def test_packed_plan_of_one_batch_has_no_padding():
    plan = plan_packed(
        counted([{(71, 6): 10, (80, 8): 2}]), COSTS, BatchLimits(1000, 0), most_shapes=9
    )
    assert plan.shapes == (PackedShape(1, 870, 76),)
    assert plan.padding == 1.0


def test_packed_plan_gives_task_with_long_targets_separate_rows():
    limits = BatchLimits(4096, 0)
    few = [{(100, 100): 3}, {(100, 4): 3}, {(99, 4): 3}]
    many = [dict.fromkeys(counts, 20_000) for counts in few]
    one, two = (plan_packed(counted(tasks), COSTS, limits, most_shapes=9) for tasks in (few, many))
    assert one.of_tasks == (0, 0, 0)
    assert two.of_tasks == (1, 0, 0)
    assert two.shapes[0].targets < 300 < 1500 < two.shapes[1].targets
    assert two.padding < 1.1
    least = plan_packed(counted(many), COSTS, limits, most_shapes=1)
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
def test_packed_batches_have_every_group_once(tasks, tokens, replicas):
    counts = [collections.Counter(task) for task in tasks]
    plan = plan_packed(counted(counts), COSTS, BatchLimits(tokens, 0, replicas), most_shapes=3)
    queues, made = BatchQueues(plan), []
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
        room = FreeTokens(batch.shape)
        assert all(
            room.take(*one.tokens) == row for one, row in zip(batch.groups, batch.rows, strict=True)
        )
        seen.update(key for one in batch.groups for key in one.keys)
    assert seen == {(t, i, 0): 1 for t, sizes in enumerate(tasks) for i in range(len(sizes))}


def test_packed_batch_mixes_groups_to_fill_inputs_and_targets():
    # One prompt after the other: first all inputs with few target tokens, then those with many.
    sizes = [(40, 2)] * 200 + [(40, 38)] * 200
    plan = PackedPlan((PackedShape(1, 2000, 1010),), (0,), 1.0)
    queues, made = BatchQueues(plan), []
    for number, size in enumerate(sizes):
        made.extend(queues.add(group(0, number, *size)))
    made.extend(queues.flush())
    filled = [sum(one.tokens[0] for one in batch.groups) / 2000 for batch in made]
    # Of 8 batches without any room left; 12 if they were filled in the order of the inputs.
    assert len(made) <= 9
    assert np.mean(filled[:-1]) > 0.9


def test_packed_batches_let_no_group_wait_for_long():
    # The middle one is the last that a mixture would take.
    sizes = [(40, 20), *[(40, 2), (40, 38)] * 600]
    plan = PackedPlan((PackedShape(1, 2000, 1010),), (0,), 1.0)
    queues, made = BatchQueues(plan), []
    for number, size in enumerate(sizes):
        made.extend(queues.add(group(0, number, *size)))
    places = {one.keys[0][1]: place for place, batch in enumerate(made) for one in batch.groups}
    assert places[0] == 0
    waited = [number / 50 - place for number, place in places.items()]
    assert -8 < min(waited) <= max(waited) < 8


def test_packed_batch_is_scored_in_the_shape_of_its_plan():
    plan = plan_packed(counted([{(3, 2): 1, (1, 4): 1}]), COSTS, BatchLimits(99, 0), most_shapes=1)
    queues = BatchQueues(plan)
    for number, size in enumerate([(3, 2), (1, 4)]):
        assert not list(queues.add(group(0, number, *size)))
    (batch,) = queues.flush()
    tokens, owners = batch.lay_out()
    assert batch.sum_choices(np.zeros(tokens.targets.shape), owners).shape == (2, 1)
    assert tokens.inputs.tolist() == [[1, 1, 2, 3]]
    assert batch.shape == plan.shapes[0] == PackedShape(1, 4, 6)
