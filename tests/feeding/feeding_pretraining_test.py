"""Pretraining tasks fed without TensorFlow: T5's numbers, resumable, a document once an epoch."""

import functools
import itertools
import json

import gin
import numpy as np
import pytest
import seqio
import t5.data.mixtures  # noqa: F401 (here, as what a test registers is taken back)
import tensorflow.compat.v1 as tf
from t5.data import preprocessors as t5_preprocessors

from t0.config.specification import DataSpec
from t0.errors import UserError
from t0.feeding import data_spec, pretraining, uncached
from t0.feeding.mixing import MixedStream
from t0.feeding.pretraining import PretrainingSource
from t0.feeding.training_data import open_source
from t0.sources.texts import FolderTexts
from t0.tasks.recipe_tasks import pretraining_definitions
from tests.feeding.tiny_texts import documents, restored, train_vocabulary, write_documents

LENGTHS = {"inputs": 64, "targets": 20}
TOP = 135  # 36 pieces and 100 sentinels


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return train_vocabulary(tmp_path_factory.mktemp("vocabulary") / "tiny.model")


@pytest.fixture(autouse=True)
def chosen_vocabulary(vocabulary, monkeypatch):
    monkeypatch.setenv("T0_VOCAB", str(vocabulary))


@pytest.fixture
def folder(tmp_path):
    """Some 400 documents in three files, and 40 for validation."""
    every = documents(400)
    write_documents(tmp_path / "train-0.txt", every[:150])
    write_documents(tmp_path / "train-1.jsonl.gz", every[150:200])
    write_documents(tmp_path / "train-2.jsonl", every[200:])
    write_documents(tmp_path / "validation.txt", documents(40, seed=9))
    return tmp_path


@pytest.fixture
def tasks(folder, clean_registries, monkeypatch):
    """Registers text_*, read in shards of 6 kB and blocks of 3,000 characters."""
    monkeypatch.setattr(
        uncached, "Documents", functools.partial(pretraining.Documents, block_characters=3000)
    )
    texts = FolderTexts(folder, shard_bytes=6000)
    for name, arguments in pretraining_definitions("text", texts).items():
        seqio.TaskRegistry.add(name, **arguments)
    return seqio.TaskRegistry


def objective(task, lengths=LENGTHS):
    return data_spec.task_spec(task, "train", lengths, use_cached=False).objective


def source_of(task, split="train", lengths=LENGTHS):
    spec = data_spec.task_spec(task, split, lengths, use_cached=False)
    return uncached.live_source(task, spec, DataSpec(task.name, split, (spec,), lengths))


def opened(name="text_span_corruption", lengths=LENGTHS):
    source = source_of(seqio.TaskRegistry.get(name), lengths=lengths)
    assert isinstance(source, PretrainingSource)
    return source


def examples_of(source, epoch=0, first=0, seed=7):
    blocks = list(source.blocks(epoch=epoch, first=first, seed=seed))
    return [block[n] for block in blocks for n in range(len(block))]


def tokens_of(examples):
    return list(
        itertools.chain.from_iterable(restored(e["inputs"], e["targets"], TOP)[0] for e in examples)
    )


def all_tokens(task, split="train"):
    encode = task.output_features["targets"].vocabulary.encode
    texts = task.source.texts
    return [t for shard in texts.shards(split) for d in texts.documents(shard) for t in encode(d)]


def test_pretraining_without_shuffling_keeps_text_order(tasks):
    task = tasks.get("text_span_corruption")
    examples = examples_of(opened(), seed=None)
    assert tokens_of(examples) == all_tokens(task)
    assert all(e["inputs"][-1] == 1 == e["targets"][-1] for e in examples)


def test_pretraining_epoch_reads_each_document_once_shuffled(tasks):
    task = tasks.get("text_span_corruption")
    passes = [examples_of(opened(), epoch=epoch) for epoch in (0, 1)]
    ordered = [tokens_of(examples) for examples in passes]
    assert ordered[0] != ordered[1]
    assert sorted(ordered[0]) == sorted(ordered[1]) == sorted(all_tokens(task))
    again = examples_of(opened(), epoch=1)
    assert [e["inputs"].tolist() for e in again] == [e["inputs"].tolist() for e in passes[1]]
    other = examples_of(opened(), epoch=1, seed=8)
    assert [e["inputs"].tolist() for e in other] != [e["inputs"].tolist() for e in passes[1]]


