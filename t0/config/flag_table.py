"""Declares the flags of `t5_mesh_transformer`: one row has all facts about a flag.

    by_name("seed").modes["infer"]          # "t0.infer.seed", the gin parameter that it sets

The parser, the checks of modes, the gin parameters, `t0 plan` and `docs/reference.md` read this
table. Importing it is fast.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from t0.config.specification import BASES

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
_EXPORTS = ("export", "export_infer", "export_score")
_API_MODES = ("train", "finetune", "eval", "predict", "export_predict", "export_score", "score")
_API_READING = _API_MODES[1:]
# Value of --mode in a run with --use_model_api -> the mode's name in `Flag.modes`.
MODEL_API_MODES = {mode: f"--mode={mode}" for mode in _API_MODES}
_TRAINING = ("train", *(MODEL_API_MODES[mode] for mode in ("train", "finetune")))
# The gin parameter that sets the activation type in the modes that Mesh TensorFlow's own code runs.
MESH_TYPE = "get_variable_dtype.activation_dtype"

# Names of the flag for folders with cached tasks: T0's, SeqIO's and that of `t0`. A command that has
# one of them also accepts the others.
CACHE_FLAGS = ("additional_task_cache_dirs", "tasks_additional_cache_dirs", "cache_dirs")
_MESH_LAYOUT = "mesh_tensorflow.simd_mesh_impl"
_TRACER = "tensorflow.python.tpu.tensor_tracer_flags"
_TPU_CLIENT = "tensorflow.python.tpu.client.client"
_HUB = "tensorflow_hub.resolver"


class Flag(NamedTuple):
    """A flag.

    Attributes:
      kind: the kind of absl's `DEFINE_<kind>`, or "list" for a list that can be repeated.
      name: the name.
      default: the value if the flag is not set.
      help: a sentence for the help text.
      choices: the values of an enum.
      modes: the modes that read the flag -> the gin parameter that the flag sets in this mode, or
        None if the command itself reads the flag. Empty if every mode reads the flag.
      tpu: whether the flag is for runs with --tpu only, without --tpu only, or for both.
      api: the values of --mode that read the flag, if it is for the Model API.
      library: the module of the library that defines the flag in absl's global flags, and reads it
        from there.
      macros: the macros of run files that need no value if the flag is set.
      plan: what `t0 plan` and `t0 rehearse` do with the flag: they read it, they ignore it because
        it has no effect on a plan, such as a folder, or they refuse it.
    """

    kind: str
    name: str
    default: Any
    help: str
    choices: Sequence[str] = ()
    modes: Mapping[str, str | None] = {}
    tpu: Literal["both", "only", "never"] = "both"
    api: Sequence[str] = ()
    library: str = ""
    macros: Sequence[str] = ()
    plan: Literal["reads", "ignores", "refuses"] = "refuses"


def _reads(*modes: str) -> dict[str, str | None]:
    """Returns the modes of a flag that the command itself reads."""
    return dict.fromkeys(modes)


def _sets(parameter: str, *modes: str) -> dict[str, str | None]:
    """Returns the modes in which a flag sets a gin parameter."""
    return dict.fromkeys(modes, parameter)


def _ranking_and_inference(name: str) -> dict[str, str | None]:
    """Returns the modes of a flag for a setting that both ranking and inference have."""
    return {"infer": f"t0.infer.{name}", **_sets(f"t0.score_eval.{name}", "score_eval", "eval")}


_ACTIVATION_TYPE = {
    **_sets(MESH_TYPE, *(mode for mode in GIN_MODES if mode not in _EXPORTS)),
    **_sets(MESH_TYPE, *(MODEL_API_MODES[mode] for mode in ("eval", "predict", "score"))),
    **_sets("t0.train_loop.activation_dtype", *_TRAINING),
    "score_eval": "t0.score_eval.dtype",
    "infer": "t0.infer.activation_dtype",
}
TABLE = (
    Flag("string", "model_dir", "/tmp/transformer_standalone", "Folder of checkpoints and results.",
         macros=("MODEL_DIR",), plan="ignores"),
    Flag("multi_string", "gin_file", None, "Gin file: a path, or a name to search for. Repeatable.",
         plan="reads"),
    Flag("multi_string", "gin_param", None, "Gin binding: 'run.train_steps = 100'. Repeatable.",
         plan="reads"),
    Flag("list", "gin_location_prefix", [], "Folders to search for gin files, before ours.",
         plan="reads"),
    Flag("list", "gin_search_paths", [], "T5X's name for --gin_location_prefix; searched after it.",
         plan="reads"),
    Flag("boolean", "dry_run", False, "Print the configuration and each value's origin, and exit."),
    Flag("string", "save_spec", None, "Write the run specification to this JSON file, and exit."),
    Flag("string", "write_stream", None, "Write the run's batches into this folder, and exit.",
         modes=_reads("train")),
    Flag("string", "stream_steps", None, "With --write_stream: the steps, FIRST-LAST (default: all).",
         modes=_reads("train")),
    Flag("multi_string", "module_import", "t5.data.mixtures", "Modules that register tasks.",
         plan="reads"),
    Flag("list", "additional_task_cache_dirs", [], "Folders with cached tasks. Also --cache_dirs.",
         plan="ignores"),
    Flag("boolean", "allow_stale_cache", False, "Use caches whose prompts, data or modules changed.",
         modes=_reads("train", "eval", "score_eval", "perplexity_eval", "score_from_dataset")),
    Flag("list", "additional_deprecated_gin_references", [], "Gin names whose bindings to skip.",
         plan="reads"),
    Flag("boolean", "skip_all_gin_unknowns", False, "Skip bindings to unknown gin names.",
         plan="reads"),
    Flag("list", "data_dir", [], "Folders with your own datasets and prompts (T0_DATA_DIR).",
         plan="reads"),
    Flag("boolean", "skip_bad_rows", False, "Skip rows with half a surrogate pair (T0_SKIP_BAD_ROWS).",
         plan="reads"),
    Flag("string", "vocab", None, "SentencePiece model (default: T0_VOCAB, else T5's public one).",
         plan="reads"),
    Flag("string", "t5_tfds_data_dir", None, "Folder of TensorFlow Datasets' data.", plan="reads"),
    Flag("string", "tfds_data_dir", None, "T5X's name for --t5_tfds_data_dir.", plan="reads"),
    Flag("enum", "engine", "mesh", "Mesh TensorFlow, or PyTorch (docs/gpu.md).", ("mesh", "torch")),
    Flag("string", "tpu", None, "Cloud TPU: a name or a grpc:// address (default: this machine).",
         plan="ignores"),
    Flag("string", "tpu_job_name", None, "Name of the TPU worker binary, if not the default.",
         tpu="only", plan="ignores"),
    Flag("string", "gcp_project", None, "Project of the Cloud TPU.", tpu="only", plan="ignores"),
    Flag("string", "tpu_zone", None, "Zone of the Cloud TPU.", tpu="only", plan="ignores"),
    Flag("integer", "logical_cores_per_chip", 2, "TPU cores per chip, for topologies such as 4x4.",
         tpu="only", library=_MESH_LAYOUT, plan="reads"),
    Flag("boolean", "fold_xy", False, "On a 3-D torus of TPUs, fold x and y into one dimension.",
         tpu="only", library=_MESH_LAYOUT, plan="reads"),
    Flag("integer", "finetune_steps", None, "Train this many steps beyond the initial checkpoint's.",
         modes=_reads("train"), macros=("TRAIN_STEPS",)),
    Flag("float", "epochs", None, "Train until this many passes over the mixture's examples.",
         modes=_reads("train"), macros=("TRAIN_STEPS",)),
    Flag("integer", "seed", None, "Seed of data order, dropout and initial weights (default: 0).",
         modes={**_sets("t0.train_loop.seed", *_TRAINING), "infer": "t0.infer.seed"}, tpu="never",
         plan="ignores"),
    Flag("enum", "activation_dtype", None, "Activation type off TPU.",
         ("auto", "float32", "bfloat16"),
         modes=_ACTIVATION_TYPE, tpu="never"),
    Flag("float", "max_hours", None, "Save and exit after this many hours of training in total.",
         modes=_sets("t0.train_loop.max_hours", *_TRAINING), plan="ignores"),
    Flag("boolean", "allow_config_change", False, "Resume a model_dir trained with other settings.",
         modes=_sets("t0.train_loop.allow_config_change", *_TRAINING), tpu="never",
         plan="ignores"),
    Flag("string", "checkpoint", None, "Weights to start from or to evaluate, in any format.",
         macros=("INIT_CHECKPOINT", "infer_checkpoint_step")),
    Flag("multi_string", "adapter", None, "A folder of PEFT to merge into --checkpoint.",
         modes=_reads(*(mode for mode in GIN_MODES if mode != "train"))),
    Flag("enum", "base", None, "Type of the frozen weights of a new adapter (docs/adapters.md).",
         BASES, modes=_sets("t0.adapter.base", "train"), tpu="never"),
    Flag("string", "export_hf", None, "After training, export the model here for Hugging Face.",
         plan="ignores"),
    Flag("integer", "shard_id", None, "Inference, ranking: which of --num_shards to run, from 0.",
         modes=_ranking_and_inference("shard_id"), tpu="never"),
    Flag("integer", "num_shards", None, "Inference, ranking: number of shards of the work.",
         modes=_ranking_and_inference("num_shards"), tpu="never"),
    Flag("boolean", "decode_answers", False, "Ranking: also decode an answer to each input.",
         modes=_sets("t0.score_eval.decode_answers", "score_eval", "eval"), tpu="never"),
    Flag("boolean", "use_model_api", False, "Use T5's Model API instead of gin's run."),
    Flag("enum", "mode", None, "Model API: the mode.", _API_MODES, api=_API_MODES),
    Flag("integer", "batch_size", 1, "Model API: sequences per batch.", api=_API_MODES),
    Flag("integer", "input_sequence_length", 512, "Model API: length of inputs, in tokens.",
         api=_API_MODES),
    Flag("integer", "target_sequence_length", 512, "Model API: length of targets, in tokens.",
         api=_API_MODES),
    Flag("string", "tpu_topology", "v2-8", "Model API: the TPU topology.",
         tpu="only", api=_API_MODES),
    Flag("integer", "model_parallelism", 8, "Model API: TPU cores per model replica.",
         tpu="only", api=_API_MODES),
    Flag("integer", "train_steps", 1000, "Model API: training steps.", api=("train", "finetune")),
    Flag("string", "mixture_or_task", "wmt_t2t_ende_v003", "Model API: the data.",
         api=("train", "finetune", "eval")),
    Flag("string", "pretrained_model_dir", "", "Model API: checkpoint folder to fine-tune from.",
         api=("finetune",)),
    Flag("enum", "checkpoint_mode", "latest", "Checkpoints to use.",
         ("all", "latest", "specific"), api=_API_READING),
    Flag("list", "checkpoint_steps", [], "Model API: steps, with --checkpoint_mode=specific.",
         api=_API_READING),
    Flag("string", "eval_summary_dir", "", "Model API: folder of summaries.", api=("eval",)),
    Flag("string", "eval_split", "validation", "Model API: the split to evaluate on.",
         api=("eval",)),
    Flag("string", "input_file", "", "Model API: inputs to decode or score, one per line.",
         api=("predict", "score")),
    Flag("string", "target_file", "", "Model API: targets to score, one per line.", api=("score",)),
    Flag("string", "output_file", "", "Model API: file of predictions or scores.",
         api=("predict", "score")),
    Flag("string", "export_dir", "", "Model API: folder of SavedModels (default: model_dir).",
         api=("export_predict", "export_score")),
    Flag("integer", "beam_size", 1, "Model API: beam size of decoding.",
         api=("predict", "export_predict", "export_score")),
    Flag("float", "temperature", 0.0, "Model API: sampling temperature.",
         api=("predict", "export_predict", "export_score")),
    Flag("integer", "keep_top_k", -1, "Model API: sample from the k most likely tokens.",
         api=("predict", "export_predict", "export_score")),
    Flag("boolean", "hbm_oom_exit", True, "TensorFlow: exit if a TPU's memory is full.",
         tpu="only", library=_TPU_CLIENT, plan="ignores"),
    Flag("boolean", "runtime_oom_exit", True, "TensorFlow: exit if a TPU host's memory is full.",
         tpu="only", library=_TPU_CLIENT, plan="ignores"),
    Flag("boolean", "tt_check_filter", False, "TensorFlow: exit after the tensor tracer's filter.",
         tpu="only", library=_TRACER, plan="ignores"),
    Flag("boolean", "tt_single_core_summaries", False, "TensorFlow: tensor tracer of one core.",
         tpu="only", library=_TRACER, plan="ignores"),
    Flag("float", "delta_threshold", 0.5, "TensorFlow: the tensor tracer logs larger differences.",
         tpu="only", library=_TRACER, plan="ignores"),
    Flag("boolean", "op_conversion_fallback_to_while_loop", True, "TensorFlow ignores it.",
         library="tensorflow.python.ops.parallel_for.pfor", plan="ignores"),
    Flag("string", "tfhub_cache_dir", None, "TensorFlow Hub: folder of cached modules.",
         library=_HUB, plan="ignores"),
    Flag("enum", "tfhub_model_load_format", "AUTO", "TensorFlow Hub: format of cached modules.",
         ("COMPRESSED", "UNCOMPRESSED", "AUTO"), library=_HUB, plan="ignores"),
    Flag("boolean", "tfds_debug_list_dir", False, "TFDS: debug the list of datasets.",
         library="tensorflow_datasets.core.community.register_path", plan="ignores"),
)  # fmt: skip
LIBRARY_FLAGS = {flag.name: flag.library for flag in TABLE if flag.library}


def by_name(name: str) -> Flag:
    """Returns the row of a flag."""
    return next(flag for flag in TABLE if flag.name == name)
