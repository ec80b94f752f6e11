"""The data of a run as a TPU's hosts read it: what their TensorFlow servers would have to have.

The slow test reads it by such a server: a process that is a `tf.distribute.Server` and nothing
else, over gRPC.
"""

import contextlib
import socket
import subprocess
import sys

import gin
import numpy as np
import pytest
import seqio
import tensorflow.compat.v1 as tf

from t0 import compat
from t0.compat import mesh_utils
from t0.config import parse
from t0.config.flags import from_values
from t0.errors import UserError
from t0.feeding import host_graphs
from t0.run import checks, data_checks, host_checks
from t0.run.findings import Findings
from t0.run.parsed_run import ParsedRun
from t0.testing import train_vocabulary
from t0.training import estimator
from tests.helpers import cached_letters

LENGTHS = {"inputs": 16, "targets": 8}
SETTINGS = [
    f"run.sequence_length = {LENGTHS}",
    "run.batch_size = 4",
    "run.train_steps = 100",
    "run.mesh_shape = ''",
    "run.layout_rules = ''",
    "MIXTURE_NAME = 'letters'",
    "mesh_train_dataset_fn.use_cached = True",
    "mesh_eval_dataset_fn.use_cached = True",
]
# Mode -> its gin file, and what else it needs.
MODES = {
    "train": (None, []),
    "eval": ("eval.gin", ["run.dataset_split = 'train'"]),
    "score_eval": ("score_eval.gin", ["run.dataset_split = 'train'"]),
    "perplexity_eval": ("perplexity_eval.gin", ["run.dataset_split = 'train'"]),
    "infer": ("infer.gin", ["output_filename = 'out'", "infer_checkpoint_step = 0"]),
    "score_from_dataset": (
        "score_from_task.gin",
        ["run.dataset_split = 'train'", "scores_filename = 'out'"],
    ),
}


class Letters:
    """Stands for a vocabulary: infer encodes its lines by it."""

    vocab_size = 200

    def encode(self, text):
        return [ord(letter) for letter in text]


def by_python(dataset):
    def twice(x):
        return np.concatenate([x, x])

    def change(row):
        doubled = tf.numpy_function(twice, [row["inputs"]], tf.int32)
        return {**row, "inputs": tf.ensure_shape(doubled, [None])}

    return dataset.map(change)


@pytest.fixture
def tasks(tmp_path, clean_registries, monkeypatch):
    """Tasks over one cache: "letters", and "late", with a Python step after the cache."""
    before = list(seqio.get_global_cache_dirs())
    seqio.set_global_cache_dirs([str(tmp_path)])
    later = {"letters": [], "late": [by_python]}
    for name, steps in later.items():
        cached_letters.write_cache(tmp_path / name)
        cached_letters.add_task(name, *steps, metric_fns=[lambda targets, predictions: {}])
    (tmp_path / "lines.txt").write_text("rain in Oslo\n")
    model = train_vocabulary(tmp_path / "tiny.model", ["rain in Oslo", "snow in Lima"] * 40)
    vocabulary = seqio.SentencePieceVocabulary(str(model))
    pieces = {name: seqio.Feature(vocabulary) for name in ("inputs", "targets")}
    seqio.TaskRegistry.add(
        "pieces",
        seqio.TextLineDataSource({"train": str(tmp_path / "lines.txt")}),
        preprocessors=[
            lambda dataset: dataset.map(lambda line: {"inputs": line, "targets": line}),
            seqio.preprocessors.tokenize,
        ],
        output_features=pieces,
        metric_fns=[],
    )
    (tmp_path / "inputs.txt").write_text("ab\ncde\n")
    yield tmp_path
    seqio.set_global_cache_dirs(before)


class Estimator(host_checks._CapturingEstimator):
    """Captures the input function of every mode."""

    evaluate = predict = host_checks._CapturingEstimator.train


def capture_evaluation(estimator, vocabulary, sequence_length, batch_size, *args, **kwargs):
    """Stands for Mesh TensorFlow's eval_model, which first reads all data and writes files."""
    split, _, dataset_fn = args[:3]
    datasets = dataset_fn(
        sequence_length=sequence_length, vocabulary=vocabulary, dataset_split=split
    )
    raise host_checks._InputFunctionFound(
        mesh_utils._get_combined_dataset_input_fn(datasets, batch_size, sequence_length)
    )


def configure(folder, mode, *params):
    gin.clear_config()
    file, more = MODES[mode]
    files = ["dataset.gin", *([file] if file else [])]
    more = [*more, f"input_filename = '{folder}/inputs.txt'"] if mode == "infer" else more
    parse.parse(files, [*SETTINGS, *more, *params])


def input_function(folder, mode, *params):
    """The input function of a configured run, and gin as it was left."""
    configure(folder, mode, *params)
    if mode == "train":
        return host_checks.training_input(arguments(folder))
    with (
        compat.replaced("mesh_utils.get_estimator", Estimator),
        compat.replaced("mesh_utils.eval_model", capture_evaluation),
        compat.replaced("mesh_utils.get_checkpoint_iterator", lambda *a, **k: ["model.ckpt-0"]),
        pytest.raises(host_checks._InputFunctionFound) as found,
    ):
        mesh_utils.run(**{**arguments(folder), "tpu": None})
    return found.value.input_fn


