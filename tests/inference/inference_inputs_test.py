"""What is read of files and tasks; batches: every example once, padded little, always the same."""

import gzip

import numpy as np
import pytest
import seqio
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from t0.errors import UserError
from t0.evaluation.model import DecodingMethod
from t0.inference import inputs, task_inputs
from t0.inference.inputs import (
    InferenceExample,
    LengthLimits,
    batches,
    draw_uniform,
    padded_length,
    windows,
)
from tests.inference.word_predictions import Words


def read(path, **kwargs):
    return list(inputs.open_file(str(path), Words(), **{"add_eos": False, **kwargs}).read(0, 1))


def test_input_file_of_text_has_one_input_per_line(tmp_path):
    path = tmp_path / "some.questions.txt"
    path.write_bytes(b"\xef\xbb\xbfw5 w6\r\n\n  w7\nw8 \n\n\n")
    found = inputs.open_file(str(path), Words(), add_eos=True)
    assert (found.name, found.total) == ("some.questions", 4)
    examples = list(found.read(0, 1))
    # An empty line is an input, those after the last text are not.
    assert [example.inputs for example in examples] == ["w5 w6", "", "w7", "w8"]
    assert [example.tokens for example in examples] == [[5, 6, 1], [1], [7, 1], [8, 1]]
    assert examples == list(found.read(0, 1))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz"])
def test_input_file_of_json_lines(tmp_path, name):
    path = tmp_path / name
    text = b'{"inputs": "w5", "targets": "w6"}\n\n{"inputs": "w7\\n w8"}\n'
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    found = [(e.number, e.inputs, e.targets) for e in read(path)]
    assert found == [(0, "w5", "w6"), (1, "w7\n w8", None)]


def test_input_file_repeats_and_shards_keep_their_numbers(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("w5\nw6\nw7\n")
    found = inputs.open_file(str(path), Words(), add_eos=False, repeats=2)
    assert found.total == 6
    assert [(e.number, e.inputs) for e in found.read(1, 4)] == [(1, "w5"), (5, "w7")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", None, "input file not found"),
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt", b"\n \n", "a.txt is empty"),
        ("a.txt", b"w5\nw\xff\n", "a.txt, line 2: not UTF-8"),
        ("a.jsonl", b'{"inputs": "w5"}\n{"inp', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", b'["w5"]\n', r"a.jsonl, row 0 \(the first is 0\): got 'w5'"),
        ("a.json", b'{"inputs": ["w5", 5]}', r"row 1 \(the first is 0\): 'inputs' is 5"),
        ("a.jsonl", b'{"targets": "w5"}\n', "line 1: there is no 'inputs'"),
        ("a.jsonl", b'{"inputs": 5}\n', "line 1: 'inputs' is 5; expected a text"),
        ("a.jsonl", b'{"inputs": null}\n', "line 1: 'inputs' is null"),
        ("a.jsonl", b'{"inputs": "a", "target": "b"}\n', "unknown field 'target'. Did you mean"),
        ("a.txt.gz", b"w5\n", "a.txt.gz: cannot be read"),
    ],
)
def test_input_file_errors_are_reported_before_prediction(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        inputs.open_file(str(path), Words(), add_eos=False)


@pytest.fixture
def task(clean_registries):
    rows = [([5, 6], b"five six", b"yes"), ([7], b"seven", b"no"), ([8, 9], b"eight nine", b"yes")]

    def dataset(split, shuffle_files, seed=None):
        del split, shuffle_files, seed
        spec = {
            "inputs": tf.TensorSpec([None], tf.int32),
            "inputs_pretokenized": tf.TensorSpec([], tf.string),
            "targets_pretokenized": tf.TensorSpec([], tf.string),
            "targets": tf.TensorSpec([None], tf.int32),
        }
        named = [dict(zip(spec, (*row, [3, 1]), strict=True)) for row in rows]
        return tf.data.Dataset.from_generator(lambda: iter(named), output_signature=spec)

    features = dict.fromkeys(
        ("inputs", "targets"), seqio.Feature(seqio.PassThroughVocabulary(120), add_eos=False)
    )
    return seqio.TaskRegistry.add(
        "three",
        source=seqio.FunctionDataSource(dataset, splits=("test",)),
        preprocessors=[],
        output_features=features,
        metric_fns=[],
    )


def test_task_inputs_have_texts_tokens_and_targets(task):
    found = task_inputs.open_task(task, "test", use_cached=False)
    assert found.facts == {"task": "three", "split": "test"}
    assert [(e.number, e.inputs, e.targets, e.tokens) for e in found.read(0, 1)] == [
        (0, "five six", "yes", [5, 6]),
        (1, "seven", "no", [7]),
        (2, "eight nine", "yes", [8, 9]),
    ]
    assert [(e.number, e.inputs) for e in found.read(1, 2)] == [(1, "seven")]
    with pytest.raises(UserError, match=r"no split 'validation'; there are: test \(infer.split\)"):
        task_inputs.open_task(task, "validation", use_cached=False)


def examples(lengths):
    return [InferenceExample(i, "", None, [3 + i % 90] * n) for i, n in enumerate(lengths)]


def made(window, size, method=None, limits=None):
    limits = limits or LengthLimits(64, 10)
    return list(batches(window, limits, batch_size=size, method=method or DecodingMethod(), seed=4))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 80), max_size=40), st.integers(1, 7))
