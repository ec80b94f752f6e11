"""Compares the tensors of two checkpoints, or the logits of their models, in any formats.

    comparison = compare("/models/t0_3b", "/models/t0_3b_mtf")
    comparison.same, comparison.rows
    forward = compare_forward(a, b, inputs, targets, workdir)
    logits = hf_logits("/models/t0_3b", inputs, targets)                     # [B, T, V]
    logits = mesh_logits(source.model, "gelu", prefix, inputs, targets)      # needs no gin file

Letters in shapes: B examples, L input tokens, T target tokens, V vocabulary rows. The id 0 is
padding in inputs and targets. The decoder reads the targets shifted right. Logits are computed in
float32. `compare` holds two tensors in memory at a time. TensorFlow is imported only to compute
logits.
"""

import contextlib
import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from t0 import compat
from t0.checkpoints import names, tokenizer
from t0.checkpoints.conversion import as_mesh_checkpoint, open_source
from t0.checkpoints.formats import CheckpointFacts, CheckpointSource
from t0.checkpoints.operative_config import TO_MESH
from t0.checkpoints.shape import ModelShape
from t0.errors import UserError


@dataclasses.dataclass(frozen=True)
class Difference:
    """The result of comparing one tensor in two checkpoints.

    Attributes:
      name: the tensor's canonical name.
      verdict: "same", "only in A", "only in B", "shape" or "values" if these differ, or "dtype" if
        only the dtypes differ.
      largest: the largest absolute difference between elements at the same position. It is infinite
        if a value is NaN, and NaN if the values were not compared.
      detail: the two dtypes or shapes, if they differ.
    """

    name: str
    verdict: str
    largest: float = 0.0
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of comparing all tensors and settings of two checkpoints.

    Attributes:
      rows: one row for each parameter or slot that at least one of the checkpoints has.
      kinds: the formats of the two checkpoints.
      slots_ignored: whether the optimizer's slots are left out because only one checkpoint has
        them.
      settings: one line for each setting (activation, tokenizer) that differs.
    """

    rows: list[Difference]
    kinds: tuple[str, str]
    slots_ignored: bool
    settings: list[str] = dataclasses.field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether the settings and all tensors are identical, bit for bit."""
        return not self.settings and all(row.verdict == "same" for row in self.rows)


@dataclasses.dataclass(frozen=True)
class Forward:
    """The outputs of two checkpoints for the same tokens.

    Attributes:
      computed_by: the program that computed each checkpoint's logits.
      largest: the largest absolute difference between logits at the same position. The logits of
        padding tokens, and of vocabulary rows that only one checkpoint has, are left out.
      nats: the log-likelihood of the targets under each checkpoint, summed over all tokens.
    """

    computed_by: tuple[str, str]
    largest: float
    nats: tuple[float, float]


def compare(a: str | Path, b: str | Path, *, progress: bool = True) -> Comparison:
    """Compares two checkpoints tensor by tensor.

    Args:
      a: the path of the first checkpoint, see `open_source`.
      b: the path of the second checkpoint.
      progress: whether to show progress on stderr.

    Raises:
      UserError: if a checkpoint cannot be read.
    """
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(contextlib.closing(open_source(path))) for path in (a, b)
        )
        without_slots = [
            len(source.entries) == len(source.parameters) for source in (first, second)
        ]
        slots_ignored = without_slots[0] != without_slots[1]
        tensor_names = list(dict.fromkeys([*first.entries, *second.entries]))
        if slots_ignored:
            tensor_names = [name for name in tensor_names if names.split_slot(name)[1] is None]
        rows = [
            _compare_tensor(first, second, name)
            for name in tqdm(tensor_names, disable=not progress, leave=False, unit=" tensors")
        ]
        settings = _compare_settings(first.facts, second.facts)
        return Comparison(rows, (first.kind, second.kind), slots_ignored, settings)


