"""What is said before a run of the configuration that gin holds; its files are made by hand."""

import numpy as np
import pytest

from t0.config import parse
from t0.errors import UserError
from t0.run import preflight

import tensorflow.compat.v1 as tf  # isort: skip (after t0, which quietens it)

TRAIN = ["run.sequence_length = {'inputs': 8, 'targets': 8}", "run.batch_size = 2"]
TRAIN += ["MIXTURE_NAME = 'any'", "run.train_steps = 100"]


class Vocabulary:
    vocab_size = 200
    sentencepiece_model_file = "/v/my.model"


def save(folder, step, vocabulary=256):
    folder.mkdir(exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.Variable(np.int64(step), name="global_step", use_resource=False)
        tf.Variable(np.zeros([vocabulary, 2]), name="shared/embedding", use_resource=False)
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(folder / "model.ckpt"), global_step=step)


def check(folder, *params, files=("dataset.gin",)):
    parse.parse(list(files), [*TRAIN, *params])
    return preflight.check_run(str(folder), vocabulary=Vocabulary(), mesh_shape="")


def test_preflight_of_new_model_has_no_notes(tmp_path):
    assert check(tmp_path) == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (["run.mode = 'trian'"], "unknown mode 'trian'. Did you mean 'train'"),
        (["run.dataset_split = 'validation'"], "training reads the split 'train'"),
        (["run.sequence_length = None"], "run.sequence_length must be set in mode 'train'"),
        (["run.batch_size = ('tokens_per_batch', 9)"], "9 is not a multiple of 8"),
        (["run.train_dataset_fn = None"], "train_dataset_fn is not set.*--gin_file=dataset.gin"),
        (["run.mode = 'eval'"], "eval_dataset_fn is not set.*--gin_file=eval.gin"),
        (
            ["run.keep_checkpoint_max = -1"],
            "run.keep_checkpoint_max is -1; expected .*0 to keep all",
        ),
        (["run.keep_checkpoint_max = '2'"], "run.keep_checkpoint_max is '2'; expected the number"),
        (["run.init_checkpoint = '/no/model.ckpt-3'"], "/no/model.ckpt-3 cannot be read"),
    ],
)
def test_preflight_refuses_wrong_configuration(tmp_path, params, message):
    with pytest.raises(UserError, match=message):
        check(tmp_path, *params)


def test_preflight_sequence_length_may_be_one_number(tmp_path):
    assert check(tmp_path, "run.sequence_length = 8") == []


@pytest.mark.parametrize("name", ["run.init_checkpoint", "tpu_estimator_model_fn.init_checkpoint"])
def test_preflight_warm_start_checkpoint_must_fit_vocabulary(tmp_path, name):
    fits = save(tmp_path / "fits", 60)
    note = f"starting from {fits}, step 60"
    assert check(tmp_path / "new", f"{name} = '{fits}'") == [note]
    other = save(tmp_path / "other", 60, vocabulary=384)
    with pytest.raises(UserError, match="/v/my.model has 200 ids .256 padded.*trained with 384"):
        check(tmp_path / "new", f"{name} = '{other}'")


def test_preflight_training_refuses_newer_checkpoint_of_the_pytorch_engine(tmp_path):
    (tmp_path / "torch.ckpt-5").mkdir()
    (tmp_path / "torch.ckpt-5" / "resume.json").write_text("{}")
    refused = r"newer checkpoint of the PyTorch engine, torch\.ckpt-5.*Add --engine=torch"
    with pytest.raises(UserError, match=refused):
        check(tmp_path)
    save(tmp_path, 4)
    with pytest.raises(UserError, match=refused):
        check(tmp_path)
    options = {"vocabulary": Vocabulary(), "mesh_shape": ""}
    assert preflight.check_run(str(tmp_path), any_format=True, **options) == []
    save(tmp_path, 5)
    assert check(tmp_path) == []
    # Training would resume from the named checkpoint, which is older than that of PyTorch.
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-4"')
    with pytest.raises(UserError, match=refused):
        check(tmp_path)


def test_preflight_train_steps_count_from_pretraining(tmp_path):
    done = save(tmp_path / "done", 1_000)
    with pytest.raises(UserError, match="100 counts.*at step 1,000.*run.train_steps = 1100"):
        check(tmp_path / "new", f"run.init_checkpoint = '{done}'")


