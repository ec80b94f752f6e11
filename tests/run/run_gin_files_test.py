"""gin/runs/ and the models to run them on: every file parses, and every macro reaches its place."""

import re
from pathlib import Path

import gin
import pytest

from t0.config import dry_run, gin_files, parse
from t0.config.bindings import bound, macro_defined
from t0.errors import UserError

LENGTHS = {"inputs": 9, "targets": 5}
TRAINED = {"MIXTURE_OR_TASK_NAME": "m", "TRAIN_STEPS": 7, "MODEL_DIR": "/m"}
READ = {"MIXTURE_OR_TASK_NAME": "m", "CHECKPOINT_PATH": "/c/model.ckpt-3"}
# File -> what must be set.
REQUIRED = {
    "pretrain": TRAINED,
    "finetune": {**TRAINED, "TASK_FEATURE_LENGTHS": LENGTHS, "INIT_CHECKPOINT": "/i/model.ckpt-1"},
    "eval": {**READ, "EVAL_OUTPUT_DIR": "/o"},
    "infer": {
        "CHECKPOINT_PATH": "/c/model.ckpt-3",
        "TASK_FEATURE_LENGTHS": LENGTHS,
        "INFER_OUTPUT_DIR": "/o",
    },
}
# Macro -> (value, the parameter that it is for), where it is set.
EVERYWHERE = {
    "MIXTURE_OR_TASK_NAME": ("x", "get_vocabulary.mixture_or_task_name"),
    "TASK_FEATURE_LENGTHS": (LENGTHS, "run.sequence_length"),
}
TRAINING = {
    **EVERYWHERE,
    "MIXTURE_NAME": ("x", "mesh_train_dataset_fn.mixture_or_task_name"),
    "TRAIN_STEPS": (77, "run.train_steps"),
    "DROPOUT_RATE": (0.3, "sublayer_dropout.dropout_rate"),
    "RANDOM_SEED": (5, "t0.train_loop.seed"),
    "EVAL_PERIOD": (3, "t0.train_loop.validate_every_steps"),
    "EVAL_STEPS": (4, "t0.train_loop.validation_batches"),
    "USE_CACHED_TASKS": (True, "mesh_train_dataset_fn.use_cached"),
    "SHUFFLE_TRAIN_EXAMPLES": (False, "mesh_train_dataset_fn.shuffle"),
}
READING = {**EVERYWHERE, "MIXTURE_OR_TASK_SPLIT": ("dev", "run.dataset_split")}
READING["CHECKPOINT_PATH"] = ("/x", "t0.folder_of_checkpoint.checkpoint")
REACH = {
    "pretrain": TRAINING,
    "finetune": {
        **TRAINING,
        "INIT_CHECKPOINT": ("/x/model.ckpt-9", "run.init_checkpoint"),
        "INITIAL_CHECKPOINT_PATH": ("/y/model.ckpt-9", "run.init_checkpoint"),
    },
    "eval": {
        **READING,
        "MIXTURE_NAME": ("x", "mesh_eval_dataset_fn.mixture_or_task_name"),
        "EVAL_OUTPUT_DIR": ("/p", "run.eval_summary_dir"),
        "USE_CACHED_TASKS": (True, "mesh_eval_dataset_fn.use_cached"),
        "MAX_DECODE_LENGTH": (6, "Bitransformer.decode.max_decode_length"),
        "eval_checkpoint_step": (9, "run.eval_checkpoint_step"),
    },
    "infer": {
        **READING,
        "INFER_OUTPUT_DIR": ("/p", "t0.infer.output_dir"),
        "INPUT_FILE": ("/lines.txt", "t0.infer.input_file"),
        "BEAM_SIZE": (4, "t0.infer.beam_size"),
        "ALPHA": (0.7, "t0.infer.alpha"),
        "TEMPERATURE": (0.5, "t0.infer.temperature"),
        "TOP_K": (40, "t0.infer.top_k"),
        "RANDOM_SEED": (5, "t0.infer.seed"),
        "SHARD_ID": (1, "t0.infer.shard_id"),
        "NUM_SHARDS": (2, "t0.infer.num_shards"),
        "USE_CACHED_TASKS": (True, "t0.infer.use_cached"),
    },
}
# Read by this program, not by gin; and one that two things read.
OTHERS = {"MODEL_DIR", "BATCH_SIZE", "dropout_rate"}