def test_inference_batches_have_every_example_in_one_row(lengths, size):
    window = examples(lengths)
    found = made(window, size)
    assert sorted(place for batch in found for place in batch.places) == list(range(len(lengths)))
    longest = 0
    for batch in found:
        assert batch.inputs.shape[0] == len(batch.limits) == size
        used = len(batch.places)
        for row, place in enumerate(batch.places):
            tokens = window[place].tokens[:64]
            assert batch.inputs[row].tolist() == tokens + [0] * (
                batch.inputs.shape[1] - len(tokens)
            )
            assert len(tokens) >= longest
            longest = len(tokens)
        assert (batch.limits > 0).tolist() == [True] * used + [False] * (size - used)


@given(st.integers(0, 3000), st.integers(1, 3000))
def test_inference_batches_padded_length_is_bounded(tokens, limit):
    tokens = min(tokens, limit)
    length = padded_length(tokens, limit)
    assert tokens <= length <= max(16, tokens * 1.5)
    assert length <= limit


def test_truncation_of_an_input_keeps_eos():
    limits = LengthLimits(3, 10)
    assert limits.truncate([5, 6, 7, 1]) == [5, 6, 1]
    assert limits.truncate([5, 6, 7, 8]) == [5, 6, 7]
    assert limits.truncate([5, 6, 1]) == [5, 6, 1]


def test_length_limit_of_prediction_depends_on_the_input():
    limits = LengthLimits(64, 30, targets_per_input=(1.5, 10))
    assert [limits.limit_prediction([5] * n) for n in (0, 1, 9, 40)] == [10, 11, 23, 30]
    (batch,) = made(examples([9, 1]), 3, limits=limits)
    assert batch.limits.tolist() == [11, 23, 0]


def test_inference_windows_are_numbered():
    found = list(windows(iter("abcdefg"), 3))
    assert found == [(0, tuple("abc")), (1, tuple("def")), (2, ("g",))]


def test_sampling_draws_depend_only_on_the_example():
    (together,) = made(examples([5, 3, 9]), 4, method=DecodingMethod(temperature=1.0))
    alone = made(examples([5, 3, 9])[1:2], 1, method=DecodingMethod(temperature=1.0))[0]
    assert np.array_equal(together.draws[together.places.index(1)], alone.draws[0])
    assert not together.draws[3].any()
    assert not made(examples([5]), 1)[0].draws.any()
    assert np.all((draw_uniform(4, 7, 1000) >= 0) & (draw_uniform(4, 7, 1000) < 1))
    assert not np.array_equal(draw_uniform(4, 7, 5), draw_uniform(5, 7, 5))
    assert not np.array_equal(draw_uniform(4, 7, 5), draw_uniform(4, 8, 5))
