"""Few shapes, every group in one of them; batches hold every choice once, padding besides."""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t0.scoring import batch_planning
from t0.scoring.batch_planning import (
    BatchLimits,
    BatchPlan,
    BatchQueues,
    BatchShape,
    Costs,
    batch_size,
    model_costs,
    plan_batches,
)
from t0.scoring.reading import AnswerChoice, MultipleChoiceExample, choice_groups

COSTS = Costs(input_token=2, input_pair=0.01, target_token=5, target_pair=0.01, lowering=1000)
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
def test_every_group_fits_within_the_limits(counts, most, tokens, target_tokens, replicas):
    limits = BatchLimits(tokens, target_tokens, replicas)
    plan = plan_batches(counts, COSTS, limits, most_shapes=most)
    assert 1 <= len(plan.shapes) <= most
    assert plan.padding >= 1 - 1e-9
    for choices, inputs, targets in counts:
        shape = plan.shapes[plan.shape_of(choices, inputs, targets)]
        assert choices <= shape.choices
        assert inputs <= shape.inputs
        assert targets <= shape.targets
    for shape in plan.shapes:
        assert shape.groups % replicas == 0
        if shape.groups > replicas:
            written = shape.groups * shape.choices * shape.targets
            assert shape.groups * shape.inputs + written <= tokens
            assert written <= target_tokens


def test_group_goes_to_the_cheapest_shape_that_holds_it():
    plan = plan_batches(
        {(2, 16, 2): 10**6, (4, 16, 2): 10**6, (2, 640, 2): 10**6},
        COSTS,
        BATCH_LIMITS,
        most_shapes=3,
    )
    held = [(s.choices, s.inputs, s.targets) for s in plan.shapes]
    assert held == [(2, 16, 2), (4, 16, 2), (2, 640, 2)]
    assert plan.padding == pytest.approx(1.0)
    assert [plan.shape_of(*size) for size in [(2, 9, 1), (3, 9, 1), (2, 17, 2)]] == [0, 1, 2]
    with pytest.raises(ValueError, match="no shape"):
        plan.shape_of(3, 17, 2)


def test_merges_what_costs_least():
    counts = {(2, 16, 2): 100, (2, 24, 2): 100, (2, 512, 2): 100}
    free = Costs(2, 0.01, 5, 0.01, lowering=0)
    plan = plan_batches(counts, free, BATCH_LIMITS, most_shapes=2)
    assert [s.inputs for s in plan.shapes] == [24, 512]
    (one,) = plan_batches(counts, free, BATCH_LIMITS, most_shapes=1).shapes
    assert one.inputs == 512


def test_shape_that_does_not_pay_for_its_lowering_is_merged():
    counts = {(2, 16, 2): 10, (2, 24, 2): 10}
    few = plan_batches(counts, COSTS, BATCH_LIMITS, most_shapes=9)
    many = plan_batches(dict.fromkeys(counts, 10**4), COSTS, BATCH_LIMITS, most_shapes=9)
    assert (len(few.shapes), len(many.shapes)) == (1, 2)


def test_merging_is_the_greedy_one():
    rng = np.random.default_rng(0)
    counts = {tuple(map(int, rng.integers(1, 60, 3))): int(rng.integers(1, 99)) for _ in range(25)}
    free = Costs(2, 0.01, 5, 0.01, lowering=0)

    def slowly(most):
        groups = [[np.array(size), n] for size, n in sorted(counts.items())]
        while len(groups) > most:

            def extra(pair):
                (a, n), (b, m) = groups[pair[0]], groups[pair[1]]
                merged = free.of_group(np.maximum(a, b))
                return n * (merged - free.of_group(a)) + m * (merged - free.of_group(b))

            i, j = min(itertools.combinations(range(len(groups)), 2), key=extra)
            b, m = groups.pop(j)
            groups[i] = [np.maximum(groups[i][0], b), groups[i][1] + m]
        return sorted(tuple(map(int, size)) for size, _ in groups)

    for most in (1, 4, 12):
        plan = plan_batches(counts, free, BATCH_LIMITS, most_shapes=most)
        assert sorted((s.choices, s.inputs, s.targets) for s in plan.shapes) == slowly(most)