T5 = {
    "small": (512, 6),
    "base": (768, 12),
    "large": (1024, 24),
    "3B": (1024, 24),
    "11B": (1024, 24),
}
T5_1_1 = {
    "small": (512, 8),
    "base": (768, 12),
    "large": (1024, 24),
    "xl": (2048, 24),
    "xxl": (4096, 24),
}
# T5X's table of models; d_model and layers are those of its gin files.
MODELS = {
    **{f"t5.1.0.{size}": sizes for size, sizes in T5.items()},
    **{f"t5.1.1.{size}": sizes for size, sizes in T5_1_1.items()},
    **{f"t5.1.1.lm100k.{size}": sizes for size, sizes in T5_1_1.items()},
    **{f"mt5.{size}": sizes for size, sizes in T5_1_1.items()},
}


def written(values):
    return [f"{name} = {value!r}" for name, value in values.items()]


@pytest.mark.parametrize("name", MODELS)
def test_gin_file_of_every_model_has_its_name(name):
    parse.parse([f"models/{name}.gin"], [])
    assert (bound("Unitransformer.d_model"), bound("%num_layers", evaluate=False)) == MODELS[name]
    tied = name.startswith("t5.1.0")  # embedding and logits
    assert bound("Unitransformer.shared_embedding_and_softmax_weights") is tied
    path = bound("t0.vocabulary.path") if "mt5" in name else None
    assert (path is not None) == name.startswith("mt5")
    shipped = [Path(folder, f"models/{name}.gin") for folder in gin_files.search_path()]
    assert sum(file.is_file() for file in shipped) == 1


@pytest.mark.parametrize("run", REQUIRED)
def test_gin_file_of_a_run_lists_required_macros(run):
    parsed = parse.parse([f"runs/{run}.gin"], [])
    wanted = sorted(REQUIRED[run])
    with pytest.raises(UserError) as error:
        parse.check_required(parsed)
    assert re.findall(rf"([A-Z_]+) \(runs/{run}\.gin:\d+\)", str(error.value)) == wanted
    text = (gin_files.gin_folder() / "runs" / f"{run}.gin").read_text()
    header = text.partition("\nimport ")[0]
    assert all(re.search(rf"^#   {name} ", header, re.M) for name in wanted)
    # Every macro that the header offers is there to be set.
    offered = re.findall(r"^#   ([A-Z_]{3,})", header, re.M)
    assert len(offered) > 5
    assert all(macro_defined(name) for name in offered)


@pytest.mark.parametrize("run", REQUIRED)
@pytest.mark.parametrize("order", ["model first", "run first"])
def test_gin_macros_of_run_files_reach_their_parameters(run, order):
    files = [f"runs/{run}.gin", "models/t5.1.1.lm100k.small.gin"]
    files = files[::-1] if order == "model first" else files
    parsed = parse.parse(files, written(REQUIRED[run]))
    parse.check_required(parsed)
    # The model's own batch, which the run's replaces, is all that has no effect.
    assert parsed.unread_macros == ("tokens_per_batch",)
    for name, (value, parameter) in REACH[run].items():
        gin.bind_parameter(f"%{name}", value)
        assert bound(parameter, evaluate=False) == value, name
    assert bound("run.mode", evaluate=False) == {"eval": "eval", "infer": "infer"}.get(run, "train")
    gin.bind_parameter("%BATCH_SIZE", 6)
    assert bound("run.batch_size", evaluate=False) == ("sequences_per_batch", 6)
    text = (gin_files.gin_folder() / "runs" / f"{run}.gin").read_text()
    named = set(re.findall(r"^(\w+) = ", text, re.M)) - OTHERS
    assert named - REACH[run].keys() <= ({"MIXTURE_NAME"} if run == "infer" else set())
    gin.finalize()


