"""Builds a model whose weights are sharded over the processes (FSDP2), in mixed precision.

    switches = MemorySwitches(keep=True, recompute=False)
    model = sharded(spec, world, activations=torch.bfloat16, switches=switches)
    weights = trained_weights(model, variable_filter=None)

Each process stores its own rows of each weight, in float32. Each block is a unit of `fully_shard`.
Before a block computes, its weights are gathered from all processes in the type of activations. The
gradients of a block are summed over the processes in float32. With one process, nothing is
gathered.
"""

import dataclasses
import math
import re
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from t0.checkpoints import names
from t0.checkpoints.shape import expected_shapes
from t0.config.model_spec import T5Spec
from t0.config.specification import AdapterSpec
from t0.errors import UserError
from t0.torch import adapters
from t0.torch.memory import NEITHER, MemorySwitches
from t0.torch.model import T5, Block
from t0.torch.processes import World


def sharded(spec: T5Spec, world: World, *, activations: torch.dtype, **options: Any) -> T5:
    """Returns a sharded model. This process's rows of the weights do not have values yet.

    Args:
      spec: the model.
      world: the processes of the run.
      activations: the type of activations, in which the model computes.
      options: the options of `unsharded`.
    """
    model, switches = unsharded(spec, **options), options.get("switches", NEITHER)
    if options.get("adapter"):
        # Frozen weights have the type in which the model computes, because they are never updated.
        for parameter in names_and_parameters(model).values():
            parameter.data = parameter.data.to(activations)
    mesh = init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("rows",))
    policy = MixedPrecisionPolicy(
        param_dtype=activations, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    for module in [*blocks, model]:
        reshards = isinstance(module, Block) and not switches.keep
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshards)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The factor is 1: the loop has already divided the loss, so gradients only have to be
            # summed. (gloo does not support any other factor.)
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model.to_empty(device=world.device)


def unsharded(
    spec: T5Spec,
    *,
    switches: MemorySwitches = NEITHER,
    compiled: bool = False,
    kernel: str = "auto",
    adapter: AdapterSpec | None = None,
) -> T5:
    """Returns a model on the device "meta", where weights have no values and need no memory.

    Args:
      spec: the model.
      switches: the options that trade memory for time.
      compiled: whether PyTorch compiles the blocks and the loss when the first step is computed.
      kernel: the attention kernel in training; see `t0.torch.model`.
      adapter: the adapter of the model, or None.
    """
    with torch.device("meta"):
        model = T5(spec)
        if adapter:
            adapters.add(model, adapter)
    model.encoder.recompute = model.decoder.recompute = switches.recompute
    model.set_attention_kernel(kernel)
    if compiled:
        model.loss_sums = torch.compile(model.loss_sums)
        for module in model.modules():
            if isinstance(module, Block):
                # Kernels for dynamic shapes are slower, and they are not needed because all batches
                # have the same shape.
                module.compile(dynamic=False)
    return model


def names_and_parameters(model: T5) -> dict[str, nn.Parameter]:
    """Returns canonical name -> parameter, in the order of the variables in Mesh TensorFlow.

    Quantized weights are not parameters.
    """
    parameters = dict(model.named_parameters())
    pairs = ((name, names.hf_name(name)) for name in expected_shapes(model.spec.sizes))
    return {name: parameters[key] for name, key in pairs if key in parameters}


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight that the optimizer trains.

    Attributes:
      name: the name in Mesh TensorFlow.
      shape: the shape of the whole weight, in Mesh TensorFlow's orientation.
      transposed: whether PyTorch stores the two dimensions in the opposite order.
      parameter: the parameter of the sharded model.
      copy: the parameter that gets the gradient; None if it is `parameter`.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool
    parameter: nn.Parameter
    copy: nn.Parameter | None = None

    @property
    def size(self) -> int:
        """The number of elements of the whole weight."""
        return math.prod(self.shape)

    def local(self) -> torch.Tensor:
        """Returns this process's rows, in PyTorch's orientation; see `local_rows`."""
        return local_rows(self.parameter)

    def gradient(self) -> torch.Tensor | None:
        """Returns the gradient of these rows; None if the loss does not depend on the weight."""
        owner = self.parameter if self.copy is None else self.copy
        total = getattr(owner, "grad_sum", None)  # of several microbatches, if steps are replayed
        value = owner.grad if total is None else total
        return value.to_local() if isinstance(value, DTensor) else value


def trained_weights(model: T5, variable_filter: str | None) -> list[Weight]:
    """Returns the weights that are trained; all other weights keep their values.

    If the model has an adapter, only the adapter is trained.

    Args:
      variable_filter: a regular expression for the names (in Mesh TensorFlow) of the weights to
        train; None to train all weights.

    Raises:
      UserError: if the filter is not a regular expression, or matches no weight.
    """
    pattern = compile_pattern(variable_filter or "", "run.variable_filter")
    adapter = adapters.adapter_parameters(model)
    shapes, weights = expected_shapes(model.spec.sizes), []
    for name, parameter in names_and_parameters(model).items():
        mesh_name = names.to_mtf(name, legacy_norms=model.spec.legacy_norms)
        parameter.requires_grad_(not adapter and pattern.search(mesh_name) is not None)
        if parameter.requires_grad:
            transposed = names.row_of(name).transposed
            weights.append(Weight(mesh_name, shapes[name], transposed, parameter))
    weights += [Weight(name, tuple(each.shape), False, each) for name, each in adapter.items()]
    if not weights:
        raise UserError(f"run.variable_filter is {variable_filter!r}, which matches no variable")
    return weights


def compile_pattern(pattern: str, name: str) -> re.Pattern[str]:
    """Compiles a regular expression, which is the value of the setting `name`.

    Raises:
      UserError: if it is not a regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(
            f"{name} has {pattern!r:.80}, which is not a regular expression: {error}"
        ) from error


def own_rows(rows: int, world: World) -> slice:
    """Returns the slice of a weight's rows that this process has.

    All processes have the same number of rows, except that the last processes may have fewer.
    """
    chunk = -(-rows // world.size)
    return slice(min(world.rank * chunk, rows), min((world.rank + 1) * chunk, rows))


def local_rows(parameter: torch.Tensor) -> torch.Tensor:
    """Returns this process's rows of a weight. Writing to these rows changes the model."""
    return parameter.data.to_local() if isinstance(parameter.data, DTensor) else parameter.data


def prepare_pass(model: T5, *, last: bool, keep: bool, sums: bool = True) -> None:
    """Prepares the forward and backward pass of a microbatch.

    Args:
      last: whether this is the last microbatch of the step, after which the gradients are summed
        over the processes.
      keep: whether gathered weights are kept until the end of the last microbatch.
      sums: whether the model sums the gradients of microbatches. Otherwise each microbatch leaves
        its own gradients.
    """
    model.set_requires_gradient_sync(last or not sums)
    model.set_reshard_after_backward(last or not keep)
    model.set_is_last_backward(last or not sums)


def reshard(model: T5) -> None:
    """Frees the gathered weights after a forward pass without a backward pass."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