def arguments(folder):
    """What the command passes to Mesh TensorFlow's `run`."""
    places = dict.fromkeys(("tpu_job_name", "gcp_project", "tpu_zone"))
    given = {"model_dir": str(folder / "model"), "vocabulary": Letters(), "tpu": "my-tpu"}
    return {**given, **places, "train_model_fn": estimator.train_model}


@pytest.mark.parametrize("mode", MODES)
def test_host_pipeline_of_cached_task_needs_only_tensorflow(tasks, mode):
    found = input_function(tasks, mode)
    graph = host_graphs.pipeline_graph(found)
    assert host_graphs.foreign_operations(graph) == {}
    assert graph.get_operations()
    assert not (tasks / "model").exists()


@pytest.mark.parametrize("mode", ["train", "eval", "perplexity_eval"])
def test_host_pipeline_python_step_after_cache_is_found(tasks, mode):
    found = input_function(tasks, mode, "MIXTURE_NAME = 'late'")
    assert list(host_graphs.foreign_operations(host_graphs.pipeline_graph(found))) == ["PyFunc"]


@pytest.mark.parametrize("mode", ["train", "eval", "score_from_dataset"])
def test_host_pipeline_with_python_step_is_refused(tasks, mode):
    configure(tasks, mode)
    host_checks.check_hosts(mode, arguments(tasks))
    configure(tasks, mode, "MIXTURE_NAME = 'late'")
    with pytest.raises(UserError, match="cannot run a Python function .*before the cache"):
        host_checks.check_hosts(mode, arguments(tasks))
    # Nothing is left replaced.
    host_checks.check_hosts("export_infer", arguments(tasks))


def test_host_pipeline_of_finished_run_has_no_input_function(tasks, monkeypatch):
    monkeypatch.setattr("t0.training.estimator.is_finished", lambda *_: True)
    assert input_function(tasks, "train") is None


@pytest.mark.parametrize(
    ("name", "needs"), [("letters", "a Python function"), ("pieces", "the operation Sentencepiece")]
)
def test_host_pipeline_of_live_task_names_caching_command(tasks, name, needs):
    parse.parse(
        ["dataset.gin"],
        [*SETTINGS, f"MIXTURE_NAME = '{name}'", "mesh_train_dataset_fn.use_cached = False"],
    )
    run, findings = ParsedRun(from_values({"module_import": ["my.tasks"]}), "train"), Findings()
    findings.check_all(checks.DATA_CHECKS, run)
    findings.notes()
    with pytest.raises(UserError) as caught:
        data_checks.check_live_tasks(run)
    message = str(caught.value)
    assert f"task {name} needs {needs}" in message
    command = (
        f"seqio_cache_tasks --tasks={name} --output_cache_dir={tasks} --module_import=my.tasks"
    )
    assert f"\n  {command}\n" in message
    assert "--gin_param='mesh_train_dataset_fn.use_cached = True'" in message


@contextlib.contextmanager
def bare_server():
    """A TensorFlow server in a process of its own, as a TPU's host has one; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = (
        "import sys, tensorflow as tf\n"
        f"server = tf.distribute.Server({{'worker': ['127.0.0.1:{port}']}}, 'worker', 0)\n"
        "assert not {'tensorflow_text', 'seqio', 't0'} & set(sys.modules)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout.readline() == "ready\n"
        yield f"grpc://127.0.0.1:{port}"
        server.stdin.close()


def batches(input_fn, address="", count=1):
    """The first batches of an input function, read by a server or by this process."""
    device = "/job:worker/task:0/device:CPU:0" if address else None
    with tf.Graph().as_default(), tf.device(device):
        dataset = input_fn({})
        iterator = tf.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
        with tf.Session(address) as session:
            session.run(iterator.initializer)
            return [session.run(batch) for _ in range(count)]


@pytest.mark.slow
def test_host_pipeline_is_equal_on_a_plain_tensorflow_server(tasks):
    fixed = ["mesh_train_dataset_fn.shuffle = False"]
    with bare_server() as address:
        for mode in MODES:
            found = input_function(tasks, mode, *(fixed if mode == "train" else []))
            count = 1 if mode == "infer" else 2
            here, there = batches(found, count=count), batches(found, address, count)
            for one, other in zip(here, there, strict=True):
                assert one.keys() == other.keys()
                for name in one:
                    np.testing.assert_array_equal(one[name], other[name], err_msg=f"{mode} {name}")
            assert here[0]["inputs"].shape == (4, LENGTHS["inputs"]), mode
            assert np.any(here[0]["inputs"])
        # What the check refuses is what the server cannot do.
        late = input_function(tasks, "train", *fixed, "MIXTURE_NAME = 'late'")
        assert batches(late)
        with pytest.raises(tf.errors.OpError):
            batches(late, address)
