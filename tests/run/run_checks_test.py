"""The checks of a run that gin configures; the files of the runs are made by hand."""

import numpy as np
import pytest

from t0.config import parse
from t0.config.flags import from_values
from t0.errors import UserError
from t0.run import checks, data_checks
from t0.run.findings import After, Findings
from t0.run.parsed_run import ParsedRun, run_mode

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


# The mixture of these runs does not exist.
_OTHERS = (data_checks.check_mixtures, *checks.SLOW_CHECKS)


def parsed_run(**values):
    run = ParsedRun(from_values(values), run_mode())
    run.__dict__["vocabulary"] = Vocabulary()
    return run


def check(folder, *params, files=("dataset.gin",), without=_OTHERS, **values):
    """The notes of all checks but those of the mixture."""
    parse.parse(list(files), [*TRAIN, *params])
    findings = Findings()
    run = parsed_run(model_dir=str(folder), **values)
    every = [each if isinstance(each, After) else After((), each) for each in checks.CHECKS]
    kept = [each for each in every if each.check not in without]
    kept = [each for each in kept if data_checks.check_mixtures not in each.needs]
    kept.append(After((checks.check_checkpoint,), checks.check_checkpoint_vocabulary))
    findings.check_all(kept, run)
    return findings.notes()


def data_notes(**values):
    findings = Findings()
    findings.check_all((*checks.DATA_CHECKS, *checks.SLOW_CHECKS), parsed_run(**values))
    return findings.notes()


def test_of_new_model_has_no_notes(tmp_path):
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
        (["run.init_checkpoint = '/no/model.ckpt-3'"], "/no/model.ckpt-3 does not exist"),
    ],
)
def test_refuses_wrong_configuration(tmp_path, params, message):
    with pytest.raises(UserError, match=message):
        check(tmp_path, *params)


def test_sequence_length_may_be_one_number(tmp_path):
    assert check(tmp_path, "run.sequence_length = 8") == []


@pytest.mark.parametrize("name", ["run.init_checkpoint", "tpu_estimator_model_fn.init_checkpoint"])
def test_warm_start_checkpoint_must_fit_vocabulary(tmp_path, name):
    fits = save(tmp_path / "fits", 60)
    note = f"starting from {fits}, step 60"
    assert check(tmp_path / "new", f"{name} = '{fits}'") == [note]
    other = save(tmp_path / "other", 60, vocabulary=384)
    with pytest.raises(UserError, match="/v/my.model has 200 ids .256 padded.*trained with 384"):
        check(tmp_path / "new", f"{name} = '{other}'")


def test_training_refuses_newer_checkpoint_of_the_pytorch_engine(tmp_path):
    (tmp_path / "torch.ckpt-5").mkdir()
    (tmp_path / "torch.ckpt-5" / "resume.json").write_text("{}")
    refused = r"newer checkpoint of the PyTorch engine, torch\.ckpt-5.*Add --engine=torch"
    with pytest.raises(UserError, match=refused):
        check(tmp_path)
    save(tmp_path, 4)
    with pytest.raises(UserError, match=refused):
        check(tmp_path)
    assert check(tmp_path, save_spec="spec.json") == []
    save(tmp_path, 5)
    assert check(tmp_path) == []
    # Training would resume from the named checkpoint, which is older than that of PyTorch.
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-4"')
    with pytest.raises(UserError, match=refused):
        check(tmp_path)


def test_train_steps_count_from_pretraining(tmp_path):
    done = save(tmp_path / "done", 1_000)
    with pytest.raises(UserError, match="100 counts.*at step 1,000.*run.train_steps = 1100"):
        check(tmp_path / "new", f"run.init_checkpoint = '{done}'")


def test_resume_ignores_the_initial_checkpoint(tmp_path):
    save(tmp_path, 60)
    # Training goes on from the folder's own checkpoint, so the initial one is not read again.
    assert check(tmp_path, "run.init_checkpoint = '/no/model.ckpt-3'") == []
    save(tmp_path, 70, vocabulary=384)
    with pytest.raises(UserError, match=r"model.ckpt-70 was trained with 384"):
        check(tmp_path)


def evaluate(folder, *params, file="score_eval.gin"):
    return check(folder, *params, files=("dataset.gin", file))


