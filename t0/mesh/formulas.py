"""Closed formulas for the parameters, memory and FLOPs of a T5 step; imports no TensorFlow.

The same formulas serve `t0 plan` for TPU slices and for GPUs, the start report of both engines, and
the rehearsal of a pod. Letters are sizes on one device:

    B sequences of a microbatch     L tokens of a sequence      M tokens that are attended to
    D model                         H heads                     I heads times the size of a key
    F feed-forward                  V vocabulary rows           a bytes of an activation

    share = Share(rows=2, inputs=1024, targets=256, bytes_each=2)
    parameters(shape)                           # 11135332352 for t5.1.1.xxl
    3 * product_flops(shape, share)             # one training step of a microbatch
    stored_bytes(shape, share, XLA)               # activations

Engines store different values for the backward pass: each engine is an instance of `StoredValues`.
Tests compare the instances with lowered programs, with TensorFlow's graphs and with the tensors
that PyTorch stores: parameters, slots and FLOPs are equal, activations are within a tenth.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from t0.checkpoints import names
from t0.checkpoints.shape import ModelShape, Shape, expected_shapes, factored_axes

FLOAT32_BYTES = 4
# Tile sizes of TPU memory.
LANES = 128
SUBLANE_BYTES = 32
LOGITS_BYTES = 4  # softmax is computed in float32
BIAS_BYTES = 2
FACTOR_FROM = 128  # AdafactorOptimizer.min_dim_size_to_factor
# Letter of a tensor's dimension -> its name in layout rules.
_DIMENSIONS = {"I": "heads", "H": "heads", "F": "d_ff", "V": "vocab", "D": "d_model"}
# (float32 values, values in the type of activations) that are stored per element.
Values = tuple[float, float]
_NONE: Values = (0, 0)


@dataclasses.dataclass(frozen=True)
class Share:
    """One device's share of one microbatch.

    Attributes:
      rows: sequences of the microbatch.
      inputs: tokens of a sequence in the encoder.
      targets: tokens of a sequence in the decoder.
      bytes_each: bytes of an activation, 2 for bfloat16 or 4 for float32.
      split: dimension name ("heads", "d_ff", "vocab", "d_model") -> the number of parts that the
        mesh splits it into.
    """

    rows: int
    inputs: int
    targets: int
    bytes_each: int = FLOAT32_BYTES
    split: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def on_device(self, size: int, name: str) -> int:
        """Returns the part of a dimension that one device holds."""
        return size // self.split.get(name, 1)


@dataclasses.dataclass(frozen=True)
class AttentionValues:
    """The values that an attention layer stores for the backward pass.

    Attributes:
      matrices: per head, query and key of a sequence.
      queries: per each of the I values of a query.
      keys: per each of the I values of a key.
      row_sums: per head and query.
    """

    matrices: Values = _NONE
    queries: Values = _NONE
    keys: Values = _NONE
    row_sums: Values = _NONE


@dataclasses.dataclass(frozen=True)
class StoredValues:
    """The values that one engine stores for the backward pass of a training step.

    Attributes:
      attention: of self-attention, whose position bias has a gradient.
      cross_attention: of attention to the encoder.
      norms: per each of the D values of a token, in each sublayer.
      gated, ungated: the activations of a feed-forward layer per each of F values of a token.
      bias: per head, query and key of a sequence, once per stack.
      layer_bias: per head, query and key of a self-attention, the same for all sequences.
      buckets: per position bucket, query and key, once per stack.
      masks: per query and key of a sequence, once per kind of attention.
      ends: per each of the D values of a token, outside the layers.
      logits: per vocabulary row and target token.
      lookups: per vocabulary row and token, if a lookup is a product with one-hot tokens.
    """

    attention: AttentionValues
    cross_attention: AttentionValues
    norms: Values
    gated: float
    ungated: float
    bias: Values = _NONE
    layer_bias: Values = _NONE
    buckets: Values = _NONE
    masks: Values = _NONE
    ends: Values = _NONE
    logits: Values = _NONE
    lookups: Values = _NONE


_XLA_ATTENTION = AttentionValues(matrices=(2, 1), queries=(1, 1), keys=(1, 1))
# Softmax is computed in float32, and its exponentials are stored twice.
XLA = StoredValues(
    attention=_XLA_ATTENTION,
    cross_attention=_XLA_ATTENTION,
    norms=(0, 2),
    gated=5,
    ungated=3,
    bias=(1, 0),
    ends=(0, 2),
    logits=(1, 1),
    lookups=(0, 1),
)
_XLA_RECOMPUTED_ATTENTION = AttentionValues(matrices=(1, 0), queries=(0, 2), keys=(0, 2))
# If memory is short, XLA recomputes element-wise values for each reader.
XLA_RECOMPUTED = StoredValues(
    attention=_XLA_RECOMPUTED_ATTENTION,
    cross_attention=_XLA_RECOMPUTED_ATTENTION,
    norms=(0, 1),
    gated=2,
    ungated=1,
    layer_bias=(0, 1),
    logits=(0, 3),
)
_TENSORFLOW_ATTENTION = AttentionValues(matrices=(1, 0), queries=(1, 2), keys=(1, 1))
# TensorFlow's executor with the functions of `t0.mesh.fused` and `t0.mesh.gather_embedding`.
TENSORFLOW = StoredValues(
    attention=_TENSORFLOW_ATTENTION,
    cross_attention=_TENSORFLOW_ATTENTION,
    norms=(0, 2),
    gated=4,
    ungated=2,
    buckets=(0, 1),
    ends=(0, 2),
    logits=(2, 0.5),
)
_FUSED = AttentionValues(queries=(0, 3), keys=(0, 2), row_sums=(1, 0))
# PyTorch's memory-efficient attention stores no probabilities.
TORCH_FUSED = StoredValues(
    attention=_FUSED,
    cross_attention=_FUSED,
    norms=(1, 2),
    gated=4,
    ungated=2,
    bias=(0, 3),
    masks=(0, 2),
    ends=(2, 4),
    logits=(3, 2),
)
# PyTorch without that kernel, for a bias that has a gradient; for example on a CPU.
TORCH_PLAIN = dataclasses.replace(
    TORCH_FUSED, attention=AttentionValues(matrices=(1, 0), queries=(1, 1), keys=(2, 0))
)


def parameters(shape: ModelShape) -> int:
    """Returns the number of a model's parameters, including the padding of the vocabulary."""
    return sum(map(math.prod, expected_shapes(shape).values()))


