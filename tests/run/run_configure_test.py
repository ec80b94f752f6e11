"""What a run changes in its process is undone."""

import importlib

import pytest
import tensorflow as tf
from absl import flags as absl_flags
from tensorflow.python.eager import context

from t0.config import flags
from t0.config.bindings import bound
from t0.config.flag_table import LIBRARY_FLAGS
from t0.config.starter_settings import StarterSettings
from t0.errors import UserError
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


@pytest.fixture
def lengths_of(tmp_path, settings):
    """Returns the lengths of a run whose train.gin has these lines and whose folder has 80, 16."""
    (tmp_path / "starter.json").write_text(
        StarterSettings("", "ours", None, {"inputs": 80, "targets": 16}).text()
    )

    def read(*lines, file="train.gin", words=()):
        (tmp_path / file).write_text("\n".join(["include 'runs/pretrain.gin'", *lines]))
        run = ["t5_mesh_transformer", f"--gin_file={tmp_path / file}", *words]
        configure.parse_gin(flags.parse(run))
        return bound("%TASK_FEATURE_LENGTHS")

    return read


OTHER = "TASK_FEATURE_LENGTHS = {'inputs': 48, 'targets': 16}"


def test_train_gin_reads_the_lengths_of_starter_json(lengths_of, tmp_path):
    assert lengths_of() == {"inputs": 80, "targets": 16}
    assert lengths_of(words=["--gin_param=TASK_FEATURE_LENGTHS = {'inputs': 9}"]) == {"inputs": 9}
    assert lengths_of(OTHER, file="mine.gin") == {"inputs": 48, "targets": 16}


def test_train_gin_of_an_earlier_version_must_agree_with_starter_json(lengths_of):
    assert lengths_of(OTHER.replace("48", "80")) == {"inputs": 80, "targets": 16}
    with pytest.raises(UserError, match=r"train.gin has .*48.*starter.json has .*80.*: remove"):
        lengths_of(OTHER)


def test_gin_files_in_other_folders_keep_their_lengths(lengths_of, tmp_path):
    (tmp_path / "inner").mkdir()
    assert lengths_of(file="inner/x.gin") == {"inputs": 512, "targets": 114}
