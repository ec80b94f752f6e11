"""T5X's gin statements: each one sets our parameter, is skipped with a reason, or is an error."""

import gin
import pytest

from t0.config import gin_files, parse
from t0.config.bindings import bound
from t0.config.t5x_names import T5X, ours_for
from t0.errors import UserError
from tests.helpers.cases import as_subtests

LABEL_SMOOTHING = "decoder/Unitransformer.label_smoothing"
LOSS_AVERAGE = "t0.train_loop.loss_average"
LOSS_DENOMINATOR = "decoder/Unitransformer.loss_denominator"
# Run file, T5X's statement, our parameter, its value.
TRANSLATED = [
    ("pretrain", "train/utils.DatasetConfig.seed = 42", "mesh_train_dataset_fn.seed", 42),
    ("pretrain", "train/DatasetConfig.batch_size = 8", "run.batch_size", 8),
    ("pretrain", "train/utils.DatasetConfig.pack = False", "mesh_train_dataset_fn.pack", False),
    ("pretrain", "train/utils.DatasetConfig.split = 'test'", "run.dataset_split", "test"),
    ("pretrain", "train_script.train.random_seed = 42", "t0.train_loop.seed", 42),
    ("pretrain", "RANDOM_SEED = None", "t0.train_loop.seed", 0),
    ("pretrain", "train_script.train.eval_period = 5", "t0.train_loop.validate_every_steps", 5),
    ("pretrain", "utils.SaveCheckpointConfig.period = 7", "run.save_checkpoints_steps", 7),
    ("pretrain", "CHECKPOINT_PERIOD = 7", "run.save_checkpoints_steps", 7),
    ("pretrain", "utils.SaveCheckpointConfig.keep = 2", "run.keep_checkpoint_max", 2),
    ("pretrain", "LABEL_SMOOTHING = 0.1", LABEL_SMOOTHING, 0.1),
    ("pretrain", "models.EncoderDecoderModel.label_smoothing = 0.1", LABEL_SMOOTHING, 0.1),
    ("finetune", "Z_LOSS = 0.5", "decoder/Unitransformer.z_loss", 0.5),
    ("finetune", "LOSS_NORMALIZING_FACTOR = 233472", LOSS_DENOMINATOR, 233472),
    ("finetune", "LOSS_NORMALIZING_FACTOR = 'NUM_TOTAL_TARGET_TOKENS'", LOSS_DENOMINATOR, None),
    ("finetune", "LOSS_NORMALIZING_FACTOR = 'AVERAGE_PER_SEQUENCE'", LOSS_AVERAGE, "sequences"),
    ("finetune", "LOSS_NORMALIZING_FACTOR = 'NUM_REAL_TARGET_TOKENS'", LOSS_AVERAGE, "tokens"),
    (
        "finetune",
        "models.EncoderDecoderModel.loss_normalizing_factor = 'AVERAGE_PER_SEQUENCE'",
        LOSS_AVERAGE,
        "sequences",
    ),
    (
        "finetune",
        "train_eval/utils.DatasetConfig.mixture_or_task_name = 'held_out'",
        "t0.train_loop.validation_mixture",
        "held_out",
    ),
    ("finetune", "DROPOUT_RATE = 0.3", "DenseReluDense.dropout_rate", 0.3),
    ("pretrain", "PJIT_PARTITIONS = 8", "tpu_mesh_shape.model_parallelism", 8),
    (
        "pretrain",
        "partitioning.ModelBasedPjitPartitioner.num_partitions = 8",
        "tpu_mesh_shape.model_parallelism",
        8,
    ),
    ("eval", "utils.DatasetConfig.split = 'train'", "run.dataset_split", "train"),
    ("eval", "JSON_WRITE_N_RESULTS = 3", "t0.evaluation.written_predictions", 3),
    ("eval", "seqio.JSONLogger.write_n_results = 3", "t0.evaluation.written_predictions", 3),
    ("eval", "EVALUATOR_NUM_EXAMPLES = 3", "t0.evaluation.examples", 3),
    ("infer", "utils.DatasetConfig.split = 'validation'", "t0.infer.split", "validation"),
    ("infer", "utils.DatasetConfig.batch_size = 3", "t0.infer.batch_size", 3),
    (
        "infer",
        "models.EncoderDecoderModel.predict_batch_with_aux.num_decodes = 4",
        "t0.infer.beam_size",
        4,
    ),
    ("pretrain", "network.T5Config.emb_dim = 64", "Unitransformer.d_model", 64),
    (
        "pretrain",
        "network.T5Config.mlp_activations = ('gelu', 'linear')",
        "DenseReluDense.activation",
        ["gelu", "linear"],
    ),
    (
        "finetune",
        "utils.create_learning_rate_scheduler.base_learning_rate = 0.5",
        "constant_learning_rate.learning_rate",
        0.5,
    ),
    (
        "pretrain",
        "utils.create_learning_rate_scheduler.warmup_steps = 9",
        "learning_rate_schedule_noam.warmup_steps",
        9,
    ),
]


