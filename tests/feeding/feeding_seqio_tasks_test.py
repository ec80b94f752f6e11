"""Own tasks, as stock SeqIO and T5 read them: functions without a seed, unknown sizes, TFDS."""

import functools
import json
import re

import gin
import numpy as np
import pytest

from t0.compat import seqio, t5_mesh, tfds
from t0.compat import tf1 as tf
from t0.errors import AbsentData, UserError
from t0.feeding import data_spec
from tests.helpers.cases import one_quick

ROWS = [(f"which {number}", f"answer {number}") for number in range(600)]
LENGTHS = {"inputs": 16, "targets": 16}
FEATURES = {name: seqio.Feature(seqio.ByteVocabulary(), add_eos=True) for name in LENGTHS}
STEPS = [
    seqio.preprocessors.tokenize,
    seqio.CacheDatasetPlaceholder(),
    seqio.preprocessors.append_eos_after_trim,
]


@pytest.fixture(autouse=True)
def without_caches(clean_registries):
    yield
    seqio.set_global_cache_dirs([])


def make_rows(rows):
    inputs, targets = zip(*rows, strict=True)
    return tf.data.Dataset.from_tensor_slices({"inputs": [*inputs], "targets": [*targets]})


def plain(split, shuffle_files=False):
    del split, shuffle_files
    return make_rows(ROWS)


def of_folder(folder, split, shuffle_files=False):
    del folder, split, shuffle_files
    return make_rows(ROWS)


class Reader:
    def __init__(self, rows):
        self.rows = rows

    def read(self, split, shuffle_files):
        del split, shuffle_files
        return make_rows(self.rows)

    def __call__(self, split, shuffle_files=False):
        return self.read(split, shuffle_files)


FUNCTIONS = {
    "plain": plain,
    "partial": functools.partial(of_folder, "data"),
    "method": Reader(ROWS).read,
    "callable": Reader(ROWS),
    "lambda": lambda split, shuffle_files: make_rows(ROWS),
}


def add(name, function=plain, steps=STEPS, features=FEATURES, **more):
    source = seqio.FunctionDataSource(function, splits=["train", "validation"], **more)
    return seqio.TaskRegistry.add(
        name, source=source, preprocessors=steps, output_features=features, metric_fns=[]
    )


def texts_of(data):
    """The targets of an epoch, in one batch: rows that are not packed."""
    ids = next(data.batches(len(ROWS)))[0]["targets"]
    return {FEATURES["targets"].vocabulary.decode(row.tolist()) for row in ids}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_seqio_function_without_seed_argument_is_read_live(name):
    add("own", FUNCTIONS[name])
    data = data_spec.open_data(data_spec.data_spec("own", LENGTHS, pack=False))
    assert texts_of(data) == {answer for _, answer in ROWS}


def test_seqio_old_t5_api_mixture_without_seed_argument():
    import t5.data

    add("new")
    t5.data.TaskRegistry.add(
        "old", dataset_fn=plain, splits=["train"], text_preprocessor=[], output_features=FEATURES
    )
    seqio.MixtureRegistry.add("both", [("new", 1), ("old", 1)])
    data = data_spec.open_data(data_spec.data_spec("both", LENGTHS, pack=False))
    assert texts_of(data) <= {answer for _, answer in ROWS}


def test_span_corruption_of_function_without_seed_argument():
    from t0.compat import t5_preprocessors

    vocabulary = seqio.ByteVocabulary(extra_ids=10)
    steps = [
        functools.partial(t5_preprocessors.rekey, key_map={"inputs": None, "targets": "text"}),
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        t5_preprocessors.span_corruption,
        seqio.preprocessors.append_eos_after_trim,
    ]

    def documents(split, shuffle_files):
        del split, shuffle_files
        return tf.data.Dataset.from_tensor_slices({"text": ["a long row of words " * 9] * 600})

    add("spans", documents, steps, {n: seqio.Feature(vocabulary) for n in LENGTHS})
    lengths = {"inputs": 32, "targets": 16}
    data = data_spec.open_data(data_spec.data_spec("spans", lengths, pack=False))
    assert next(data.batches(2))[0]["inputs"].shape == (2, 32)


