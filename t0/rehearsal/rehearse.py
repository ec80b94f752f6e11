"""A rehearsal as `t0 rehearse` shows it: the configured run, shrunk, on virtual cores, as text.

    status = rehearse(steps=5, small=True)               # after gin has been parsed

It prints what was changed, both sides' losses and gradient norms, and a verdict in the last line.
"""

from typing import Any

from t0.config.bindings import bound
from t0.errors import UserError
from t0.mesh.lowering import build_model
from t0.mesh.pod_run import (
    PodRun,
    check_model,
    configured_vocabulary_size,
    describe_shape,
    model_dimensions,
    read_pod_run,
)
from t0.rehearsal import configured_data
from t0.rehearsal.comparing import Comparison, compare_training
from t0.rehearsal.feeding import fed, random_input
from t0.rehearsal.memory_needed import check_memory
from t0.rehearsal.shrinking import shrink

# Cores whose programs were run at once on this kind of machine; graphs grow with their number.
MOST_CORES = 64
_MODEL_TYPE = "bitransformer"
_ENSEMBLES = ("run.ensemble_inputs", "Unitransformer.ensemble")


def rehearse(*, steps: int, small: bool, data: Any = None) -> int:
    """Rehearses the run that gin configures, and prints the comparison.

    Args:
      steps: how many training steps both sides take.
      small: whether the model and the batch are made small first.
      data: the parsed flags of a command whose own mixture is read; None for random tokens.

    Returns:
      0 if the cores' program and our loop agree, else 1.

    Raises:
      UserError: for a run that cannot be rehearsed, or that could not run on the slice.
    """
    vocabulary = configured_data.check(data) if data else None
    size = configured_data.vocabulary_size(vocabulary) if data else configured_vocabulary_size()[0]
    run = read_pod_run(vocabulary_size=size)
    _check_covered(run)
    dimensions = model_dimensions(build_model(run))
    check_model(run, dimensions)
    tokens = f"tokens of {bound('mesh_train_dataset_fn.mixture_or_task_name')}"
    print(
        f"{run.slice_.name}: mesh {describe_shape(run.mesh_shape)}, {run.slice_.cores} virtual "
        f"cores; {tokens if data else 'random tokens'}, random weights",
        flush=True,
    )
    if small:
        shrunk = shrink(run, dimensions)
        run = shrunk.run
        print(f"made small: {'; '.join(shrunk.changes)}", flush=True)
    check_memory(run, build_model(run))
    given = configured_data.input_function(vocabulary) if data else random_input(run)
    with fed(run, given) as batches:
        comparison = compare_training(run, batches, steps=steps)
    for line in text(comparison, run):
        print(line)
    return 1 if comparison.disagreements() else 0


def _check_covered(run: PodRun) -> None:
    if run.mode != "train":
        raise UserError(f"run.mode is '{run.mode}', and a rehearsal trains: set run.mode = 'train'")
    if run.model_type != _MODEL_TYPE:
        raise UserError(
            f"run.model_type is '{run.model_type}', and a rehearsal covers encoder-decoders "
            f"('{_MODEL_TYPE}'). `t0 plan` covers this run"
        )
    ensembles = [name for name in _ENSEMBLES if bound(name)]
    if ensembles:
        raise UserError(
            f"{ensembles[0]} = {bound(ensembles[0])} makes an ensemble of models, and a rehearsal "
            f"covers one model: set {ensembles[0]} = None"
        )
    if run.slice_.cores > MOST_CORES:
        raise UserError(
            f"{run.slice_.name} has {run.slice_.cores} cores, and a rehearsal takes up to "
            f"{MOST_CORES}. Rehearse a smaller slice with the same "
            "tpu_mesh_shape.model_parallelism: its cores split the model in the same way"
        )


def text(comparison: Comparison, run: PodRun) -> list[str]:
    """Returns the lines of a comparison: one for each step, the weights, the verdict."""
    lines = [f"{'step':>4}  {'loss: cores':>13} {'one device':>13}  {'gradient norm: cores':>20}"]
    lines[0] += f" {'one device':>13}"
    lines += [
        f"{pair.step:>4}  {pair.pod_loss:>13.6f} {pair.device_loss:>13.6f}  "
        f"{pair.pod_gradient_norm:>20.6f} {pair.device_gradient_norm:>13.6f}"
        for pair in comparison.steps
    ]
    greatest = comparison.greatest
    lines.append(f"greatest difference of a weight: {greatest.greatest:.1e} in {greatest.name}")
    saved = comparison.saved
    lines.append(
        f"a checkpoint of the pod, restored by both; the next loss: {saved.pod_loss:.6f} on cores, "
        f"{saved.device_loss:.6f} on one device"
    )
    if saved.ranked:
        lines.append(
            f"{saved.ranked.pod.size} choices scored with it: the greatest difference is "
            f"{saved.ranked.difference:.1e} of the largest log-likelihood"
        )
    if saved.measured:
        lines.append(
            f"its perplexity over {saved.measured.device.tokens:,.0f} tokens: "
            f"{saved.measured.pod.nats_per_token:.6f} nats a token on cores, "
            f"{saved.measured.device.nats_per_token:.6f} on one device"
        )
    dtype = run.variable_dtype.activation_dtype.name
    found = comparison.disagreements()
    if found:
        return [*lines, *found, f"VERDICT: the cores' program differs from one device ({dtype})"]
    if dtype != "float32":
        lines.append(
            f"activations are {dtype}, whose rounding hides small faults; for a sharper comparison "
            "add --gin_param=\"get_variable_dtype.activation_dtype = 'float32'\""
        )
    band = comparison.bands.loss
    lines.append(f"VERDICT: the cores' program and one device agree ({dtype}, band {band:.0e})")
    return lines
