"""A T5's parameters, memory, FLOPs and collectives by formula, for `t0 plan --fast` and --sweep.

Letters, for sizes on one core:

    b sequences of a microbatch     T tokens of a sequence      S tokens attended to
    D model                         H heads                     K size of a head
    F feed-forward                  V vocabulary                a bytes of an activation
    m parts that the mesh splits heads, feed-forward and vocabulary into

    from t0.mesh.lowering import build_model
    from t0.mesh.pod_run import read_pod_run

    run = read_pod_run(vocabulary_size=32100)  # after gin has been parsed
    sizes = model_sizes(build_model(run))
    parameters(sizes)                          # 11135332352 for t5.1.1.xxl
    costs_by_formulas(run, sizes).flops        # of one core, for each step

The formulas are for the T5 stack (self-attention, attention to the encoder, feed-forward, RMS
norms, shared relative position bias). Tests compare them with real lowering: parameters, bytes of
variables and FLOPs are equal, collectives are equal but for the optimizer's scalars, activations
differ by less than a fifth.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from t0.config.bindings import bound
from t0.errors import UserError
from t0.mesh.costs import Collective, StepCosts, ring_wire_bytes
from t0.mesh.pod_run import PodRun
from t0.mesh.tiles import bias_and_mask_bytes

FACTOR_FROM = 128  # AdafactorOptimizer.min_dim_size_to_factor
_LAYERS = ("SelfAttention", "EncDecAttention", "DenseReluDense")


@dataclasses.dataclass(frozen=True)
class ModelSizes:
    """The sizes of an encoder-decoder, before the mesh splits them.

    Attributes:
      projections_in: feed-forward projections from D to F: 2 where gated (T5.1.1), else 1.
      buckets: relative position buckets.
      embeddings: lookup tables of V x D: 1 shared by encoder and decoder, or 2.
      own_logits: whether the output layer has weights of its own.
    """

    d_model: int
    heads: int
    d_kv: int
    d_ff: int
    projections_in: int
    vocab: int
    encoder_layers: int
    decoder_layers: int
    buckets: int
    embeddings: int
    own_logits: bool

    @property
    def splittable(self) -> dict[str, int]:
        """Sizes of the dimensions that a layout may split."""
        return {
            "heads": self.heads,
            "d_ff": self.d_ff,
            "vocab": self.vocab,
            "d_model": self.d_model,
        }


@dataclasses.dataclass(frozen=True)
class VariableSizes:
    """`count` variables of the same named dimensions."""

    dims: tuple[tuple[str, int], ...]
    count: int

    @property
    def elements(self) -> int:
        """Elements of one of the variables, on all cores together."""
        return math.prod(size for _, size in self.dims)

    def on_core(self, split: Mapping[str, int]) -> int:
        """Elements of one of the variables on one core."""
        return math.prod(size // split.get(name, 1) for name, size in self.dims)


def model_sizes(model: Any) -> ModelSizes:
    """Returns the sizes of a Mesh TensorFlow `Bitransformer`.

    Raises:
      UserError: if the model is not made of T5's layers.
    """
    stacks = [getattr(model, part, None) for part in ("encoder", "decoder")]
    layers = [layer for stack in stacks if stack for layer in stack.layer_stack._layers]
    other = sorted({type(layer).__name__ for layer in layers} - set(_LAYERS))
    if None in stacks or other or len({_key(layer) for layer in layers}) > 3:
        raise UserError(
            "--fast and --sweep plan T5's encoder-decoder with equal layers only; this model has "
            f"{', '.join(other) or 'another form'}; leave them out for a plan by real lowering"
        )
    encoder, decoder = stacks
    attention = next(layer for layer in layers if type(layer).__name__ == "SelfAttention")
    dense = next(layer for layer in layers if type(layer).__name__ == "DenseReluDense")
    counts = [
        sum(type(layer).__name__ == "SelfAttention" for layer in stack.layer_stack._layers)
        for stack in stacks
    ]
    return ModelSizes(
        d_model=encoder.model_dim.size,
        heads=attention.num_heads,
        d_kv=attention.key_value_size,
        d_ff=dense.hidden_size,
        projections_in=1 if isinstance(dense.activation, str) else len(dense.activation),
        vocab=decoder.output_vocab_dim.size,
        encoder_layers=counts[0],
        decoder_layers=counts[1],
        buckets=attention.relative_attention_num_buckets
        if attention.relative_attention_type
        else 0,
        embeddings=1 if model.shared_embedding else 2,
        own_logits=not decoder.shared_embedding_and_softmax_weights,
    )


def _key(layer: Any) -> tuple[Any, ...]:
    if type(layer).__name__ == "DenseReluDense":
        return ("dense", layer.hidden_size, str(layer.activation))
    return (type(layer).__name__, layer.num_heads, layer.key_value_size)


def variables(sizes: ModelSizes) -> Iterator[VariableSizes]:
    """Yields the model's variables.

    Attention: 4 of D x HK; feed-forward: projections_in of D x F and one of F x D; a scale of D
    for each sublayer and stack; H x buckets of position bias for each stack; embeddings.
    """
    d_model, d_ff = ("d_model", sizes.d_model), ("d_ff", sizes.d_ff)
    heads = ("heads", sizes.heads * sizes.d_kv)
    vocab = ("vocab", sizes.vocab)
    layers = sizes.encoder_layers + sizes.decoder_layers
    attentions = layers + sizes.decoder_layers
    yield VariableSizes((d_model, heads), 3 * attentions)
    yield VariableSizes((heads, d_model), attentions)
    yield VariableSizes((d_model, d_ff), sizes.projections_in * layers)
    yield VariableSizes((d_ff, d_model), layers)
    yield VariableSizes((d_model,), attentions + layers + 2)
    yield VariableSizes((vocab, d_model), sizes.embeddings)
    if sizes.own_logits:
        yield VariableSizes((d_model, vocab), 1)
    if sizes.buckets:
        yield VariableSizes((("heads", sizes.heads), ("buckets", sizes.buckets)), 2)


def parameters(sizes: ModelSizes) -> int:
    """Returns the number of the model's parameters, vocabulary padding included."""
    return sum(variable.count * variable.elements for variable in variables(sizes))