def test_seqio_seed_is_passed_to_function_that_takes_one():
    seeds = []

    def seeded(split, shuffle_files=False, seed=None):
        del split, shuffle_files
        seeds.append(seed)
        return make_rows(ROWS)

    add("seeded", seeded)
    with tf.Graph().as_default():
        seqio.TaskRegistry.get("seeded").get_dataset(LENGTHS, split="train", seed=11)
        add("plain").get_dataset(LENGTHS, split="train", seed=11)
    assert seeds == [11]


def write_cache(folder, name, **examples):
    for split, count in examples.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f"stats.{split}.json").write_text(json.dumps({"examples": count}))
        (folder / name / f"info.{split}.json").write_text(json.dumps({"num_shards": 1}))
    (folder / name / "COMPLETED").touch()
    seqio.set_global_cache_dirs([str(folder)])


def test_example_count_comes_from_cache_if_task_has_none(tmp_path):
    task = add("uncounted")
    assert data_spec.count_examples(task, "train") is None
    write_cache(tmp_path, "uncounted", train=7)
    assert data_spec.count_examples(task, "train") == 7
    assert data_spec.count_examples(task, "validation") is None
    spec = data_spec.data_spec("uncounted", LENGTHS, use_cached=True)
    assert spec.tasks[0].examples == 7
    assert data_spec.open_data(spec).shares()[0].examples == 7


def test_example_count_of_cache_is_used_if_cache_is_read(tmp_path):
    task = add("counted", num_input_examples={"train": 3})
    write_cache(tmp_path, "counted", train=7)
    assert data_spec.count_examples(task, "train") == 3
    assert data_spec.count_examples(task, "train", use_cached=True) == 7
    assert data_spec.count_examples(task, "validation") is None


@pytest.mark.parametrize(
    "rate",
    [
        functools.partial(seqio.mixing_rate_num_examples, maximum=100),
        functools.partial(seqio.mixing_rate_num_examples, fallback_to_num_input_examples=False),
        seqio.mixing_rate_num_characters,
    ],
)
def test_mixing_rate_of_unknown_size_names_caching_command(rate, tmp_path):
    for name in ("one", "two"):
        add(name)
    seqio.MixtureRegistry.add("by_size", ["one", "two"], default_rate=rate)
    with pytest.raises(UserError) as caught:
        data_spec.data_spec("by_size", LENGTHS)
    assert "rate of task one in mixture by_size" in str(caught.value)
    assert "seqio_cache_tasks --tasks=by_size" in str(caught.value)
    for name, count in (("one", 10), ("two", 30)):
        write_cache(tmp_path, name, train=count)
    if rate is not seqio.mixing_rate_num_characters:
        spec = data_spec.data_spec("by_size", LENGTHS)
        assert [task.rate for task in spec.tasks] == [10, 30]


@pytest.mark.parametrize("name", [None, ""])
def test_missing_mixture_name_error_is_one_line(name):
    with pytest.raises(UserError, match="there is no data to read. Set it with --gin.MIXTURE"):
        data_spec.known_mixture(name)


def test_missing_feature_error_names_the_task_and_feature():
    add("unmade", steps=[lambda ds: ds.map(lambda ex: {"targets": ex["targets"]}), *STEPS])
    data = data_spec.open_data(data_spec.data_spec("unmade", LENGTHS, pack=False))
    with pytest.raises(UserError, match="unmade: .*missing.*: inputs. Its preprocessors make: tar"):
        next(data.batches(2))


