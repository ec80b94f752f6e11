"""Computes the parameters, memory and FLOPs of a T5 step with closed formulas, without TensorFlow.

`t0 plan` for TPU slices and for GPUs, the start report of both engines, and the rehearsal of a pod
all use these formulas. Their letters are sizes on one device:

    B sequences of a microbatch     L tokens of a sequence      M tokens that are attended to
    D model                         H heads                     I heads times the size of a key
    F feed-forward                  V vocabulary rows           a bytes of an activation

    share = Share(rows=2, inputs=1024, targets=256, bytes_each=2)
    parameters(shape)                           # 11135332352 for t5.1.1.xxl
    3 * product_flops(shape, share)             # one training step of a microbatch
    stored_bytes(shape, share, XLA)               # activations

Each engine stores different values for the backward pass. For each engine, an instance of
`StoredValues` describes them. Tests compare the formulas with the programs of TPU cores, with
TensorFlow's graphs and with the tensors that PyTorch stores. Parameters, optimizer slots and FLOPs
are equal. The bytes of activations differ by at most a tenth.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from t0.checkpoints import names
from t0.checkpoints.shape import Shape, expected_shapes, factored_axes
from t0.config.model_spec import ModelShape

FLOAT32_BYTES = 4
# Tile sizes of TPU memory.
LANES = 128
SUBLANE_BYTES = 32
LOGITS_BYTES = 4  # softmax is computed in float32
BIAS_BYTES = 2
FACTOR_FROM = 128  # the default of AdafactorOptimizer.min_dim_size_to_factor
# The letter of a dimension -> its name in layout rules.
_DIMENSIONS = {"I": "heads", "H": "heads", "F": "d_ff", "V": "vocab", "D": "d_model"}
# The number of values stored for each element: (in float32, in the type of activations).
Values = tuple[float, float]
_NONE: Values = (0, 0)


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of one microbatch that one device computes.

    Attributes:
      rows: the number of sequences of the microbatch on the device.
      inputs: the number of tokens of a sequence in the encoder.
      targets: the number of tokens of a sequence in the decoder.
      bytes_each: the bytes of an activation: 2 for bfloat16, 4 for float32.
      split: name of a dimension ("heads", "d_ff", "vocab", "d_model") -> the number of parts into
        which the mesh splits it.
    """

    rows: int
    inputs: int
    targets: int
    bytes_each: int = FLOAT32_BYTES
    split: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def on_device(self, size: int, name: str) -> int:
        """Returns the size of one device's part of a dimension.

        Args:
          size: the size of the whole dimension.
          name: its name, such as "heads".
        """
        return size // self.split.get(name, 1)


@dataclasses.dataclass(frozen=True)
class AttentionValues:
    """The numbers of values that an attention layer stores for the backward pass.

    Attributes:
      matrices: values per head, query and key of a sequence.
      queries: values per query of a sequence and each of its I elements.
      keys: values per key of a sequence and each of its I elements.
      row_sums: values per head and query of a sequence.
    """

    matrices: Values = _NONE
    queries: Values = _NONE
    keys: Values = _NONE
    row_sums: Values = _NONE


