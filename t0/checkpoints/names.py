"""Maps T5's tensor names between Mesh TensorFlow, Hugging Face and T5X, in a single table.

    >>> find("encoder/block_003/layer_000/SelfAttention/q")
    ('encoder/block_{b:03d}/layer_000/SelfAttention/q', 3)
    >>> hf_name("encoder/block_003/layer_000/SelfAttention/q")
    'encoder.block.3.layer.0.SelfAttention.q.weight'
    >>> t5x_name("encoder/block_003/layer_000/SelfAttention/q")
    'encoder/layers_3/attention/query/kernel'

Mesh TensorFlow's names and orientation are the canonical ones. The modules of the other formats
translate their names to these names and back. A tensor that matches no row of the table is an error
and is never skipped.

Letters in shapes: V vocabulary rows, D model, I inner (heads times key size), F feed-forward, H
heads, B relative position buckets.
"""

import dataclasses
import functools
import re


@dataclasses.dataclass(frozen=True)
class TensorNames:
    """The names of one kind of tensor in all formats; `{b}` stands for the block's number.

    Attributes:
      mtf: Mesh TensorFlow's name, which is canonical.
      hf: the key in a Hugging Face state dict.
      t5x: the path below `target/`.
      dims: the letters of the canonical shape.
      transposed: whether Hugging Face stores the matrix transposed.
    """

    mtf: str
    hf: str
    t5x: str
    dims: str
    transposed: bool = False


def _attention(mtf: str, hf: str, t5x: str) -> list[TensorNames]:
    letters = {"q": ("query", "DI"), "k": ("key", "DI"), "v": ("value", "DI"), "o": ("out", "ID")}
    return [
        TensorNames(f"{mtf}/{x}", f"{hf}.{x}.weight", f"{t5x}/{name}/kernel", dims, transposed=True)
        for x, (name, dims) in letters.items()
    ]


def _feed_forward(mtf: str, hf: str, t5x: str) -> list[TensorNames]:
    kernels = {"wi": "DF", "wi_0": "DF", "wi_1": "DF", "wo": "FD"}
    return [
        TensorNames(f"{mtf}/{x}/kernel", f"{hf}.{x}.weight", f"{t5x}/{x}/kernel", dims, True)
        for x, dims in kernels.items()
    ]


def _norm(mtf: str, hf: str, t5x: str) -> TensorNames:
    return TensorNames(f"{mtf}/rms_norm/scale", f"{hf}.weight", f"{t5x}/scale", "D")


def _stack(side: str) -> list[TensorNames]:
    """Returns the rows of the encoder or decoder, in the order of Mesh TensorFlow's variables."""
    decoder = side == "decoder"
    mtf, hf = f"{side}/block_{{b:03d}}/layer_00", f"{side}.block.{{b}}.layer."
    t5x = f"{side}/layers_{{b}}"
    own = "self_attention" if decoder else "attention"
    bias = "SelfAttention{}relative_attention_bias"
    rows = [
        _norm(f"{mtf}0", f"{hf}0.layer_norm", f"{t5x}/pre_{own}_layer_norm"),
        *_attention(f"{mtf}0/SelfAttention", f"{hf}0.SelfAttention", f"{t5x}/{own}"),
        TensorNames(
            f"{mtf}0/{bias.format('/')}",
            f"{hf}0.{bias.format('.')}.weight",
            f"{t5x}/relpos_bias/rel_embedding",
            "HB",
            transposed=True,
        ),
    ]
    if decoder:
        cross = "encoder_decoder_attention"
        rows += [
            _norm(f"{mtf}1", f"{hf}1.layer_norm", f"{t5x}/pre_cross_attention_layer_norm"),
            *_attention(f"{mtf}1/EncDecAttention", f"{hf}1.EncDecAttention", f"{t5x}/{cross}"),
        ]
    last = 2 if decoder else 1
    return [
        *rows,
        _norm(f"{mtf}{last}", f"{hf}{last}.layer_norm", f"{t5x}/pre_mlp_layer_norm"),
        *_feed_forward(f"{mtf}{last}/DenseReluDense", f"{hf}{last}.DenseReluDense", f"{t5x}/mlp"),
        _norm(side, f"{side}.final_layer_norm", f"{side}/{side}_norm"),
    ]


_HEAD = ("decoder/logits/kernel", "lm_head.weight", "decoder/logits_dense/kernel")
ROWS: tuple[TensorNames, ...] = (
    TensorNames("shared/embedding", "shared.weight", "token_embedder/embedding", "VD"),
    *_stack("encoder"),
    *_stack("decoder"),
    TensorNames(*_HEAD, "DV", transposed=True),
)
BY_MTF = {row.mtf: row for row in ROWS}