def weights_on_device(shape: ModelShape, split: Mapping[str, int]) -> int:
    """Returns the elements of the model's variables on one device."""
    return sum(math.prod(on_device) for _, on_device in _variables(shape, split))


def slots_on_device(
    shape: ModelShape,
    split: Mapping[str, int],
    *,
    factored_from: int | None = FACTOR_FROM,
    moments: int = 0,
) -> int:
    """Returns the elements of the optimizer's state on one device.

    Args:
      shape: the model.
      split: dimension name -> the number of parts that the mesh splits it into.
      factored_from: if the two largest dimensions of a variable are at least this large, Adafactor
        stores one vector for each of them instead of a second moment (Shazeer and Stern 2018); None
        if no second moment is factored.
      moments: further moments of the size of each variable: 1 for AdamW, or for a `beta1`.
    """
    total = 0
    for whole, on_device in _variables(shape, split):
        size = math.prod(on_device)
        total += moments * size
        if factored_from is None or len(whole) < 2 or sorted(whole)[-2] < factored_from:
            total += size
        else:
            total += sum(size // on_device[axis] for axis in factored_axes(whole))
    return total


def _variables(shape: ModelShape, split: Mapping[str, int]) -> Iterator[tuple[Shape, Shape]]:
    """Yields the shape of each variable, in full and on one device."""
    for name, whole in expected_shapes(shape).items():
        letters = names.row_of(name).dims
        divisors = [split.get(_DIMENSIONS.get(letter, ""), 1) for letter in letters]
        yield whole, tuple(size // divisor for size, divisor in zip(whole, divisors, strict=True))


def product_flops(shape: ModelShape, share: Share, *, predicted: float = 1.0) -> int:
    """Returns the FLOPs of the matrix products of one forward pass; lookups count as zero.

    For n tokens: 2 n D I for each of four attention projections, 4 n M I for attention itself, 2 n
    D F for each feed-forward projection, 2 n D V for the logits. The backward pass takes twice as
    much, so a step takes 6 N D for N parameters and D tokens, plus attention.

    Args:
      shape: the model.
      share: the device's share.
      predicted: the share of the target positions for which logits are computed.
    """
    inner, model = share.on_device(shape.inner, "heads"), shape.d_model
    d_ff = share.on_device(shape.d_ff, "d_ff")
    vocabulary = share.on_device(shape.vocabulary, "vocab")
    projections = 3 if shape.gated else 2

    def attend(queries: int, keys: int) -> int:
        return 4 * model * inner * (queries + keys) + 4 * queries * keys * inner

    def feed(tokens: int) -> int:
        return 2 * tokens * model * d_ff * projections

    inputs, targets = share.inputs, share.targets
    encoder = shape.encoder_layers * (attend(inputs, inputs) + feed(inputs))
    decoder = shape.decoder_layers * (
        attend(targets, targets) + attend(targets, inputs) + feed(targets)
    )
    logits = 2 * targets * model * vocabulary * predicted
    return share.rows * (encoder + decoder + round(logits))


def lookup_flops(shape: ModelShape, share: Share) -> int:
    """Returns the FLOPs of embedding and position bias lookups as products with one-hot tokens.

    The backward pass takes as much again, because only one operand needs a gradient.
    """
    vocabulary = share.on_device(shape.vocabulary, "vocab")
    heads = share.on_device(shape.heads, "heads")
    tokens = share.rows * (share.inputs + share.targets)
    biases = shape.buckets * heads * _pairs_of_self_attentions(shape, share)
    return 2 * (tokens * shape.d_model * vocabulary + biases)


def model_axis_elements(shape: ModelShape, share: Share, *, train: bool) -> int:
    """Returns the activations that one core all-reduces over the model axis per microbatch.

    The forward pass all-reduces after each sublayer's last product and each lookup: (2 layers + 1)
    B L D in the encoder and (3 layers + 1) B L D in the decoder. The backward pass all-reduces the
    same amount for the gradients of the sublayers' inputs: the logits' gradient replaces the
    lookup's, and the gradient of the encoder's output adds one. The softmax over a split vocabulary
    adds scalars for each token, which are omitted.
    """
    inputs = share.rows * share.inputs * shape.d_model
    targets = share.rows * share.targets * shape.d_model
    forward = (2 * shape.encoder_layers + 1) * inputs + (3 * shape.decoder_layers + 1) * targets
    return 2 * forward if train else forward


def position_bias_elements(shape: ModelShape, share: Share) -> int:
    """Returns the elements that one core all-reduces over the batch axis per training microbatch.

    These are each layer's gradients of the shared position bias, L x L x H, which are summed over
    the batch before they are summed over layers.
    """
    return share.on_device(shape.heads, "heads") * _pairs_of_self_attentions(shape, share)


def _pairs_of_self_attentions(shape: ModelShape, share: Share) -> int:
    return shape.encoder_layers * share.inputs**2 + shape.decoder_layers * share.targets**2


def stored_bytes(shape: ModelShape, share: Share, stored: StoredValues) -> int:
    """Returns the peak bytes that a training step stores for its backward pass."""
    encoder, decoder = layer_bytes(shape, share, stored)
    layers = shape.encoder_layers * encoder + shape.decoder_layers * decoder
    return layers + end_bytes(shape, share, stored) + logit_bytes(shape, share, stored)


def layer_bytes(shape: ModelShape, share: Share, stored: StoredValues) -> tuple[int, int]:
    """Returns the bytes that a block of the encoder, and one of the decoder, store."""
    inputs, targets = share.inputs, share.targets
    encoder = _attention(shape, share, stored, inputs, inputs) + _tokens(shape, share, stored, 2)
    decoder = _attention(shape, share, stored, targets, targets) + _tokens(shape, share, stored, 3)
    return encoder, decoder + _attention(shape, share, stored, targets, inputs, biased=False)


def _attention(
    shape: ModelShape,
    share: Share,
    stored: StoredValues,
    queries: int,
    keys: int,
    *,
    biased: bool = True,
) -> int:
    values = stored.attention if biased else stored.cross_attention
    heads = share.on_device(shape.heads, "heads")
    inner = share.on_device(shape.inner, "heads")
    amounts = [
        (heads * queries * keys, values.matrices),
        (inner * queries, values.queries),
        (inner * keys, values.keys),
        (heads * queries, values.row_sums),
    ]
    size = share.rows * _bytes(share, amounts)
    return size + _bytes(share, [(heads * queries * keys, stored.layer_bias)]) if biased else size


def _tokens(shape: ModelShape, share: Share, stored: StoredValues, sublayers: int) -> int:
    """Returns the bytes of a block's norms, sums and feed-forward layer."""
    tokens = share.rows * (share.inputs if sublayers == 2 else share.targets)
    hidden = (0, stored.gated if shape.gated else stored.ungated)
    d_ff = share.on_device(shape.d_ff, "d_ff")
    return _bytes(
        share, [(sublayers * tokens * shape.d_model, stored.norms), (tokens * d_ff, hidden)]
    )


def end_bytes(shape: ModelShape, share: Share, stored: StoredValues) -> int:
    """Returns the bytes of biases, masks, lookups and the ends of both stacks."""
    rows, inputs, targets = share.rows, share.inputs, share.targets
    squares = rows * (inputs**2 + targets**2)
    tokens = rows * (inputs + targets)
    amounts = [
        (share.on_device(shape.heads, "heads") * squares, stored.bias),
        (squares + rows * targets * inputs, stored.masks),
        (shape.buckets * (inputs**2 + targets**2), stored.buckets),
        (tokens * shape.d_model, stored.ends),
        (tokens * share.on_device(shape.vocabulary, "vocab"), stored.lookups),
    ]
    return _bytes(share, amounts)


def logit_bytes(shape: ModelShape, share: Share, stored: StoredValues) -> int:
    """Returns the bytes of the logits and of the values made from them."""
    vocabulary = share.on_device(shape.vocabulary, "vocab")
    return _bytes(share, [(share.rows * share.targets * vocabulary, stored.logits)])


def _bytes(share: Share, amounts: list[tuple[int, Values]]) -> int:
    return round(
        sum(
            count * (wide * FLOAT32_BYTES + narrow * share.bytes_each)
            for count, (wide, narrow) in amounts
        )
    )


def recomputed_bytes(shape: ModelShape, share: Share) -> int:
    """Returns the peak bytes of a training step if XLA recomputes element-wise values.

    Memory peaks at the start of the backward pass, or at the end of the decoder's backward pass,
    because each of its layers leaves two gradients of the encoder's output.
    """
    encoder, decoder = layer_bytes(shape, share, XLA_RECOMPUTED)
    gradients = share.rows * (2 * share.inputs + 6 * share.targets) * shape.d_model
    return shape.encoder_layers * encoder + max(
        shape.decoder_layers * decoder + logit_bytes(shape, share, XLA_RECOMPUTED),
        shape.decoder_layers * gradients * share.bytes_each,
    )


def scoring_bytes(shape: ModelShape, share: Share) -> int:
    """Returns the peak bytes of activations in a forward pass compiled by XLA.

    The peak is the largest of: an attention layer of the encoder (its logits in float32 and its
    probabilities, queries and keys, the residual, and the one-hot buckets of positions), a lookup,
    the decoder's last layer, and the logits.
    """
    a, heads = share.bytes_each, share.on_device(shape.heads, "heads")
    inner = share.on_device(shape.inner, "heads")

    def attend(queries: int, keys: int) -> int:
        matrices = heads * queries * keys * (FLOAT32_BYTES + a)
        tokens = a * (queries * (shape.d_model + inner) + keys * inner)
        return share.rows * (matrices + tokens) + a * queries**2 * (heads + shape.buckets)

    vocabulary = share.on_device(shape.vocabulary, "vocab")
    encoded = share.rows * share.inputs * shape.d_model * a
    lookups = share.rows * max(share.inputs, share.targets) * vocabulary * a
    decoder = encoded + max(
        attend(share.targets, share.targets), attend(share.targets, share.inputs)
    )
    logits = share.rows * share.targets * (vocabulary + 2 * shape.d_model) * a
    return max(attend(share.inputs, share.inputs), lookups, decoder, logits)


def padded_bytes(shape: Sequence[int], bytes_each: int) -> int:
    """Returns the bytes of an array in a TPU's tiles, with its dimensions in the given order.

    HBM holds an array in tiles: the last dimension is padded to 128, the one before it to 8 values
    of four bytes or 16 of two. We have not verified on a TPU that XLA preserves the order of the
    program's dimensions.

    >>> padded_bytes((8, 1024, 1024, 16), 4) // 2**20       # 512 MiB occupy eight times that
    4096
    """
    *outer, rows, columns = (1, 1, *shape)
    sublanes = SUBLANE_BYTES // bytes_each
    in_tiles = -(-rows // sublanes) * sublanes * (-(-columns // LANES) * LANES)
    return math.prod(outer) * in_tiles * bytes_each


def bias_and_mask_bytes(sequences: int, lengths: Sequence[int], heads: int, *, train: bool) -> int:
    """Returns the tile bytes of the position bias and, in evaluation, of its sum with the mask.

    Most of T5's values fill their tiles on every core. Values whose last dimension is attention
    heads do not, because a core has few heads. These are the position bias and, in evaluation, its
    sum with the mask, in the order batch, queries, keys, heads. (In training, the mask separates
    packed segments, and the sum ends in keys.) Every layer of a stack needs the same two values, so
    they are computed once and stored for all layers, longer than any other activation. In a lowered
    program the sum is counted as part of the operation that reads it, so a plan adds both.

    The rule agrees with known runs of T0's authors: scoring 262,144 tokens per batch with the 11B
    model failed on a v3-128, and 65,536 worked. They trained on a v3-512.

    Args:
      sequences: sequences of a microbatch on a core.
      lengths: tokens of a sequence in each stack; the longest stack is counted.
      heads: attention heads of a core.
      train: whether the run trains.
    """
    longest = max(lengths)
    bias = padded_bytes((longest, longest, heads), BIAS_BYTES)
    summed = padded_bytes((sequences, longest, longest, heads), LOGITS_BYTES)
    return bias if train else bias + summed
