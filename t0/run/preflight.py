"""Checks a run's mode, data, batch and checkpoints before the model is built.

    run_mode()                                                        # "train"
    check_mixtures({"vocab": ["/v/spiece.model"]})                    # UserError, or notes
    check_run("/models/tiny", vocabulary=vocabulary, mesh_shape="")   # UserError, or notes

These checks read the values that are bound in gin. Without them, Mesh TensorFlow would fail minutes
later with a traceback, or would not notice the error.
"""

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0 import compat
from t0.checkpoints import checkpoint_files, open_source, operative_config, torch_shards
from t0.compat import mesh_utils, mtf, seqio, t5_mesh
from t0.config.bindings import bound, changed_parameters, is_configured
from t0.config.flags import GIN_MODES
from t0.errors import AbsentData, UserError, unknown_name
from t0.evaluation.eval_datasets import configured_tasks
from t0.evaluation.kinds import is_ranked
from t0.evaluation.mesh_model import step_options
from t0.evaluation.settings import EvaluationSettings
from t0.feeding import cut_shares, host_graphs, opening
from t0.feeding.live import own_sampling
from t0.files import paths
from t0.mesh.devices import check_batch
from t0.run.evaluation_checks import check_tasks
from t0.training.estimator import train_model
from t0.training.model_directory import Keep

# The modes that read a mixture with `mesh_eval_dataset_fn`.
_EVALUATES = ("eval", "score_eval", "perplexity_eval", "score_from_dataset")
DATASET_FUNCTIONS = {"train": "mesh_train_dataset_fn"}
DATASET_FUNCTIONS |= dict.fromkeys(_EVALUATES, "mesh_eval_dataset_fn")
# run.mode -> the parameter of `run` to which gin binds the function that reads the data.
_READS = {"train": "run.train_dataset_fn"} | dict.fromkeys(_EVALUATES, "run.eval_dataset_fn")
_READS["score_from_dataset"] = "score_from_dataset.score_dataset_fn"
# Modes in which Mesh TensorFlow waits for new checkpoints if eval_checkpoint_step is None.
_WAITING = ("eval", "perplexity_eval", "score_from_dataset", "score_from_strings")


def run_mode() -> str:
    """Returns the configured mode.

    Raises:
      UserError: the mode is unknown. The message suggests similar modes.
    """
    mode = bound("run.mode", "train")
    if mode not in GIN_MODES:
        raise unknown_name("mode", str(mode), GIN_MODES, "(run.mode)")
    return mode


def check_mixtures(
    settings: Mapping[str, Sequence[str]],
    *,
    on_tpu: bool = False,
    hosts_read: bool = False,
    allow_stale: bool = False,
) -> list[str]:
    """Checks that the mixtures of the configured mode exist, and are cached if necessary.

    Args:
      settings: flag -> values, for the flags that the caching command also needs. Error messages
        that suggest this command repeat the flags.
      on_tpu: whether Mesh TensorFlow runs on a TPU.
      hosts_read: whether the TensorFlow servers of a TPU's hosts, which cannot run Python, read the
        data.
      allow_stale: whether to read caches whose prompts, data, vocabulary or modules have changed.

    Returns:
      notes about the data, one per line.

    Raises:
      UserError: a mixture, its cache or its split is missing.
    """
    mode = run_mode()
    notes: list[str] = []
    vocabulary_of = bound("get_vocabulary.mixture_or_task_name")
    if vocabulary_of:
        opening.known_mixture(vocabulary_of)
    for function in _mixture_functions(mode):
        name = bound(f"{function}.mixture_or_task_name")
        opening.known_mixture(name)
        use_cached = bool(bound(f"{function}.use_cached", False))
        if use_cached:
            listed_tasks = EvaluationSettings().tasks if mode in ("eval", "score_eval") else ()
            for mixture in listed_tasks or [name]:
                opening.require_cached(mixture, function=function, settings=settings)
            notes += opening.require_current(
                listed_tasks or [name], settings=settings, allow_stale=allow_stale
            )
        split = bound("run.dataset_split", "train")
        opening.require_split(name, split)
        _check_features(name)
        if hosts_read and not use_cached:
            host_graphs.require_no_live_tasks(name, split, function=function, settings=settings)
        if use_cached:
            opening.require_whole(name, split)
        unread = None if use_cached else opening.unread_caches(name, function=function)
        hint = [unread] if unread else []
        sampling = own_sampling(opening.known_mixture(name)) if mode == "train" else None
        if sampling:
            hint.append(f"{sampling} draws the examples; SeqIO calls it, as in T5")
        notes += hint
        try:
            notes += _describe_truncation(name, split, mode, use_cached=use_cached)
        except AbsentData as error:
            raise AbsentData("\n".join([str(error), *hint])) from error
    tasks = configured_tasks() if mode == "eval" else None
    if tasks is not None:
        lengths = lengths_of_run()
        notes += check_tasks(tasks, lengths, on_tpu=on_tpu)
        # Ranked tasks are left out, because ranking reads all data before it scores, and then
        # prints these notes itself.
        others = [task for task in tasks if not is_ranked(task)]
        use_cached = bool(bound("mesh_eval_dataset_fn.use_cached", False))
        split = bound("run.dataset_split", "train")
        notes += (
            cut_shares.cut_notes(others, split, lengths, use_cached=use_cached) if lengths else ()
        )
    return notes