@dataclasses.dataclass(frozen=True)
class StoredValues:
    """The numbers of values that one engine stores for the backward pass of a training step.

    Attributes:
      attention: the values of a self-attention layer, whose position bias has a gradient.
      cross_attention: the values of an attention layer from the decoder to the encoder.
      norms: values per token and each of its D elements, in each sublayer of a block. The sublayers
        are self-attention, cross-attention (only in the decoder) and feed-forward.
      gated, ungated: values of a feed-forward layer per token and each of its F elements, in the
        type of activations; `gated` for T5 1.1, `ungated` for T5 1.0.
      bias: values per head, query and key of each sequence, once per stack.
      layer_bias: values per head, query and key in each self-attention layer, once for all
        sequences.
      buckets: values per position bucket, query and key, once per stack.
      masks: values per query and key of each sequence, once per kind of attention.
      ends: values per token and each of its D elements, outside the layers.
      logits: values per target token and vocabulary row.
      lookups: values per token and vocabulary row, if the engine looks up embeddings by a product
        with one-hot vectors.
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
# XLA computes the softmax in float32, and stores its exponentials twice.
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
# If memory is short, XLA recomputes element-wise values for each operation that reads them.
XLA_RECOMPUTED = StoredValues(
    attention=_XLA_RECOMPUTED_ATTENTION,
    cross_attention=_XLA_RECOMPUTED_ATTENTION,
    norms=(0, 1),
    gated=2,
    ungated=1,
    layer_bias=(0, 1),
    logits=(0, 3),
)
_TENSORFLOW = AttentionValues(matrices=(1, 0), queries=(1, 2), keys=(1, 1))
# TensorFlow's executor with the functions of `t0.mesh.fused` and `t0.mesh.gather_embedding`.
TENSORFLOW = StoredValues(
    _TENSORFLOW, _TENSORFLOW, (0, 2), 4, 2, buckets=(0, 1), ends=(0, 2), logits=(2, 0.5)
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
# PyTorch without memory-efficient attention, for example on a CPU if the position bias has a
# gradient.
TORCH_PLAIN = dataclasses.replace(
    TORCH_FUSED, attention=AttentionValues(matrices=(1, 0), queries=(1, 1), keys=(2, 0))
)


def parameters(shape: ModelShape) -> int:
    """Returns the number of a model's parameters, including the padding of the vocabulary."""
    return sum(map(math.prod, expected_shapes(shape).values()))


def weights_on_device(shape: ModelShape, split: Mapping[str, int]) -> int:
    """Returns the number of elements of the model's variables on one device."""
    return sum(math.prod(on_device) for _, on_device in _variables(shape, split))


def slots_on_device(
    shape: ModelShape,
    split: Mapping[str, int],
    *,
    factored_from: int | None = FACTOR_FROM,
    moments: int = 0,
) -> int:
    """Returns the number of elements of the optimizer's state on one device.

    Args:
      shape: the model.
      split: name of a dimension -> the number of parts into which the mesh splits it.
      factored_from: the minimum size of a variable's two largest dimensions for which Adafactor
        factors the second moment: it stores a vector for each of the two dimensions instead of a
        matrix (Shazeer and Stern 2018). None if no second moment is factored.
      moments: the number of additional moments of the same size as each variable: 1 for AdamW, or
        for Adafactor with `beta1`.
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

    For n tokens, each of the four attention projections takes 2 n D I, attention itself 4 n M I,
    each feed-forward projection 2 n D F, and the logits 2 n D V. The backward pass takes twice as
    much. This is the common rule that a step takes 6 FLOPs per parameter and token, plus attention.

    Args:
      shape: the model.
      share: the part of the microbatch on this device.
      predicted: the fraction of the target positions for which logits are computed.
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
    """Returns the FLOPs of a forward pass's lookups, computed as products with one-hot vectors.

    The lookups are those of embeddings and position biases. The backward pass takes the same number
    of FLOPs, because only one operand of these products needs a gradient.
    """
    vocabulary = share.on_device(shape.vocabulary, "vocab")
    heads = share.on_device(shape.heads, "heads")
    tokens = share.rows * (share.inputs + share.targets)
    biases = shape.buckets * heads * _pairs_of_self_attentions(shape, share)
    return 2 * (tokens * shape.d_model * vocabulary + biases)


def model_axis_elements(shape: ModelShape, share: Share, *, train: bool) -> int:
    """Returns the number of activations that one core all-reduces over the model axis.

    The number is for one microbatch. The forward pass all-reduces activations after the last
    product of each sublayer and after each embedding lookup: (2 layers + 1) B L D in the encoder
    and (3 layers + 1) B L D in the decoder. The backward pass all-reduces the same number, for the
    gradients of the sublayers' inputs, of the encoder's output and of the decoder's output (from
    the logits). The gradients of the lookups need no all-reduce. The softmax over a split
    vocabulary also all-reduces scalars for each token, which the formula omits.
    """
    inputs = share.rows * share.inputs * shape.d_model
    targets = share.rows * share.targets * shape.d_model
    forward = (2 * shape.encoder_layers + 1) * inputs + (3 * shape.decoder_layers + 1) * targets
    return 2 * forward if train else forward


def position_bias_elements(shape: ModelShape, share: Share) -> int:
    """Returns the number of bias gradients that one core all-reduces over the batch axis.

    The number is for one microbatch in training. Each layer has a gradient of the shared position
    bias, L x L x H, which is summed over the batch before the layers' gradients are added.
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
    """Returns the bytes that one block stores: (in the encoder, in the decoder)."""
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
    """Returns a block's stored bytes outside attention, which are proportional to the tokens.

    These are the bytes of the block's norms, residual sums and feed-forward layer. A block has two
    sublayers in the encoder and three in the decoder.
    """
    tokens = share.rows * (share.inputs if sublayers == 2 else share.targets)
    hidden = (0, stored.gated if shape.gated else stored.ungated)
    d_ff = share.on_device(shape.d_ff, "d_ff")
    return _bytes(
        share, [(sublayers * tokens * shape.d_model, stored.norms), (tokens * d_ff, hidden)]
    )