@pytest.mark.parametrize(("run", "statement", "ours", "value"), TRANSLATED)
def test_t5x_statement_sets_our_parameter(run, statement, ours, value):
    parsed = parse.parse([f"runs/{run}.gin"], [statement])
    assert bound(ours, evaluate=False) in (value, ("sequences_per_batch", value))
    assert parsed.unread_macros == ()
    assert parsed.skipped == {}


def test_t5x_learning_rate_factors_choose_the_schedule():
    factors = "utils.create_learning_rate_scheduler.factors"
    for words, schedule in (
        ("constant * rsqrt_decay", "learning_rate_schedule_noam"),
        ("constant", "constant_learning_rate"),
    ):
        parse.parse([], [f"{factors} = {words!r}"])
        assert schedule in repr(bound("run.learning_rate_schedule", evaluate=False))
    with pytest.raises(UserError, match="run.learning_rate_schedule, such as"):
        parse.parse([], [f"{factors} = 'constant * cosine_decay'"])


@pytest.mark.parametrize(
    ("run", "statements", "rate", "warmup"),
    [
        ("finetune", [], 0.001, 1000),
        ("finetune", ["base_learning_rate = 0.5", "warmup_steps = 9"], 0.5, 9),
        ("pretrain", [], None, None),  # the defaults of the schedule: 1.0 and 10,000
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_t5x_rsqrt_schedule_has_the_rate_of_the_run_file(run, statements, rate, warmup, first):
    factors = ["factors = 'constant * rsqrt_decay'"]
    statements = [*factors, *statements] if first else [*statements, *factors]
    scheduler = "utils.create_learning_rate_scheduler"
    parse.parse([f"runs/{run}.gin"], [f"{scheduler}.{text}" for text in statements])
    assert bound("learning_rate_schedule_noam.multiplier") == rate
    assert bound("learning_rate_schedule_noam.warmup_steps") == warmup


USER_FILE = """
from __gin__ import dynamic_registration
import __main__ as train_script
import seqio
from t5x import partitioning
from t5x import utils

include 'clone/t5x/configs/runs/finetune.gin'
include 't5x/examples/t5/t5_1_1/small.gin'

MIXTURE_OR_TASK_NAME = "mine"
MIXTURE_OR_TASK_MODULE = "t5.data.mixtures"
TASK_FEATURE_LENGTHS = {"inputs": 8, "targets": 4}
TRAIN_STEPS = 1_000
DROPOUT_RATE = 0.2
INITIAL_CHECKPOINT_PATH = "/m/model.ckpt-1"
VOCABULARY = @seqio.SentencePieceVocabulary()
seqio.SentencePieceVocabulary.sentencepiece_model_file = "own.model"

train_script.train:
  train_dataset_cfg = @train/utils.DatasetConfig()
  model_dir = %MODEL_DIR
  random_seed = 5  # a comment
train/utils.DatasetConfig:
  mixture_or_task_name = %MIXTURE_OR_TASK_NAME
  batch_size = 64
  seed = None
train_eval/utils.DatasetConfig:
  batch_size = 32
"""


def test_t5x_file_of_a_user_is_translated_in_order(tmp_path, capsys):
    path = tmp_path / "user.gin"
    path.write_text(USER_FILE)
    parsed = parse.parse([str(path)], ["MODEL_DIR = '/m'"])
    parse.check_required(parsed)
    assert bound("run.batch_size", evaluate=False) == ("sequences_per_batch", 64)
    assert bound("%MIXTURE_NAME", evaluate=False) == "mine"
    assert bound("t0.train_loop.seed", evaluate=False) == 5
    assert bound("%num_layers", evaluate=False) == 8
    # The model file comes after the run file, and sets the dropout rate to 0.
    assert bound("sublayer_dropout.dropout_rate", evaluate=False) == 0.2
    assert parse.origins(parsed)["BATCH_SIZE", "gin.macro", "value"] == f"{path}:26"
    parse.print_findings(parsed)
    assert capsys.readouterr().err.splitlines() == [
        "gin: skipped T5X's 'VOCABULARY' (the vocabulary comes from the tasks; see --vocab)",
        "gin: skipped T5X's 'seqio.SentencePieceVocabulary.sentencepiece_model_file' "
        "(the vocabulary comes from the tasks; see --vocab)",
        "gin: skipped T5X's 'train_eval/utils.DatasetConfig.batch_size' "
        "(validation reads the training's lengths, batch and cache)",
    ]
    # The last binding takes effect, in T5X's words or in ours.
    parse.parse([str(path)], ["BATCH_SIZE = 4"])
    assert bound("run.batch_size", evaluate=False) == ("sequences_per_batch", 4)
    parse.parse([str(path)], ["BATCH_SIZE = 4", "train/utils.DatasetConfig.batch_size = 5"])
    assert bound("run.batch_size", evaluate=False) == ("sequences_per_batch", 5)


@pytest.mark.parametrize(
    "statement",
    [
        "utils.RestoreCheckpointConfig.path = %INITIAL_CHECKPOINT_PATH",
        "utils.CheckpointConfig.restore = @utils.RestoreCheckpointConfig()",
        "trainer.Trainer.learning_rate_fn = @utils.create_learning_rate_scheduler()",
    ],
)
def test_t5x_wiring_is_skipped(statement):
    assert parse.parse(["runs/finetune.gin"], [statement]).skipped == {}


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        ("utils.DatasetConfig.sed = 3", ["no parameter 'sed'", "Did you mean seed?"]),
        ("utils.RestoreCheckpointConfig.path = '/x'", ["INIT_CHECKPOINT", "--checkpoint"]),
        ("utils.RestoreCheckpointConfig.path = ['/x']", ["INIT_CHECKPOINT"]),
        ("A = '/x'\nutils.RestoreCheckpointConfig.path = %A", ["INIT_CHECKPOINT"]),
        ("utils.CheckpointConfig.restore = '/x'", ["INIT_CHECKPOINT"]),
        (
            "import mesh_tensorflow.transformer.learning_rate_schedules\n"
            "trainer.Trainer.learning_rate_fn = @truncated_rsqrt",
            ["run.learning_rate_schedule"],
        ),
        ("trainer.Trainer.grad_fn = 3", ["is T5X's", "t0.train_loop"]),
        ("LOSS_NORMALIZING_FACTOR = 'AVERAGE'", ["loss_average", "loss_denominator"]),
        ("train_eval/utils.DatasetConfig.split = 'dev'", ["the split 'validation'"]),
        ("MODEL = @models.EncoderDecoderModel()", ["models/t5.1.1.base.gin"]),
        ("OPTIMIZER = @adafactor.Adafactor()", ["run.optimizer"]),
        ("include 't5x/examples/t5/byt5/base.gin'", ["byt5/base.gin", "only T5 1.0, T5 1.1"]),
        ("include 't5x/examples/t5/t5_1_1/tiny.gin'", ["only T5 1.0, T5 1.1 and mT5"]),
        ("include 't5x/configs/runs/export.gin'", ["pretrain, finetune, eval and infer"]),
    ],
)
def test_t5x_statement_without_equivalent_is_refused(statement, parts, tmp_path):
    (tmp_path / "mine.gin").write_text(f"{statement}\n")
    with pytest.raises(UserError) as raised:
        parse.parse([str(tmp_path / "mine.gin")], [])
    for part in parts:
        assert part in str(raised.value)
    assert "0x" not in str(raised.value)