def test_evaluation_checkpoint_must_fit_vocabulary(tmp_path):
    with pytest.raises(UserError, match="no checkpoint"):
        evaluate(tmp_path)
    save(tmp_path, 60)
    assert evaluate(tmp_path) == []
    save(tmp_path, 70, vocabulary=384)
    with pytest.raises(UserError, match="trained with 384"):
        evaluate(tmp_path)
    assert evaluate(tmp_path, "eval_checkpoint_step = 60") == []


def test_reports_the_closest_checkpoint(tmp_path):
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


def test_reports_evaluation_that_waits_for_checkpoints(tmp_path):
    (note,) = evaluate(tmp_path, "run.eval_checkpoint_step = None", file="eval.gin")
    assert "waiting for checkpoints" in note
    save(tmp_path, 60, vocabulary=384)
    with pytest.raises(UserError, match="trained with 384"):
        evaluate(tmp_path, "run.eval_checkpoint_step = None", file="eval.gin")


def test_export_reports_the_closest_checkpoint(tmp_path):
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
def test_of_tsv_file_run_reads_no_mixture(absent_teas, name):
    from t0.compat import t5_mesh

    parse.parse(["dataset.gin"], [*TRAIN, f"MIXTURE_NAME = {name}", *TSV])
    assert data_notes() == []
    vocabulary = t5_mesh.get_vocabulary()
    own = isinstance(vocabulary, tuple) and vocabulary[0].vocab_size == 259
    assert own == (name == "'absent'")


@pytest.mark.parametrize("name", ["''", "None"])
@pytest.mark.parametrize(("file", "mode"), [("dataset.gin", "train"), ("eval.gin", "eval")])
def test_missing_mixture_name_is_an_error(name, file, mode):
    parse.parse(["dataset.gin", file], [*TRAIN, f"MIXTURE_NAME = {name}", f"run.mode = '{mode}'"])
    with pytest.raises(UserError, match=r"there is no data to read. Set it with --gin.MIXTURE"):
        data_notes()


def test_absent_mixture_data_error_is_one_line(absent_teas):
    parse.parse(["dataset.gin"], [*TRAIN, "MIXTURE_NAME = 'absent'"])
    with pytest.raises(UserError, match=r"glue/mrpc:2.0.0 is not in /nowhere/glue/mrpc/2.0.0"):
        data_notes()


def test_all_faults_are_reported_together(tmp_path):
    done = save(tmp_path / "done", 1_000)
    wrong = [f"run.init_checkpoint = '{done}'", "run.batch_size = ('tokens_per_batch', 9)"]
    with pytest.raises(UserError) as caught:
        check(tmp_path / "new", *wrong, "run.keep_checkpoint_max = -1")
    first, *faults = str(caught.value).splitlines()
    assert first == "3 faults:"
    settings, batch, steps = faults
    assert settings.startswith("  - run.keep_checkpoint_max is -1")
    assert "9 is not a multiple of 8" in batch
    assert "already at step 1,000" in steps


def test_check_whose_input_is_faulty_is_skipped(tmp_path):
    # Without lengths, nothing is said about a batch in tokens.
    params = ["run.sequence_length = None", "run.batch_size = ('tokens_per_batch', 9)"]
    with pytest.raises(UserError, match=r"\Arun.sequence_length must be set in mode 'train'"):
        check(tmp_path, *params)


def test_checks_that_need_a_skipped_check_are_skipped():
    called = []

    def fails(run):
        raise UserError("wrong")

    def skipped(run):
        called.append(run)

    def last(run):
        called.append(run)

    findings = Findings()
    findings.check_all([fails, After((fails,), skipped), After((skipped,), last)], "run")
    assert called == []
    with pytest.raises(UserError, match=r"\Awrong\Z"):
        findings.notes()


def test_every_check_comes_after_those_that_it_needs():
    seen = set()
    for each in checks.CHECKS:
        needs, check = each if isinstance(each, After) else ((), each)
        assert {*needs} <= seen, check.__name__
        seen.add(check)


def test_tracker_without_its_package_is_reported_before_training(tmp_path):
    parameter = "train_loop.report_to = 'wandb'"
    with pytest.raises(UserError, match="the package wandb is not installed: pip install wandb"):
        check(tmp_path, parameter)
    with pytest.raises(UserError, match="expected 'trackio' or 'wandb' or 'mlflow'"):
        check(tmp_path, "train_loop.report_to = 'tensorboard'")