def end_bytes(shape: ModelShape, share: Share, stored: StoredValues) -> int:
    """Returns the bytes that both stacks store outside their blocks, such as biases and masks."""
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
    """Returns the bytes of the logits and of the values that are computed from them."""
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

    The peak is at the start of the backward pass or at the end of the decoder's backward pass. At
    the end of the decoder's backward pass, memory holds two gradients of the encoder's output for
    each layer of the decoder.
    """
    encoder, decoder = layer_bytes(shape, share, XLA_RECOMPUTED)
    gradients = share.rows * (2 * share.inputs + 6 * share.targets) * shape.d_model
    return shape.encoder_layers * encoder + max(
        shape.decoder_layers * decoder + logit_bytes(shape, share, XLA_RECOMPUTED),
        shape.decoder_layers * gradients * share.bytes_each,
    )


def scoring_bytes(shape: ModelShape, share: Share) -> int:
    """Returns the peak bytes of activations in a forward pass compiled by XLA.

    The peak is the largest of four numbers: the bytes of an attention layer of the encoder, the
    bytes of an embedding lookup, the bytes of the decoder's last layer, and the bytes of the
    logits. An attention layer stores its logits in float32, its probabilities, queries, keys and
    residual, and the one-hot buckets of positions.
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

    HBM holds an array in tiles. The last dimension is padded to a multiple of 128. The dimension
    before it is padded to a multiple of 8 if values have four bytes, or of 16 if they have two. We
    have not verified on a TPU that XLA preserves the order of the program's dimensions.

    >>> padded_bytes((8, 1024, 1024, 16), 4) // 2**20       # 512 MiB occupy eight times that
    4096
    """
    *outer, rows, columns = (1, 1, *shape)
    sublanes = SUBLANE_BYTES // bytes_each
    in_tiles = -(-rows // sublanes) * sublanes * (-(-columns // LANES) * LANES)
    return math.prod(outer) * in_tiles * bytes_each


def bias_and_mask_bytes(sequences: int, lengths: Sequence[int], heads: int, *, train: bool) -> int:
    """Returns the bytes that the position bias and its sum with the mask occupy in a TPU's tiles.

    TPU memory holds arrays in tiles, see `padded_bytes`. Most of T5's values fill their tiles on
    every core. But if the last dimension of a value is the attention heads, most of each tile is
    padding, because a core has few heads. Two values have the dimensions batch, queries, keys,
    heads in this order: the position bias and, in evaluation, its sum with the mask. (In training,
    the mask separates packed segments, and the last dimension of the sum is keys.) Every layer of a
    stack needs the same two values, so they are computed once and stored until the last layer. No
    other activation is stored for longer. The estimate of `t0.mesh.liveness` does not include the
    sum, because the sum is fused into the operation that reads it. So a plan adds the bytes of both
    values.

    The rule agrees with known runs of T0's authors: scoring 262,144 tokens per batch with the 11B
    model failed on a v3-128, and scoring 65,536 worked. They trained on a v3-512.

    Args:
      sequences: the number of sequences of a microbatch on a core.
      lengths: the number of tokens of a sequence in each stack; only the longest is used.
      heads: the number of attention heads on a core.
      train: whether the run trains.
    """
    longest = max(lengths)
    bias = padded_bytes((longest, longest, heads), BIAS_BYTES)
    summed = padded_bytes((sequences, longest, longest, heads), LOGITS_BYTES)
    return bias if train else bias + summed