@pytest.mark.parametrize(("run", "rate"), [("pretrain", 0.0), ("finetune", 0.1)])
def test_dropout_comes_from_the_run_file_not_the_model_file(run, rate):
    files = [f"runs/{run}.gin", "models/t5.1.0.small.gin"]  # which has 0.1
    parse.parse([*files, "models/t5.1.1.small.gin"], written(REQUIRED[run]))  # and this one 0.0
    layers = ("DenseReluDense", "SelfAttention", "sublayer_dropout")
    assert {bound(f"{layer}.dropout_rate") for layer in layers} == {rate}


def test_gin_file_order_has_models_before_runs():
    assert gin_files.in_order(["a.gin", "models/b.gin"]) == ["a.gin", "models/b.gin"]
    given = ["x.gin", "/g/runs/eval.gin", "mine.gin", "/m/operative_config.gin", "models/b.gin"]
    assert gin_files.in_order(given) == [
        *("x.gin", "/m/operative_config.gin", "models/b.gin", "/g/runs/eval.gin", "mine.gin")
    ]
    # These have a model of their own, so the user's comes after it.
    for own in ("runs/quickstart.gin", "eval.gin"):
        assert gin_files.in_order([own, "models/b.gin"]) == [own, "models/b.gin"]


def test_gin_file_of_resolved_configuration_parses_to_the_same(tmp_path):
    files = ["models/t5.1.1.tiny.gin", "runs/finetune.gin"]
    parsed = parse.parse(files, written(REQUIRED["finetune"]))
    parse.check_required(parsed)
    given = {"train_loop.seed": (3, "--seed"), "run.mesh_shape": ("", "this machine")}
    text = dry_run.text(parsed, given)
    lines = text.splitlines()
    assert "TRAIN_STEPS = 7  # the command line" in lines
    assert "train_loop.seed = 3  # --seed" in lines
    assert "run.eval_summary_dir = None  # default" in lines
    assert "constant_learning_rate.learning_rate = 0.001  # " in text
    assert re.search(
        r"^SelfAttention\.dropout_rate = 0\.1  # defaults\.gin:\d+; "
        r"dropout_rate: runs/finetune\.gin:\d+; DROPOUT_RATE: runs/finetune\.gin:\d+$",
        text,
        re.M,
    )
    names = re.findall(r"^([\w./]+\.\w+) = ", text, re.M)
    before = {name: bound(name, evaluate=False) for name in names}
    assert len(before) > 60
    before |= {name: value for name, (value, _) in given.items()}
    (tmp_path / "resolved.gin").write_text(text)
    gin.clear_config()
    parse.parse([str(tmp_path / "resolved.gin")], [])
    for name, value in before.items():
        if value is not None:
            assert bound(name, evaluate=False) == value, name


def test_mt0_gin_file_averages_the_loss_per_sequence_without_packing():
    names = {**TRAINED, "INIT_CHECKPOINT": "/i/model.ckpt-1000000"}
    names.pop("TRAIN_STEPS")
    parse.check_required(parse.parse(["models/mt5.small.gin", "runs/mt0.gin"], written(names)))
    expected = {
        "t0.train_loop.loss_average": "sequences",
        "mesh_train_dataset_fn.pack": False,
        "run.batch_size": ("sequences_per_batch", 512),
        "run.sequence_length": {"inputs": 1024, "targets": 1024},
        "run.train_steps": 1030000,
        "sublayer_dropout.dropout_rate": 0.1,
        "constant_learning_rate.learning_rate": 0.001,
    }
    assert {name: bound(name) for name in expected} == expected