def test_t5x_macro_with_a_misspelled_name_gets_the_nearest_name(tmp_path, capsys):
    with pytest.raises(UserError, match=r"'LABEL_SMOTHING'.* Did you mean LABEL_SMOOTHING\?"):
        parse.parse([], ["LABEL_SMOTHING = 0.1"])
    gin.clear_config()
    (tmp_path / "mine.gin").write_text("LABEL_SMOTHING = 0.1\n")
    parse.print_findings(parse.parse([str(tmp_path / "mine.gin")], []))
    text = "gin: nothing reads the macro 'LABEL_SMOTHING': it has no effect. "
    assert capsys.readouterr().err == f"{text}Did you mean LABEL_SMOOTHING?\n"


def test_t5x_names_that_the_user_has_registered_are_not_translated():
    def evaluate(output_dir):
        return output_dir

    gin.external_configurable(evaluate, "evaluate", module="eval_script")
    parse.parse(["runs/pretrain.gin"], ["eval_script.evaluate.output_dir = '/mine'"])
    assert bound("eval_script.evaluate.output_dir") == "/mine"
    assert bound("%EVAL_OUTPUT_DIR") is None


@as_subtests("name", sorted(name for name in T5X if "." in name))
def test_t5x_parameter_names_are_explained(name):
    assert ours_for(f"No configurable matching '@{name}'").startswith(f"{name} is T5X's: here")


def test_t5x_names_are_not_recognized_in_other_texts():
    assert ours_for("run.train_steps and train.gin") is None
    assert ours_for("MyDatasetConfigs.seed") is None


def test_t5x_example_files_exist():
    names = ["t5_1_1_base_wmt_from_scratch", "t5_1_1_base_wmt_finetune", "t5_1_1_base_wmt_eval"]
    names += ["t5_1_1_base_wmt_infer", "base_wmt_finetune", "wmt19_ende_from_scratch"]
    paths = [f"/t5x/examples/t5/t5_1_1/examples/{name}.gin" for name in names]
    paths += ["t5x-tmp/t5x/examples/t5/t5_1_1/examples/small_c4_pretrain.gin"]
    paths += ["t5x/examples/t5/t5_1_1/c4_pretrain_small.gin", "t5_1_1/1_1_small.gin"]
    for path in paths:
        (ours,) = gin_files.resolved_names([path], [])
        assert (gin_files.gin_folder() / ours).is_file() or ours == "models/t5.1.1.small.gin"
