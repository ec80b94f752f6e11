"""Writes a checkpoint of random weights for a benchmark, with Mesh TensorFlow's initializers.

    checkpoint, shapes = random_checkpoint(model, "/tmp/folder")

Call `t0.compat.apply()` before you import this module.
"""

from collections.abc import Callable, Mapping
from typing import Any

import mesh_tensorflow as mtf
import numpy as np
import tensorflow.compat.v1 as tf


def random_checkpoint(
    model: Any, folder: str, changes: Mapping[str, Callable[[np.ndarray], np.ndarray]] | None = None
) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Writes random float32 weights of a Mesh encoder-decoder.

    Args:
      model: the model.
      folder: the folder for the checkpoint `random.ckpt`.
      changes: variable -> a function from its random value to the value to write.

    Returns:
      the checkpoint, and variable -> shape.
    """
    graph = mtf.Graph()
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(0)
        mesh = mtf.Mesh(graph, "mesh")
        shape = mtf.Shape([mtf.Dimension("batch", 1), mtf.Dimension("length", 1)])
        ids = mtf.zeros(mesh, shape, tf.int32)
        model.call_simple(
            ids, ids, compute_loss=False, variable_dtype=mtf.VariableDType(tf.float32)
        )
        mesh_implementation = mtf.placement_mesh_impl.PlacementMeshImpl(
            mtf.convert_to_shape(""), mtf.convert_to_layout_rules(""), [""]
        )
        mtf.Lowering(graph, {mesh: mesh_implementation})
        variables = {variable.op.name: variable for variable in tf.global_variables()}
        session.run(tf.global_variables_initializer())
        for name, change in (changes or {}).items():
            variables[name].load(change(session.run(variables[name])), session)
        path = tf.train.Saver().save(session, f"{folder}/random.ckpt")
        shapes = {name: tuple(v.shape.as_list()) for name, v in variables.items()}
    return path, shapes