# Slots are the tensors of an optimizer's state. Adafactor's slots are called
# `<parameter>_slot_<kind>`, as in Mesh TensorFlow. Their kinds are vr and vc (the two factors of
# the second moment), v (the second moment without factoring) and m (the momentum). vr has all
# dimensions of the parameter except the largest, and vc all except the second largest. If two
# dimensions are equal, the first counts as larger. The slots of `t0.AdamWOptimizer` are called
# `<parameter>/<kind>`, and hold the two moments.
ADAM_SLOTS = ("adam_m", "adam_v")
_SLOT = re.compile(r"(.+)(?:_slot_(vr|vc|v|m)|/(adam_m|adam_v))")

# The names of norms in Mesh TensorFlow's older layer stack ("legacy mode"), which the public T5 1.0
# checkpoints use.
_LEGACY_NORMS = (("/final_layer_norm/", "/rms_norm/"), ("/layer_norm/", "/rms_norm/"))


def split_slot(name: str) -> tuple[str, str | None]:
    """Splits a name into (canonical name of the parameter, kind of the slot or None).

    >>> split_slot("shared/embedding_slot_vr")
    ('shared/embedding', 'vr')
    """
    match = _SLOT.fullmatch(name)
    return (match[1], match[2] or match[3]) if match else (name, None)


def slot_name(parameter: str, slot: str | None) -> str:
    """Returns the canonical name of a parameter's slot; the parameter's name if `slot` is None."""
    if slot in ADAM_SLOTS:
        return f"{parameter}/{slot}"
    return parameter if slot is None else f"{parameter}_slot_{slot}"


def find(name: str) -> tuple[str, int] | None:
    """Returns the key of a name in `BY_MTF`, and the number of the block in the name.

    The number is 0 if the name contains no block. Returns None if the name is unknown.
    """
    return _find("mtf", name)


def row_of(name: str) -> TensorNames | None:
    """Returns the table's row for a canonical parameter or slot name; None if unknown."""
    match = find(split_slot(name)[0])
    return BY_MTF[match[0]] if match else None


def hf_name(parameter: str) -> str | None:
    """Returns the Hugging Face key of a canonical parameter; None if unknown."""
    return _translate("mtf", parameter, "hf")


def from_hf(key: str) -> str | None:
    """Returns the canonical name of a Hugging Face key; None if unknown."""
    return _translate("hf", key, "mtf")


def t5x_name(parameter: str) -> str | None:
    """Returns a parameter's path below `target/` if layers are not stacked; None if unknown."""
    return _translate("mtf", parameter, "t5x")


def from_t5x(path: str) -> str | None:
    """Returns the canonical name of an unstacked T5X path below `target/`; None if unknown."""
    return _translate("t5x", path, "mtf")


def from_mtf(name: str) -> str | None:
    """Returns the canonical name of a Mesh TensorFlow variable; None if unknown.

    >>> from_mtf("encoder/final_layer_norm/scale_slot_v")
    'encoder/rms_norm/scale_slot_v'
    """
    for legacy, current in _LEGACY_NORMS:
        name = name.replace(legacy, current)
    return name if find(split_slot(name)[0]) else None


def to_mtf(name: str, *, legacy_norms: bool) -> str:
    """Returns the Mesh TensorFlow variable for a canonical name.

    Args:
      name: the canonical name of a parameter or slot.
      legacy_norms: whether to use the names of norms in Mesh TensorFlow's legacy layer stack.
    """
    if not legacy_norms or "/rms_norm/" not in name:
        return name
    final, inner = (legacy for legacy, _ in _LEGACY_NORMS)
    return name.replace("/rms_norm/", inner if "/block_" in name else final)


def _translate(column: str, name: str, target: str) -> str | None:
    match = _find(column, name)
    return getattr(BY_MTF[match[0]], target).format(b=match[1]) if match else None


@functools.lru_cache(maxsize=65_536)
def _find(column: str, name: str) -> tuple[str, int] | None:
    for pattern, row in _patterns(column):
        if match := pattern.fullmatch(name):
            block = int(match[1]) if pattern.groups else 0
            # Refuse a name whose block number has too many or too few leading zeros.
            return (row.mtf, block) if getattr(row, column).format(b=block) == name else None
    return None


@functools.cache
def _patterns(column: str) -> list[tuple[re.Pattern[str], TensorNames]]:
    """Returns, for each row of the table, a pattern that matches its names in one format.

    If the names contain a block number, this number is the pattern's only group.

    Args:
      column: the format, a field of `TensorNames`.
    """
    split_names = [re.split(r"\{b[^}]*\}", getattr(row, column)) for row in ROWS]
    patterns = (re.compile(r"(\d{1,9})".join(map(re.escape, texts))) for texts in split_names)
    return list(zip(patterns, ROWS, strict=True))
