"""Defines the flags of `t5_mesh_transformer`: all flags of T5, Mesh TensorFlow and this project.

    values = parse(["t5_mesh_transformer", "--model_dir=/models/tiny", "--seed=3"])
    values.model_dir                      # "/models/tiny"
    gin_parameters(values, "train")       # {"t0.train_loop.seed": (3, "--seed")}
    check_mode(values, "export")          # UserError: --seed belongs to ...

A gin binding in T5X's notation, --gin.NAME=VALUE, is read like --gin_param. Importing this module
is fast.
"""

import importlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from absl import logging as _  # noqa: F401 (defines --alsologtostderr and --verbosity)

from t0.errors import UserError, unknown_name

_MODES = ["train", "finetune", "eval", "predict", "export_predict", "export_score", "score"]

# Rows of (kind, name, default, help, *choices).
_TABLE = (
    ("string", "model_dir", "/tmp/transformer_standalone", "Folder of checkpoints and results."),
    ("multi_string", "gin_file", None, "Gin file: a path, or a name to search for. Repeatable."),
    ("multi_string", "gin_param", None, "Gin binding: 'run.train_steps = 100'. Repeatable."),
    ("list", "gin_location_prefix", [], "Folders to search for gin files, before ours."),
    ("list", "gin_search_paths", [], "T5X's name for --gin_location_prefix; searched after it."),
    ("boolean", "dry_run", False, "Print the configuration and each value's origin, and exit."),
    ("string", "save_spec", None, "Write the run specification to this JSON file, and exit."),
    ("string", "write_stream", None, "Write the run's batches into this folder, and exit."),
    ("string", "stream_steps", None, "With --write_stream: the steps, FIRST-LAST (default: all)."),
    ("multi_string", "module_import", "t5.data.mixtures", "Modules that register tasks."),
    ("list", "additional_task_cache_dirs", [], "Folders with cached tasks."),
    ("boolean", "allow_stale_cache", False, "Use caches whose prompts, data or modules changed."),
    ("list", "additional_deprecated_gin_references", [], "Gin names whose bindings to skip."),
    ("boolean", "skip_all_gin_unknowns", False, "Skip bindings to unknown gin names."),
    ("list", "data_dir", [], "Folders with your own datasets and prompts (T0_DATA_DIR)."),
    ("boolean", "skip_bad_rows", False, "Skip rows with half a surrogate pair (T0_SKIP_BAD_ROWS)."),
    ("string", "vocab", None, "SentencePiece model (default: T0_VOCAB, else T5's public one)."),
    ("string", "t5_tfds_data_dir", None, "Folder of TensorFlow Datasets' data."),
    ("string", "tfds_data_dir", None, "T5X's name for --t5_tfds_data_dir."),
    ("enum", "engine", "mesh", "Mesh TensorFlow, or PyTorch (docs/gpu.md).", ["mesh", "torch"]),
    ("string", "tpu", None, "Cloud TPU: a name or a grpc:// address (default: this machine)."),
    ("string", "tpu_job_name", None, "Name of the TPU worker binary, if not the default."),
    ("string", "gcp_project", None, "Project of the Cloud TPU."),
    ("string", "tpu_zone", None, "Zone of the Cloud TPU."),
    ("integer", "logical_cores_per_chip", 2, "TPU cores per chip, for topologies such as 4x4."),
    ("boolean", "fold_xy", False, "On a 3-D torus of TPUs, fold x and y into one dimension."),
    ("integer", "finetune_steps", None, "Train this many steps beyond the initial checkpoint's."),
    ("float", "epochs", None, "Train until this many passes over the mixture's examples."),
    ("integer", "seed", None, "Seed of data order, dropout and initial weights (default: 0)."),
    ("enum", "activation_dtype", None, "Activation type off TPU.", ["auto", "float32", "bfloat16"]),
    ("float", "max_hours", None, "Save and exit after this many hours of training in total."),
    ("boolean", "allow_config_change", False, "Resume a model_dir trained with other settings."),
    ("string", "checkpoint", None, "Weights to start from or to evaluate, in any format."),
    ("multi_string", "adapter", None, "A folder of PEFT to merge into --checkpoint."),
    ("string", "export_hf", None, "After training, export the model here for Hugging Face."),
    ("integer", "shard_id", None, "Inference, ranking: which of --num_shards to run, from 0."),
    ("integer", "num_shards", None, "Inference, ranking: number of shards of the work."),
    ("boolean", "decode_answers", False, "Ranking: also decode an answer to each input."),
    ("boolean", "use_model_api", False, "Use T5's Model API instead of gin's run."),
    ("enum", "mode", None, "Model API: the mode.", _MODES),
    ("integer", "batch_size", 1, "Model API: sequences per batch."),
    ("integer", "input_sequence_length", 512, "Model API: length of inputs, in tokens."),
    ("integer", "target_sequence_length", 512, "Model API: length of targets, in tokens."),
    ("string", "tpu_topology", "v2-8", "Model API: the TPU topology."),
    ("integer", "model_parallelism", 8, "Model API: TPU cores per model replica."),
    ("integer", "train_steps", 1000, "Model API: training steps."),
    ("string", "mixture_or_task", "wmt_t2t_ende_v003", "Model API: the data."),
    ("string", "pretrained_model_dir", "", "Model API: checkpoint folder to fine-tune from."),
    ("enum", "checkpoint_mode", "latest", "Checkpoints to use.", ["all", "latest", "specific"]),
    ("list", "checkpoint_steps", [], "Model API: steps, with --checkpoint_mode=specific."),
    ("string", "eval_summary_dir", "", "Model API: folder of summaries."),
    ("string", "eval_split", "validation", "Model API: the split to evaluate on."),
    ("string", "input_file", "", "Model API: inputs to decode or score, one per line."),
    ("string", "target_file", "", "Model API: targets to score, one per line."),
    ("string", "output_file", "", "Model API: file of predictions or scores."),
    ("string", "export_dir", "", "Model API: folder of SavedModels (default: model_dir)."),
    ("integer", "beam_size", 1, "Model API: beam size of decoding."),
    ("float", "temperature", 0.0, "Model API: sampling temperature."),
    ("integer", "keep_top_k", -1, "Model API: sample from the k most likely tokens."),
    ("boolean", "hbm_oom_exit", True, "TensorFlow: exit if a TPU's memory is full."),
    ("boolean", "runtime_oom_exit", True, "TensorFlow: exit if a TPU host's memory is full."),
    ("boolean", "tt_check_filter", False, "TensorFlow: exit after the tensor tracer's filter."),
    ("boolean", "tt_single_core_summaries", False, "TensorFlow: tensor tracer of one core."),
    ("float", "delta_threshold", 0.5, "TensorFlow: the tensor tracer logs larger differences."),
    ("boolean", "op_conversion_fallback_to_while_loop", True, "TensorFlow ignores it."),
    ("string", "tfhub_cache_dir", None, "TensorFlow Hub: folder of cached modules."),
    ("enum", "tfhub_model_load_format", "AUTO", "TensorFlow Hub: format of cached modules.",
     ["COMPRESSED", "UNCOMPRESSED", "AUTO"]),
    ("boolean", "tfds_debug_list_dir", False, "TFDS: debug the list of datasets."),
)  # fmt: skip

