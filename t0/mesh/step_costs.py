"""The costs of a core's step on a TPU slice: by formulas, or by lowering the whole model.

    from t0.mesh.pod_run import read_pod_run

    run = read_pod_run(vocabulary_size=32100)     # after gin has been parsed
    costs = costs_by_formulas(run, model_shape(build_model(run)))
    costs.flops                                   # of one core, for each step
    costs_by_lowering(run).collectives[0].wire_bytes    # t0 plan --exact

tests/mesh/mesh_step_costs_test.py compares the two, and gives the tolerances.
"""

import re
from collections import Counter
from typing import Any

import numpy as np

from t0.checkpoints.shape import ModelShape, expected_shapes
from t0.config.bindings import bound
from t0.errors import UserError
from t0.mesh import formulas
from t0.mesh.costs import (
    Collective,
    LayerCost,
    StepCosts,
    einsum_flops,
    flops_and_collectives,
    group_axes,
    ring_wire_bytes,
)
from t0.mesh.formulas import Share
from t0.mesh.lowering import COLLECTIVES, Program, lower, read_program
from t0.mesh.memory import Peak, peak_memory
from t0.mesh.pod_run import PodRun
from t0.mesh.tiles import bias_and_mask_bytes, lowered_bias_and_mask_bytes

_BLOCK = re.compile(r"block_\d+")
_LOOP = re.compile(r"^while_loop/while/")
_COUNTED = re.compile(r"^(\w+?)_\d+/")  # an operation outside of the model, such as to_float_32/
_LARGEST = 8  # layers that a plan lists
_LAYERS = ("SelfAttention", "EncDecAttention", "DenseReluDense")


def model_shape(model: Any) -> ModelShape:
    """Returns the shape of a Mesh TensorFlow `Bitransformer`.

    Raises:
      UserError: if the model is not a T5 with equal layers.
    """
    stacks = [getattr(model, part, None) for part in ("encoder", "decoder")]
    layers = [layer for stack in stacks if stack for layer in stack.layer_stack._layers]
    other = sorted({type(layer).__name__ for layer in layers} - set(_LAYERS))
    equal = len({_layer_key(layer) for layer in layers}) <= 3
    if None in stacks or other or not equal or not model.shared_embedding:
        raise UserError(
            "the formulas are for T5's encoder-decoder with equal layers; this model has "
            f"{', '.join(other) or 'another form'}. Plan it with --exact, which lowers it"
        )
    encoder, decoder = stacks
    attention = next(layer for layer in layers if type(layer).__name__ == "SelfAttention")
    dense = next(layer for layer in layers if type(layer).__name__ == "DenseReluDense")
    counts = [
        sum(type(layer).__name__ == "SelfAttention" for layer in stack.layer_stack._layers)
        for stack in stacks
    ]
    return ModelShape(
        vocabulary=decoder.output_vocab_dim.size,
        d_model=encoder.model_dim.size,
        d_ff=dense.hidden_size,
        inner=attention.num_heads * attention.key_value_size,
        heads=attention.num_heads,
        buckets=attention.relative_attention_num_buckets,
        encoder_layers=counts[0],
        decoder_layers=counts[1],
        gated=not isinstance(dense.activation, str) and len(dense.activation) == 2,
        tied=decoder.shared_embedding_and_softmax_weights,
        shared_bias=True,
    )


def _layer_key(layer: Any) -> tuple[Any, ...]:
    if type(layer).__name__ == "DenseReluDense":
        return ("dense", layer.hidden_size, str(layer.activation))
    return (type(layer).__name__, layer.num_heads, layer.key_value_size)


def costs_by_formulas(run: PodRun, shape: ModelShape) -> StepCosts:
    """Returns the costs of a run from the shape of its model, in milliseconds."""
    train = run.mode == "train"
    types = run.variable_dtype
    each = types.activation_dtype.size
    share = Share(
        rows=run.batch_sequences // run.replicas // run.microbatches,
        inputs=run.sequence_length["inputs"],
        targets=run.sequence_length["targets"],
        bytes_each=each,
        split={name: run.split(name) for name in ("heads", "d_ff", "vocab", "d_model")},
    )
    weights = formulas.weights_on_device(shape, share.split)
    slots = formulas.slots_on_device(shape, share.split) if train else 0
    kept = formulas.kept_bytes(shape, share, formulas.XLA)
    temporary = {
        "weight copies": weights * each if each != types.slice_dtype.size and train else 0,
        "gradients": weights * each if run.microbatches > 1 else 0,
        "activations": kept if train else formulas.scoring_bytes(shape, share),
    }
    least = formulas.recomputed_bytes(shape, share) if train else temporary["activations"]
    products, lookups = (of(shape, share) for of in (formulas.product_flops, formulas.lookup_flops))
    return StepCosts(
        method="formulas",
        parameters=formulas.parameters(shape),
        weights_bytes=weights * types.slice_dtype.size,
        optimizer_bytes=slots * formulas.FLOAT32_BYTES,
        temporary_bytes=temporary,
        recomputed_bytes=sum(temporary.values()) - temporary["activations"] + least,
        flops=run.microbatches * (3 * products + 2 * lookups if train else products + lookups),
        collectives=_formula_collectives(run, shape, share, weights),
        tile_bytes=bias_and_mask_bytes(
            share.rows,
            (share.inputs, share.targets),
            share.on_device(shape.heads, "heads"),
            train=train,
        ),
    )