class Teas(tfds.core.GeneratorBasedBuilder):
    """A dataset of TensorFlow Datasets that is made of nothing but this class."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"inputs": tfds.features.Text(), "n": np.int32})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        del dl_manager
        return {"train": self._generate_examples(600), "test": self._generate_examples(2)}

    def _generate_examples(self, count):
        for number in range(count):
            yield number, {"inputs": f"tea {number}", "n": number}


def add_teas(folder, splits=None):
    source = seqio.TfdsDataSource("teas:1.0.0", tfds_data_dir=str(folder), splits=splits)
    features = {"inputs": FEATURES["inputs"]}
    return seqio.TaskRegistry.add(
        "tea", source=source, preprocessors=STEPS, output_features=features, metric_fns=[]
    )


@pytest.mark.parametrize("splits", [None, ["train"]])
def test_tfds_absent_data_error_has_the_prepare_command(tmp_path, splits):
    task = add_teas(tmp_path, splits)
    with pytest.raises(AbsentData) as caught:
        data_spec.require_split("tea", "train")
        data_spec.count_examples(task, "train")
    text = str(caught.value)
    assert f"teas:1.0.0 is not in {tmp_path}/teas/1.0.0." in text
    assert "--tfds_data_dir" in text
    with pytest.raises(AbsentData, match="is not in"), tf.Graph().as_default():
        task.source.get_dataset("train", shuffle=False)  # a run downloads nothing
    assert not any(tmp_path.iterdir())

    with tf.compat.v1.Graph().as_default():
        exec(re.search(r'python -c "(.*)"; or', text)[1], {})
    data_spec.require_split("tea", "train")
    assert data_spec.count_examples(task, "train") == 600
    spec = data_spec.data_spec("tea", {"inputs": 16}, pack=False)
    assert next(data_spec.open_data(spec).batches(2))[0]["inputs"].shape == (2, 16)


def test_tfds_unknown_dataset_or_version_error_is_one_line(tmp_path):
    for name in ("no_such_teas:1.0.0", "teas:7.7.7"):
        source = seqio.TfdsDataSource(name, tfds_data_dir=str(tmp_path))
        with pytest.raises(AbsentData, match=f"Datasets cannot open {name}: .*version"):
            source.num_input_examples("train")


def test_tfds_task_splits_come_from_cache_without_data(tmp_path):
    task = add_teas(tmp_path / "no data")
    write_cache(tmp_path, "tea", train=5, test=2)
    assert set(task.splits) == {"train", "test"}
    data_spec.require_split("tea", "test")


def one_after_the_other(datasets, rates, seed):
    """Ten examples of each task in turn, which no rates can describe."""
    del rates, seed
    return functools.reduce(lambda a, b: a.concatenate(b), [x.take(10) for x in datasets]).repeat()


class InTurn(seqio.Mixture):
    """A mixture whose class draws the examples."""

    def get_dataset(self, *args, **kwargs):
        return super().get_dataset(*args, **kwargs).take(7).repeat()


def mixture_in_turn(**more):
    for name in ("first", "second"):
        rows = [(f"{name} {n}", f"{name} {n}") for n in range(600)]
        add(name, functools.partial(Reader(rows)))
    return seqio.MixtureRegistry.add("in_turn", ["first", "second"], default_rate=1.0, **more)


OWN_SAMPLING = {
    "function": {"sample_fn": one_after_the_other},
    "partial": {"sample_fn": functools.partial(one_after_the_other)},
    "class": {"mixture_cls": InTurn},
    "weights": {
        "sample_fn": lambda datasets, rates, seed: tf.data.Dataset.sample_from_datasets(
            datasets, [0.0, 1.0], seed
        )
    },
}
RATES = {
    "default": {},
    "legacy": {"sample_fn": tf.data.experimental.sample_from_datasets},
    "method": {"sample_fn": tf.data.Dataset.sample_from_datasets},
    "option": {
        "sample_fn": functools.partial(
            tf.data.Dataset.sample_from_datasets, stop_on_empty_dataset=False
        )
    },
}


@pytest.mark.parametrize("name", [*one_quick(OWN_SAMPLING), *RATES])
def test_mixture_with_own_sample_fn_is_drawn_by_seqio(empty_gin, name):
    mixture_in_turn(**(OWN_SAMPLING | RATES)[name])
    arguments = {"mixture_or_task_name": "in_turn", "sequence_length": LENGTHS, "shuffle": False}
    function = functools.partial(t5_mesh.mesh_train_dataset_fn, **arguments)
    bound = [f"mesh_train_dataset_fn.{name} = {value!r}" for name, value in arguments.items()]
    gin.parse_config([x for x in bound if "sequence_length" not in x])
    data = data_spec.open_dataset_function(
        t5_mesh.mesh_train_dataset_fn, 5, sequence_length=LENGTHS, dataset_split="train"
    )
    if name in RATES:
        assert data.spec.mixture == "in_turn"
        assert [task.rate for task in data.spec.tasks] == [1.0, 1.0]
        return
    batches = data.batches(8)
    ours = [next(batches) for _ in range(3)]
    with tf.Graph().as_default():
        make = function(vocabulary=None, dataset_split="train", seed=5).batch(8)
        get_next = tf.data.make_one_shot_iterator(make).get_next()
        with tf.Session() as session:
            theirs = [session.run(get_next) for _ in ours]
    for (batch, _), expected in zip(ours, theirs, strict=True):
        assert batch.keys() == expected.keys()
        assert all(np.array_equal(batch[key], expected[key]) for key in batch)
    resumed, _ = next(data.batches(8, ours[1][1]))
    assert np.array_equal(resumed["targets"], ours[2][0]["targets"])


def test_mixture_with_own_sample_fn_is_refused_if_rates_are_needed(empty_gin):
    mixture_in_turn(sample_fn=one_after_the_other)
    gin.parse_config(["mesh_train_dataset_fn.mixture_or_task_name = 'in_turn'"])
    arguments = {"sequence_length": LENGTHS}
    data = data_spec.open_dataset_function(t5_mesh.mesh_train_dataset_fn, 5, **arguments)
    message = "training data comes from the sample_fn of mixture in_turn, so no held-out"
    with pytest.raises(UserError, match=message):
        data_spec.open_split(data, "validation")
    by_rates = data_spec.data_spec("first", LENGTHS)
    with pytest.raises(UserError, match="examples that the sample_fn of mixture in_turn draws"):
        data_spec.split_spec(by_rates, "validation", "in_turn")
    gin.parse_config(["choice_losses.likelihood = 1.0"])
    with pytest.raises(UserError, match="the sample_fn of mixture in_turn draws the examples"):
        data_spec.open_dataset_function(t5_mesh.mesh_train_dataset_fn, 5, **arguments)


class OddRows(seqio.Task):
    """A task whose class drops examples after the cache."""

    def get_dataset(self, *args, **kwargs):
        return super().get_dataset(*args, **kwargs).take(1)


def test_task_with_own_get_dataset_is_read_by_seqio():
    source = seqio.FunctionDataSource(plain, splits=["train"])
    steps = [*STEPS[:1], seqio.preprocessors.append_eos, seqio.CacheDatasetPlaceholder()]
    add_task = functools.partial(
        seqio.TaskRegistry.add, source=source, preprocessors=steps, output_features=FEATURES
    )
    assert data_spec.is_all_cached(add_task("stock", metric_fns=[]))
    assert not data_spec.is_all_cached(add_task("odd", metric_fns=[], task_cls=OddRows))


@pytest.mark.parametrize("has_inputs", [True, False])
def test_optional_feature_that_examples_do_not_have_is_left_out(has_inputs):
    features = {
        name: seqio.Feature(seqio.ByteVocabulary(), add_eos=True, required=name == "targets")
        for name in LENGTHS
    }

    def keep(dataset):
        return dataset.map(lambda row: {n: row[n] for n in row if has_inputs or n == "targets"})

    add("optional", steps=[keep, *STEPS], features=features)
    data = data_spec.open_data(data_spec.data_spec("optional", LENGTHS, pack=False))
    assert [*data.lengths] == [n for n in LENGTHS if has_inputs or n == "targets"]
    batch, _ = next(data.batches(2))
    assert batch.keys() == data.lengths.keys()


def test_own_dataset_function_may_have_more_features():
    def make(**arguments):
        del arguments
        row = {"inputs": [3, 4], "targets": [5, 1], "n_words": 2, "id": "a"}
        return tf.data.Dataset.from_tensors(row).repeat()

    data = data_spec.open_dataset_function(make, 0, sequence_length=LENGTHS)
    assert data.features == ("inputs", "targets")
    assert {*next(data.batches(2))[0]} == {"inputs", "targets"}