def _mixture_functions(mode: str) -> list[str]:
    """Returns a list with the dataset function that reads a mixture in a mode; [] if none does.

    A function that reads files, such as T5's function for TSV files or a function of Mesh
    TensorFlow, does not read a mixture. A mixture may be set nevertheless, because its vocabulary
    is used. A user's own function may call T5's function. If a mixture is set, we assume that the
    user's function does so.
    """
    function = DATASET_FUNCTIONS.get(mode)
    reader = bound(_READS[mode]) if function else None
    if reader is None:
        return []
    if reader in (t5_mesh.mesh_train_dataset_fn, t5_mesh.mesh_eval_dataset_fn):
        return [function]
    wrapped = inspect.unwrap(reader)
    reads_files = wrapped is inspect.unwrap(t5_mesh.tsv_dataset_fn) or (
        getattr(wrapped, "__module__", "").startswith("mesh_tensorflow.")
    )
    mixture = bound(f"{function}.mixture_or_task_name")
    return [function] if mixture and not reads_files else []


def _describe_truncation(name: str, split: str, mode: str, *, use_cached: bool) -> list[str]:
    """Returns notes about the share of the mixture `name` that the run's lengths truncate."""
    lengths = lengths_of_run()
    notes = [*opening.notes(name, split)]
    if lengths and mode in ("train", "perplexity_eval"):
        tasks = seqio.get_subtasks(opening.known_mixture(name))
        with_split = [task for task in tasks if split in task.splits]
        notes += cut_shares.cut_notes(with_split, split, lengths, use_cached=use_cached)
    return notes


def _check_features(name: str) -> None:
    """Checks that a mixture has all features for which a length is set.

    Raises:
      UserError: a feature is unknown. The message suggests similar features.
    """
    features = seqio.get_mixture_or_task(name).output_features
    for feature in lengths_of_run() or {}:
        if feature not in features:
            hint = f"{name} has {' and '.join(features)}; the lengths are those of "
            hint += "run.sequence_length (TASK_FEATURE_LENGTHS)."
            raise unknown_name("feature", feature, features, hint)


def lengths_of_run() -> dict[str, int] | None:
    """Returns feature -> maximum number of tokens (`run.sequence_length`); None for no limit."""
    lengths = bound("run.sequence_length")
    return dict.fromkeys(("inputs", "targets"), lengths) if isinstance(lengths, int) else lengths


def check_caches(mode: str) -> None:
    """Checks all bytes of the caches that the configured mode reads. Call it if reading has failed.

    Raises:
      UserError: a cache is damaged.
    """
    function = DATASET_FUNCTIONS.get(mode)
    name = bound(f"{function}.mixture_or_task_name") if function else None
    if name and bound(f"{function}.use_cached", False):
        opening.require_whole(name, bound("run.dataset_split", "train"), contents=True)