@pytest.mark.slow
def test_pretraining_block_has_lengths_of_t5(folder, clean_registries):
    for name, arguments in pretraining_definitions("text", FolderTexts(folder)).items():
        seqio.TaskRegistry.add(name, **arguments)
    for name in ("text_span_corruption", "text_lm"):
        task = seqio.TaskRegistry.get(name)
        with tf.Graph().as_default(), tf.Session() as session:
            dataset = task.get_dataset(LENGTHS, "train", shuffle=False, seed=3)
            spec = tf.data.get_output_shapes(dataset)
            following = tf.data.make_one_shot_iterator(dataset.padded_batch(10**4, spec)).get_next()
            theirs = session.run(following)
        ours = examples_of(opened(name), seed=None)
        for feature in task.output_features:
            sizes = np.count_nonzero(theirs[feature], axis=1)
            assert [len(e[feature]) for e in ours] == sizes.tolist()
        if name == "text_lm":
            for row, example in zip(theirs["targets"], ours, strict=True):
                assert row[row > 0].tolist() == example["targets"].tolist()
        else:
            rows = [{n: theirs[n][i] for n in LENGTHS} for i in range(len(ours))]
            rows = [{n: row[row > 0] for n, row in example.items()} for example in rows]
            assert tokens_of(rows) == tokens_of(ours) == all_tokens(task)


@pytest.mark.parametrize("name", ["text_span_corruption", "text_prefix_lm"])
def test_pretraining_stream_resumes_at_its_position(tasks, name):
    def stream():
        return MixedStream([opened(name)], [1.0], seed=3)

    def taken(mixture, times):
        return [e["inputs"].tolist() for _ in range(times) for e in mixture.take()]

    whole = stream()
    taken(whole, 2)
    states = json.loads(json.dumps(whole.states()))
    wanted = taken(whole, 4)  # beyond the end of an epoch
    assert whole.states()[name][0] > states[name][0]
    other = stream()
    other.seek(2, states)
    assert taken(other, 4) == wanted
    assert other.states() == whole.states()


def test_pretraining_position_restores_the_same_batches(tasks):
    def opened_data():
        return data_spec.open_data(data_spec.data_spec("text_span_corruption", LENGTHS, seed=3))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("t0.feeding.data_spec.window", lambda: 30)
        whole = list(itertools.islice(opened_data().batches(4), 60))
        position = json.loads(json.dumps(whole[30][1]))
        again = list(itertools.islice(opened_data().batches(4, position), 29))
    assert len(json.dumps(position)) < 200
    for (batch, there), (wanted, here) in zip(again, whole[31:], strict=True):
        assert there == here
        assert all((batch[name] == wanted[name]).all() for name in wanted)


def test_pretraining_resume_reads_no_earlier_shard(tasks, monkeypatch):
    source = opened()
    read = []
    texts = tasks.get("text_span_corruption").source.texts
    real = texts.documents
    monkeypatch.setattr(texts, "documents", lambda shard: read.append(str(shard)) or real(shard))
    source = opened()
    blocks = list(source.blocks(epoch=0, first=0, seed=7))
    assert len(read) == len(texts.shards("train")) > 3
    numbers = [block.number for block in blocks]
    assert len(set(numbers)) == len(numbers) > len(read)
    del read[:]
    (last,) = source.blocks(epoch=0, first=numbers[-1], seed=7)
    assert len(read) == 1
    assert last.features["inputs"].values.tolist() == blocks[-1].features["inputs"].values.tolist()


def test_pretraining_data_has_training_and_validation_rows(tasks):
    data = data_spec.open_data(data_spec.data_spec("text_span_corruption", LENGTHS, seed=3))
    batches = [batch for batch, _ in itertools.islice(data.batches(8), 5)]
    assert batches[0]["inputs"].shape == (8, 64)
    assert data.filling.filled["inputs"] > 0.97
    (share,) = data.shares()
    assert share.examples is None
    # Held-out batches are the same each time.
    first, second = (next(data_spec.open_split(data, "validation").batches(4))[0] for _ in range(2))
    assert first["targets"].tolist() == second["targets"].tolist()
    assert data_spec.open_split(data, "test") is None


def test_pretraining_cached_documents_give_the_same_tokens(tasks, tmp_path):
    task = tasks.get("text_span_corruption")
    cache = tmp_path / "cache" / task.name
    cache.mkdir(parents=True)
    encode = task.output_features["targets"].vocabulary.encode
    count, shards = 0, task.source.texts.shards("train")
    for number, shard in enumerate(shards):
        name = f"train.tfrecord-{number:05d}-of-{len(shards):05d}"
        with tf.io.TFRecordWriter(str(cache / name)) as writer:
            for text in task.source.texts.documents(shard):
                ids = tf.train.Feature(int64_list=tf.train.Int64List(value=encode(text)))
                record = tf.train.Example(features=tf.train.Features(feature={"targets": ids}))
                writer.write(record.SerializeToString())
                count += 1
    (cache / "info.train.json").write_text(json.dumps({"num_shards": len(shards)}))
    (cache / "stats.train.json").write_text(json.dumps({"examples": count}))
    (cache / "COMPLETED").touch()
    before = list(seqio.get_global_cache_dirs())
    seqio.set_global_cache_dirs([str(tmp_path / "cache")])
    try:
        spec = data_spec.data_spec(task.name, LENGTHS, use_cached=True)
        source = open_source(spec.tasks[0], spec)
        assert sorted(tokens_of(examples_of(source))) == sorted(all_tokens(task))
        # The cache is one block: a later epoch joins its documents in another order.
        pieces = [
            sorted(restored(e["inputs"], e["targets"], TOP)[0] for e in examples_of(source, n))
            for n in (0, 1)
        ]
        assert pieces[0] != pieces[1]
    finally:
        seqio.set_global_cache_dirs(before)