def test_preflight_resume_ignores_the_initial_checkpoint(tmp_path):
    save(tmp_path, 60)
    # Training goes on from the folder's own checkpoint, so the initial one is not read again.
    assert check(tmp_path, "run.init_checkpoint = '/no/model.ckpt-3'") == []
    save(tmp_path, 70, vocabulary=384)
    with pytest.raises(UserError, match=r"model.ckpt-70 was trained with 384"):
        check(tmp_path)


def evaluate(folder, *params, file="score_eval.gin"):
    return check(folder, *params, files=("dataset.gin", file))


def test_preflight_evaluation_checkpoint_must_fit_vocabulary(tmp_path):
    with pytest.raises(UserError, match="no checkpoint"):
        evaluate(tmp_path)
    save(tmp_path, 60)
    assert evaluate(tmp_path) == []
    save(tmp_path, 70, vocabulary=384)
    with pytest.raises(UserError, match="trained with 384"):
        evaluate(tmp_path)
    assert evaluate(tmp_path, "eval_checkpoint_step = 60") == []


def test_preflight_reports_the_closest_checkpoint(tmp_path):
    save(tmp_path, 60)
    assert evaluate(tmp_path, "eval_checkpoint_step = 1112200") == [
        "no checkpoint of step 1,112,200: using the closest, 60"
    ]
    assert evaluate(tmp_path, "eval_checkpoint_step = -1") == []
    save(tmp_path, 80)
    assert evaluate(tmp_path, "eval_checkpoint_step = [60, 81, 90]") == [
        "no checkpoint of step 81: using the closest, 80",
        "no checkpoint of step 90: using the closest, 80",
    ]


def test_preflight_reports_evaluation_that_waits_for_checkpoints(tmp_path):
    (note,) = evaluate(tmp_path, "run.eval_checkpoint_step = None", file="eval.gin")
    assert "waiting for checkpoints" in note
    save(tmp_path, 60, vocabulary=384)
    with pytest.raises(UserError, match="trained with 384"):
        evaluate(tmp_path, "run.eval_checkpoint_step = None", file="eval.gin")


def test_preflight_export_reports_the_closest_checkpoint(tmp_path):
    save(tmp_path, 60)
    assert check(tmp_path, "run.mode = 'export'", "run.export_checkpoint_step = 61") == [
        "no checkpoint of step 61: using the closest, 60"
    ]


TSV = [
    "run.train_dataset_fn = @t5.models.mesh_transformer.tsv_dataset_fn",
    "tsv_dataset_fn.filename = 'teas.tsv'",
]


@pytest.fixture
def absent_teas(clean_registries):
    """A task whose data is not here, as those of TensorFlow Datasets are without it."""
    from t0.compat import seqio

    source = seqio.TfdsDataSource("glue/mrpc:2.0.0", tfds_data_dir="/nowhere")
    features = {n: seqio.Feature(seqio.ByteVocabulary()) for n in ("inputs", "targets")}
    seqio.TaskRegistry.add("absent", source=source, preprocessors=[], output_features=features)


@pytest.mark.parametrize("name", ["''", "None", "'absent'"])
def test_preflight_of_tsv_file_run_reads_no_mixture(absent_teas, name):
    from t0.compat import t5_mesh

    parse.parse(["dataset.gin"], [*TRAIN, f"MIXTURE_NAME = {name}", *TSV])
    assert preflight.check_mixtures({}) == []
    vocabulary = t5_mesh.get_vocabulary()
    own = isinstance(vocabulary, tuple) and vocabulary[0].vocab_size == 259
    assert own == (name == "'absent'")


@pytest.mark.parametrize("name", ["''", "None"])
@pytest.mark.parametrize(("file", "mode"), [("dataset.gin", "train"), ("eval.gin", "eval")])
def test_preflight_missing_mixture_name_is_an_error(name, file, mode):
    parse.parse(["dataset.gin", file], [*TRAIN, f"MIXTURE_NAME = {name}", f"run.mode = '{mode}'"])
    with pytest.raises(UserError, match=r"there is no data to read. Set it with --gin.MIXTURE"):
        preflight.check_mixtures({})


def test_preflight_absent_mixture_data_error_is_one_line(absent_teas):
    parse.parse(["dataset.gin"], [*TRAIN, "MIXTURE_NAME = 'absent'"])
    with pytest.raises(UserError, match=r"glue/mrpc:2.0.0 is not in /nowhere/glue/mrpc/2.0.0"):
        preflight.check_mixtures({})