_TRACER = "tensorflow.python.tpu.tensor_tracer_flags"
_TPU_CLIENT = "tensorflow.python.tpu.client.client"
_HUB = "tensorflow_hub.resolver"
# Flag -> the module of the library that defines it in absl's global flags and reads it from there.
LIBRARY_FLAGS = {
    "logical_cores_per_chip": "mesh_tensorflow.simd_mesh_impl",
    "fold_xy": "mesh_tensorflow.simd_mesh_impl",
    "hbm_oom_exit": _TPU_CLIENT,
    "runtime_oom_exit": _TPU_CLIENT,
    "tt_check_filter": _TRACER,
    "tt_single_core_summaries": _TRACER,
    "delta_threshold": _TRACER,
    "op_conversion_fallback_to_while_loop": "tensorflow.python.ops.parallel_for.pfor",
    "tfhub_cache_dir": _HUB,
    "tfhub_model_load_format": _HUB,
    "tfds_debug_list_dir": "tensorflow_datasets.core.community.register_path",
}
# The values of `run.mode`. Without a TPU, "train", "score_eval" and "infer" run our own code.
GIN_MODES = (
    "train",
    "eval",
    "score_eval",
    "perplexity_eval",
    "score_from_dataset",
    "score_from_strings",
    "infer",
    "export",
    "export_infer",
    "export_score",
)
_IN_WORDS = {"train": "training", "infer": "inference (--gin_file=runs/infer.gin)"}
_EXPORTS = ("export", "export_infer", "export_score")
# Value of --mode in a run with --use_model_api -> the mode's name in `MODE_FLAGS`.
MODEL_API_MODES = {mode: f"--mode={mode}" for mode in _MODES}
_API_TRAINING = tuple(MODEL_API_MODES[mode] for mode in ("train", "finetune"))
_API_READING = tuple(MODEL_API_MODES[mode] for mode in ("eval", "predict", "score"))
# The gin parameter that sets the activation type in the modes that Mesh TensorFlow's own code runs.
_MESH_TYPE = "get_variable_dtype.activation_dtype"


