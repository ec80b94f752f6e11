"""Runs `t0 rehearse`, which trains a small version of a run on virtual cores and on one device.

    status = rehearse(steps=5, small=True)               # parse gin first

The command prints the changes that make the run small, the losses and gradient norms of both sides,
and a verdict in the last line.

`shrink` makes the run small but preserves the pod's mesh and layout. The dimensions that the layout
splits stay divisible by the mesh. So each core still has some of the heads and some of the columns
of d_ff. Types, optimizer, schedule, packing, dropout and vocabulary do not change. The sizes must
be gin macros, as in T5's model files and Mesh TensorFlow's operative configs.
"""

import contextlib
import tempfile
from collections.abc import Mapping
from typing import Any

from t0.compat import gin
from t0.config.bindings import bound
from t0.config.t5_layers import ENCODER_DECODER
from t0.errors import UserError, say
from t0.feeding.batch_stream import stream_dataset
from t0.mesh import t5_model
from t0.mesh.costs import costs_by_formulas
from t0.mesh.lowering import build_model
from t0.mesh.plan import memory_of, verdict
from t0.mesh.pod_run import (
    PodRun,
    check_model,
    configured_vocabulary_size,
    describe_shape,
    model_dimensions,
    read_pod_run,
)
from t0.rehearsal import feeding
from t0.rehearsal.comparing import Comparison, compare_training
from t0.rehearsal.restarting import rehearse_restart

# The largest number of cores that we have tested on one machine. The graph grows with this number.
MOST_CORES = 64
# Gin macro -> its small size, which `shrink` rounds up to a multiple of the mesh.
_SIZES = {"num_layers": 1, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 2}
# Gin macro -> the dimension that it sets, with its name in layout rules.
_DIMENSIONS = {"d_model": "d_model", "d_ff": "d_ff", "d_kv": "d_kv", "num_heads": "heads"}
_LENGTHS = {"inputs": 32, "targets": 16}
_TOKENS = "serialize_num_microbatches.tokens_per_microbatch_per_replica"
_MICROBATCHES = 2


def rehearse(
    *,
    steps: int,
    small: bool,
    data: Any = None,
    kill_at: int | None = None,
    batch_hashes: str | None = None,
) -> int:
    """Rehearses the run that gin configures, and prints the comparison.

    Args:
      steps: the number of training steps on each side.
      small: whether to make the model and the batch small first.
      data: the parsed flags of the command, which set the location of the mixture's data. If None,
        training uses random tokens.
      kill_at: the step after which the pod is stopped and restarted. If it is set, nothing is
        compared.
      batch_hashes: the file for a hash of the batch of each step on each core. If it is set,
        nothing is compared.

    Returns:
      0 if the cores' program and our loop agree, or if nothing is compared; else 1.

    Raises:
      UserError: if the run cannot be rehearsed, or would fail on the slice.
    """
    vocabulary = feeding.check_mixture(data) if data else None
    size = feeding.vocabulary_size(vocabulary) if data else configured_vocabulary_size()[0]
    run = read_pod_run(vocabulary_size=size)
    _check_covered(run)
    model = build_model(run)
    dimensions = model_dimensions(model)
    check_model(run, dimensions)
    tokens = f"tokens of {bound('mesh_train_dataset_fn.mixture_or_task_name')}"
    print(
        f"{run.slice_.name}: mesh {describe_shape(run.mesh_shape)}, {run.slice_.cores} virtual "
        f"cores; {tokens if data else 'random tokens'}, random weights",
        flush=True,
    )
    with contextlib.suppress(UserError):  # the formulas are only for T5s
        memory = memory_of(run, costs_by_formulas(run, t5_model.sizes(model)))
        say(f"memory on the slice: {verdict(memory, run.slice_.name)['reason']}")
    if small:
        run, changes = shrink(run, dimensions)
        say(f"made small: {'; '.join(changes)}")
    with tempfile.TemporaryDirectory() as folder:
        stream = feeding.write_stream(run, folder, steps=steps + 1) if data else None

        def batches_from(step: int) -> Any:
            if stream:
                return feeding.open_batches(run, lambda _: stream_dataset(stream, step))
            input_fn = feeding.configured_input(vocabulary) if data else feeding.random_input(run)
            return feeding.open_batches(run, input_fn)

        if kill_at is not None or batch_hashes:
            if stream is None:
                raise UserError(
                    "--kill_at and --batch_hashes need the data of a run whose tasks are cached "
                    "examples: set --data, and mesh_train_dataset_fn.use_cached = True"
                )
            rehearse_restart(run, batches_from, steps=steps, kill_at=kill_at, file=batch_hashes)
            return 0
        with batches_from(0) as batches:
            comparison = compare_training(run, batches, steps=steps)
    for line in text(comparison, run):
        say(line)
    return 1 if comparison.disagreements else 0