def weights_on_core(sizes: ModelSizes, split: Mapping[str, int]) -> int:
    """Returns the elements of the model's variables on one core."""
    return sum(variable.count * variable.on_core(split) for variable in variables(sizes))


def adafactor_slots_on_core(sizes: ModelSizes, split: Mapping[str, int]) -> int:
    """Returns the elements of Adafactor's second moments on one core (beta1 = 0).

    A variable whose two largest dimensions are 128 or more keeps one vector for each of them
    (Shazeer and Stern 2018), any other keeps as many elements as it has.
    """
    total = 0
    for variable in variables(sizes):
        ranked = sorted(variable.dims, key=lambda dim: -dim[1])
        if len(ranked) < 2 or ranked[1][1] < FACTOR_FROM:
            total += variable.count * variable.on_core(split)
            continue
        for largest in ranked[:2]:
            rest = tuple(dim for dim in variable.dims if dim is not largest)
            total += variable.count * VariableSizes(rest, 1).on_core(split)
    return total


@dataclasses.dataclass(frozen=True)
class Share:
    """One core's share of one microbatch.

    Attributes:
      sequences: sequences of the microbatch (b).
      inputs: tokens of a sequence in the encoder.
      targets: tokens of a sequence in the decoder.
      split: dimension name -> parts that the mesh splits it into.
    """

    sequences: int
    inputs: int
    targets: int
    split: Mapping[str, int]


def flops(sizes: ModelSizes, share: Share, *, train: bool) -> int:
    """Returns the FLOPs of matrix products that one core does for one microbatch.

    Forward, with n = bT: 2 n D HK/m for each of four attention projections, 4 n S HK/m for
    attending, 2 n D F/m for each feed-forward projection, 2 n D V/m for an embedding lookup
    (a product with one-hot tokens) and for the logits, 2 T S buckets H/m for position biases.
    Backward: twice as much; the same where only one operand needs a gradient (lookups, position
    biases).
    """
    heads = sizes.heads // share.split.get("heads", 1)
    d_ff = sizes.d_ff // share.split.get("d_ff", 1)
    vocab = sizes.vocab // share.split.get("vocab", 1)
    inner, model = heads * sizes.d_kv, sizes.d_model
    encoder, decoder = share.sequences * share.inputs, share.sequences * share.targets

    def attend(queries: int, keys: int, keys_of_sequence: int) -> int:
        projections = 2 * model * inner * (2 * queries + 2 * keys)
        return projections + 4 * queries * keys_of_sequence * inner

    def feed(tokens: int) -> int:
        return 2 * tokens * model * d_ff * (sizes.projections_in + 1)

    both = sizes.encoder_layers * (attend(encoder, encoder, share.inputs) + feed(encoder))
    both += sizes.decoder_layers * (
        attend(decoder, decoder, share.targets)
        + attend(decoder, encoder, share.inputs)
        + feed(decoder)
    )
    both += 2 * decoder * model * vocab
    once = 2 * (encoder + decoder) * model * vocab + 2 * sizes.buckets * heads * (
        sizes.encoder_layers * share.inputs**2 + sizes.decoder_layers * share.targets**2
    )
    return 3 * both + 2 * once if train else both + once


