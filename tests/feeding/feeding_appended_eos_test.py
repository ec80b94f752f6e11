"""Caches whose records get their EOS after the cache, as in T5's tasks: read as SeqIO reads them."""

import dataclasses
import itertools
import json

import pytest

from t0 import testing
from t0.caching import source_shards
from t0.compat import seqio
from t0.compat import tf1 as tf
from t0.errors import UserError
from t0.evaluation.records import FEATURES, cached_records, record_of, sort_records
from t0.feeding import cached_examples, data_spec, manifest, objectives, uncached
from t0.feeding.manifest import Start
from t0.feeding.training_data import open_source, open_training_data
from t0.inference import cached_inputs, task_inputs
from t0.run import spec_from_gin
from tests.helpers.cases import one_quick

LENGTHS = {"inputs": 9, "targets": 5}
APPEND = seqio.preprocessors.append_eos
AFTER_TRIM = seqio.preprocessors.append_eos_after_trim
LAYOUTS = {
    "eos": [APPEND],
    "after_trim": [AFTER_TRIM],
    "eos_and_trim": [APPEND, seqio.trim_dataset],
    "trim": [seqio.trim_dataset],
}
FILES, ROWS = 20, 600
VOCABULARY = seqio.ByteVocabulary()


def questions(split, shuffle_files=False):
    del split, shuffle_files
    rows = {
        # The lengths are those around the limits, and 0.
        "inputs": ["abcdefghijkl"[: number % 12] for number in range(ROWS)],
        "targets": ["vwxyz{|}"[number % 3 : number % 8] for number in range(ROWS)],
        "idx": [[number // 2, number % 2] for number in range(ROWS)],
        "is_correct": [number % 2 == 0 for number in range(ROWS)],
    }
    return tf.data.Dataset.from_tensor_slices(rows)


def tokenize(dataset, output_features):
    dataset = dataset.map(lambda row: {**row, "idx": tf.cast(row["idx"], tf.int32)})
    return seqio.preprocessors.tokenize(dataset, output_features)


def without_choices(dataset):
    return dataset.map(lambda row: {n: row[n] for n in row if n not in ("idx", "is_correct")})


def task_of(after, *, choices=False, targets_eos=True):
    features = {
        "inputs": seqio.Feature(VOCABULARY, add_eos=True),
        "targets": seqio.Feature(VOCABULARY, add_eos=targets_eos),
    }
    steps = [tokenize, *([] if choices else [without_choices])]
    return seqio.TaskRegistry.add(
        "tea",
        source=seqio.FunctionDataSource(questions, splits=["test"]),
        preprocessors=[*steps, seqio.CacheDatasetPlaceholder(), *after],
        output_features=features,
        metric_fns=[],
    )


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """The records with and without answer choices: the steps after the cache do not change them."""
    folders = {choices: tmp_path_factory.mktemp("cache") for choices in (True, False)}
    for choices, folder in folders.items():
        with testing.registries_restored():
            write_cache(folder / "tea", task_of([], choices=choices))
    return folders


@pytest.fixture
def add_task(caches, clean_registries):
    """Registers a task with some steps after the cache, which has many files."""
    before = list(seqio.get_global_cache_dirs())

    def add(after, *, choices=False, targets_eos=True):
        seqio.set_global_cache_dirs([str(caches[choices])])
        return task_of(after, choices=choices, targets_eos=targets_eos)

    yield add
    seqio.set_global_cache_dirs(before)


def write_cache(folder, task):
    folder.mkdir()
    examples = list(source_shards.read_examples(task, "test", 0, of=1, base_seed=None))
    for number in range(FILES):
        path = folder / f"test.tfrecord-{number:05d}-of-{FILES:05d}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for example in examples[number * ROWS // FILES : (number + 1) * ROWS // FILES]:
                writer.write(source_shards.serialize(example))
    info = {"num_shards": FILES, "features": source_shards.feature_info(examples[0])}
    (folder / "info.test.json").write_text(json.dumps({"seqio_version": "1", **info}))
    (folder / "stats.test.json").write_text(json.dumps({"examples": ROWS}))
    (folder / "COMPLETED").touch()


def spec_of(task):
    return data_spec.data_spec(task.name, LENGTHS, dataset_split="test", use_cached=True)


def examples_in(blocks):
    return [
        {name: ids.tolist() for name, ids in block[number].items()}
        for block in blocks
        for number in range(len(block))
    ]


def read_with_seqio(task, lengths):
    with tf.Graph().as_default():
        make = lambda: task.get_dataset(lengths, "test", use_cached=True, shuffle=False)  # noqa: E731
        return list(uncached.elements(make))


@pytest.mark.parametrize("targets_eos", [True, False])
@pytest.mark.parametrize("layout", one_quick(LAYOUTS))
def test_appended_eos_training_examples_equal_seqio(add_task, monkeypatch, layout, targets_eos):
    task = add_task(LAYOUTS[layout], targets_eos=targets_eos)
    for module in (uncached, cached_examples):
        monkeypatch.setattr(module, "BLOCK_EXAMPLES", 256)
    spec = spec_of(task)
    ours, theirs = open_source(spec.tasks[0], spec), uncached.LiveSource(task, spec, ROWS)
    for given in ({"epoch": 0, "first": 0, "seed": None}, {"epoch": 1, "first": 1, "seed": 7}):
        found = examples_in(ours.blocks(**given))
        assert found == examples_in(theirs.blocks(**given))
        assert len(found) == ROWS - 256 * given["first"]
    plain = examples_in(ours.blocks(epoch=0, first=0, seed=None))
    expected = [
        {name: row[name].tolist() for name in LENGTHS} for row in read_with_seqio(task, LENGTHS)
    ]
    assert plain == expected
    full = [row["inputs"][-1] == 1 for row in plain if len(row["inputs"]) == LENGTHS["inputs"]]
    counts = {"after_trim": (200, 200), "trim": (150, 0)}
    assert (len(full), sum(full)) == counts.get(layout, (200, 50))


@pytest.mark.parametrize("layout", one_quick(LAYOUTS))
def test_appended_eos_inference_inputs_equal_seqio(add_task, layout):
    task = add_task(LAYOUTS[layout])
    spec = spec_of(task).tasks[0]
    ours = cached_inputs.open_cache(
        task.name,
        "test",
        spec.cache_files,
        total=spec.examples,
        vocabularies=(VOCABULARY, VOCABULARY),
        eos=spec.eos,
    )
    theirs = task_inputs.open_task(task, "test", use_cached=True, lengths=LENGTHS)
    found, expected = (
        [dataclasses.replace(one, tokens=[*one.tokens]) for one in source.read(1, 3)]
        for source in (ours, theirs)
    )
    # SeqIO leaves an empty text out of a record, and decodes the tokens of an empty target to "".
    assert [(one.number, one.inputs, one.tokens) for one in found] == [
        (one.number, one.inputs, one.tokens) for one in expected
    ]
    assert [one.targets or "" for one in found] == [one.targets or "" for one in expected]
    assert all((one.tokens[-1:] == [1]) == (layout != "trim") for one in found)


@pytest.mark.parametrize("layout", one_quick(LAYOUTS))
def test_appended_eos_answer_choices_equal_seqio(add_task, layout):
    task = add_task(LAYOUTS[layout], choices=True)
    spec = spec_of(task)
    files, eos = spec.tasks[0].cache_files, spec.tasks[0].eos
    ours = sort_records(cached_records(task.name, files, eos=eos).records)()
    rows = read_with_seqio(task, None)
    names = [name for name in FEATURES if name in rows[0]]
    theirs = sort_records(record_of({name: row[name] for name in names}) for row in rows)()
    for one, other in itertools.zip_longest(ours, theirs):
        assert one[:2] == other[:2]
        assert one.inputs.tolist() == other.inputs.tolist()
        assert one.targets.tolist() == other.targets.tolist()
        assert (one.is_correct, one.text) == (other.is_correct, other.text)
    # Training on the choices appends the same EOS.
    choices = dataclasses.replace(spec.tasks[0], choices=True)
    features = open_source(choices, spec).records.read(files[:1])
    assert (features["targets"].values == 1).sum() == (layout != "trim") * ROWS // FILES


def test_appended_eos_run_that_began_with_seqio_continues(add_task):
    spec = spec_of(add_task([AFTER_TRIM]))
    built = manifest.build(open_training_data(spec), 4, Start())
    assert not built.indexed
    tasks = tuple(dataclasses.replace(x, cache_files=(), eos=None) for x in spec.tasks)
    before = dataclasses.replace(built, data=dataclasses.replace(spec, tasks=tasks), shards={})
    assert manifest.find_difference(before, built) is None
    file, shard = next(iter(built.shards.items()))
    shards = {**built.shards, file: dataclasses.replace(shard, crc32c="AAAAAA==")}
    changed = dataclasses.replace(built, shards=shards)
    assert "has changed" in manifest.find_difference(built, changed)


class OddRows(seqio.Task):
    """A task whose class drops examples after the cache."""

    def get_dataset(self, *args, **kwargs):
        return super().get_dataset(*args, **kwargs).take(1)


@pytest.mark.parametrize(
    "after", [[], [seqio.trim_dataset, APPEND], [APPEND, APPEND], [without_choices, AFTER_TRIM]]
)
def test_appended_eos_after_other_steps_is_left_to_seqio(add_task, after):
    task = add_task(after)
    assert objectives.eos_of(task) is None
    spec = spec_of(task).tasks[0]
    assert bool(spec.cache_files) == (not after)
    if after:
        with pytest.raises(UserError, match="append_eos.* runs after its cache, and only SeqIO"):
            spec_from_gin._require_finished(spec, use_cached=True)


def test_appended_eos_of_own_task_class_is_left_to_seqio(add_task):
    task = add_task([AFTER_TRIM])
    assert objectives.eos_of(task).ids == {"inputs": 1, "targets": 1}
    spec_from_gin._require_finished(spec_of(task).tasks[0], use_cached=True)
    odd = OddRows(
        "odd",
        source=task.source,
        preprocessors=task.preprocessors,
        output_features=task.output_features,
        metric_fns=[],
    )
    assert objectives.eos_of(odd) is None