def check_run(
    model_dir: str,
    *,
    vocabulary: Any,
    mesh_shape: Any,
    checkpoint: str | None = None,
    any_format: bool = False,
) -> list[str]:
    """Checks the configured run.

    Args:
      model_dir: the folder of the run's checkpoints.
      vocabulary: one vocabulary, or (inputs, targets).
      mesh_shape: the shape of the run's mesh.
      checkpoint: the checkpoint to read in a mode other than training; None for the checkpoints in
        `model_dir`.
      any_format: whether the run's engine reads checkpoints in every format. If True, the engine
        also reads the PyTorch engine's own checkpoints in `model_dir`.

    Returns:
      notes, one per line.

    Raises:
      UserError: the run cannot work.
    """
    mode = run_mode()
    for parameter in ("optimizer", "learning_rate_schedule"):
        value = bound(f"run.{parameter}", evaluate=False)
        if isinstance(value, str):
            raise UserError(
                f"run.{parameter} is the text {value!r}; expected a class or function, as @NAME "
                "without quotes, such as @AdafactorOptimizer, @t0.AdamWOptimizer or "
                "@t0.cosine_with_warmup (docs/reference.md)"
            )
    _check_dataset_function(mode)
    lengths = lengths_of_run()
    if lengths is None and mode not in ("eval", "score_eval"):
        raise UserError(
            f"run.sequence_length must be set in mode '{mode}' (in a run file it is the macro "
            "TASK_FEATURE_LENGTHS): --gin_param=\"run.sequence_length = {'inputs': 512, "
            "'targets': 64}\""
        )
    check_batch(
        bound("run.batch_size", ("tokens_per_replica", 2048)),
        sequence_length=lengths,
        mesh_shape=mtf.convert_to_shape(mesh_shape),
        layout_rules=mtf.convert_to_layout_rules(bound("run.layout_rules")),
    )
    if checkpoint and mode != "train":
        check_vocabulary(checkpoint, vocabulary)
        return []  # the sizes were checked before the conversion
    torch_checkpoints = torch_shards.steps(Path(model_dir))
    if mode == "train":
        if torch_checkpoints and not any_format:
            _check_engine(model_dir, max(torch_checkpoints))
        return _check_training(model_dir, vocabulary)
    return _check_checkpoints(model_dir, vocabulary, torch_checkpoints if any_format else {})


def _check_engine(model_dir: str, torch_step: int) -> None:
    latest = checkpoint_files.latest(model_dir)
    if torch_step > (checkpoint_files.global_step(latest) if latest else -1):
        raise UserError(
            f"{model_dir} has a newer checkpoint of the PyTorch engine, torch.ckpt-{torch_step}, "
            "from which TensorFlow cannot resume. Add --engine=torch, or use another "
            "--model_dir, such as the folder of --export_mtf (docs/gpu.md)"
        )


def _check_dataset_function(mode: str) -> None:
    own_loop = bound("run.train_model_fn") not in (None, train_model)
    name, file = {
        "train": ("run.train_dataset_fn", "dataset.gin"),
        "eval": ("run.eval_dataset_fn", "eval.gin"),
        "score_eval": ("run.eval_dataset_fn", "score_eval.gin"),
        "perplexity_eval": ("run.eval_dataset_fn", "perplexity_eval.gin"),
        "score_from_dataset": ("score_from_dataset.score_dataset_fn", "score_from_task.gin"),
    }.get(mode, (None, None))
    if name and bound(name) is None and not (mode == "train" and own_loop):
        raise UserError(f"{name} is not set, so mode '{mode}' has no data: add --gin_file={file}")


def _check_training(model_dir: str, vocabulary: Any) -> list[str]:
    split = bound("run.dataset_split", "train")
    if split != "train":
        raise UserError(f"training reads the split 'train', but run.dataset_split is '{split}'")
    Keep(bound("run.keep_checkpoint_max"))
    latest = checkpoint_files.latest(model_dir)
    if latest:  # training resumes from it, and does not read init_checkpoint
        check_vocabulary(latest, vocabulary)
        check_sizes(latest)
        return []
    checkpoint = bound("run.init_checkpoint") or bound("tpu_estimator_model_fn.init_checkpoint")
    if not checkpoint:
        return []
    check_vocabulary(checkpoint, vocabulary)
    if is_configured("t0.adapter"):  # the steps of an adapter count from 0
        return [f"starting an adapter of {checkpoint}"]
    initial_step, last_step = checkpoint_files.global_step(checkpoint), bound("run.train_steps")
    if isinstance(last_step, int) and last_step <= initial_step:
        raise UserError(
            f"run.train_steps = {last_step:,} counts from the start of pretraining, but "
            f"{checkpoint} is already at step {initial_step:,}. To train {last_step:,} more steps, "
            f"set run.train_steps = {initial_step + last_step}"
        )
    return [f"starting from {checkpoint}, step {initial_step:,}"]