def _check_covered(run: PodRun) -> None:
    if run.mode != "train":
        raise UserError(f"run.mode is '{run.mode}', and a rehearsal trains: set run.mode = 'train'")
    if run.model_type != ENCODER_DECODER:
        raise UserError(
            f"run.model_type is '{run.model_type}', and a rehearsal covers encoder-decoders "
            f"('{ENCODER_DECODER}'). `t0 plan` covers this run"
        )
    if run.slice_.cores > MOST_CORES:
        raise UserError(
            f"{run.slice_.name} has {run.slice_.cores} cores, and a rehearsal takes up to "
            f"{MOST_CORES}. Rehearse a smaller slice with the same "
            "tpu_mesh_shape.model_parallelism: its cores split the model in the same way"
        )


def text(comparison: Comparison, run: PodRun) -> list[str]:
    """Returns the lines of a comparison, followed by the verdict."""
    dtype = run.variable_dtype.activation_dtype.name
    if comparison.disagreements:
        verdict = f"VERDICT: the cores' program differs from one device ({dtype})"
        return [*comparison.lines, *comparison.disagreements, verdict]
    advice = [
        f"activations are {dtype}, whose rounding hides small faults; for a sharper comparison "
        "add --gin_param=\"get_variable_dtype.activation_dtype = 'float32'\""
    ]
    band = comparison.bands.loss
    verdict = f"VERDICT: the cores' program and one device agree ({dtype}, band {band:.0e})"
    return [*comparison.lines, *(advice if dtype != "float32" else []), verdict]


def shrink(run: PodRun, dimensions: Mapping[str, int]) -> tuple[PodRun, list[str]]:
    """Binds smaller sizes in gin, and reads the run from gin again.

    Args:
      run: the configured run, before it is made small.
      dimensions: the model's dimensions, name -> size, such as {"d_model": 1024, "heads": 16}.

    Returns:
      the small run, and its differences from the configured run, one clause each.

    Raises:
      UserError: if a size cannot be reduced, because no gin macro sets it.
    """
    macros = {name: bound(f"%{name}") for name in _SIZES}
    smaller = {
        name: size
        for name, size in ((name, _round_up_size(run, name)) for name in _SIZES)
        if isinstance(macros[name], int) and macros[name] > size
    }
    lengths = {name: min(n, _LENGTHS.get(name, n)) for name, n in run.sequence_length.items()}
    microbatches = _MICROBATCHES if run.microbatches > 1 else 1
    rows = ("sequences_per_replica", microbatches)
    tokens = max(lengths.values()) if microbatches > 1 else None
    lines = [f"{name} = {size}" for name, size in smaller.items()]
    lines += [
        f"run.sequence_length = {lengths}",
        f"run.batch_size = {rows}",
        f"{_TOKENS} = {tokens}",
    ]
    with gin.unlock_config():
        gin.parse_config(lines)
    small = read_pod_run(vocabulary_size=run.vocabulary_size)
    _check_smaller(smaller, dimensions, model_dimensions(build_model(small)))
    changes = [f"{name}: {macros[name]} -> {size}" for name, size in smaller.items()]
    changes += [
        f"length of {name}: {run.sequence_length[name]} -> {length}"
        for name, length in lengths.items()
        if length != run.sequence_length[name]
    ]
    changes.append(f"sequences of a batch: {run.batch_sequences} -> {small.batch_sequences}")
    changes.append(f"microbatches: {run.microbatches} -> {small.microbatches}")
    return small, changes


def _round_up_size(run: PodRun, macro: str) -> int:
    size = _SIZES[macro]
    divisor = run.split(_DIMENSIONS[macro]) if macro in _DIMENSIONS else 1
    return -(-size // divisor) * divisor


def _check_smaller(
    smaller: Mapping[str, int], before: Mapping[str, int], after: Mapping[str, int]
) -> None:
    """Raises a UserError if the model still has a large size, which no gin macro sets."""
    for macro, dimension in _DIMENSIONS.items():
        size = after.get(dimension)
        if size is not None and size > max(_SIZES[macro], smaller.get(macro, size)):
            raise UserError(
                f"the model's {dimension} = {before[dimension]} cannot be made smaller: the macro "
                f"{macro} does not set it. Write the size as {macro} = {before[dimension]} in a "
                "gin file, or rehearse with --shrink none on a machine that has the memory"
            )
