"""Reads the settings of a run on a TPU slice from gin, to plan or rehearse the run.

    run = read_pod_run(vocabulary_size=32100)      # after gin has been parsed
    run.mesh_shape, run.batch_sequences, run.microbatches
    run.split("heads")                             # 8 parts, if model_parallelism is 8

The values are those that `mesh_tensorflow.transformer.utils.run` would get, including its defaults.
Mesh TensorFlow's own functions do the batch arithmetic. No dataset is opened, and a vocabulary is
opened only if it is a local file. If the settings cannot work, `read_pod_run` raises an error
before anything is built.
"""

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Mapping
from typing import Any

from t0.compat import gin, learning_rate_schedules, mesh_utils, mtf
from t0.config.bindings import bound, is_configured
from t0.errors import UserError, unknown_name
from t0.mesh import devices
from t0.mesh.topology import Topology, topology

MODES = ("train", "score_eval")
DEFAULT_VOCABULARY_SIZE = 32100  # T5's vocabulary: 32,000 pieces and 100 sentinels
# The names of T5's published vocabularies contain the number of pieces and the number of sentinels.
_PUBLIC_VOCABULARY = re.compile(r"/\w+\.(\d+)\.(\d+)extra/")
_RUN_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(mesh_utils.run).parameters.items()
}


@dataclasses.dataclass(frozen=True)
class PodRun:
    """A run on a TPU slice: its model, batch, mesh and layout.

    Attributes:
      mode: "train" or "score_eval", as gin configures it. A rehearsal also lowers other modes.
      slice_: the TPU slice.
      mesh_shape: the logical mesh, such as batch:64,model:8.
      layout_rules: the rules that say which tensor dimension is split over which mesh dimension.
      sequence_length: the number of tokens of each feature.
      batch_sequences: the number of sequences in the global batch.
      microbatches: the number of microbatches into which a replica divides its part of the batch.
        It computes them one after the other.
      vocabulary_size: the number of ids of the SentencePiece vocabulary, before the model pads it.
      train_steps: the step at which training stops. This number includes the steps of pretraining.
      packed: whether examples are packed, with segment ids and positions.
    """

    mode: str
    model_type: str
    slice_: Topology
    mesh_shape: mtf.Shape
    layout_rules: mtf.LayoutRules
    sequence_length: Mapping[str, int]
    batch_sequences: int
    microbatches: int
    vocabulary_size: int
    train_steps: int
    init_checkpoint: str | None
    packed: bool
    autostack: bool
    optimizer: Any
    learning_rate_schedule: Any
    variable_filter: Any
    variable_dtype: mtf.VariableDType

    @property
    def replicas(self) -> int:
        """The number of copies of the model, each with its share of the batch."""
        return devices.replicas(self.mesh_shape, self.layout_rules)

    @property
    def tokens_of_batch(self) -> int:
        """The number of tokens in the global batch, which counts inputs and targets."""
        return self.batch_sequences * sum(self.sequence_length.values())

    def split(self, dimension: str) -> int:
        """Returns the number of parts into which the mesh splits a dimension such as "heads"."""
        return mtf.tensor_dim_to_mesh_dim_size(
            self.layout_rules, self.mesh_shape, mtf.Dimension(dimension, 0)
        )

    def axis(self, dimension: str) -> str | None:
        """Returns the mesh axis that splits a tensor dimension; None if it is not split."""
        number = self.layout_rules.tensor_dimension_to_mesh_axis(
            mtf.Dimension(dimension, self.split(dimension)), self.mesh_shape
        )
        return None if number is None else self.mesh_shape.dims[number].name


def configured_vocabulary_size() -> tuple[int, str]:
    """Returns the vocabulary's size and the source of that number, without downloading anything.

    If the vocabulary is a local SentencePiece model, its size is read from the file. The size of
    one of T5's published vocabularies follows from its name.
    """
    from t0.tasks import default_vocabulary
    from t0.tasks.vocabulary import vocabulary_path

    path = vocabulary_path()
    if "://" not in path and os.path.isfile(path):  # noqa: PTH113
        return default_vocabulary().vocab_size, path
    match = _PUBLIC_VOCABULARY.search(path)
    if match:
        return int(match[1]) + int(match[2]), f"{path}, by its name"
    return DEFAULT_VOCABULARY_SIZE, f"assumed, {path} is not read; see --vocab"


def _run_parameter(name: str) -> Any:
    """Returns a parameter of Mesh TensorFlow's `run`: the value bound in gin, or the default."""
    return bound(f"run.{name}", _RUN_DEFAULTS[name])


