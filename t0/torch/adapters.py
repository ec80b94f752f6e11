"""Adds adapters, (IA)3 or LoRA, to the projections of a T5, so that only the adapters are trained.

    add(model, AdapterSpec("lora", rank=8))          # before the model is sharded
    adapter_parameters(model)                        # PEFT's name -> parameter
    write(folder, step, model=model, spec=spec, base=base, writes=world.first)

The base is the T5 without the adapter. A projection with an adapter is a linear layer with more
parameters, which have PEFT's names. The weights of the base keep their names. A new adapter does
not change the model's outputs. `t0.checkpoints.adapter_folders` reads the written folder, and
merges the adapter into the base.
"""

from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from t0.checkpoints import adapter_folders, checkpoint_files, conversion
from t0.checkpoints.adapter_folders import BaseModel, is_input_scaled
from t0.config.specification import AdapterSpec, RunSpec
from t0.errors import UserError
from t0.files.any_path import any_path
from t0.torch.model import T5
from t0.torch.quantization import FrozenLinear

_FACTORS = (".ia3_l", ".lora_A.weight", ".lora_B.weight")


class ScaledLinear(FrozenLinear):
    """A linear layer with (IA)3: learned factors of its inputs or outputs."""

    def __init__(self, rows: int, columns: int, base: str, *, inputs: bool) -> None:
        super().__init__(rows, columns, base)
        self._inputs = inputs
        self.ia3_l = nn.Parameter(torch.empty(rows if inputs else columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Projects x [..., rows] to [..., columns]."""
        return super().forward(x * self.ia3_l) if self._inputs else super().forward(x) * self.ia3_l


class LoraLinear(FrozenLinear):
    """A linear layer with LoRA: adds alpha / rank times the product of two small matrices."""

    def __init__(self, rows: int, columns: int, spec: AdapterSpec) -> None:
        super().__init__(rows, columns, spec.base)
        self._rate, self._scale = spec.dropout, spec.alpha / spec.rank
        self.lora_A = nn.Linear(rows, spec.rank, bias=False)
        self.lora_B = nn.Linear(spec.rank, columns, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Projects x [..., rows] to [..., columns]."""
        dropped = functional.dropout(x, self._rate, self.training)
        return super().forward(x) + self._scale * self.lora_B(self.lora_A(dropped))


def add(model: T5, spec: AdapterSpec) -> None:
    """Adds an adapter, whose parameters have no values yet, to the projections of a model.

    All projections of the model's blocks get the type `spec.base`.

    Raises:
      UserError: if the model does not have a projection, or the rank is too large.
    """
    adapted = adapter_folders.adapted_modules(spec, model.spec.sizes)
    for path, linear in list(model.named_modules()):
        if not isinstance(linear, nn.Linear) or ".block." not in path:
            continue
        size = linear.in_features, linear.out_features
        if path not in adapted:
            layer = FrozenLinear(*size, spec.base)
        elif spec.method == "ia3":
            layer = ScaledLinear(*size, spec.base, inputs=is_input_scaled(path))
        else:
            layer = LoraLinear(*size, spec)
        model.set_submodule(path, layer)


def adapter_parameters(model: T5) -> dict[str, nn.Parameter]:
    """Returns PEFT's name -> parameter of an adapter; {} if the model has no adapter."""
    return {name: each for name, each in model.named_parameters() if name.endswith(_FACTORS)}


def check_base(spec: RunSpec) -> str:
    """Returns the path of the checkpoint on which a run trains an adapter.

    Raises:
      UserError: if there is no such model, or the run has settings that do not fit an adapter.
    """
    base = spec.init_checkpoint
    if base is None:
        raise UserError("t0.adapter is set, but no base: name its checkpoint with --checkpoint")
    if spec.variable_filter:
        raise UserError(
            "run.variable_filter and t0.adapter are both set, but an adapter's base is frozen: "
            "unset one of them"
        )
    kind, location = conversion.recognise(base)
    if kind == "adapter":
        raise UserError(
            f"the base {base} is an adapter itself; expected a model. Merge it: t0 convert BASE "
            f"NEW --adapter {base} --merge --to hf"
        )
    if checkpoint_files.latest(spec.model_dir):
        raise UserError(
            f"{spec.model_dir} has checkpoints of a whole model; choose a new folder for an adapter"
        )
    return str(any_path(location).absolute())


def check_resumed(folder: Path, base: BaseModel) -> None:
    """Checks that the adapter in a checkpoint's folder was trained on this base.

    Raises:
      UserError: if it was trained on another base, or the folder has no adapter.
    """
    if adapter_folders.find(folder) is None:
        raise UserError(
            f"{folder} is a checkpoint of a whole model; choose a new --model_dir for an adapter"
        )
    recorded, _ = adapter_folders.read_record(folder)
    if recorded is None:
        raise UserError(f"{folder / adapter_folders.WEIGHTS} has lost the record of its base")
    recorded.check(base.tensors, base.path, str(folder))


def write(
    folder: Path, step: int, *, model: T5, spec: AdapterSpec, base: BaseModel, writes: bool
) -> None:
    """Writes a model's adapter into a folder. All processes must call this function.

    Args:
      folder: an existing folder.
      step: the number of finished steps.
      model: the sharded model.
      spec: the adapter.
      base: the model to which the adapter belongs.
      writes: whether this process writes the files.
    """
    tensors = {}
    for name, parameter in adapter_parameters(model).items():
        value = parameter.detach()
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if whole.dim() == 1:  # PEFT stores the factors of inputs as a row, of outputs as a column
            inputs = is_input_scaled(name.rpartition(".")[0])
            whole = whole[None] if inputs else whole[:, None]
        tensors[name] = whole.cpu().numpy()
    if writes:
        adapter_folders.write(folder, spec, tensors, base, step=step)
