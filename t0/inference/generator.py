"""Predicts tokens with one set of weights and any number of batch shapes.

Legend: B examples, K beams, L input tokens, T target tokens, V vocabulary.

    generator = MeshGenerator(model, types, placement, DecodingMethod(beam_size=4))
    generator.restore("/models/tiny/model.ckpt-1000")
    ids, scores = generator.generate(inputs, limits, draws)  # [B, L], [B], [B, T] -> [B, T], [B]

Each (B, L, T) has its own lowering. `t0.inference.inputs` keeps the number of shapes small.

A lowering runs the encoder once, then a loop over the decoder's steps. The layers, the variables
and the protocol for step-by-step decoding come from Mesh TensorFlow. In this protocol, a pass in
mode "first_part" creates the states of the layers, and each pass in mode "incremental" takes these
states and returns the next ones. The loop is our own. It computes scores, applies the length limit
of each example, and stops when every example has ended. `t0.inference.cached_attention` replaces
the attention layers.

Logits are computed in float32 from the last hidden state, even if the activations are bfloat16.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from t0.compat import mtf, transformer
from t0.compat import tf1 as tf
from t0.evaluation.mesh_model import Placement, Program, ShapedPrograms, SharedVariables
from t0.evaluation.model import DecodingMethod
from t0.inference import cached_attention
from t0.inference.search import Field, Search, search


class _MatmulDevices(SharedVariables):
    """A mesh that computes an einsum as a matrix product if both give the same result.

    A matrix product is faster, because TensorFlow's Einsum has no oneDNN kernel for the few rows of
    a decoding step.
    """

    def einsum(self, equation: str, *slices: tf.Tensor) -> tf.Tensor:
        """Computes an einsum of one device's slices, with the same result as Mesh TensorFlow."""
        operands, _, result = equation.partition("->")
        first, _, second = operands.partition(",")
        if len(second) != 2 or first[-1:] != second[:1] or result != first[:-1] + second[1]:
            return super().einsum(equation, *slices)
        x, table = slices
        rows = tf.matmul(tf.reshape(x, [-1, x.shape.as_list()[-1]]), table)
        return tf.reshape(rows, [*x.shape.as_list()[:-1], table.shape.as_list()[-1]])


