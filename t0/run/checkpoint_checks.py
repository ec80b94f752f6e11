"""Checks the checkpoints of a configured run before any is read or converted.

    check_checkpoint(run)           # UserError: /models/t6 does not exist, ...
    list(check_last_step(run))      # ["starting from /models/t5/model.ckpt-1000000, step 1,000,000"]
    initial_step(path)              # 1000000

The sizes and the vocabulary of a checkpoint must be those of the run's model. A checkpoint may have
any format.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t0.checkpoints import (
    adapter_folders,
    checkpoint_files,
    open_source,
    operative_config,
    recognise,
    tokenizer,
    torch_shards,
)
from t0.compat import mesh_utils
from t0.config.bindings import bound, changed_parameters, is_configured
from t0.config.t5_layers import ENCODER_DECODER
from t0.errors import UserError
from t0.evaluation.mesh_model import step_options
from t0.files import paths
from t0.run.parsed_run import ParsedRun

# Modes in which Mesh TensorFlow waits for new checkpoints if eval_checkpoint_step is None.
_WAITING = ("eval", "perplexity_eval", "score_from_dataset", "score_from_strings")


def check_adapter(run: ParsedRun) -> None:
    """Checks that the engine trains the configured adapter, and that --adapter has a base."""
    if run.mode == "train":
        check_base()
    if run.mode == "train" and is_configured("t0.adapter") and not run.flags.save_spec:
        raise UserError(
            "t0.adapter is set, and only the PyTorch engine trains adapters; add --engine=torch"
        )
    if run.mode != "train" and run.flags.adapter:
        if not run.named_checkpoint:
            raise UserError("--adapter needs its base: name it with --checkpoint")
        adapter_folders.choose(run.flags.adapter)


def check_base() -> None:
    """Checks that the run trains an adapter, if it has a type for an adapter's frozen weights."""
    if is_configured("t0.adapter") and not bound("t0.adapter.method"):
        raise UserError(
            f"--base={bound('t0.adapter.base')} is for the frozen weights of an adapter, and this "
            "run trains all weights: add --gin_file=runs/lora.gin, or leave out --base"
        )


def check_checkpoint(run: ParsedRun) -> Iterator[str]:
    """Checks that the checkpoints that the run reads exist, and have the sizes of the run's model.

    Yields:
      notes about missing steps.
    """
    if run.mode == "train":
        _check_training(run)
    elif run.named_checkpoint:
        _check_named(run.named_checkpoint)
    else:
        yield from _check_steps(run)


def check_last_step(run: ParsedRun) -> Iterator[str]:
    """Checks that training ends after the step of its initial checkpoint, and names both."""
    if run.mode != "train" or run.latest_checkpoint:
        return
    checkpoint = run.named_checkpoint
    if not checkpoint:
        return
    if is_configured("t0.adapter"):  # the steps of an adapter count from 0
        yield f"starting an adapter of {checkpoint}"
        return
    if "://" not in checkpoint and recognise(checkpoint)[0] == "mtf":
        checkpoint = recognise(checkpoint)[1]
    step, last_step = initial_step(checkpoint), bound("run.train_steps")
    counts_from_checkpoint = run.flags.finetune_steps is not None or run.flags.epochs is not None
    if isinstance(last_step, int) and last_step <= step and not counts_from_checkpoint:
        raise UserError(
            f"run.train_steps = {last_step:,} counts from the start of pretraining, but "
            f"{checkpoint} is already at step {step:,}. To train {last_step:,} more steps, "
            f"set run.train_steps = {step + last_step}"
        )
    yield f"starting from {checkpoint}, step {step:,}"


def check_checkpoint_vocabulary(run: ParsedRun) -> Iterator[str]:
    """Checks that the checkpoint that the run reads was trained with the run's vocabulary.

    Yields:
      a note if the tokenizer of a Hugging Face folder gives other ids, and --vocab is set.
    """
    latest = run.latest_checkpoint if run.mode == "train" else None
    named = None if latest else run.named_checkpoint
    if named:
        yield from _compare_tokenizers(run, named)
    if named or latest:
        whole_training = run.mode == "train" and not is_configured("t0.adapter")
        converts = whole_training or not run.read_elsewhere
        check_vocabulary(named or latest, run.vocabulary, padded=bool(named) and converts)
    elif run.mode != "train":
        for path in _last_of(*_select_steps(run), run):
            check_vocabulary(path, run.vocabulary)


def initial_step(checkpoint: str) -> int:
    """Returns the step of a checkpoint in any format; 0 if it has none."""
    if "://" in checkpoint or recognise(checkpoint)[0] == "mtf":
        return checkpoint_files.global_step(checkpoint)
    with contextlib.closing(open_source(checkpoint, keep_slots=False)) as source:
        return source.facts.step or 0


def _check_engine(run: ParsedRun, torch_step: int) -> None:
    latest = run.latest_checkpoint
    if torch_step > (checkpoint_files.global_step(latest) if latest else -1):
        raise UserError(
            f"{run.flags.model_dir} has a newer checkpoint of the PyTorch engine, torch.ckpt-{torch_step}, "
            "from which TensorFlow cannot resume. Add --engine=torch, or use another "
            "--model_dir, such as the folder of --export_mtf (docs/gpu.md)"
        )