def model_axis_elements(sizes: ModelSizes, share: Share, *, train: bool) -> int:
    """Returns the activations that one core all-reduces over the model axis for one microbatch.

    After each sublayer's last product and each lookup: (2 L + 1) b T D in an encoder of L
    layers, (3 L + 1) b T D in a decoder; the same again backward, where each gradient of a
    sublayer's input is summed, the logits' taking the place of the lookup's, and the encoder's
    output adds one. The softmax over the split vocabulary adds scalars for each token, left out.
    """
    inputs = share.sequences * share.inputs * sizes.d_model
    targets = share.sequences * share.targets * sizes.d_model
    forward = (2 * sizes.encoder_layers + 1) * inputs + (3 * sizes.decoder_layers + 1) * targets
    return 2 * forward if train else forward


def position_bias_elements(sizes: ModelSizes, share: Share) -> int:
    """Returns what one core all-reduces over the batch axis in each microbatch of training.

    Each layer's gradient of the shared position bias, T x T x H/m, is summed over the batch
    before it is summed over layers.
    """
    heads = sizes.heads // share.split.get("heads", 1) if sizes.buckets else 0
    return heads * (
        sizes.encoder_layers * share.inputs**2 + sizes.decoder_layers * share.targets**2
    )


def activation_bytes(sizes: ModelSizes, share: Share, *, bytes_each: int, train: bool) -> int:
    """Returns an estimate of one microbatch's activations on one core, nothing recomputed.

    Training keeps for each layer: attention matrices b T S H/m three times, 4 bytes each in two
    (softmax is computed in float32) and a in the third; queries and keys in float32, values and
    attended values in a: 12 + 4 bytes at bfloat16 for each of b T HK/m; 2 b T D for each sublayer
    (its sum and its norm); b T F/m for each projection, its activation function and their product.
    Then logits and one-hot tokens, b T V/m each time. Scoring holds the fullest of: an encoder
    layer, whose attention matrices are there twice; the lookups; a decoder layer and the logits.
    """
    heads = sizes.heads // share.split.get("heads", 1)
    d_ff = sizes.d_ff // share.split.get("d_ff", 1)
    vocab = sizes.vocab // share.split.get("vocab", 1)
    sequences, inputs, targets = share.sequences, share.inputs, share.targets
    inner = heads * sizes.d_kv
    gate = 2 * sizes.projections_in + 1

    def attend(queries: int, keys: int) -> int:
        matrices = sequences * queries * keys * heads * (8 + bytes_each)
        return matrices + sequences * (queries + keys) * inner * (4 + bytes_each)

    def wide(tokens: int, sublayers: int) -> int:
        hidden = 2 * sublayers * sizes.d_model + gate * d_ff
        return sequences * tokens * hidden * bytes_each

    encoder = attend(inputs, inputs) + wide(inputs, 2)
    decoder = attend(targets, targets) + attend(targets, inputs) + wide(targets, 3)
    logits = 2 * sequences * targets * vocab * bytes_each
    lookups = sequences * (inputs + targets) * vocab * bytes_each
    if train:
        return sizes.encoder_layers * encoder + sizes.decoder_layers * decoder + logits + lookups
    once = sequences * inputs * inputs * heads * (4 + bytes_each)
    return max(once + wide(inputs, 1), lookups, logits + decoder)


