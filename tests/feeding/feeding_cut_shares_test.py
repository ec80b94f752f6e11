"""What the lengths cut is said before a run: from a cache's statistics, its records, or rows."""

import json

import pytest
import seqio

from t0.errors import UserError
from t0.feeding.cut_shares import cut_notes
from t0.prompts import Template
from t0.tasks.prompted_tasks import PromptedSource
from t0.testing import train_vocabulary, write_rows

import tensorflow as tf  # isort: skip

BYTES = seqio.ByteVocabulary()
FEATURES = {
    "inputs": seqio.Feature(BYTES, add_eos=False),
    "targets": seqio.Feature(BYTES, add_eos=True),
}


class Task:
    """A task whose cache or rows are at hand, as SeqIO's."""

    preprocessors = ("tokenize", seqio.CacheDatasetPlaceholder())
    supports_caching = True
    _cache_step_idx = 1
    output_features = FEATURES
    get_dataset = seqio.Task.get_dataset

    def __init__(self, name, source=None, cache_dir=None):
        self.name, self.source, self.cache_dir = name, source, cache_dir


def cached(folder, records, **stats):
    folder.mkdir()
    path = folder / "train.tfrecord-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            feature = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=ids))
                for name, ids in record.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())
    (folder / "info.train.json").write_text(json.dumps({"num_shards": 1}))
    (folder / "stats.train.json").write_text(json.dumps({"examples": len(records), **stats}))
    return Task("toy", cache_dir=str(folder))


def notes(task, **lengths):
    return cut_notes([task], "train", lengths, use_cached=task.cache_dir is not None)


def test_truncation_note_from_cache_statistics_if_nothing_is_cut(tmp_path):
    records = [{"inputs": [5] * 9, "targets": [6, 1]}] * 3
    task = cached(tmp_path / "c", records, inputs_max_tokens=9, targets_max_tokens=1)
    assert notes(task, inputs=10, targets=4) == [
        "data: 1 task(s) at inputs 10, targets 4: nothing is cut"
    ]


def test_truncation_counts_an_eos_that_is_appended_after_the_cache(tmp_path):
    task = cached(tmp_path / "c", [{"inputs": [5] * 4, "targets": [6] * 4}] * 3)
    task.preprocessors = (*Task.preprocessors, seqio.preprocessors.append_eos)
    assert notes(task, inputs=4, targets=5) == [
        "data: 1 task(s) at inputs 4, targets 5: nothing is cut"
    ]
    first, warning = notes(task, inputs=4, targets=4)
    assert first == "data: 1 task(s) at inputs 4, targets 4: 1 lose over 1%"
    assert warning.startswith("WARNING: toy: 100.0% of targets are longer than 4 tokens")


def test_truncation_over_one_percent_is_a_warning(tmp_path):
    records = [{"inputs": [5] * (4 if i % 4 else 20), "targets": [6, 1]} for i in range(40)]
    task = cached(tmp_path / "c", records, inputs_max_tokens=20, targets_max_tokens=1)
    first, warning = notes(task, inputs=10, targets=4)
    assert first == "data: 1 task(s) at inputs 10, targets 4: 1 lose over 1%"
    assert warning.startswith("WARNING: toy: 25.0% of inputs are longer than 10 tokens")
    assert "where the question" in warning
    assert "run.sequence_length" in warning


def test_truncation_under_one_percent_is_not_a_warning(tmp_path):
    records = [{"inputs": [5] * (20 if i == 7 else 4), "targets": [6, 1]} for i in range(500)]
    task = cached(tmp_path / "c", records, inputs_max_tokens=20, targets_max_tokens=1)
    assert notes(task, inputs=10, targets=4) == [
        "data: 1 task(s) at inputs 10, targets 4: cut: toy 0.2% of inputs"
    ]


def test_unknown_tokens_in_cached_targets_are_a_warning(tmp_path):
    unk = BYTES.unk_id
    records = [{"inputs": [5], "targets": [unk if i % 4 else 6, 1]} for i in range(40)]
    task = cached(tmp_path / "c", records, inputs_max_tokens=1, targets_max_tokens=1)
    first, warning = notes(task, inputs=10, targets=4)
    assert first.endswith("nothing is cut")
    assert warning.startswith("WARNING: unknown tokens: ")
    assert "toy 75%" in warning


def test_unknown_tokens_in_rendered_rows_are_a_warning(tmp_path, prompted):
    path = train_vocabulary(tmp_path / "v.model", ["a b x"] * 20)
    feature = seqio.Feature(seqio.SentencePieceVocabulary(str(path)), add_eos=True)
    task = prompted(
        [{"text": "x", "label": i % 2} for i in range(10)], "{{text}} ||| {{'a☂'[:label + 1]}}"
    )
    task.output_features = {"inputs": feature, "targets": feature}
    *_, warning = notes(task, inputs=10, targets=9)
    assert "toy 50%" in warning


def test_missing_labels_in_cache_are_refused(tmp_path):
    target = [*BYTES.encode("<NO LABEL>"), BYTES.eos_id]
    records = [{"inputs": [5], "targets": target}] * 3
    task = cached(tmp_path / "c", records, inputs_max_tokens=1, targets_max_tokens=10)
    with pytest.raises(UserError, match=r"every target is empty or <NO LABEL>.*t0 show toy"):
        notes(task, inputs=99, targets=99)


@pytest.fixture
def prompted(tmp_path, monkeypatch):
    def make(rows, jinja="{{text}} ||| {{answer_choices[label]}}"):
        monkeypatch.setenv("T0_DATA_DIR", str(tmp_path))
        write_rows(tmp_path / "toy" / "train.jsonl", rows)
        template = Template(
            name="which",
            jinja=jinja,
            answer_choices="a ||| b",
            reference="",
            original_task=True,
            choices_in_prompt=False,
            metrics=(),
            id="1",
        )
        source = PromptedSource(
            dataset="toy",
            subset=None,
            template=template,
            split_mapping={"train": "train"},
            num_rows={"train": len(rows)},
            seed_name="toy",
        )
        return Task("toy", source)

    return make


def test_truncation_is_measured_on_rendered_rows_without_cache(prompted):
    rows = [{"text": "x" * (30 if i % 2 else 3), "label": i % 2} for i in range(10)]
    _, warning = notes(prompted(rows), inputs=10, targets=4)
    assert "50.0% of inputs" in warning


def test_missing_labels_in_rows_are_refused(prompted):
    task = prompted([{"text": "x", "label": 0}] * 5, jinja="{{text}} ||| {{''}}")
    with pytest.raises(UserError, match="every target is empty"):
        notes(task, inputs=10, targets=4)
