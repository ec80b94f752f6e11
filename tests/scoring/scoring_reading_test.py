"""Records of choices become examples, sorted on disk and cut to the limits."""

import dataclasses

import numpy as np
import pytest

from t0.scoring.reading import (
    EQUAL_TOKENS,
    ExampleStore,
    MultipleChoiceExample,
    choice_of,
    truncate,
)


def record(example, choice, targets, correct, inputs=(5, 6, 7)):
    return {
        "idx": np.array([example, choice]),
        "inputs": np.array(inputs),
        "targets": np.array(targets),
        "is_correct": correct,
        "inputs_pretokenized": "in ü".encode(),
        "targets_pretokenized": f"choice {choice}".encode(),
    }


def stored(records):
    with ExampleStore() as store:
        return list(store.examples(store.add(records)))


def test_records_in_any_order_become_examples():
    records = [
        record(7, 1, [4, 1], True),
        record(2, 0, [3, 1], True),
        record(7, 0, [3, 1], False),
        record(2, 2, [5, 1], False),
        record(2, 1, [4, 1], False),
    ]
    two, seven = stored(iter(records))
    assert (two.idx, seven.idx) == (2, 7)
    assert [choice.text for choice in two.choices] == ["choice 0", "choice 1", "choice 2"]
    assert [list(choice.tokens) for choice in seven.choices] == [[3, 1], [4, 1]]
    assert (two.gold, seven.gold) == (0, 1)
    assert two.text == "in ü"
    assert list(two.choices[1].inputs) == [5, 6, 7]


def test_store_keeps_tasks_apart_and_reads_them_again():
    with ExampleStore() as store:
        first = store.add([record(0, 0, [3, 1], True)])
        second = store.add([record(i, 0, [4, 1], True) for i in (1, 0)])
        none = store.add([])
        for _ in range(2):
            assert [e.idx for e in store.examples(first)] == [0]
            assert [e.idx for e in store.examples(second)] == [0, 1]
            assert not list(store.examples(none))
        together = zip(store.examples(second), store.examples(second), strict=True)
        assert all(one.idx == other.idx for one, other in together)


def test_store_holds_a_task_on_disk(tmp_path, monkeypatch):
    import tracemalloc

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def many():
        for i in range(3000):
            yield record(i * 7919 % 3000, 0, [3, 1], True, inputs=range(1000))

    with ExampleStore() as store:
        tracemalloc.start()
        task = store.add(many())
        seen = [example.idx for example in store.examples(task)]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seen == list(range(3000))
        on_disk = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
        assert on_disk > 3000 * 4000
        assert peak < 1_000_000
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("correct", "reason", "gold"),
    [
        ([False, True], None, 1),
        ([False, False], "no correct choice", -1),
        ([True, True], "several correct choices", -1),
    ],
)
def test_example_without_exactly_one_right_choice_is_excluded(correct, reason, gold):
    choices = tuple(choice_of(record(0, i, [3 + i, 1], c)) for i, c in enumerate(correct))
    assert MultipleChoiceExample(0, choices).excluded == reason
    assert MultipleChoiceExample(0, choices).gold == gold


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([[3, 2, 1], [3, 2, 1], [5, 1]], "the right choice has the same tokens as a wrong one"),
        ([[3, 2, 1], [5, 1], [5, 1]], None),  # two wrong ones are equal
    ],
)
def test_example_is_excluded_only_if_its_right_choice_equals_a_wrong_one(tokens, reason):
    choices = tuple(choice_of(record(0, i, ids, i == 0)) for i, ids in enumerate(tokens))
    made = MultipleChoiceExample(0, choices)
    assert (made.excluded, made.gold) == (reason, -1 if reason else 0)
    # The same answer after another input is another choice.
    other = dataclasses.replace(choices[0], inputs=np.array([9], np.int32))
    assert MultipleChoiceExample(0, (other, *choices[1:])).excluded is None


def test_choices_that_are_equal_where_they_are_cut_are_excluded():
    long = [[3, 4, 5, 6, 1], [3, 4, 7, 1]]
    whole = MultipleChoiceExample(
        0, tuple(choice_of(record(0, i, ids, i == 0)) for i, ids in enumerate(long))
    )
    cut, _ = truncate(whole, {"inputs": 9, "targets": 3})
    assert (whole.excluded, cut.excluded) == (None, EQUAL_TOKENS)


def test_truncation_keeps_eos_and_counts_an_input_once():
    records = [
        record(0, 0, [3, 4, 5, 6, 1], True, inputs=range(10, 20)),
        record(0, 1, [3, 4, 1], False, inputs=range(10, 20)),
    ]
    whole = MultipleChoiceExample(0, tuple(map(choice_of, records)))
    long, cut = truncate(whole, {"inputs": 4, "targets": 3})
    assert [list(choice.tokens) for choice in long.choices] == [[3, 4, 1], [3, 4, 1]]
    assert [list(choice.inputs) for choice in long.choices] == [[10, 11, 12, 13]] * 2
    assert (cut.inputs, cut.targets) == (1, 1)
    same, cut = truncate(whole, {"inputs": 10, "targets": 5})
    assert [list(choice.tokens) for choice in same.choices] == [[3, 4, 5, 6, 1], [3, 4, 1]]
    assert (cut.inputs, cut.targets) == (0, 0)


def test_no_limits_cut_nothing():
    made = MultipleChoiceExample(0, (choice_of(record(0, 0, list(range(3, 600)), True)),))
    whole, cut = truncate(made, None)
    assert whole == made
    assert (cut.inputs, cut.targets) == (0, 0)