def compare_forward(
    a: str | Path, b: str | Path, inputs: np.ndarray, targets: np.ndarray, workdir: Path
) -> Forward:
    """Computes the logits of both checkpoints and compares them.

    If `transformers` and PyTorch are installed, they compute the logits of Hugging Face folders.
    Mesh TensorFlow computes all other logits, after converting the checkpoint if necessary.

    Args:
      a: the path of the first checkpoint.
      b: the path of the second checkpoint.
      inputs: int [B, L], 0 is padding.
      targets: int [B, T], 0 is padding.
      workdir: the folder for converted checkpoints.

    Raises:
      UserError: if a token id has no embedding.
    """
    results = [_compute_logits(path, inputs, targets, workdir) for path in (a, b)]
    rows = min(logits.shape[-1] for logits, _ in results)
    highest = int(max(inputs.max(), targets.max()))
    if highest >= rows:
        raise UserError(
            f"the text has the id {highest}, but a checkpoint has only {rows} embeddings"
        )
    real = targets > 0
    first, second = (logits[real][:, :rows].astype(np.float64) for logits, _ in results)
    likelihoods = tuple(_sum_nats(logits[real], targets[real]) for logits, _ in results)
    return Forward(
        computed_by=tuple(program for _, program in results),
        largest=float(np.abs(first - second).max()),
        nats=likelihoods,
    )


def hf_logits(folder: str | Path, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
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
    model: ModelShape, activation: str, prefix: str, inputs: np.ndarray, targets: np.ndarray
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


def bitransformer(model: ModelShape, activation: str) -> Any:
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


def _compare_settings(a: CheckpointFacts, b: CheckpointFacts) -> list[str]:
    """Returns a line for each setting that both checkpoints have, but with different values.

    The ids of special tokens and the epsilons of norms need no comparison: a folder in which they
    differ from T5's cannot be opened.
    """
    lines = []
    if a.activation and b.activation and a.activation != b.activation:
        lines.append(f"activation\t{a.activation} and {b.activation}")
    if a.tokenizer and b.tokenizer:
        if not tokenizer.same(a.tokenizer, b.tokenizer):
            lines.append(f"tokenizer\t{a.tokenizer} and {b.tokenizer}")
    elif (a.tokenizer or a.tokenizer_fault) and (b.tokenizer or b.tokenizer_fault):
        lines += [f"tokenizer\t{fact.tokenizer_fault}" for fact in (a, b) if fact.tokenizer_fault]
    return lines


def _compare_tensor(one: CheckpointSource, other: CheckpointSource, name: str) -> Difference:
    if name not in other.entries or name not in one.entries:
        return Difference(name, "only in A" if name in one.entries else "only in B", float("nan"))
    first, second = one.entries[name], other.entries[name]
    if first.shape != second.shape:
        shapes = f"{list(first.shape)} and {list(second.shape)}"
        return Difference(name, "shape", float("nan"), shapes)
    a, b = one.load(name), other.load(name)
    detail = "" if a.dtype == b.dtype else f"{a.dtype} and {b.dtype}"
    if not detail and np.array_equal(_bits(a), _bits(b)):
        return Difference(name, "same")
    largest = _largest_difference(a, b)
    return Difference(name, "dtype" if detail and largest == 0 else "values", largest, detail)


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
    largest = 0.0
    # Compare in pieces: a float64 copy of a bfloat16 tensor would be four times as large.
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    for start in range(0, flat_a.size, 1 << 20):
        piece = slice(start, start + (1 << 20))
        gap = np.abs(flat_a[piece].astype(np.float64) - flat_b[piece].astype(np.float64))
        largest = max(largest, float(gap.max()) if not np.isnan(gap).any() else float("inf"))
    return largest


def _compute_logits(
    path: str | Path, inputs: np.ndarray, targets: np.ndarray, workdir: Path
) -> tuple[np.ndarray, str]:
    with contextlib.closing(open_source(path)) as source:
        kind, model, facts = source.kind, source.model, source.facts
    if kind == "hf" and all(map(importlib.util.find_spec, ("torch", "transformers"))):
        return hf_logits(path, inputs, targets), "transformers"
    prefix = as_mesh_checkpoint(str(path), workdir)
    activation = facts.activation or ("gelu" if model.gated else "relu")
    return mesh_logits(model, activation, prefix, inputs, targets), "Mesh TensorFlow"


def _sum_nats(logits: np.ndarray, ids: np.ndarray) -> float:
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    normal = np.log(np.exp(shifted).sum(-1))
    return float((np.take_along_axis(shifted, ids[:, None], -1)[:, 0] - normal).sum())


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