class MeshGenerator(ShapedPrograms):
    """Predicts tokens with one set of weights.

    Args:
      model: a Mesh TensorFlow `Bitransformer`; its decoder's attention layers are replaced.
      types: the types of masters, slices and activations. Scores always use float32 logits.
      placement: the mesh, its layout and its devices.
      method: the method by which tokens are chosen.
    """

    _mesh_class = _MatmulDevices

    def __init__(
        self, model: Any, types: mtf.VariableDType, placement: Placement, method: DecodingMethod
    ) -> None:
        super().__init__(model, types, placement)
        self._method = method
        cached_attention.cache_attention(model.decoder)

    def generate(
        self, inputs: np.ndarray, limits: np.ndarray, draws: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Generates tokens; see `t0.evaluation.model.Model`. B is a multiple of `replicas`."""
        values = {"inputs": inputs, "limits": limits, "draws": draws}
        return tuple(self._run((*inputs.shape, draws.shape[1]), values, self._build_loop))

    def _build_smallest(self) -> Program:
        return self._build_loop((self.replicas, 1, 1), _DecodingLoop.first_part)

    def _build_loop(
        self, shape: tuple[int, int, int], part: Callable[["_DecodingLoop"], Any] | None = None
    ) -> Program:
        """Builds the loop, or only a part of it, for a shape (B, L, T)."""
        batch, input_length, length = shape
        batch_dim = mtf.Dimension("batch", batch)
        dims = {
            "inputs": [batch_dim, mtf.Dimension("length", input_length)],
            "limits": [batch_dim],
            "draws": [batch_dim, mtf.Dimension("length", length)],
        }

        def compute(**feeds: mtf.Tensor) -> Any:
            loop = _DecodingLoop(self._model, self._types, self._method, **feeds)
            return (part or _DecodingLoop.run)(loop)

        return self._build(dims, compute, floats=("draws",))


class _DecodingLoop:
    """Decodes a batch in the mesh graph of the feeds.

    Args:
      model: Mesh TensorFlow's `Bitransformer`.
      types: the types of masters, slices and activations.
      method: the method by which tokens are chosen.
      inputs: int32 [B, L], 0 is padding.
      limits: int32 [B], the maximum number of tokens to predict, with EOS; 0 for a padding row.
      draws: float32 [B, T], uniform random numbers in [0, 1) for sampling.
    """

    def __init__(
        self,
        model: Any,
        types: mtf.VariableDType,
        method: DecodingMethod,
        *,
        inputs: mtf.Tensor,
        limits: mtf.Tensor,
        draws: mtf.Tensor,
    ) -> None:
        self._decoder = model.decoder
        self._types = types
        self._mesh, self._limits, self._draws = inputs.mesh, limits, draws
        self._search: Search = search(method)
        self._batch_dim = inputs.shape.dims[0]
        self._length_dim = mtf.Dimension("length", draws.shape.dims[1].size)
        self._beam_dim = mtf.Dimension("beam", method.beam_size) if method.beam_size > 1 else None
        self._shared = model._shared_params(inputs.mesh, types)
        self._memory = _encode(model, types, inputs, self._shared)

    def run(self) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Predicts tokens until EOS or the limit.

        Returns:
          the tokens followed by zeros, int32 [B, T], and their scores, [B].
        """
        states, constants, logits = self.first_part()
        self._table = _table(logits)
        names = list(self._search.fields)

        def is_running(step: mtf.Tensor, *loop: mtf.Tensor) -> mtf.Tensor:
            del step
            running = mtf.reduce_sum(loop[names.index("running")])
            return mtf.greater(running, 0)

        def body(step: mtf.Tensor, *loop: mtf.Tensor) -> list[mtf.Tensor]:
            search_state = dict(zip(names, loop[: len(names)], strict=True))
            logits, new_states = self._one_step(step, search_state, constants, loop[len(names) :])
            chosen = self._choose(step, logits, search_state)
            if self._beam_dim:
                ancestors = chosen[names.index("ancestors")]
                new_states = [self._reorder(state, ancestors, step) for state in new_states]
            return [step + 1, *chosen, *new_states]

        start = [mtf.zeros(self._mesh, mtf.Shape([]), tf.int32), *self._start(), *states]
        outputs = mtf.while_loop(is_running, body, start)
        ids, score = (outputs[1 + names.index(name)] for name in ("ids", "score"))
        return mtf.anonymize(ids), mtf.anonymize(score)

    def _context(self, mode: str, **more: Any) -> transformer.Context:
        output, sequence_id, inputs = self._memory
        return transformer.Context(
            model=self._decoder,
            mesh=self._mesh,
            batch_dims=[self._batch_dim, *([self._beam_dim] if self._beam_dim else [])],
            length_dim=self._length_dim,
            variable_dtype=self._types,
            beam_dim=self._beam_dim,
            mode=mode,
            new_states=[],
            sequence_id=1,
            encoder_output=output,
            encoder_sequence_id=sequence_id,
            encoder_inputs=inputs,
            shared_params=self._shared,
            write_priority=self._positions(),
            **more,
        )

    def _positions(self) -> mtf.Tensor:
        return mtf.range(self._mesh, self._length_dim, tf.int32)

    def first_part(self) -> tuple[list[mtf.Tensor], list[Any], mtf.Tensor]:
        """Runs Mesh TensorFlow's pass in mode "first_part", which creates the decoding states.

        This is the smallest computation that uses all variables of the model.

        Returns:
          (states after the first pass, constant states, logits).
        """
        batch_dims = [self._batch_dim, *([self._beam_dim] if self._beam_dim else [])]
        ids = mtf.zeros(self._mesh, mtf.Shape([*batch_dims, self._length_dim]), tf.int32)
        positions = self._positions()
        context = self._context(
            "first_part",
            position=positions,
            position_is_default=True,
            read_priority=positions,
            initial_position=mtf.zeros(ids.mesh, mtf.Shape(batch_dims), tf.int32),
            constant_states=[],
            inputs=ids,
        )
        with tf.variable_scope(self._decoder.name):
            logits = self._decoder._call_internal(context, ids)
        return context.new_states, context.constant_states, logits

    def _one_step(
        self,
        step: mtf.Tensor,
        search_state: dict[str, mtf.Tensor],
        constants: list[Any],
        states: Any,
    ) -> tuple[mtf.Tensor, list[mtf.Tensor]]:
        context = self._context(
            "incremental",
            position=step,
            read_priority=step,
            states=list(states),
            constant_states=constants,
            inputs=search_state["tokens"],
        )
        context.ancestors = search_state.get("ancestors")
        with tf.variable_scope(self._decoder.name, reuse=True):
            logits = self._decoder._call_internal(context, search_state["tokens"])
        return logits, context.new_states

    def _start(self) -> tuple[mtf.Tensor, ...]:
        length = self._length_dim.size
        return self._slicewise(lambda limits: self._search.start(limits, length), [self._limits])

    def _choose(
        self, step: mtf.Tensor, logits: mtf.Tensor, search_state: dict[str, mtf.Tensor]
    ) -> tuple[mtf.Tensor, ...]:
        logits = _in_float32(logits, self._table)
        vocab_dim = logits.shape.dims[-1]
        # No layout rule splits a dimension of this name, so every device has the whole vocabulary.
        logits = mtf.rename_dimension(logits, vocab_dim.name, "whole_vocab")
        feeds = (self._limits, self._draws)
        return self._slicewise(self._search.step, [step, logits, *feeds, *search_state.values()])

    def _reorder(self, state: mtf.Tensor, ancestors: mtf.Tensor, step: mtf.Tensor) -> mtf.Tensor:
        """Reorders the beams of a state, if it has a beam dimension."""
        if self._beam_dim not in state.shape.dims:
            return state
        own = [self._batch_dim, self._beam_dim]
        rest = [dim for dim in state.shape.dims if dim not in own]
        moved = mtf.slicewise(
            lambda x, columns, now: tf.gather(x, columns[:, :, now], batch_dims=1),
            [mtf.transpose(state, mtf.Shape(own + rest)), ancestors, step],
            splittable_dims=[self._batch_dim, *rest],
            name="reorder",
        )
        return mtf.transpose(moved, state.shape)

    def _slicewise(self, function: Any, tensors: list[mtf.Tensor]) -> tuple[mtf.Tensor, ...]:
        fields = self._search.fields.values()
        return mtf.slicewise(
            function,
            tensors,
            output_shape=[self._shape(field) for field in fields],
            output_dtype=[field.dtype for field in fields],
            splittable_dims=[self._batch_dim],
            name="choose",
        )

    def _shape(self, field: Field) -> mtf.Shape:
        dims = {"beam": self._beam_dim, "length": self._length_dim}
        return mtf.Shape([self._batch_dim, *(dims[name] for name in field.shape)])


def _encode(
    model: Any, types: mtf.VariableDType, inputs: mtf.Tensor, shared: dict[str, Any]
) -> tuple[mtf.Tensor, mtf.Tensor, mtf.Tensor]:
    """Returns the encoder's output, the mask of input tokens (0 or 1), and the inputs.

    The length dimension of all three is renamed to memory length.
    """
    sequence_id = mtf.minimum(inputs, 1)
    output, _ = model.encoder.call_simple(
        inputs=inputs,
        targets=None,
        compute_loss=False,
        mode=tf.estimator.ModeKeys.PREDICT,
        variable_dtype=types,
        sequence_id=sequence_id,
        shared_params=shared,
        layer_outputs=[],
    )
    rename = mtf.layers.rename_length_to_memory_length
    return rename(output), rename(sequence_id), rename(inputs)


def _table(logits: mtf.Tensor) -> mtf.Tensor | None:
    """Returns the output matrix [D, V] in float32; None if logits are not just a matrix product."""
    product = logits.operation
    if not isinstance(product, mtf.EinsumOperation) or len(product.inputs) != 2:
        return None
    table = mtf.cast(product.inputs[1], tf.float32)
    vocab_dim = logits.shape.dims[-1]
    return mtf.transpose(table, mtf.Shape([*(table.shape - vocab_dim).dims, vocab_dim]))


def _in_float32(logits: mtf.Tensor, table: mtf.Tensor | None) -> mtf.Tensor:
    if table is None:
        return mtf.cast(logits, tf.float32)
    hidden = mtf.cast(logits.operation.inputs[0], tf.float32)
    return mtf.einsum([hidden, table], logits.shape)