def read_pod_run(*, vocabulary_size: int) -> PodRun:
    """Reads the run from gin's global configuration.

    Args:
      vocabulary_size: the number of ids of the vocabulary, including sentinels.

    Raises:
      UserError: if the mode cannot be planned, if gin configures an adapter, if the slice is
        unknown, if the numbers of cores of mesh and slice differ, or if the lengths or the mesh do
        not divide the batch.
    """
    mode = _run_parameter("mode")
    if mode not in MODES:
        raise unknown_name("run.mode to plan", str(mode), MODES, f"Known: {', '.join(MODES)}")
    if mode == "train" and is_configured("t0.adapter"):
        raise UserError(
            "t0.adapter is set, and only the PyTorch engine trains adapters. For a plan on GPUs, "
            "add --engine=torch --gpu=NAME. For a TPU, leave out the adapter"
        )
    name = bound("tpu_mesh_shape.tpu_topology")
    if not name:
        raise UserError(
            "no TPU slice is configured, and a plan needs one. Name it: --gin_file="
            "mesh/v3-8.gin, or --gin_param=\"utils.tpu_mesh_shape.tpu_topology = 'v3-8'\""
        )
    slice_ = topology(name)
    shape = _mesh_shape(slice_)
    layout = mtf.convert_to_layout_rules(_run_parameter("layout_rules"))
    lengths = _lengths(_run_parameter("sequence_length"))
    sequences = devices.check_batch(
        _run_parameter("batch_size"), sequence_length=lengths, mesh_shape=shape, layout_rules=layout
    )
    steps = _run_parameter("train_steps")
    return PodRun(
        mode=mode,
        model_type=_run_parameter("model_type"),
        slice_=slice_,
        mesh_shape=shape,
        layout_rules=layout,
        sequence_length=lengths,
        batch_sequences=sequences,
        microbatches=_microbatches(sequences, lengths, shape, layout) if mode == "train" else 1,
        vocabulary_size=vocabulary_size,
        train_steps=steps if isinstance(steps, int) else steps(sequences, lengths),
        init_checkpoint=_run_parameter("init_checkpoint"),
        packed=mode == "train" and bool(bound("mesh_train_dataset_fn.pack", True)),
        autostack=_run_parameter("autostack"),
        optimizer=_run_parameter("optimizer"),
        learning_rate_schedule=_schedule(_run_parameter("learning_rate_schedule")),
        variable_filter=_run_parameter("variable_filter"),
        variable_dtype=mesh_utils.get_variable_dtype(),
    )


def _mesh_shape(slice_: Topology) -> mtf.Shape:
    parallelism = bound("tpu_mesh_shape.model_parallelism", 1)
    try:
        value = _run_parameter("mesh_shape")
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(
            f"tpu_mesh_shape.model_parallelism = {parallelism!r} does not multiply to the "
            f"{slice_.cores} cores of {slice_.name}"
        ) from error
    if value is gin.REQUIRED:
        raise UserError("run.mesh_shape is not set; set run.mesh_shape = @tpu_mesh_shape()")
    shape = mtf.convert_to_shape(value)
    if shape.size != slice_.cores:
        raise UserError(
            f"the mesh {describe_shape(shape)} has {shape.size} cores, but {slice_.name} has "
            f"{slice_.cores}. tpu_mesh_shape.model_parallelism = {parallelism!r} must be one of "
            f"{divisors(slice_.cores)}. If run.mesh_shape belongs to another pod, as in an "
            "operative config, set run.mesh_shape = "
            "@mesh_tensorflow.transformer.utils.tpu_mesh_shape() after it"
        )
    return shape


def describe_shape(shape: mtf.Shape) -> str:
    """Returns a mesh shape in gin's notation, such as "batch:64,model:8"."""
    return ",".join(f"{dim.name}:{dim.size}" for dim in shape.dims) or "one core"


def divisors(*numbers: int) -> list[int]:
    """Returns the common divisors of some numbers, ascending.

    >>> divisors(6)
    [1, 2, 3, 6]
    """
    return [n for n in range(1, min(numbers) + 1) if not any(number % n for number in numbers)]


def model_dimensions(model: Any) -> dict[str, int]:
    """Returns the sizes of the model's dimensions that a layout can split.

    If layers differ in a dimension, the size is that of the first layer.
    """
    sizes: dict[str, int] = {}
    stacks = (getattr(model, "encoder", None), getattr(model, "decoder", None))
    for stack in [stack for stack in stacks if stack] or [model]:
        sizes.setdefault("d_model", stack.model_dim.size)
        if stack.output_vocab_dim:
            sizes.setdefault("vocab", stack.output_vocab_dim.size)
        for layer in stack.layer_stack._layers:
            for name, attribute in (("heads", "num_heads"), ("d_ff", "hidden_size")):
                if isinstance(getattr(layer, attribute, None), int):
                    sizes.setdefault(name, getattr(layer, attribute))
    return sizes


def check_model(run: PodRun, sizes: Mapping[str, int]) -> None:
    """Checks that the mesh evenly divides every dimension of the model that the layout splits.

    Args:
      run: the run whose mesh and layout are checked.
      sizes: the model's dimensions, such as {"heads": 6, "d_ff": 1024, "vocab": 32128}.

    Raises:
      UserError: if the mesh does not divide a dimension. The message names all dimensions with this
        problem, and the values of model parallelism that work.
    """
    wrong = [name for name, size in sizes.items() if size % run.split(name)]
    if not wrong:
        return
    split = [size for name, size in sizes.items() if run.split(name) > 1]
    problems = [f"{name} = {sizes[name]} does not divide by {run.split(name)}" for name in wrong]
    raise UserError(
        f"the mesh {describe_shape(run.mesh_shape)} cannot split the model: {'; '.join(problems)}. "
        "Values of tpu_mesh_shape.model_parallelism that divide every split dimension and "
        f"{run.slice_.name}: {divisors(run.slice_.cores, *split)}"
    )


def _lengths(value: Any) -> Mapping[str, int]:
    if isinstance(value, int):
        return {"inputs": value, "targets": value}
    if not isinstance(value, dict) or not {"inputs", "targets"} <= value.keys():
        raise UserError(
            f"run.sequence_length is {value!r}; a plan needs tokens of both features, such as "
            "run.sequence_length = {'inputs': 1024, 'targets': 256}"
        )
    return value


def _microbatches(sequences: int, lengths: Mapping[str, int], shape: mtf.Shape, layout: Any) -> int:
    outer = bound("tpu_estimator_model_fn.outer_batch_size", 1) or 1
    dim = mtf.Dimension("batch", sequences // outer)
    return mesh_utils.serialize_num_microbatches(dim, lengths, shape, layout)


def _schedule(value: Any) -> Any:
    if isinstance(value, list):
        value = functools.partial(learning_rate_schedules.product_learning_rate, factors=value)
    return functools.partial(value, total_train_steps=1) if callable(value) else value
