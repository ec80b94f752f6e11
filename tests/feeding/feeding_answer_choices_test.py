"""Examples with all of their answer choices, from the records of a rank-evaluation cache."""

import dataclasses
import itertools

import numpy as np
import pytest

from t0.config.specification import DataSpec, FeatureSpec, TaskSpec
from t0.errors import UserError
from t0.feeding import manifest, open_training_data
from t0.files import tf_examples, tfrecord

LENGTHS = {"inputs": 6, "targets": 4}


def rows(count=9):
    """Example -> (inputs, its choices, the number of the right choice)."""
    return {
        n: ([n + 10, 7, 1], [[n + 40 + c, *[50 + c] * c, 1] for c in range(2 + n % 3)], n % 2)
        for n in range(count)
    }


def records_of(examples):
    """One record for each choice, as SeqIO's `rank_classification` writes them."""
    return [
        {"idx": [n, c], "inputs": inputs, "targets": choice, "is_correct": [int(c == right)]}
        for n, (inputs, choices, right) in examples.items()
        for c, choice in enumerate(choices)
    ]


def data_spec(folder, records, files=2, **changes):
    """Writes a cache of shuffled records, and returns the specification of its data."""
    np.random.default_rng(5).shuffle(records)
    paths = [folder / f"train.tfrecord-{n:05d}-of-{files:05d}" for n in range(files)]
    for number, path in enumerate(paths):
        frames = []
        for record in records[number::files]:
            entries = b"".join(tf_examples.ints_entry(*entry) for entry in record.items())
            weight = tf_examples.float_entry("weight", 1.0)
            frames.append(tfrecord.framed(tf_examples.example(entries + weight)))
        path.write_bytes(b"".join(frames))
    features = {name: FeatureSpec(add_eos=True) for name in LENGTHS}
    files = tuple(map(str, paths))
    task = TaskSpec("toy_score_eval", 1.0, features, len(records), files, choices=True)
    fields = {"pack": False, "ends_in_eos": ("targets",), "window_rows": 8, **changes}
    return DataSpec("toy", "train", (task,), LENGTHS, **fields)


def padded(ids, length):
    return [*ids, *[0] * (length - len(ids))][:length]


def test_answer_choices_of_an_example_stay_together(tmp_path):
    examples = rows()
    data = open_training_data(data_spec(tmp_path, records_of(examples)))
    assert data.choices == 4
    seen = []
    for batch, _ in itertools.islice(data.batches(3), 6):
        assert {name: x.shape for name, x in batch.items()} == {
            "inputs": (3, 6),
            "targets": (3, 4, 4),
        }
        for inputs, targets in zip(
            batch["inputs"].tolist(), batch["targets"].tolist(), strict=True
        ):
            seen.append(inputs[0] - 10)
            expected, choices, right = examples[seen[-1]]
            assert inputs == padded(expected, 6)
            assert targets[0] == padded(choices[right], 4)  # the right choice is the first
            others = [choice for n, choice in enumerate(choices) if n != right]
            # A choice with four tokens or more is cut, and still ends in EOS.
            others = [padded(x if len(x) <= 4 else [*x[:3], 1], 4) for x in others]
            assert targets[1:] == [*others, *[[0] * 4] * (3 - len(others))]
    assert sorted(seen[:9]) == sorted(seen[9:]) == list(range(9))
    assert seen[:9] != seen[9:]  # each epoch has its own order


def test_answer_choices_continue_from_a_position(tmp_path):
    spec = data_spec(tmp_path, records_of(rows()))
    batches = list(itertools.islice(open_training_data(spec).batches(2), 200))
    for at in (0, 7, 140, 198):
        again = open_training_data(spec)
        position = again.read_position(batches[at][1])
        assert np.array_equal(
            next(again.batches(2, position))[0]["targets"], batches[at + 1][0]["targets"]
        )
    assert not manifest.is_indexed(spec.tasks[0])


def test_answer_choices_without_one_right_choice_are_left_out(tmp_path):
    examples = rows(4)
    none, several, equal, good = (records_of({n: examples[n]}) for n in range(4))
    none[0]["is_correct"], several[0]["is_correct"] = [0], [1]
    equal[1]["targets"] = equal[0]["targets"]
    data = open_training_data(data_spec(tmp_path, [*none, *several, *equal, *good]))
    batch, _ = next(data.batches(4))
    assert set(batch["inputs"][:, 0].tolist()) == {13}
    with pytest.raises(UserError, match="no example with exactly one right answer choice"):
        open_training_data(data_spec(tmp_path, [*none, *several, *equal]))


def with_other_inputs(records):
    records[1]["inputs"] = [99, 1]


def with_empty_choice(records):
    records[1]["targets"] = []


def with_numbers_of_two_shards(records):
    records += [record | {"inputs": [99, 1]} for record in records[:2]]


def with_no_numbers(records):
    del records[-1]["idx"]


def with_no_judgement(records):
    for record in records:
        del record["is_correct"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_other_inputs, "has answer choices of one example with different inputs"),
        (with_empty_choice, "has an answer choice without tokens"),
        (with_numbers_of_two_shards, "has several records with the same idx"),
        (with_no_numbers, "has records without answer choices, and choice_losses needs them"),
        (with_no_judgement, "Train on its rank-evaluation form"),
    ],
)
def test_answer_choices_that_cannot_be_compared_are_refused(tmp_path, change, said):
    records = records_of(rows(3))
    change(records)
    with pytest.raises(UserError, match=f"task toy_score_eval .*{said}"):
        open_training_data(data_spec(tmp_path, records))


def test_answer_choices_are_never_packed_or_read_live(tmp_path):
    spec = data_spec(tmp_path, records_of(rows()), pack=True)
    with pytest.raises(UserError, match="packing would split the answer choices .*pack = False"):
        open_training_data(spec)
    task = dataclasses.replace(spec.tasks[0], cache_files=())
    with pytest.raises(UserError, match="is not cached"):
        open_training_data(dataclasses.replace(spec, tasks=(task,), pack=False))