def _check_checkpoints(
    model_dir: str, vocabulary: Any, torch_checkpoints: Mapping[int, Path]
) -> list[str]:
    """Checks the checkpoints of a folder. `torch_checkpoints` is step -> PyTorch checkpoint."""
    mode = run_mode()
    name = "export_checkpoint_step" if mode.startswith("export") else "eval_checkpoint_step"
    requested_steps = bound(f"run.{name}")
    if requested_steps is None and mode in _WAITING:
        newest = checkpoint_files.latest_step(model_dir, torch_checkpoints)
        latest = [] if newest is None else [newest]
        notes = [
            f"{name} is not set: waiting for checkpoints in {model_dir} forever. Set it to a step, "
            "or to -1 for the latest"
        ]
    else:
        options = {"also": torch_checkpoints, **step_options()}
        latest = checkpoint_files.select_steps(model_dir, requested_steps, **options)
        requested = (
            requested_steps if isinstance(requested_steps, list | tuple) else [requested_steps]
        )
        notes = _note_missing(requested, model_dir, latest, options)
        if changed_parameters("get_checkpoint_iterator", read=("find_closest", "skip_until")):
            notes.append(
                "get_checkpoint_iterator.stop_after has no effect: it ends the waiting for "
                f"checkpoints, and {name} names them"
            )
    for step in latest[-1:]:
        path = str(torch_checkpoints.get(step) or checkpoint_files.checkpoint_path(model_dir, step))
        check_vocabulary(path, vocabulary)
        check_sizes(path)
    return notes


def _note_missing(
    requested: Sequence[Any], model_dir: str, chosen: Sequence[int], options: Mapping[str, Any]
) -> list[str]:
    """Returns notes about the requested steps that have no checkpoint."""
    missing = [x for x in requested if isinstance(x, int) and x > 0 and x not in chosen]
    if not options["closest"]:
        return [f"no checkpoint of step {x:,}: it is left out (find_closest)" for x in missing]
    return [
        f"no checkpoint of step {step:,}: using the closest, {closest:,}"
        for step in missing
        for closest in checkpoint_files.select_steps(model_dir, step, **options)
    ]


# Name of a T5 encoder-decoder's size -> the gin parameter that sets it, and its macro in T5's
# files.
_SIZES = {
    "d_model": ("Unitransformer.d_model", "d_model"),
    "d_ff": ("DenseReluDense.hidden_size", "d_ff"),
    "d_kv": ("SelfAttention.key_value_size", "d_kv"),
    "heads": ("SelfAttention.num_heads", "num_heads"),
    "encoder_layers": ("encoder/make_layer_stack.num_layers", "num_layers"),
}


def check_sizes(path: str) -> None:
    """Checks that gin's sizes are those of a checkpoint's model, without building the model.

    Args:
      path: a checkpoint in any format. Models other than T5 encoder-decoders are not checked.

    Raises:
      UserError: sizes differ. The message lists these sizes and suggests a fix.
    """
    if bound("run.model_type", "bitransformer") != "bitransformer":
        return
    try:
        with contextlib.closing(open_source(path, keep_slots=False)) as source:
            model, folder = source.model, source.path
    except UserError:  # the error is reported later, when the checkpoint is read
        return
    differences, fixes = [], []
    for size, (parameter, macro) in _SIZES.items():
        size_of_checkpoint = getattr(model, size)
        scoped = parameter if "/" in parameter else f"encoder/{parameter}"
        size_of_run = bound(scoped, bound(scoped.partition("/")[2], evaluate=False), evaluate=False)
        if isinstance(size_of_run, int) and size_of_run != size_of_checkpoint:
            differences.append(
                f"  {macro}: {size_of_checkpoint} in the checkpoint, {size_of_run} in the gin files"
            )
            fixes.append(f"--gin.{macro}={size_of_checkpoint}")
    if not differences:
        return
    config = operative_config.find_operative(folder)
    remedy = f"its own gin file, --gin_file={config}" if config else " ".join(fixes)
    raise UserError(
        f"checkpoint {path} does not match the model that the gin files configure:\n"
        + "\n".join(differences)
        + f"\nUse {remedy}, or another --model_dir or checkpoint"
    )