def _formula_collectives(
    run: PodRun, shape: ModelShape, share: Share, weights: int
) -> tuple[Collective, ...]:
    train = run.mode == "train"
    activations = formulas.model_axis_elements(shape, share, train=train)
    amounts = []
    axes = {name: run.axis(name) for name in ("heads", "batch")}
    if axes["heads"]:
        sublayers = 2 * shape.encoder_layers + 3 * shape.decoder_layers + 2
        count = run.microbatches * sublayers * (2 if train else 1)
        amounts.append((axes["heads"], count, run.microbatches * activations))
    if axes["batch"] and train:
        bias = formulas.position_bias_elements(shape, share)
        layers = shape.encoder_layers + shape.decoder_layers
        count = len(expected_shapes(shape)) + run.microbatches * layers
        amounts.append((axes["batch"], count, run.microbatches * bias + weights))
    return tuple(_all_reduce(run, *amount) for amount in amounts)


def _all_reduce(run: PodRun, axis: str, count: int, elements: int) -> Collective:
    size = next(dim.size for dim in run.mesh_shape.dims if dim.name == axis)
    narrow = run.variable_dtype.activation_dtype.size == 2 and size <= bfloat16_limit()
    payload = elements * (2 if narrow else 4)
    return Collective(
        kind="all-reduce",
        axes=(axis,),
        group_size=size,
        dtype="bfloat16" if narrow else "float32",
        count=count,
        payload_bytes=payload,
        wire_bytes=ring_wire_bytes("all-reduce", payload, size),
    )


def bfloat16_limit() -> int:
    """Returns the size of the largest group whose sums SimdMeshImpl sends in bfloat16."""
    return bound("SimdMeshImpl.allreduce_in_bfloat16_max_group_size", 8)


def costs_by_lowering(run: PodRun, *, every_slice: bool = False) -> StepCosts:
    """Returns the costs of a run, from the core's program that lowering gives.

    Args:
      run: the run that gin configures.
      every_slice: whether each variable's slice is made on every core.
    """
    lowered = lower(run, every_slice=every_slice)
    program = read_program(lowered.graph, lowered.fetches)
    mesh_impl = lowered.mesh_impl
    names = [dim.name for dim in run.mesh_shape.dims]
    sizes = run.mesh_shape.to_integer_list

    def axes_of_group(physical: np.ndarray) -> tuple[str, ...]:
        return group_axes([mesh_impl.p2l(int(core)) for core in physical], names, sizes)

    flops, collectives = flops_and_collectives(
        program, microbatches=run.microbatches, axes_of_group=axes_of_group
    )
    variables: Counter[bool] = Counter()
    for variable in lowered.lowering.graph.all_variables:
        size = mesh_impl.slice_size(variable.shape) * variable.slice_dtype.size
        variables[variable.trainable] += size
    trainable = lowered.lowering.graph.trainable_variables
    peak, recomputed = (peak_memory(program, recompute=again) for again in (False, True))
    layer_flops, sent = _by_layer(program, run.microbatches)
    return StepCosts(
        method="lowering",
        parameters=sum(variable.size for variable in trainable),
        weights_bytes=variables[True],
        optimizer_bytes=variables[False],
        temporary_bytes=peak.by_kind,
        recomputed_bytes=min(peak.bytes, recomputed.bytes),
        flops=flops,
        collectives=collectives,
        tile_bytes=lowered_bias_and_mask_bytes(program, run),
        largest_memory=_largest(_activations_by_layer(peak)),
        largest_flops=_largest(layer_flops),
        largest_communication=_largest(sent),
        operations={
            kind: count
            for kind, count in Counter(step.kind for step in program.steps).items()
            if kind in ("Einsum", *COLLECTIVES)
        },
    )


def _by_layer(program: Program, microbatches: int) -> tuple[Counter[str], Counter[str]]:
    """Returns the FLOPs and the communicated bytes of each layer, summed over all blocks."""
    flops: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    for step in program.steps:
        inputs = [program.values[value] for value in step.inputs]
        times = microbatches if step.in_loop else 1
        if step.kind == "Einsum":
            amount = einsum_flops(step.detail, [value.shape for value in inputs])
            flops[_common_name(step.name)] += amount * times
        elif step.kind in COLLECTIVES:
            update = not step.in_loop and microbatches > 1
            name = "gradients and optimizer, after the microbatches" if update else step.name
            sent[_common_name(name)] += inputs[0].bytes * times
    return flops, sent


def _common_name(name: str) -> str:
    return _BLOCK.sub("block_*", _COUNTED.sub(r"\1/", _LOOP.sub("", name)))


def _activations_by_layer(peak: Peak) -> Counter[str]:
    amounts: Counter[str] = Counter()
    for buffer in peak.live:
        if buffer.kind == "activations":
            amounts[_common_name(buffer.name)] += buffer.bytes
    return amounts


def _largest(amounts: Counter[str]) -> tuple[LayerCost, ...]:
    return tuple(LayerCost(*item) for item in amounts.most_common(_LARGEST))
