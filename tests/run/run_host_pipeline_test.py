"""The data of a run as a TPU's hosts read it: what their TensorFlow servers would have to have.

The slow test reads it by such a server: a process that is a `tf.distribute.Server` and nothing
else, over gRPC.
"""

import contextlib
import socket
import subprocess
import sys
import types

import cached_letters
import numpy as np
import pytest
import seqio
import tensorflow.compat.v1 as tf

from t0.config import parse
from t0.errors import UserError
from t0.feeding import host_graphs
from t0.run import host_pipeline, preflight
from t0.testing import train_vocabulary
from t0.training import estimator

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


def input_function(folder, mode, *params):
    """The input function of a configured run, and gin as it was left."""
    file, more = MODES[mode]
    files = ["dataset.gin", *([file] if file else [])]
    more = [*more, f"input_filename = '{folder}/inputs.txt'"] if mode == "infer" else more
    parse.parse(files, [*SETTINGS, *more, *params])
    return host_pipeline.input_function(mode, arguments(folder))


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


def test_host_pipeline_with_python_step_is_refused(tasks):
    input_function(tasks, "train", "MIXTURE_NAME = 'late'")
    with pytest.raises(UserError, match="cannot run a Python function .*before the cache"):
        host_pipeline.check("train", arguments(tasks))
    # Nothing is left replaced.
    host_pipeline.check("export_infer", arguments(tasks))


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
    settings = {"module_import": ["my.tasks"]}
    preflight.check_mixtures(settings)
    with pytest.raises(UserError) as caught:
        preflight.check_mixtures(settings, hosts_read=True)
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


class _Flags(dict):
    """The flags that `dry_run_line` reads."""

    def __init__(self, **values):
        names = ("tpu", "tpu_job_name", "gcp_project", "tpu_zone", "model_dir")
        super().__init__({name: types.SimpleNamespace(value=values.get(name)) for name in names})
        self.additional_task_cache_dirs = values["caches"]

    def __getattr__(self, name):
        return self[name].value


@pytest.mark.parametrize("task", ["letters", "late"])
def test_host_pipeline_dry_run_reports_if_hosts_can_read_data(tasks, monkeypatch, task):
    input_function(tasks, "train", f"MIXTURE_NAME = '{task}'")
    monkeypatch.setattr(host_pipeline.t5_mesh, "get_vocabulary", Letters)
    flags = _Flags(tpu="my-tpu", model_dir=str(tasks / "model"), caches=[str(tasks)])
    if task == "letters":
        assert "hosts can read the data of mode 'train'" in host_pipeline.dry_run_line(flags)
    else:
        found = host_pipeline.dry_run_line(flags)
        assert "the run would fail: " in found
        assert "cannot run a Python function" in found
    assert not (tasks / "model").exists()


def test_host_pipeline_check_is_not_needed_for_local_tpu(tasks):
    input_function(tasks, "train")
    flags = _Flags(tpu="local", caches=[])
    assert "nothing to check" in host_pipeline.dry_run_line(flags)
