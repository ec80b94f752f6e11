"""A run is made small without its mesh; a size that no macro sets is named."""

import pytest

from t0.config.bindings import bound
from t0.errors import UserError
from t0.mesh.lowering import build_model
from t0.mesh.pod_run import model_dimensions
from t0.rehearsal.rehearse import shrink
from tests.mesh import planning


def small(*params):
    run = planning.read(*params, files=("models/t5.1.1.large.gin",), vocabulary_size=32100)
    return run, shrink(run, model_dimensions(build_model(run)))


def test_rehearsal_shrinking_keeps_split_sizes_divisible():
    run, (shrunk, changes) = small(*planning.on_slice("v3-8", 8), "dropout_rate = 0.1")
    assert shrunk.mesh_shape == run.mesh_shape
    sizes = model_dimensions(build_model(shrunk))
    assert sizes["heads"] == 8  # two would be enough without the mesh
    assert {"num_layers: 24 -> 1", "num_heads: 16 -> 8"} < set(changes)
    assert bound("%dropout_rate") == 0.1


def test_rehearsal_shrinking_names_a_size_without_a_macro():
    fixed = "transformer_layers.DenseReluDense.hidden_size = 4096"
    with pytest.raises(UserError, match="the model's d_ff = 4096 cannot be made smaller"):
        small(*planning.on_slice("v3-8", 2), fixed)
