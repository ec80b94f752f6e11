"""Instructions fed without TensorFlow: SeqIO's examples, an output drawn in each epoch."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf

from t0 import testing
from t0.caching import source_shards
from t0.config.specification import InstructionSpec
from t0.errors import UserError
from t0.feeding import cached_examples, data_spec, host_graphs, manifest
from t0.feeding.batch_examples import RunData
from t0.feeding.manifest import Start
from t0.feeding.mixing import MixedStream
from t0.feeding.token_files import Ragged
from t0.feeding.training_data import open_source, open_training_data
from t0.inference import cached_inputs, task_inputs
from t0.tasks import default_vocabulary
from t0.tasks.instruction_steps import join_what_fits
from t0.tasks.instruction_tasks import instruction_tasks
from t0.testing import train_vocabulary
from tests.sources import tiny_recipes

NAME = "sni_def_pos_2_neg_2"
# All examples fit; some; none; not even the instance.
LONGEST = (1000, 200, 100, 60)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    tasks = tiny_recipes.lay_out_sni(folder / "sni") / "tasks"
    texts = [path.read_text().split(",") for path in sorted(tasks.glob("*.json"))]
    return train_vocabulary(folder / "tiny.model", itertools.chain(*texts), size=200)


@pytest.fixture(scope="module")
def cached(tmp_path_factory, vocabulary):
    """The records of a task of instructions, in two files for each split."""
    folder = tmp_path_factory.mktemp("cached")
    with testing.registries_restored(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("T0_VOCAB", str(vocabulary))
        data = tiny_recipes.lay_out_sni(folder / "sni")
        task = seqio.TaskRegistry.add(NAME, **instruction_tasks(data)[NAME])
        for split in task.splits:
            examples = source_shards.read_examples(task, split, 0, of=1, base_seed=None)
            write_cache(folder / "cache" / NAME, split, list(examples))
    return folder


@pytest.fixture
def task(cached, tmp_path, clean_registries, vocabulary, monkeypatch):
    """A task of instructions with a cache of its own."""
    monkeypatch.setenv("T0_VOCAB", str(vocabulary))
    shutil.copytree(cached, tmp_path, dirs_exist_ok=True)
    task = seqio.TaskRegistry.add(NAME, **instruction_tasks(tmp_path / "sni")[NAME])
    before = list(seqio.get_global_cache_dirs())
    seqio.set_global_cache_dirs([str(tmp_path / "cache")])
    yield task
    seqio.set_global_cache_dirs(before)


def write_cache(folder, split, examples):
    folder.mkdir(parents=True, exist_ok=True)
    records = [source_shards.serialize(one) for one in examples]
    for number in range(2):
        path = folder / f"{split}.tfrecord-{number:05d}-of-00002"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records[number * len(records) // 2 : (number + 1) * len(records) // 2]:
                writer.write(record)
    info = {"num_shards": 2, "features": source_shards.feature_info(examples[0])}
    (folder / f"info.{split}.json").write_text(json.dumps({"seqio_version": "1", **info}))
    (folder / f"stats.{split}.json").write_text(json.dumps({"examples": len(records)}))
    (folder / "COMPLETED").touch()


def source_of(split="train", longest=120):
    lengths = {"inputs": longest, "targets": 20}
    spec = data_spec.data_spec(NAME, lengths, dataset_split=split, use_cached=True)
    return open_source(spec.tasks[0], spec)


def examples_of(source, epoch=0, seed=7):
    blocks = list(source.blocks(epoch=epoch, first=0, seed=seed))
    return [block[n] for block in blocks for n in range(len(block))]


def inputs_of(examples):
    return sorted(example["inputs"].tolist() for example in examples)


def of_seqio(task, split, longest, **given):
    lengths = {"inputs": longest, "targets": 20}
    dataset = task.get_dataset(lengths, split, shuffle=False, seed=1, **given)
    return list(dataset.as_numpy_iterator())


def test_instruction_examples_equal_seqio_cached_and_live(task):
    sizes = set()
    for longest in LONGEST:
        found = inputs_of(examples_of(source_of(longest=longest)))
        assert found == inputs_of(of_seqio(task, "train", longest, use_cached=True))
        if longest in LONGEST[1:3]:
            assert found == inputs_of(of_seqio(task, "train", longest, use_cached=False))
        assert all(row[-1] == 1 and len(row) <= longest for row in found)
        assert len({tuple(row) for row in found}) == (103 if longest > 60 else 1)
        sizes.add(len(found[0]))
    assert len(sizes) == len(LONGEST)


def test_instruction_targets_of_a_step_are_found(task):
    spec = data_spec.data_spec(NAME, {"inputs": 200, "targets": 20}, use_cached=True)
    data = open_training_data(spec)
    run = RunData(manifest.build(data, 4, Start()), data)
    decode = default_vocabulary().decode
    example = next(run.examples(step=1))
    found = run.find(decode(example.ids["targets"].tolist()), 1, decode)
    assert (example.row, example.record) in [(each.row, each.record) for each in found]


def test_instruction_evaluation_targets_equal_seqio(task):
    ours = examples_of(source_of("test"), seed=None)
    theirs = of_seqio(task, "test", 120, use_cached=True)
    pairs = [
        sorted((one["inputs"].tolist(), one["targets"].tolist()) for one in several)
        for several in (ours, theirs)
    ]
    assert pairs[0] == pairs[1]
    assert {record["references"].size for record in theirs} == {2}


def test_instruction_epochs_draw_outputs_again(task):
    def targets(**given):
        return {
            tuple(one["inputs"].tolist()): default_vocabulary().decode(one["targets"].tolist())
            for one in examples_of(source_of(), **given)
        }

    first = targets()
    assert len(first) == 103
    assert {text.split()[0] for text in first.values()} == {"out", "other"}
    assert first == targets()
    for other in (targets(epoch=1), targets(seed=8)):
        assert other.keys() == first.keys()
        assert other != first


def test_instruction_stream_resumes_at_its_position(task, monkeypatch):
    monkeypatch.setattr("t0.feeding.reading.BLOCK_EXAMPLES", 50)  # a block for each file

    def stream():
        return MixedStream([source_of()], [1.0], seed=3)

    whole = stream()
    taken = [whole.take() for _ in range(3)]  # more than seven epochs
    second = stream()
    second.seek(1, {})
    for expected in taken[1:]:
        for one, other in zip(second.take(), expected, strict=True):
            assert one["inputs"].tolist() == other["inputs"].tolist()
            assert one["targets"].tolist() == other["targets"].tolist()


def test_instruction_cache_needs_no_tokenizer_on_tpu_hosts(task):
    def operations(**given):
        lengths = {"inputs": 120, "targets": 20}
        read = lambda _: task.get_dataset(lengths, "train", shuffle=False, **given)  # noqa: E731
        return host_graphs.foreign_operations(host_graphs.pipeline_graph(read))

    assert not operations(use_cached=True)
    assert any("Sentencepiece" in kind for kind in operations(use_cached=False))


def test_instruction_inference_inputs_are_joined_to_fit(task):
    files, total = data_spec.cache_files(task, "test")
    vocabularies = (default_vocabulary(), default_vocabulary())
    for longest in LONGEST:
        lengths = {"inputs": longest}
        spec = data_spec.task_spec(task, "test", lengths, use_cached=True).instructions
        ours = cached_inputs.open_cache(
            NAME, "test", files, total=total, vocabularies=vocabularies, spec=spec
        )
        theirs = task_inputs.open_task(task, "test", use_cached=True, lengths=lengths)
        found, expected = list(ours.read(0, 1)), list(theirs.read(0, 1))
        assert len(found) == total == 102
        for one, other in zip(found, expected, strict=True):
            assert (one.inputs, one.targets) == (other.inputs, other.targets)
            assert [*one.tokens] == [*other.tokens]
        assert all(one.inputs.endswith("Output: ") for one in found)  # nothing is cut


def ragged(rows):
    values = np.array([value for row in rows for value in row], np.int32)
    return Ragged(values, np.cumsum([0, *map(len, rows)]))


@pytest.mark.parametrize(
    ("longest", "eos"), [(1, True), (12, False), (25, True), (25, False), (40, True), (64, False)]
)
def test_instruction_joining_to_length_equals_tensorflow(longest, eos):
    rng = np.random.default_rng(longest)
    sizes = rng.integers(0, 10, (200, 7)) * (rng.random((200, 7)) < 0.8)
    spec = InstructionSpec(2, longest, {"inputs": 1 if eos else None, "targets": 1})
    rows = [list(range(sum(row))) for row in sizes.tolist()]
    found, _ = cached_examples.join_parts(
        {"inputs": ragged(rows), "part_tokens": ragged(sizes)}, spec
    )
    dataset = tf.data.Dataset.from_generator(
        lambda: ({"inputs": one, "part_tokens": two} for one, two in zip(rows, sizes, strict=True)),
        output_signature=dict.fromkeys(("inputs", "part_tokens"), tf.TensorSpec([None], tf.int32)),
    ).map(lambda row: {**row, "part_bytes": row["part_tokens"], "inputs_pretokenized": "x" * 63})
    features = {"inputs": seqio.Feature(seqio.PassThroughVocabulary(99), add_eos=eos)}
    theirs = join_what_fits(dataset, {"inputs": longest}, features, positives=2)
    expected = [row["inputs"].tolist() for row in theirs.as_numpy_iterator()]
    assert [row.tolist() for row in np.split(found.values, found.ends[1:-1])] == expected


SPEC = InstructionSpec(1, 100, {"inputs": 1, "targets": 1})
GOOD = {
    "inputs": ragged([[5, 6, 7]]),
    "part_tokens": ragged([[0, 1, 1, 1]]),
    "outputs": ragged([[8, 9]]),
    "output_tokens": ragged([[1, 1]]),
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"part_tokens": ragged([[0, 1, 1]])}, "do not form an instruction"),
        ({"part_tokens": ragged([[]])}, "do not form an instruction"),
        ({"part_tokens": ragged([[0, -1, 3, 1]])}, "do not form an instruction"),
        ({"part_tokens": ragged([[0, 1, 1, 2]])}, "do not add up to its inputs"),
        ({"output_tokens": ragged([[1, 2]])}, "outputs of a record do not add up"),
        ({"output_tokens": ragged([[3, -1]])}, "outputs of a record do not add up"),
        ({"output_tokens": ragged([[]]), "outputs": ragged([[]])}, "has no outputs"),
    ],
)
def test_instruction_records_of_other_kinds_are_refused(changes, said):
    features = {**GOOD, **changes}
    with pytest.raises(ValueError, match=said):
        cached_examples.join_parts(features, SPEC)
        cached_examples.draw_outputs(features, None)


def test_instruction_cache_that_is_damaged_is_named(task):
    folder = Path(task.cache_dir)
    for path in folder.glob("train.tfrecord-*"):
        with tf.io.TFRecordWriter(str(path)) as writer:
            ids = tf.train.Feature(int64_list=tf.train.Int64List(value=[5, 1]))
            features = tf.train.Features(feature={"inputs": ids, "targets": ids})
            writer.write(tf.train.Example(features=features).SerializeToString())
    message = f"the cache of task {NAME} is damaged or from another version: .*--overwrite"
    with pytest.raises(UserError, match=message):
        examples_of(source_of())


def test_instruction_preprocessors_changed_after_cache_use_seqio(task):
    lengths = {"inputs": 100}
    found = data_spec.task_spec(task, "train", lengths, use_cached=True)
    assert found.instructions == InstructionSpec(2, 100, {"inputs": 1, "targets": 1})
    assert len(found.cache_files) == 2
    assert data_spec.task_spec(task, "train", lengths, use_cached=False).instructions is None
    changed = [*task.preprocessors, seqio.preprocessors.append_eos]
    other = task.replace(preprocessors=changed)
    assert data_spec.task_spec(other, "train", lengths, use_cached=True).cache_files == ()
