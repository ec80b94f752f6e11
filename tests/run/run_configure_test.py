"""What a run changes in its process is undone."""

import importlib

import pytest
import tensorflow as tf
from absl import flags as absl_flags
from tensorflow.python.eager import context

from t0.config import flags
from t0.config.flag_table import LIBRARY_FLAGS
from t0.run import configure


@pytest.fixture
def settings(monkeypatch):
    # `reset` removes these two, which the next test may need.
    monkeypatch.setenv("T0_DATA_DIR", "data")
    monkeypatch.setenv("T0_VOCAB", "vocabulary")


def test_configure_reset_clears_the_global_seed(settings):
    tf.random.set_seed(12345)
    configure.reset()
    assert context.global_seed() is None


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("--fold_xy", True),
        ("--nohbm_oom_exit", False),
        ("--delta_threshold=0.25", 0.25),
        ("--tfhub_model_load_format=COMPRESSED", "COMPRESSED"),
        ("--tfds_debug_list_dir", True),
    ],
)
def test_library_flags_are_set_and_reset(settings, word, value):
    name = word.removeprefix("--no").lstrip("-").partition("=")[0]
    flags.set_library_flags(flags.parse(["t5_mesh_transformer", word]))
    assert absl_flags.FLAGS[name].value == value
    configure.reset()
    assert absl_flags.FLAGS[name].value == absl_flags.FLAGS[name].default != value


def test_library_flags_table_has_defaults_and_choices():
    given = flags.parse(["t5_mesh_transformer", "--nofold_xy", "--tfhub_cache_dir=/modules"])
    for name, module in LIBRARY_FLAGS.items():
        importlib.import_module(module)
        theirs, ours = absl_flags.FLAGS[name], given[name]
        assert theirs.default == ours.default, name
        assert theirs.flag_type() == ours.flag_type(), name
        assert getattr(theirs.parser, "enum_values", 0) == getattr(ours.parser, "enum_values", 0)
