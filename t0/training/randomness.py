"""Makes random numbers depend only on seed and step, so that a resumed run continues exactly.

For dropout, Mesh TensorFlow asks the mesh for random tensors. Its own placement mesh draws them
from TensorFlow's generators, whose state is not saved in checkpoints. `SeededMesh` computes each
random tensor from (seed, number of the operation, slice of the tensor, step, microbatch).

    mesh_impl = SeededMesh(shape, layout, devices, seed=7, step=step_tensor)
    lowering = mesh_impl.lower(graph, mesh)
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from t0.compat import mtf
from t0.compat import tf1 as tf

# The maximum number of microbatches of a step. With more microbatches, random numbers would repeat.
_MICROBATCHES = 1 << 20

_STATELESS: dict[Any, Callable[..., tf.Tensor]] = {
    tf.random.uniform: tf.random.stateless_uniform,
    tf.random.normal: tf.random.stateless_normal,
    tf.random.truncated_normal: tf.random.stateless_truncated_normal,
}


class SeededMesh(mtf.placement_mesh_impl.PlacementMeshImpl):
    """A placement mesh with reproducible random operations.

    Args:
      shape: the shape of the mesh.
      layout: the layout rules.
      devices: the device of each mesh position.
      seed: the run's seed.
      step: an int64 scalar tensor, the step that the graph computes.
    """

    def __init__(
        self, shape: Any, layout: Any, devices: Sequence[str], *, seed: int, step: tf.Tensor
    ) -> None:
        super().__init__(shape, layout, list(devices))
        self._seed = seed
        self._step = step
        self._drawn = 0
        self._lowering: mtf.Lowering | None = None
        # Identifies the microbatch that is being built. It is an integer scalar of the mesh, which
        # differs between the microbatches of a step.
        self.microbatch: mtf.Tensor | None = None

    def lower(self, graph: mtf.Graph, mesh: mtf.Mesh, log_file: str | None = None) -> mtf.Lowering:
        """Lowers `graph`, a Mesh TensorFlow graph whose only mesh is `mesh`."""
        return _Lowering(self, graph, mesh, log_file)

    def random(
        self, shape: mtf.Shape, tf_fn: Callable[..., tf.Tensor], kwargs: Mapping[str, Any]
    ) -> Any:
        """Draws a random tensor of `shape`. Replicas of a slice get the same values."""
        self._drawn += 1
        number = self._drawn
        draw = _STATELESS[tf_fn]
        slice_shape = self.slice_shape(shape)

        def of_slice(position: int) -> tf.Tensor:
            text = f"{self._seed} {number} {self.slice_begin(shape, position)}"
            key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
            counter = self._step * _MICROBATCHES + self._microbatch_at(position)
            return draw(slice_shape, seed=tf.stack([tf.constant(key, tf.int64), counter]), **kwargs)

        return self.slicewise(of_slice, self.laid_out_pnum())

    def _microbatch_at(self, position: int) -> tf.Tensor:
        if self.microbatch is None:
            return tf.constant(0, tf.int64)
        lowered = self._lowering.tensors[self.microbatch].to_laid_out_tensor()
        return tf.cast(lowered.tensor_list[position], tf.int64)


class _Lowering(mtf.Lowering):
    def __init__(
        self, mesh_impl: SeededMesh, graph: mtf.Graph, mesh: mtf.Mesh, log_file: str | None
    ) -> None:
        mesh_impl._lowering = self
        super().__init__(graph, {mesh: mesh_impl}, autostack=False, log_file=log_file)

    def set_tensor_lowering(self, x: mtf.Tensor, laid_out_tensor: Any) -> None:
        """Makes all operations of a step share one read of each variable.

        In Mesh TensorFlow, each operation reads the variable again. So a gradient could read the
        variable after its update in the same step.
        """
        if isinstance(x.operation, mtf.Variable):
            laid_out_tensor = laid_out_tensor.from_tensor_list(
                [tf.identity(piece) for piece in laid_out_tensor.tensor_list]
            )
        super().set_tensor_lowering(x, laid_out_tensor)