def _ranking_and_inference(name: str) -> dict[str, str | None]:
    """Returns mode -> gin parameter, for a setting that both ranking and inference have."""
    ranked = dict.fromkeys(("score_eval", "eval"), f"t0.score_eval.{name}")
    return {"infer": f"t0.infer.{name}", **ranked}


# Our flags that only some modes read: flag -> {mode that reads the flag -> the gin parameter that
# the flag sets in this mode, or None if the command itself reads the flag}.
MODE_FLAGS: dict[str, dict[str, str | None]] = {
    "adapter": dict.fromkeys(mode for mode in GIN_MODES if mode != "train"),
    "activation_dtype": {
        **dict.fromkeys((mode for mode in GIN_MODES if mode not in _EXPORTS), _MESH_TYPE),
        **dict.fromkeys(_API_READING, _MESH_TYPE),
        **dict.fromkeys(("train", *_API_TRAINING), "t0.train_loop.activation_dtype"),
        "score_eval": "t0.score_eval.dtype",
        "infer": "t0.infer.activation_dtype",
    },
    "allow_config_change": dict.fromkeys(
        ("train", *_API_TRAINING), "t0.train_loop.allow_config_change"
    ),
    "allow_stale_cache": dict.fromkeys(
        ("train", "eval", "score_eval", "perplexity_eval", "score_from_dataset")
    ),
    "decode_answers": dict.fromkeys(("score_eval", "eval"), "t0.score_eval.decode_answers"),
    "epochs": {"train": None},
    "finetune_steps": {"train": None},
    "max_hours": dict.fromkeys(("train", *_API_TRAINING), "t0.train_loop.max_hours"),
    "num_shards": _ranking_and_inference("num_shards"),
    "seed": {
        **dict.fromkeys(("train", *_API_TRAINING), "t0.train_loop.seed"),
        "infer": "t0.infer.seed",
    },
    "shard_id": _ranking_and_inference("shard_id"),
    "stream_steps": {"train": None},
    "write_stream": {"train": None},
}
# Flags of `MODE_FLAGS` that are also read in a run with --tpu. The other flags in `MODE_FLAGS` are
# only read by our engine for runs without a TPU.
_STEPS = ("epochs", "finetune_steps")
_ON_TPU = (*_STEPS, "adapter", "allow_stale_cache", "max_hours", "stream_steps", "write_stream")
_MODEL_API_STEPS = "; the Model API counts --train_steps, with --mode=finetune from a checkpoint"
_TPU_TYPE = f"; on a TPU the type is gin's {_MESH_TYPE}"
# Flags that only the Model API reads.
MODEL_API_FLAGS = tuple(row[1] for row in _TABLE if row[3].startswith("Model API"))
MODEL_API_FLAGS += ("checkpoint_mode",)
# Values of --mode -> the Model API's flags that only these modes read.
_API_MODES = {
    "train finetune": "train_steps",
    "train finetune eval": "mixture_or_task",
    "finetune": "pretrained_model_dir",
    "finetune eval predict export_predict export_score score": "checkpoint_mode checkpoint_steps",
    "eval": "eval_summary_dir eval_split",
    "predict score": "input_file output_file",
    "score": "target_file",
    "export_predict export_score": "export_dir",
    "predict export_predict export_score": "beam_size temperature keep_top_k",
}
# Flags that only a run with --tpu reads.
TPU_FLAGS = ("tpu_job_name", "gcp_project", "tpu_zone", "logical_cores_per_chip", "fold_xy")
TPU_FLAGS += ("hbm_oom_exit", "runtime_oom_exit", "tt_check_filter", "tt_single_core_summaries")
TPU_FLAGS += ("delta_threshold", "tpu_topology", "model_parallelism")
# Macro of a run file -> the flags that replace the macro.
_MACROS = {"MODEL_DIR": ("model_dir",), "TRAIN_STEPS": ("finetune_steps", "epochs")}
_MACROS |= dict.fromkeys(("INIT_CHECKPOINT", "infer_checkpoint_step"), ("checkpoint",))

