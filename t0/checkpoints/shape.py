"""Infers a model's dimensions from its tensors, and computes the expected shape of every tensor.

    model = read_shape({name: array.shape for name, array in parameters.items()})
    model.d_kv, model.gated, model.tied
    expected_shapes(model)          # every parameter, in Mesh TensorFlow's order

Everything except the activation function can be inferred. For example, the relative attention bias
has one row per head, and a tied model has no logits kernel.
"""

from collections.abc import Mapping

from t0.checkpoints import names
from t0.config.model_spec import SIZES, ModelShape
from t0.errors import UserError

Shape = tuple[int, ...]
SHOWN = 8  # the number of names that an error lists; the others are counted
_LONGEST_SHOWN = 80  # the maximum number of characters that a message shows of a file's value
_LARGEST_SIZE = 2**31 - 1


def listed(items: list[str]) -> str:
    """Formats the first `SHOWN` items, one per line and shortened; counts the remaining items."""
    more = [f"... and {len(items) - SHOWN:,} more"] if len(items) > SHOWN else []
    cut = [item if len(item) < 200 else f"{item[:200]}..." for item in items[:SHOWN]]
    return "\n  ".join(["", *cut, *more])


def shown(value: object) -> str:
    """Formats a value from a file for a message, as one line of limited length."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # an integer or nested list that is too large
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def read_shape(shapes: Mapping[str, Shape], *, where: str = "the checkpoint") -> ModelShape:
    """Infers the model's shape; checks that its parameters are complete and consistent.

    Args:
      shapes: canonical name -> shape of each parameter, without slots.
      where: the checkpoint, for messages.

    Raises:
      UserError: if tensors are missing or superfluous, or their shapes contradict each other.
    """
    sizes = _read_sizes(shapes, where)
    blocks = {
        side: [names.find(name)[1] for name in shapes if name.startswith(f"{side}/block_")]
        for side in ("encoder", "decoder")
    }
    biases = [name for name in shapes if name.endswith("/relative_attention_bias")]
    model = ModelShape(
        **sizes,
        encoder_layers=max(blocks["encoder"], default=-1) + 1,
        decoder_layers=max(blocks["decoder"], default=-1) + 1,
        gated=any("/wi_0/" in name for name in shapes),
        tied="decoder/logits/kernel" not in shapes,
        shared_bias=len(biases) <= 2,
    )
    if max(model.encoder_layers, model.decoder_layers) > len(shapes):
        raise UserError(f"{where}: a block's number is larger than the number of tensors")
    if model.inner % model.heads:
        raise UserError(f"{where}: {model.heads} heads do not divide {model.inner}, q's last size")
    expected = expected_shapes(model)
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise UserError(
            f"{where} is missing {len(missing):,} of {len(expected):,} tensors:{listed(missing)}"
        )
    surplus = [name for name in shapes if name not in expected]
    if surplus:
        raise UserError(f"{where} has tensors that a T5 does not have:{listed(surplus)}")
    return model


def expected_shapes(model: ModelShape) -> dict[str, Shape]:
    """Returns the shape of every parameter of a model, in Mesh TensorFlow's order."""
    sizes = model.sizes
    layers = {"encoder": model.encoder_layers, "decoder": model.decoder_layers}
    shapes = {}
    for side in (None, "encoder", "decoder"):
        rows = [row for row in names.ROWS if _side(row) == side and _has_row(row, model)]
        blocks = [(row, block) for block in range(layers.get(side, 0)) for row in rows]
        for row, block in [*blocks, *((row, None) for row in rows)]:
            shared = block and model.shared_bias and row.dims == "HB"
            if ("{b" in row.mtf) == (block is not None) and not shared:
                shapes[row.mtf.format(b=block)] = tuple(sizes[letter] for letter in row.dims)
    return shapes


def slot_shape(shape: Shape, slot: str) -> Shape:
    """Returns the shape of a parameter's slot in Mesh TensorFlow's optimizers."""
    if slot not in ("vr", "vc"):
        return shape
    largest, second = factored_axes(shape)
    dropped = largest if slot == "vr" else second
    return tuple(size for axis, size in enumerate(shape) if axis != dropped)


def check_slots(shapes: Mapping[str, Shape], slots: Mapping[str, Shape], where: str) -> None:
    """Checks that every slot belongs to a parameter and has the right shape.

    Raises:
      UserError: if a slot does not. The message names all slots with this error.
    """
    wrong = []
    for name, shape in slots.items():
        parameter, slot = names.split_slot(name)
        whole = shapes.get(parameter, ())
        expected = None if slot in ("vr", "vc") and len(whole) < 2 else slot_shape(whole, slot)
        if tuple(shape) != expected:
            wrong.append(f"{name} {list(shape)}, expected {expected and list(expected)}")
    if wrong:
        raise UserError(f"{where}: optimizer slots of an unexpected shape:{listed(wrong)}")


def combined(name: str, shape: Shape) -> Shape:
    """Returns an attention matrix's shape after combining heads and keys into one dimension.

    Older releases of T5X, and Mesh TensorFlow with `combine_dims = False`, store these matrices as
    [D, H, K] or [H, K, D] (K is the key size of a head).
    """
    row, slot = names.row_of(name), names.split_slot(name)[1]
    if len(shape) != 3 or slot not in (None, "v", "m", *names.ADAM_SLOTS):
        return shape
    if row.dims == "DI":
        return shape[0], shape[1] * shape[2]
    return (shape[0] * shape[1], shape[2]) if row.dims == "ID" else shape


def factored_axes(shape: Shape) -> tuple[int, int]:
    """Returns the two axes that Mesh TensorFlow's Adafactor factors, the larger axis first."""
    # The sort is stable: if two dimensions are equal, the first counts as larger, as in Mesh
    # TensorFlow.
    first, second = sorted(range(len(shape)), key=lambda axis: -shape[axis])[:2]
    return first, second


def _read_sizes(shapes: Mapping[str, Shape], where: str) -> dict[str, int]:
    first_sizes: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        dims = names.row_of(name).dims
        if len(shape) != len(dims):
            raise UserError(f"{where}: {name} {list(shape)}, expected {len(dims)} dimensions")
        for letter, size in zip(dims, shape, strict=True):
            if type(size) is not int or not 0 < size <= _LARGEST_SIZE:
                raise UserError(f"{where}: {name} has a dimension of size {shown(size)}")
            first_size, first_name = first_sizes.setdefault(letter, (size, name))
            if size != first_size:
                raise UserError(
                    f"{where}: {name} has shape {list(shape)}, but {SIZES[letter]} is "
                    f"{first_size} in {first_name}: do all its layers have the same shape?"
                )
    absent = [letter for letter in SIZES if letter not in first_sizes]
    if absent:
        rows = [row.mtf for row in names.ROWS if set(row.dims) & set(absent)]
        raise UserError(f"{where} is not a T5 encoder-decoder: it has no tensor like{listed(rows)}")
    return {SIZES[letter]: size for letter, (size, _) in first_sizes.items()}


def _side(row: names.TensorNames) -> str | None:
    side = row.mtf.partition("/")[0]
    return side if side in ("encoder", "decoder") and "logits" not in row.mtf else None


def _has_row(row: names.TensorNames, model: ModelShape) -> bool:
    if "logits" in row.mtf:
        return not model.tied
    gate = row.mtf.rpartition("/DenseReluDense/")[2]
    if gate in ("wi_0/kernel", "wi_1/kernel"):
        return model.gated
    return gate != "wi/kernel" or not model.gated