def _check_training(run: ParsedRun) -> None:
    torch_checkpoints = torch_shards.steps(Path(run.flags.model_dir))
    if torch_checkpoints and not run.read_elsewhere:
        _check_engine(run, max(torch_checkpoints))
    if run.latest_checkpoint:  # training resumes from it, and does not read the initial checkpoint
        check_sizes(run.latest_checkpoint)
    elif run.named_checkpoint:
        _check_named(run.named_checkpoint)


def _check_named(checkpoint: str) -> None:
    """Checks a checkpoint that the flags or gin name."""
    check_sizes(checkpoint)
    if "://" not in checkpoint and recognise(checkpoint)[0] != "mtf":
        open_source(checkpoint, keep_slots=False).close()  # an error says why it cannot be read


def _compare_tokenizers(run: ParsedRun, path: str) -> Iterator[str]:
    """Checks that a Hugging Face folder's tokenizer gives the same ids as the run's vocabulary.

    Yields:
      a note if the ids differ and --vocab is set.

    Raises:
      UserError: the ids differ, and --vocab is not set.
    """
    inputs = mesh_utils.inputs_vocabulary(run.vocabulary)
    model = getattr(inputs, "sentencepiece_model_file", None)
    if not model or "://" in path or recognise(path)[0] != "hf":
        return
    with contextlib.closing(open_source(path)) as source:
        line = tokenizer.difference(source.facts, model)
    if line and not run.flags.vocab:
        raise UserError(f"{line}. If this is intended, set --vocab={model}")
    if line:
        yield f"note: {line}"


def _check_steps(run: ParsedRun) -> Iterator[str]:
    """Checks the checkpoints of a folder."""
    steps, torch_checkpoints = _select_steps(run)
    name, requested = _requested_steps(run)
    if _waits(run):
        yield (
            f"{name} is not set: waiting for checkpoints in {run.flags.model_dir} forever. Set it "
            "to a step, or to -1 for the latest"
        )
    else:
        options = {"also": torch_checkpoints, **step_options()}
        each = requested if isinstance(requested, list | tuple) else [requested]
        yield from _note_missing(each, run.flags.model_dir, steps, options)
        if changed_parameters("get_checkpoint_iterator", read=("find_closest", "skip_until")):
            yield (
                "get_checkpoint_iterator.stop_after has no effect: it ends the waiting for "
                f"checkpoints, and {name} names them"
            )
    for path in _last_of(steps, torch_checkpoints, run):
        check_sizes(path)


def _requested_steps(run: ParsedRun) -> tuple[str, Any]:
    """Returns the name of the setting that selects checkpoints, and its value."""
    name = "export_checkpoint_step" if run.mode.startswith("export") else "eval_checkpoint_step"
    return name, bound(f"run.{name}")


def _waits(run: ParsedRun) -> bool:
    return run.mode in _WAITING and _requested_steps(run)[1] is None


def _select_steps(run: ParsedRun) -> tuple[Sequence[int], Mapping[int, Path]]:
    """Returns the selected steps, and step -> checkpoint of the PyTorch engine."""
    model_dir = run.flags.model_dir
    torch_checkpoints = torch_shards.steps(Path(model_dir)) if run.read_elsewhere else {}
    if _waits(run):
        newest = checkpoint_files.latest_step(model_dir, torch_checkpoints)
        return [] if newest is None else [newest], torch_checkpoints
    options = {"also": torch_checkpoints, **step_options()}
    steps = checkpoint_files.select_steps(model_dir, _requested_steps(run)[1], **options)
    return steps, torch_checkpoints


def _last_of(
    steps: Sequence[int], torch_checkpoints: Mapping[int, Path], run: ParsedRun
) -> list[str]:
    """Returns the path of the last step's checkpoint; [] if there is none yet."""
    return [
        str(torch_checkpoints.get(x) or checkpoint_files.checkpoint_path(run.flags.model_dir, x))
        for x in steps[-1:]
    ]


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
    if bound("run.model_type", ENCODER_DECODER) != ENCODER_DECODER:
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


def check_vocabulary(checkpoint: str, vocabulary: Any, *, padded: bool = False) -> None:
    """Checks that a vocabulary has as many ids as the embedding of a checkpoint.

    Args:
      checkpoint: a checkpoint in any format.
      vocabulary: one vocabulary, or (inputs, targets).
      padded: whether the embedding will be padded, because the checkpoint will be converted.

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
            rows = -(-rows // 128) * 128 if padded else rows
    inputs = mesh_utils.inputs_vocabulary(vocabulary)
    divisor = bound("encoder/Unitransformer.vocab_divisor") or bound("Unitransformer.vocab_divisor")
    checkpoint_files.check_vocabulary(
        checkpoint,
        vocabulary=inputs.vocab_size,
        divisor=divisor or 128,
        source=getattr(inputs, "sentencepiece_model_file", str(inputs)),
        rows=rows,
    )