def recomputed_activation_bytes(
    sizes: ModelSizes, share: Share, *, bytes_each: int, train: bool
) -> int:
    """Returns the same estimate where element-wise values are computed again for each reader.

    What remains are the results of matrix products and all-reduces: for each attention its logits,
    b T S H/m in float32, its position bias T S H/m, queries, keys, values and attended values;
    b T D for each sublayer; b T F/m for each projection in. The fullest moment is the start of the
    backward pass (with three of b T V/m), or the end of the decoder's, whose layers leave two
    gradients each by the encoder's output.
    """
    if not train:
        return activation_bytes(sizes, share, bytes_each=bytes_each, train=False)
    heads = sizes.heads // share.split.get("heads", 1)
    d_ff = sizes.d_ff // share.split.get("d_ff", 1)
    vocab = sizes.vocab // share.split.get("vocab", 1)
    sequences, inputs, targets = share.sequences, share.inputs, share.targets
    biased = 1 if sizes.buckets else 0

    def attend(queries: int, keys: int, bias: int) -> int:
        logits = queries * keys * heads * (4 * sequences + bias * bytes_each)
        return logits + 2 * sequences * (queries + keys) * heads * sizes.d_kv * bytes_each

    def wide(tokens: int, sublayers: int) -> int:
        hidden = sublayers * sizes.d_model + sizes.projections_in * d_ff
        return sequences * tokens * hidden * bytes_each

    encoder = attend(inputs, inputs, biased) + wide(inputs, 2)
    decoder = attend(targets, targets, biased) + attend(targets, inputs, 0) + wide(targets, 3)
    logits = 3 * sequences * targets * vocab * bytes_each
    left = sequences * (2 * inputs + 6 * targets) * sizes.d_model * bytes_each
    return sizes.encoder_layers * encoder + max(
        sizes.decoder_layers * decoder + logits, sizes.decoder_layers * left
    )


def costs_by_formulas(run: PodRun, sizes: ModelSizes) -> StepCosts:
    """Returns the costs of a run from the sizes of its model; milliseconds, for --fast, --sweep."""
    train = run.mode == "train"
    split = {name: run.split(name) for name in sizes.splittable}
    share = Share(
        sequences=run.batch_sequences // run.replicas // run.microbatches,
        inputs=run.sequence_length["inputs"],
        targets=run.sequence_length["targets"],
        split=split,
    )
    types = run.variable_dtype
    weights = weights_on_core(sizes, split)
    slots = adafactor_slots_on_core(sizes, split) if train else 0
    each = types.activation_dtype.size
    temporary = {
        "weight copies": weights * each if each != types.slice_dtype.size and train else 0,
        "gradients": weights * each if run.microbatches > 1 else 0,
        "activations": activation_bytes(sizes, share, bytes_each=each, train=train),
    }
    kept = recomputed_activation_bytes(sizes, share, bytes_each=each, train=train)
    return StepCosts(
        method="formulas",
        parameters=parameters(sizes),
        weights_bytes=weights * types.slice_dtype.size,
        optimizer_bytes=slots * 4,
        temporary_bytes=temporary,
        recomputed_bytes=sum(temporary.values()) - temporary["activations"] + kept,
        flops=run.microbatches * flops(sizes, share, train=train),
        collectives=_formula_collectives(run, sizes, share, weights),
        tile_bytes=bias_and_mask_bytes(
            share.sequences,
            (share.inputs, share.targets),
            sizes.heads // split.get("heads", 1),
            train=train,
        )
        if sizes.buckets
        else 0,
    )


def _formula_collectives(
    run: PodRun, sizes: ModelSizes, share: Share, weights: int
) -> tuple[Collective, ...]:
    train = run.mode == "train"
    activations = model_axis_elements(sizes, share, train=train)
    found = []
    axes = {name: run.axis(name) for name in ("heads", "batch")}
    if axes["heads"]:
        sublayers = 2 * sizes.encoder_layers + 3 * sizes.decoder_layers + 2
        count = run.microbatches * sublayers * (2 if train else 1)
        found.append((axes["heads"], count, run.microbatches * activations))
    if axes["batch"] and train:
        bias = position_bias_elements(sizes, share)
        layers = sizes.encoder_layers + sizes.decoder_layers
        count = sum(variable.count for variable in variables(sizes))
        count += run.microbatches * layers
        found.append((axes["batch"], count, run.microbatches * bias + weights))
    return tuple(_collective(run, *item) for item in found)


def _collective(run: PodRun, axis: str, count: int, elements: int) -> Collective:
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
