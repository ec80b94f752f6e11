"""Computes the logits of a checkpoint with Mesh TensorFlow's own layers, or with transformers.

Letters in shapes: B examples, L input tokens, T target tokens, V vocabulary rows. The id 0 is
padding, and the decoder reads the targets shifted right.
"""

from typing import Any

import numpy as np

from t0 import compat
from t0.checkpoints import names
from t0.checkpoints.operative_config import TO_MESH


def hf_logits(folder, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Computes logits with `transformers` on the CPU.

    Args:
      folder: a Hugging Face folder.
      inputs: int [B, L].
      targets: int [B, T].

    Returns:
      float32 [B, T, V].
    """
    import torch
    import transformers

    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.from_numpy(np.asarray(inputs, np.int64))
    shifted = np.concatenate([np.zeros_like(targets[:, :1]), targets[:, :-1]], axis=1)
    with torch.no_grad():
        out = model(
            input_ids=ids,
            attention_mask=(ids > 0).long(),
            decoder_input_ids=torch.from_numpy(np.asarray(shifted, np.int64)),
        )
    return out.logits.numpy()


def mesh_logits(
    model, activation: str, prefix: str, inputs: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Computes logits with Mesh TensorFlow on the CPU.

    Args:
      model: the model's shape.
      activation: the activation of its feed-forward layers.
      prefix: the checkpoint's prefix, in Mesh TensorFlow's format.
      inputs: int [B, L].
      targets: int [B, T].

    Returns:
      float32 [B, T, V].
    """
    graph = compat.tf1.Graph()
    with graph.as_default(), compat.tf1.Session(graph=graph) as session:
        mesh_graph = compat.mtf.Graph()
        mesh = compat.mtf.Mesh(mesh_graph, "forward")
        batch = compat.mtf.Dimension("batch", len(inputs))
        fed = [
            compat.mtf.import_fully_replicated(
                mesh,
                compat.tf1.constant(ids, compat.tf1.int32),
                compat.mtf.Shape([batch, compat.mtf.Dimension("length", ids.shape[1])]),
                name=name,
            )
            for name, ids in (("inputs", inputs), ("targets", targets))
        ]
        logits, _ = bitransformer(model, activation).call_simple(
            inputs=fed[0],
            targets=fed[1],
            compute_loss=False,
            mode=compat.tf1.estimator.ModeKeys.EVAL,
            variable_dtype=compat.mtf.VariableDType(*[compat.tf1.float32] * 3),
        )
        logits = compat.mtf.anonymize(compat.mtf.cast(logits, compat.tf1.float32))
        implementation = compat.mtf.placement_mesh_impl.PlacementMeshImpl(
            compat.mtf.Shape([]), compat.mtf.LayoutRules(set()), [""]
        )
        lowering = compat.mtf.Lowering(mesh_graph, {mesh: implementation}, autostack=False)
        tensor = lowering.export_to_tf_tensor(logits)
        session.run(_restore_all(prefix))
        session.run(lowering.copy_masters_to_slices())
        return session.run(tensor)


def bitransformer(model, activation: str) -> Any:
    """Builds Mesh TensorFlow's T5 model with the given shape and activation."""
    function = TO_MESH[activation]
    attention = {"num_heads": model.heads, "key_value_size": model.d_kv}
    bias = {
        "relative_attention_type": "bias_shared" if model.shared_bias else "bias",
        "relative_attention_num_buckets": model.buckets,
    }
    dense = (
        compat.transformer_layers.DenseReluDense,
        {
            "hidden_size": model.d_ff,
            "activation": [function, "linear"] if model.gated else function,
        },
    )
    own = (compat.transformer_layers.SelfAttention, {**attention, **bias})
    cross = (compat.transformer_layers.EncDecAttention, attention)
    common = {"d_model": model.d_model, "max_length": 1, "positional_embedding": False}
    encoder = compat.transformer.Unitransformer(
        _build_layers([own, dense], model.encoder_layers),
        input_vocab_size=model.vocabulary,
        output_vocab_size=None,
        autoregressive=False,
        name="encoder",
        vocab_divisor=1,
        **common,
    )
    decoder = compat.transformer.Unitransformer(
        _build_layers([own, cross, dense], model.decoder_layers),
        input_vocab_size=model.vocabulary,
        output_vocab_size=model.vocabulary,
        autoregressive=True,
        name="decoder",
        vocab_divisor=1,
        shared_embedding_and_softmax_weights=model.tied,
        **common,
    )
    return compat.transformer.Bitransformer(encoder, decoder, shared_embedding=True)


def _restore_all(prefix: str) -> list[Any]:
    """Returns operations that assign each variable its tensor, cast to float32.

    The tensors have Mesh TensorFlow's names. Norms may also have their legacy names.
    """
    reader = compat.tf1.train.load_checkpoint(prefix)
    saved = {names.from_mtf(n) or n: n for n in reader.get_variable_to_shape_map()}
    assignments = []
    for variable in compat.tf1.global_variables():
        if variable.op.name in saved:
            array = reader.get_tensor(saved[variable.op.name])
            value = compat.tf1.placeholder_with_default(array.astype(np.float32), variable.shape)
            assignments.append(compat.tf1.assign(variable, value))
    return assignments


def _build_layers(kinds: list[tuple[type, dict]], blocks: int) -> Any:
    layers = []
    for block in range(blocks):
        for number, (cls, settings) in enumerate(kinds):
            layer = cls(**settings)
            layer.set_name(f"block_{block:03d}/layer_{number:03d}")
            layers.append(layer)
    return compat.transformer.LayerStack(
        layers,
        sublayers_initial=[],
        sublayers_per_layer=[
            compat.transformer.sublayer_rms_norm,
            compat.transformer.sublayer_call_layer,
            compat.transformer.sublayer_residual,
        ],
        sublayers_final=[compat.transformer.sublayer_rms_norm],
    )