# The names under which other training programs have a setting -> our flag.
_GUESSES = {
    "learning_rate lr": "--gin.constant_learning_rate.learning_rate=0.001",
    "lr_scheduler_type lr_scheduler": "--gin.run.learning_rate_schedule=@t0.cosine_with_warmup",
    "warmup_steps": "--gin.t0.cosine_with_warmup.warmup_steps=1000, for that schedule",
    "batch_size train_batch_size per_device_train_batch_size": "--gin.BATCH_SIZE=16 (sequences)",
    "train_steps max_steps num_train_steps": "--gin.TRAIN_STEPS=1000, or --finetune_steps=1000",
    "num_train_epochs num_epochs": "--epochs=3",
    "output_dir": "--model_dir=DIR",
    "model_name_or_path model": "--checkpoint=PATH",
    "max_length max_seq_length max_source_length max_target_length": "--gin.TASK_FEATURE_LENGTHS="
    "\"{'inputs': 512, 'targets': 64}\"",
    "mixture task dataset dataset_name": "--gin.MIXTURE_OR_TASK_NAME=\"'t0_train'\"",
    "train_file data": "--data_dir=DIR, a folder that `t0 init` writes",
    "tokenizer tokenizer_name": "--vocab=FILE",
    "bf16 fp16 dtype precision": "--activation_dtype=bfloat16",
    "gradient_accumulation_steps": "--gin.serialize_num_microbatches."
    "tokens_per_microbatch_per_replica=2048",
    "dropout": "--gin.DROPOUT_RATE=0.1",
    "optimizer optim": "--gin.run.optimizer=@t0.AdamWOptimizer",
    "save_steps": "--gin.run.save_checkpoints_steps=1000",
    "gpu device": "--engine=torch --device=cuda",
}

_GIN_WORD = re.compile(r"--?gin\.(?P<name>[^=\s]*)\s*(?P<value>=.*)?", re.S)


class _RepeatableList(flags.Flag):
    """A flag with comma-separated values. If the flag is repeated, its lists are joined."""

    def parse(self, argument: Any) -> None:
        """Adds the values of one occurrence of the flag."""
        before = self.value if self.present else []
        super().parse(argument)
        self.value = [*before, *self.value]


def define_flags(table: Iterable[Sequence[Any]]) -> flags.FlagValues:
    """Returns the flags of a table, separate from absl's global flags.

    The flags are separate because several commands define flags with the same names.

    Args:
      table: rows of (kind, name, default, help, choices of an enum).
    """
    values = flags.FlagValues()
    for kind, name, default, text, *choices in table:
        if kind == "list":
            parsed = (flags.ListParser(), flags.CsvListSerializer(","), name, default, text)
            flags.DEFINE_flag(_RepeatableList(*parsed), flag_values=values)
        else:
            getattr(flags, f"DEFINE_{kind}")(name, default, *choices, text, flag_values=values)
    return values


def command_flags() -> flags.FlagValues:
    """Returns the flags of `t5_mesh_transformer`."""
    return define_flags(_TABLE)


def advise(name: str) -> str | None:
    """Returns advice on how to set here what other training programs set with the flag `name`.

    >>> advise("num-epochs")
    'Use --epochs=3'
    """
    name = name.replace("-", "_").lower()
    ours = (flag for names, flag in _GUESSES.items() if name in names.split())
    return next((f"Use {flag}" for flag in ours), None)


def gin_words_as_params(words: Sequence[str]) -> Iterator[str]:
    """Yields the words of a command line, with `--gin.` words rewritten as --gin_param.

    The two rewritten forms are --gin.NAME=VALUE and --gin.NAME VALUE.

    >>> list(gin_words_as_params(["--gin.TRAIN_STEPS=5", "--gin.run.mode", "'eval'", "--tpu=t"]))
    ['--gin_param=TRAIN_STEPS=5', "--gin_param=run.mode='eval'", '--tpu=t']

    Raises:
      UserError: the name or the value of a `--gin.` word is missing.
    """
    rest = iter(words)
    for word in rest:
        binding = _GIN_WORD.fullmatch(word)
        if not binding:
            yield word
            continue
        value = binding["value"]
        if value is None:
            value = "=" + next(rest, "--")
        if not binding["name"] or value.startswith("=--"):
            raise UserError(f"{word} needs a name and a value, such as --gin.TRAIN_STEPS=1000")
        yield f"--gin_param={binding['name']}{value}"


