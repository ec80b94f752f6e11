"""Writes model-info.txt, which lists a model's variables and its optimizer's slots as T5X does.

    shapes = {"shared/embedding": (256, 64), "shared/embedding_slot_vc": (256,)}
    write("/models/tiny", shapes, weights=["shared/embedding"])

    Variable    shared/embedding    size 16384    shape (vocab=256, d_model=64)
    Total number of parameters: 16384

    Variable    shared/embedding_slot_vc    size 256    shape (vocab=256)

Both engines write the same file: names and shapes are those of Mesh TensorFlow.
"""

import math
import posixpath
from collections.abc import Collection, Mapping, Sequence

from t0.checkpoints import names
from t0.checkpoints.shape import factored_axes
from t0.files import write_whole

FILE = "model-info.txt"
_AXES = {"V": "vocab", "D": "d_model", "I": "heads", "F": "d_ff", "H": "heads", "B": "buckets"}
_NO_AXES: Mapping[str, Sequence[str]] = {}


def write(
    model_dir: str,
    shapes: Mapping[str, Sequence[int]],
    weights: Collection[str],
    axes: Mapping[str, Sequence[str]] = _NO_AXES,
    *,
    stock_file: str | None = None,
) -> None:
    """Writes the file into a model directory.

    Args:
      model_dir: the model directory.
      shapes: name of a variable -> its shape.
      weights: the names of the model's weights; all other variables are slots.
      axes: name of a variable -> the names of its axes. Variables of a T5 need no entry.
      stock_file: the file in which the user wants Mesh TensorFlow's own list; None if there is
        none. If this is `model-info.txt` in the model directory, Mesh TensorFlow's list is kept.
    """
    path = posixpath.join(model_dir, FILE)
    if stock_file == path:
        return
    slots = shapes.keys() - weights
    lines = [
        *(_line(name, shapes, axes) for name in sorted(weights)),
        f"Total number of parameters: {sum(math.prod(shapes[name]) for name in weights)}",
        "",
        *(_line(name, shapes, axes) for name in sorted(slots)),
    ]
    write_whole(path, "\n".join(lines) + "\n")


def _line(name: str, shapes: Mapping[str, Sequence[int]], axes: Mapping[str, Sequence[str]]) -> str:
    shape = shapes[name]
    named = axes.get(name) or _axes_of_t5(name, shapes)
    sizes = [f"{axis}={size}" for axis, size in zip(named, shape, strict=True)] if named else shape
    text = f"({', '.join(map(str, sizes))})"
    return f"Variable    {name:<80} size {math.prod(shape):<12} shape {text}"


def _axes_of_t5(name: str, shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Returns the names of the axes of a T5's variable or slot; [] if the name is unknown."""
    parameter, slot = names.split_slot(name)
    row = names.row_of(names.from_mtf(parameter) or parameter)
    if row is None or len(row.dims) != len(shapes[parameter]):
        return []
    axes = [_AXES[letter] for letter in row.dims]
    if slot in ("vr", "vc"):
        del axes[factored_axes(tuple(shapes[parameter]))[slot == "vc"]]
    return axes