def test_pretraining_c4_from_tfds_is_read_by_shards(clean_registries, monkeypatch):
    """T5's own task, its source standing for TensorFlow Datasets."""
    task = seqio.TaskRegistry.get("c4_v220_span_corruption")
    texts = documents(90)
    read = []

    def load(self, split, shuffle_files, seed, shard_info):
        assert (split, shuffle_files) == ("train", False)
        read.append(shard_info.index)
        rows = texts[shard_info.index :: shard_info.num_shards]
        return tf.data.Dataset.from_tensor_slices({"text": rows, "url": ["u"] * len(rows)})

    monkeypatch.setattr(seqio.utils.LazyTfdsLoader, "load", load)
    files = [{"filename": f"c4-train.{n}"} for n in range(3)]
    monkeypatch.setattr(seqio.utils.LazyTfdsLoader, "files", lambda self, split: files)
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=100), add_eos=True)
    task = task.replace(output_features=dict.fromkeys(LENGTHS, feature))
    source = source_of(task)
    tokens = [
        restored(example["inputs"], example["targets"], 358)[0] for example in examples_of(source)
    ]
    wanted = [t for text in texts for t in feature.vocabulary.encode(text)]
    assert sorted(sum(tokens, [])) == sorted(wanted)
    assert sorted(read) == [0, 1, 2]


def test_pretraining_other_preprocessors_use_seqio(tasks):
    task = tasks.get("text_span_corruption")
    steps = list(task.preprocessors)
    other = functools.partial(t5_preprocessors.span_corruption, reserved_for_packing=2)
    for changed in ([*steps[:3], other, steps[4]], [steps[0], *steps], steps[:2], steps[:3]):
        assert objective(task.replace(preprocessors=changed)) is None
    wider = functools.partial(t5_preprocessors.span_corruption, mean_noise_span_length=5.0)
    known = task.replace(preprocessors=[*steps[:3], wider, steps[4]])
    assert objective(known).parameters["mean_noise_span_length"] == 5
    gin.bind_parameter("random_spans_noise_mask.random_roll", False)
    assert opened()
    gin.bind_parameter("random_spans_noise_mask.random_roll", True)
    try:
        assert objective(task) is None
    finally:
        gin.clear_config()
    # What is fed by its own steps gets the run's lengths, which such steps ask for.
    stepped = task.replace(preprocessors=[*steps[:3], other, steps[4]])
    assert max(len(e["inputs"]) for e in examples_of(source_of(stepped))) == LENGTHS["inputs"] - 2


def test_pretraining_unsuitable_lengths_or_vocabulary_are_refused(tasks):
    with pytest.raises(UserError, match="inputs of 512 tokens need targets of 114 .* has 100"):
        opened(lengths={"inputs": 512, "targets": 100})
    with pytest.raises(UserError, match="114 spans of 2274 tokens need a sentinel each.* has 100 "):
        opened(lengths={"inputs": 2048, "targets": 512})
    with pytest.raises(UserError, match="has no length for inputs; it has: targets"):
        opened(lengths={"targets": 512})
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=0), add_eos=True)
    bare = tasks.get("text_span_corruption").replace(
        output_features=dict.fromkeys(LENGTHS, feature)
    )
    with pytest.raises(UserError, match="3 spans .* the vocabulary ByteVocabulary has 0 "):
        objective(bare)


def test_pretraining_blank_or_invalid_text_is_refused(tmp_path, clean_registries):
    def stream():
        for name, arguments in pretraining_definitions("blank", FolderTexts(tmp_path)).items():
            seqio.TaskRegistry.add(name, **arguments)
        try:
            return MixedStream([opened("blank_span_corruption")], [1.0], seed=0).take()
        finally:
            seqio.TaskRegistry._REGISTRY.clear()

    write_documents(tmp_path / "train.txt", ["", "   "])
    with pytest.raises(UserError, match="task blank_span_corruption has no examples"):
        stream()
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(UserError, match=r"train.jsonl, line 2: not JSON"):
        stream()


def test_pretraining_text_that_is_not_utf8_does_not_stop_the_run(vocabulary):
    tokens = seqio.SentencePieceVocabulary(str(vocabulary))
    source = pretraining.Documents("bad", [None], lambda _: [b"the \xff sun"], tokens.encode)
    ((_, made),) = source.blocks(epoch=0, first=0, seed=None)
    assert made.values.tolist() == tokens.encode("the \ufffd sun")