def gin_folders(flag_values: flags.FlagValues) -> list[str]:
    """Returns the folders for gin files that the flags name, in search order."""
    return [*flag_values.gin_location_prefix, *flag_values.gin_search_paths]


def macros_set_by_flags(flag_values: flags.FlagValues) -> set[str]:
    """Returns the macros of run files that need no value, because a given flag replaces them."""
    return {m for m, names in _MACROS.items() if any(flag_values[name].present for name in names)}


def parse(argv: Sequence[str]) -> flags.FlagValues:
    """Parses the command line, including absl's own flags.

    Raises:
      UserError: a flag is unknown (the message suggests similar flags), a value is invalid, or a
        word belongs to no flag.
    """
    flag_values = command_flags()
    words = parse_words(flag_values, list(gin_words_as_params(argv)), advise=advise)
    if words:
        raise UserError(f"unexpected argument '{words[0]}'; every setting is a --flag=value")
    return flag_values


def from_values(values: Mapping[str, Any]) -> flags.FlagValues:
    """Returns the flags of a run that another command describes, such as `t0 eval`.

    Args:
      values: flag -> its value, with the type that a parsed command line has. All other flags have
        their defaults.
    """
    flag_values = parse(["t0"])
    for name, value in values.items():
        flag = flag_values[name]
        flag.value, flag.present, flag.using_default_value = value, 1, False
    return flag_values


def words_of(flag_values: flags.FlagValues) -> list[str]:
    """Returns the words of a command line with the flags that were set."""
    chosen = [flag_values[name] for name in flag_values if flag_values[name].present]
    return [word for flag in chosen for word in flag.serialize().splitlines()]


def bindings_of(values: Mapping[str, Any]) -> list[str]:
    """Returns the values of --gin_param that bind gin parameters and macros to values."""
    return [f"{name} = {value!r}" for name, value in values.items()]


def parse_words(
    flag_values: flags.FlagValues,
    argv: Sequence[str],
    advise: Callable[[str], str | None] = lambda name: None,
) -> list[str]:
    """Parses the flags in a command line, and returns the remaining words.

    The flags may be the command's own or absl's.

    Args:
      flag_values: the command's flags.
      argv: the command line.
      advise: a function that takes the name of an unknown flag and returns advice, or None.

    Raises:
      UserError: a flag is unknown (the message suggests similar flags), or a value is invalid.
    """
    for name in flags.FLAGS:
        flag = flags.FLAGS[name]
        if name not in flag_values and name == flag.name:  # a flag also registers its short name
            flag_values[name] = flag
    try:
        words = flag_values(list(argv))[1:]
    except flags.UnrecognizedFlagError as error:
        if advice := advise(error.flagname):
            raise UserError(f"there is no --{error.flagname}. {advice}") from None
        raise unknown_name(
            "flag", f"--{error.flagname}", [f"--{name}" for name in flag_values]
        ) from None
    except flags.Error as error:
        raise UserError(str(error)) from None
    flags.FLAGS.mark_as_parsed()
    return words


def activation_dtype(value: Any) -> str:
    """Converts an activation type that is bound in gin to a value of --activation_dtype.

    Raises:
      UserError: the type is not supported.
    """
    if value not in ("float32", "bfloat16"):
        raise UserError(
            f"get_variable_dtype.activation_dtype is {value!r}; expected 'float32' or 'bfloat16' "
            "(float16 overflows in T5 models)"
        )
    return value


