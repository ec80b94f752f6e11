"""The optimizer's state of T5X's stacked layers, whose Adafactor factors them by its own rule."""

import numpy as np
import pytest

from t0.checkpoints import as_mesh_checkpoint, convert, names, open_source
from t0.errors import UserError
from tests.checkpoints.tiny_checkpoints import bits, loaded, model_shape, weights, write_inline

LAYERS = {"encoder": 2, "decoder": 3}
# What T5X's standard rules make of our dimensions; the layers are a batch dimension.
RULES = {"D": "row", "I": "column", "F": "column", "H": "column", "B": "none"}


def t5x_states(squares, dims):
    """T5X's slots of stacked squared gradients [first, layers, ...], by its own definitions."""
    rules = [RULES[dims[0]], "batch", *(RULES[letter] for letter in dims[1:])]
    rows, columns = (
        tuple(i for i, rule in enumerate(rules) if rule == kind) for kind in ("row", "column")
    )
    if not rows or not columns or "none" in rules:
        return {"v": squares}
    return {"v_row": squares.mean(axis=columns), "v_col": squares.mean(axis=rows)}


def mesh_slots(square):
    """Mesh TensorFlow's slots of one layer: vr averages over the largest dimension."""
    if square.ndim < 2:
        return {"v": square}
    first, second = sorted(range(2), key=lambda axis: -square.shape[axis])
    return {"vr": square.mean(axis=first), "vc": square.mean(axis=second)}


def stacked_checkpoint(model, folder):
    """Writes a T5X checkpoint of stacked layers, and returns its tensors as Mesh TensorFlow's."""
    rng = np.random.default_rng(4)
    tensors = weights(model)
    flat, expected = {"state/step": np.asarray(9, np.int32)}, dict(tensors)
    for name, array in tensors.items():
        dims, path = names.row_of(name).dims, names.t5x_name(name)
        if "/layers_" not in path:
            square = rng.random(array.shape, np.float32)
            flat[f"target/{path}"], flat[f"state/param_states/{path}/v"] = array, square
            expected[names.slot_name(name, "v")] = square
            continue
        if "/layers_0/" not in path:
            continue
        side = name.partition("/")[0]
        layers = [name.replace("block_000", f"block_{i:03d}") for i in range(LAYERS[side])]
        path = path.replace("/layers_0/", f"/{side}/")
        flat[f"target/{path}"] = np.stack([tensors[layer] for layer in layers], axis=1)
        squares = rng.random(flat[f"target/{path}"].shape, np.float32)
        states = dict.fromkeys(("v", "v_row", "v_col", "m"), np.zeros(1, np.float32))
        states |= t5x_states(squares, dims)
        flat |= {f"state/param_states/{path}/{kind}": state for kind, state in states.items()}
        for number, layer in enumerate(layers):
            ours = {"v": squares[:, number]} if "B" in dims else mesh_slots(squares[:, number])
            expected |= {names.slot_name(layer, kind): slot for kind, slot in ours.items()}
    write_inline(folder / "checkpoint_9", flat)
    return expected


@pytest.mark.parametrize(
    "sizes",
    [{"inner": 16, "d_ff": 48}, {"inner": 32, "d_ff": 32}, {"inner": 48, "d_ff": 16}],
    ids=["narrow attention", "square", "wide attention"],
)
def test_t5x_stacked_layers_optimizer_state_is_read(tmp_path, sizes):
    model = model_shape(shared_bias=False, **sizes)
    expected = stacked_checkpoint(model, tmp_path)
    source = open_source(tmp_path)
    assert source.model == model
    assert set(source.entries) == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(source.load(name), array, rtol=1e-6, err_msg=name)
    convert(tmp_path, tmp_path / "mtf", to="mtf")
    assert loaded(tmp_path / "mtf") == loaded(tmp_path)


def test_t5x_stacked_layers_state_with_wrong_layer_count(tmp_path):
    model = model_shape(shared_bias=False)
    expected = stacked_checkpoint(model, tmp_path)
    _change(tmp_path, "encoder/encoder/mlp/wo/kernel/v_row", lambda array: array[:1])
    with pytest.raises(UserError, match="(?s)unknown.*encoder/encoder/mlp/wo/kernel/v_row"):
        open_source(tmp_path)
    # The weights are there all the same.
    got = loaded(as_mesh_checkpoint(tmp_path, tmp_path / "work", slots=False))
    assert got == {n: bits(a) for n, a in expected.items() if "_slot_" not in n}


def _change(folder, path, change):
    from flax import serialization

    index = folder / "checkpoint_9" / "checkpoint"
    tree = serialization.msgpack_restore(index.read_bytes())
    place = tree["optimizer"]["state"]["param_states"]
    *parents, last = path.split("/")
    for key in parents:
        place = place[key]
    place[last] = change(place[last])
    index.write_bytes(serialization.msgpack_serialize(tree))