def check_vocabulary(checkpoint: str, vocabulary: Any) -> None:
    """Checks that a vocabulary has as many ids as the embedding of a checkpoint.

    Args:
      checkpoint: a checkpoint in any format.
      vocabulary: one vocabulary, or (inputs, targets).

    Raises:
      UserError: the numbers differ. The message contains both numbers.
    """
    rows = None
    if not paths.exists(f"{checkpoint}.index"):
        with (
            contextlib.suppress(UserError),
            contextlib.closing(open_source(checkpoint, keep_slots=False)) as source,
        ):
            rows = source.model.vocabulary
    inputs = mesh_utils.inputs_vocabulary(vocabulary)
    divisor = bound("encoder/Unitransformer.vocab_divisor") or bound("Unitransformer.vocab_divisor")
    checkpoint_files.check_vocabulary(
        checkpoint,
        vocabulary=inputs.vocab_size,
        divisor=divisor or 128,
        source=getattr(inputs, "sentencepiece_model_file", str(inputs)),
        rows=rows,
    )


InputFunction = Callable[[dict[str, Any]], Any]


class _InputFunctionFound(BaseException):  # noqa: N818 (not an error, so that no handler catches it)
    def __init__(self, input_fn: InputFunction) -> None:
        super().__init__("an input function")
        self.input_fn = input_fn


class _CapturingEstimator:
    """Replaces TPUEstimator, and raises `_InputFunctionFound` with the input function."""

    def __init__(self, *args: Any, model_dir: str = "", **kwargs: Any) -> None:
        del args, kwargs
        self.model_dir = model_dir

    def train(self, input_fn: InputFunction, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise _InputFunctionFound(input_fn)


def training_input(arguments: Mapping[str, Any]) -> InputFunction | None:
    """Returns the input function that Mesh TensorFlow's `run` passes to TPUEstimator for training.

    Nothing is written, and data is only read if this is necessary to create the function.

    Args:
      arguments: the arguments that the command passes to `run`. gin has all others.

    Returns:
      the function; None if the run is already finished.
    """
    with compat.replaced("mesh_utils.get_estimator", _CapturingEstimator):
        try:
            mesh_utils.run(**{**arguments, "tpu": None})
        except _InputFunctionFound as interruption:
            return interruption.input_fn
    return None


def _evaluation_input(mode: str, vocabulary: Any) -> InputFunction:
    """Returns a function that opens the datasets of all evaluated tasks of a mode."""
    datasets = bound(_READS[mode])(
        sequence_length=lengths_of_run(),
        vocabulary=vocabulary,
        dataset_split=bound("run.dataset_split", "train"),
    )
    return lambda params: [dataset.dataset_fn() for dataset in datasets if dataset.metric_fns]


def check_hosts(mode: str, arguments: Mapping[str, Any]) -> None:
    """Checks that the TensorFlow servers of a TPU's hosts can read the data of the configured run.

    Args:
      mode: the value of `run.mode`.
      arguments: the arguments that the command passes to Mesh TensorFlow's `run`.

    Raises:
      UserError: the servers do not support some operations. The message lists them.
    """
    if mode not in _READS:  # Mesh TensorFlow's own code reads the data
        return
    vocabulary = arguments["vocabulary"]
    read = training_input(arguments) if mode == "train" else _evaluation_input(mode, vocabulary)
    foreign = host_graphs.foreign_operations(host_graphs.pipeline_graph(read)) if read else {}
    if foreign:
        raise UserError(
            f"a TPU's TensorFlow servers cannot read the data of mode '{mode}': they cannot run "
            f"{host_graphs.explain(foreign)} (in {', '.join(foreign.values())}), which a step "
            "after the cache or your own dataset function uses. Put the step before the cache, "
            "or write it with TensorFlow operations"
        )