def check_mode(flag_values: flags.FlagValues, mode: str) -> list[str]:
    """Checks that the run's mode reads all of this project's flags on the command line.

    Args:
      flag_values: the command's flags.
      mode: the value of `run.mode` or, in a run with --use_model_api, a value of `MODEL_API_MODES`.

    Returns:
      a line for each of T5's flags on the command line that the run does not read.

    Raises:
      UserError: the mode does not read one of our flags. The message names the modes that read it.
    """
    model_api = mode in MODEL_API_MODES.values()
    for name, modes in MODE_FLAGS.items():
        if flag_values[name].present and mode not in modes:
            raise UserError(
                f"--{name} belongs to {_describe_readers(modes, model_api)}; the mode is "
                f"'{mode.removeprefix('--mode=')}'"
                + (_MODEL_API_STEPS if model_api and name in _STEPS else "")
            )
        if flag_values[name].present and flag_values.tpu and name not in _ON_TPU:
            advice = _TPU_TYPE if name == "activation_dtype" else ""
            raise UserError(f"--{name} is for runs without --tpu{advice}")
    unread = {} if flag_values.tpu else dict.fromkeys(TPU_FLAGS, "--tpu")
    if not model_api:
        unread |= dict.fromkeys(MODEL_API_FLAGS, "--use_model_api")
    for modes, names in _API_MODES.items():
        if model_api and mode.removeprefix("--mode=") not in modes.split():
            unread |= dict.fromkeys(names.split(), f"--mode={' or '.join(modes.split())}")
    return [
        f"--{name} is read with {reader} only: it has no effect here"
        + (f". {advice}" if not model_api and (advice := advise(name)) else "")
        for name, reader in unread.items()
        if flag_values[name].present and flag_values[name].value != ""
    ]


def _describe_readers(modes: Collection[str], model_api: bool) -> str:
    """Describes the modes that read a flag.

    If `model_api` is True, only modes of the Model API are named. Otherwise, only values of
    `run.mode` are named.
    """
    same_kind = [mode for mode in modes if (mode in MODEL_API_MODES.values()) == model_api]
    words = [_IN_WORDS.get(mode, mode if model_api else f"mode '{mode}'") for mode in same_kind]
    return " and ".join(words) or "runs without --use_model_api"


# Flags that configure gin and the tasks of a run, which its plan needs too.
_CONFIGURING = ("gin_file", "gin_param", "gin_location_prefix", "gin_search_paths")
_CONFIGURING += ("module_import", "data_dir", "vocab", "t5_tfds_data_dir", "tfds_data_dir")
_CONFIGURING += ("additional_deprecated_gin_references", "skip_all_gin_unknowns", "skip_bad_rows")
_CONFIGURING += ("logical_cores_per_chip", "fold_xy")
# Flags of a run that have no effect on its plan, such as folders, hosts and the duration.
_NO_EFFECT_ON_PLAN = ("model_dir", "additional_task_cache_dirs", "tpu", "tpu_job_name")
_NO_EFFECT_ON_PLAN += ("gcp_project", "tpu_zone", "export_hf", "allow_config_change", "max_hours")
_NO_EFFECT_ON_PLAN += ("seed", *(set(LIBRARY_FLAGS) - {"logical_cores_per_chip", "fold_xy"}))


def check_planned(flag_values: flags.FlagValues, command: str, more: Collection[str] = ()) -> None:
    """Checks that a command that plans or rehearses a run reads every flag that changes the run.

    Args:
      flag_values: the flags of `t5_mesh_transformer`.
      command: the command, such as "t0 plan".
      more: flags that this command reads, in addition to the flags that configure gin.

    Raises:
      UserError: a flag would change the run, but the command does not read it.
    """
    for row in _TABLE:
        name = row[1]
        is_set = flag_values[name].present and flag_values[name].value != ""
        if is_set and name not in (*more, *_CONFIGURING, *_NO_EFFECT_ON_PLAN):
            raise UserError(
                f"{command} does not read --{name}, which changes a run. Leave it out, or set "
                "its gin parameter with --gin_param"
            )


def gin_parameters(flag_values: flags.FlagValues, mode: str) -> dict[str, tuple[Any, str]]:
    """Returns the gin parameters that the flags set in a mode: name -> (value, flag)."""
    return {
        modes[mode]: (flag_values[name].value, f"--{name}")
        for name, modes in MODE_FLAGS.items()
        if flag_values[name].present and modes.get(mode)
    }


def set_library_flags(flag_values: flags.FlagValues) -> None:
    """Imports the libraries that read absl's global flags, and sets the flags that they read."""
    for name, module in LIBRARY_FLAGS.items():
        if flag_values[name].present:
            importlib.import_module(module)
            flags.FLAGS[name].value = flag_values[name].value
