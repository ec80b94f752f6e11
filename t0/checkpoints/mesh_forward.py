"""Logits by Mesh TensorFlow, from a checkpoint and the model's shape: no gin file is needed.

    logits = mesh_logits(source.model, "gelu", prefix, inputs, targets)      # [B, T, V], float32

Legend: B examples, L input tokens, T target tokens, V vocabulary rows. 0 is padding, in inputs and
targets; the decoder reads the targets shifted right. Everything is computed in float32.
"""

from typing import Any

import numpy as np

from t0.checkpoints import names
from t0.checkpoints.operative import TO_MESH
from t0.checkpoints.shape import ModelShape
from t0.compat import mtf, transformer, transformer_layers
from t0.compat import tf1 as tf


def mesh_logits(
    model: ModelShape, activation: str, prefix: str, inputs: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Returns what Mesh TensorFlow computes, on this machine's CPU.

    Args:
      model: the model's shape.
      activation: of its feed-forward layer.
      prefix: of the checkpoint in Mesh TensorFlow's format.
      inputs: int [B, L].
      targets: int [B, T].

    Returns:
      float32 [B, T, V].
    """
    graph = tf.Graph()
    with graph.as_default(), tf.Session(graph=graph) as session:
        mesh_graph = mtf.Graph()
        mesh = mtf.Mesh(mesh_graph, "forward")
        batch = mtf.Dimension("batch", len(inputs))
        fed = [
            mtf.import_fully_replicated(
                mesh,
                tf.constant(ids, tf.int32),
                mtf.Shape([batch, mtf.Dimension("length", ids.shape[1])]),
                name=name,
            )
            for name, ids in (("inputs", inputs), ("targets", targets))
        ]
        logits, _ = _bitransformer(model, activation).call_simple(
            inputs=fed[0],
            targets=fed[1],
            compute_loss=False,
            mode=tf.estimator.ModeKeys.EVAL,
            variable_dtype=mtf.VariableDType(tf.float32, tf.float32, tf.float32),
        )
        logits = mtf.anonymize(mtf.cast(logits, tf.float32))
        implementation = mtf.placement_mesh_impl.PlacementMeshImpl(
            mtf.Shape([]), mtf.LayoutRules(set()), [""]
        )
        lowering = mtf.Lowering(mesh_graph, {mesh: implementation}, autostack=False)
        tensor = lowering.export_to_tf_tensor(logits)
        session.run(_restore_all(prefix))
        session.run(lowering.copy_masters_to_slices())
        return session.run(tensor)


def _restore_all(prefix: str) -> list[tf.Operation]:
    """Returns operations that assign every variable its tensor, in float32 whatever it is saved in.

    The checkpoint's names are Mesh TensorFlow's, with its legacy names of norms or without.
    """
    reader = tf.train.load_checkpoint(prefix)
    saved = {names.from_mtf(n) or n: n for n in reader.get_variable_to_shape_map()}
    assignments = []
    for variable in tf.global_variables():
        if variable.op.name in saved:
            array = reader.get_tensor(saved[variable.op.name])
            value = tf.placeholder_with_default(array.astype(np.float32), variable.shape)
            assignments.append(tf.assign(variable, value))
    return assignments


def _bitransformer(model: ModelShape, activation: str) -> Any:
    function = TO_MESH[activation]
    attention = {"num_heads": model.heads, "key_value_size": model.d_kv}
    bias = {
        "relative_attention_type": "bias_shared" if model.shared_bias else "bias",
        "relative_attention_num_buckets": model.buckets,
    }
    dense = (
        transformer_layers.DenseReluDense,
        {
            "hidden_size": model.d_ff,
            "activation": [function, "linear"] if model.gated else function,
        },
    )
    own = (transformer_layers.SelfAttention, {**attention, **bias})
    cross = (transformer_layers.EncDecAttention, attention)
    common = {"d_model": model.d_model, "max_length": 1, "positional_embedding": False}
    encoder = transformer.Unitransformer(
        _stack([own, dense], model.encoder_layers),
        input_vocab_size=model.vocabulary,
        output_vocab_size=None,
        autoregressive=False,
        name="encoder",
        vocab_divisor=1,
        **common,
    )
    decoder = transformer.Unitransformer(
        _stack([own, cross, dense], model.decoder_layers),
        input_vocab_size=model.vocabulary,
        output_vocab_size=model.vocabulary,
        autoregressive=True,
        name="decoder",
        vocab_divisor=1,
        shared_embedding_and_softmax_weights=model.tied,
        **common,
    )
    return transformer.Bitransformer(encoder, decoder, shared_embedding=True)


def _stack(kinds: list[tuple[type, dict]], blocks: int) -> transformer.LayerStack:
    layers = []
    for block in range(blocks):
        for number, (cls, settings) in enumerate(kinds):
            layer = cls(**settings)
            layer.set_name(f"block_{block:03d}/layer_{number:03d}")
            layers.append(layer)
    return transformer.LayerStack(
        layers,
        sublayers_initial=[],
        sublayers_per_layer=[
            transformer.sublayer_rms_norm,
            transformer.sublayer_call_layer,
            transformer.sublayer_residual,
        ],
        sublayers_final=[transformer.sublayer_rms_norm],
    )