def test_many_sizes_are_rounded_before_they_are_merged(monkeypatch):
    monkeypatch.setattr(batch_planning, "MOST_SIZES", 40)
    counts = {(2, inputs, targets): 1 for inputs in range(1, 200) for targets in (1, 2, 3)}
    plan = plan_batches(counts, Costs(2, 0, 5, 0, 0), BATCH_LIMITS, most_shapes=40)
    assert len(plan.shapes) <= 40
    assert plan.padding < 1.2


def test_last_batch_of_a_shape_is_nearly_full():
    limits = BatchLimits(tokens=1000, target_tokens=10**6)
    assert batch_size((2, 96, 2), 10, limits) == 10
    assert batch_size((2, 96, 2), 11, limits) == 6
    assert batch_size((2, 96, 2), 11, BatchLimits(1000, 10**6, replicas=4)) == 8
    assert batch_size((2, 96, 2), 1, BatchLimits(1, 1, replicas=4)) == 4


def test_costs_are_counted_from_the_variables():
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
    assert (costs.input_pair, costs.target_pair) == (4 * 6, 4 * 6)
    untied = model_costs({**tied, "decoder/logits/kernel": (8, 50)})
    assert untied.target_token == 2 * (96 + 400)
    assert BatchShape(1, 2, 3, 4) == BatchShape(groups=1, choices=2, inputs=3, targets=4)


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


PLAN = BatchPlan((BatchShape(4, 2, 20, 4), BatchShape(3, 4, 30, 9), BatchShape(2, 7, 40, 9)), 1.0)


@settings(max_examples=60)
@given(st.lists(examples(), min_size=1, max_size=4))
def test_every_choice_once(tasks):
    queues, made = BatchQueues(PLAN), []
    for task, content in enumerate(tasks):
        for number, one in enumerate(content):
            for group in choice_groups(task, number, one):
                made.extend(queues.add(group))
    full = len(made)
    made.extend(queues.flush())
    assert not list(queues.flush())

    seen = collections.Counter()
    shapes = [(s.groups, s.choices, s.targets) for s in PLAN.shapes]
    for position, batch in enumerate(made):
        assert batch.targets.shape in shapes
        rows, choices, _ = batch.targets.shape
        assert len(batch.keys) == rows or position >= full
        for b in range(rows):
            keys = batch.keys[b] if b < len(batch.keys) else ()
            assert bool(keys) == batch.inputs[b].any()
            for c in range(choices):
                if c >= len(keys):
                    assert not batch.targets[b, c].any()
                    continue
                task, number, choice = keys[c]
                seen[keys[c]] += 1
                wanted = tasks[task][number].choices[choice]
                assert unpadded(batch.targets[b, c]) == list(wanted.tokens)
                assert unpadded(batch.inputs[b]) == list(wanted.inputs)
    assert seen == {
        (t, i, n): 1
        for t, content in enumerate(tasks)
        for i, one in enumerate(content)
        for n in range(len(one.choices))
    }


def unpadded(row):
    length = np.flatnonzero(row)[-1] + 1
    return list(row[:length])


def test_one_group_for_choices_that_share_an_input():
    shared = example(0, [([5, 6], [7, 1]), ([5, 6], [8, 1])])
    own = example(1, [([5, 6], [7, 1]), ([6, 5], [8, 4, 1])])
    assert [group.keys for group in choice_groups(3, 0, shared)] == [((3, 0, 0), (3, 0, 1))]
    assert [group.keys for group in choice_groups(3, 1, own)] == [((3, 1, 0),), ((3, 1, 1),)]
    assert [group.size for group in choice_groups(3, 1, own)] == [(1, 2, 2), (1, 2, 3)]


def test_flush_takes_only_where_an_old_task_waits():
    queues = BatchQueues(PLAN)
    small, large = ([5], [1]), (list(range(1, 40)), [1])
    for task, content in ((0, small), (1, small), (2, large)):
        (group,) = choice_groups(task, 0, example(0, [content]))
        assert not list(queues.add(group))
    assert not list(queues.flush(0))
    (batch,) = queues.flush(1)
    assert [keys[0][0] for keys in batch.keys] == [0, 1]
    (batch,) = queues.flush()
    assert [keys[0][0] for keys in batch.keys] == [2]
