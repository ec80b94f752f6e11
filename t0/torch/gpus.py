"""Lists types of GPUs, and estimates the time of a training step on them, without importing PyTorch.

find_gpu("a100-80")                                 # a name for `t0 plan --gpu=`
find_gpu_by_device_name("NVIDIA A100-SXM4-80GB")    # PyTorch's name; None if it is not listed
work = StepWork(flops, gpus=1, microbatches=512, host_bytes=memory.host_bytes(shape, None))
step_seconds(find_gpu("l4"), work, switches, utilisation=0.4)
"""

import dataclasses
import math
from typing import NamedTuple

from t0.errors import unknown_name
from t0.torch.memory import MemorySwitches

# The share of the peak FLOP/s that training steps of T5.1.1 xl reach on an H200 (docs/gpu.md).
MEASURED_UTILISATION = 0.34
# The share of a PCIe link's rate that copies of pinned memory reach. This is an assumption.
_LINK_SHARE = 0.8


class Gpu(NamedTuple):
    """A type of GPU, with its memory, peak FLOP/s and PCIe link.

    The FLOP/s are for dense matrix products of bfloat16 numbers, summed in float32. Data sheets
    also have a number "with sparsity", which is twice as high, but T5's weights are not sparse.

    Attributes:
      name: the name of the GPU in the flag `--gpu`.
      memory_mib: the memory in MiB that the driver reports (`nvidia-smi`).
      teraflops: the peak TFLOP/s of dense bfloat16 products; None if the GPU does not compute
        bfloat16 products.
      link: the rate of the PCIe link in GB/s, in each direction.
      devices: PyTorch's names for this GPU.
      source: the NVIDIA document in which the FLOP/s are published.
    """

    name: str
    memory_mib: int
    teraflops: float | None
    link: float
    devices: tuple[str, ...]
    source: str

    @property
    def bytes(self) -> int:
        """The memory in bytes."""
        return self.memory_mib * 2**20


_A100_40 = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB")
_A100_80 = ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe")
_V100_32 = ("Tesla V100-SXM2-32GB", "Tesla V100-SXM3-32GB", "Tesla V100-PCIE-32GB")
_PCIE_3, _PCIE_4, _PCIE_4_X8, _PCIE_5 = 15.75, 31.5, 15.75, 63.0
_RTX = "NVIDIA GeForce RTX "
_ADA = "Ada whitepaper (2022)"
_BLACKWELL = "RTX Blackwell whitepaper (2025)"
GPUS = (
    Gpu("rtx-3060-12", 12288, 25.5, _PCIE_4, (_RTX + "3060",), "RTX 3060 specifications (2021)"),
    Gpu("t4", 15360, None, _PCIE_3, ("Tesla T4",), "T4 data sheet (2019)"),
    Gpu("rtx-4060-ti-16", 16380, 44.1, _PCIE_4_X8, (_RTX + "4060 Ti",), _ADA + ", RTX 4060 Ti"),
    Gpu("rtx-4080", 16376, 97.5, _PCIE_4, (_RTX + "4080",), _ADA),
    Gpu("rtx-5070-ti", 16303, 87.9, _PCIE_5, (_RTX + "5070 Ti",), _BLACKWELL),
    Gpu("l4", 23034, 121.0, _PCIE_4, ("NVIDIA L4",), "L4 data sheet (2023)"),
    Gpu("a10", 23028, 125.0, _PCIE_4, ("NVIDIA A10",), "A10 data sheet (2021)"),
    Gpu("rtx-3090", 24576, 71.0, _PCIE_4, (_RTX + "3090",), "GA102 whitepaper (2020)"),
    Gpu("rtx-4090", 24564, 165.2, _PCIE_4, (_RTX + "4090",), _ADA),
    Gpu("v100-32", 32768, None, _PCIE_3, _V100_32, "V100 data sheet (2020)"),
    Gpu("rtx-5090", 32607, 209.5, _PCIE_5, (_RTX + "5090",), _BLACKWELL),
    Gpu("a100-40", 40960, 312.0, _PCIE_4, _A100_40, "A100 data sheet (2021)"),
    Gpu("a40", 46068, 149.7, _PCIE_4, ("NVIDIA A40",), "A40 data sheet (2021)"),
    Gpu("l40s", 46068, 362.0, _PCIE_4, ("NVIDIA L40S",), "L40S data sheet (2023)"),
    Gpu("rtx-a6000", 49140, 154.8, _PCIE_4, ("NVIDIA RTX A6000",), "RTX A6000 data sheet (2021)"),
    Gpu(
        "rtx-6000-ada",
        49140,
        364.2,
        _PCIE_4,
        ("NVIDIA RTX 6000 Ada Generation",),
        "RTX 6000 Ada data sheet (2022)",
    ),
    Gpu(
        "h100-80", 81559, 989.0, _PCIE_5, ("NVIDIA H100 80GB HBM3",), "H100 data sheet (2023), SXM"
    ),
    Gpu("a100-80", 81920, 312.0, _PCIE_4, _A100_80, "A100 data sheet (2021)"),
    Gpu("h200-141", 143771, 989.0, _PCIE_5, ("NVIDIA H200",), "H200 data sheet (2023), SXM"),
    Gpu("b200", 183359, 2250.0, _PCIE_5, ("NVIDIA B200",), "DGX B200 data sheet (2024)"),
)


def find_gpu(name: str) -> Gpu:
    """Returns the GPU with this name in the table, such as "a100-80".

    Raises:
      UserError: if the name is unknown. The message contains the most similar names.
    """
    by_name = {gpu.name: gpu for gpu in GPUS}
    if name.lower() not in by_name:
        raise unknown_name("GPU", name, list(by_name), "(--gpu)")
    return by_name[name.lower()]


def find_gpu_by_device_name(device: str) -> Gpu | None:
    """Returns the GPU with this device name in PyTorch; None if it is not in the table."""
    return next((gpu for gpu in GPUS if device in gpu.devices), None)


@dataclasses.dataclass(frozen=True)
class StepWork:
    """The work of a training step.

    Attributes:
      flops: the FLOPs of all GPUs, without recomputation; see `memory.model_flops`.
      gpus: the number of GPUs.
      microbatches: the number of microbatches of each GPU.
      host_bytes: the bytes of all gradients, which "offload" copies to host memory.
      clips: whether gradients are clipped by their common norm.
      adapter: whether only an adapter is trained.
    """

    flops: int
    gpus: int
    microbatches: int
    host_bytes: int
    clips: bool = False
    adapter: bool = False

    def computation(
        self, gpu: Gpu, switches: MemorySwitches, utilisation: float
    ) -> tuple[float, float]:
        """Returns the seconds of a microbatch's forward and of its backward pass."""
        whole = self.flops / (self.gpus * utilisation * gpu.teraflops * 1e12) / self.microbatches
        forward = whole / (2 if self.adapter else 3)
        return forward, whole - forward + (forward if switches.recompute else 0.0)

    def copy_seconds(self, gpu: Gpu) -> float:
        """Returns the seconds in which all gradients are copied to host memory, or back."""
        return self.host_bytes / (_LINK_SHARE * gpu.link * 1e9)


def step_seconds(gpu: Gpu, work: StepWork, switches: MemorySwitches, utilisation: float) -> float:
    """Estimates the seconds of a training step, without the communication between GPUs.

    With "offload", a microbatch copies the sums of gradients to the GPU and back while its backward
    pass computes. The first copies them only to the host. The last copies them only to the GPU,
    unless gradients are clipped: then they are copied back, and twice to the GPU after all passes.

    Args:
      gpu: the type of GPU, which computes bfloat16 products.
      work: the work of the step.
      switches: the options that trade memory for time.
      utilisation: the share of the peak FLOP/s that matrix products reach.
    """
    forward, backward = work.computation(gpu, switches, utilisation)
    count, copy = work.microbatches, work.copy_seconds(gpu)
    if switches.gradients != "offload":
        return count * (forward + backward)
    copies = [2] * count
    copies[0] -= 1
    copies[-1] -= 0 if work.clips else 1
    passes = sum(max(backward, each * copy) for each in copies)
    return count * forward + passes + (2 * copy if work.clips else 0.0)


def hiding_tokens(
    gpu: Gpu, work: StepWork, switches: MemorySwitches, utilisation: float, tokens: int
) -> int:
    """Returns the tokens per microbatch whose computation hides the copies of "offload".

    Args:
      gpu: the type of GPU, which computes bfloat16 products.
      work: the work of the step.
      switches: the options that trade memory for time.
      utilisation: the share of the peak FLOP/s that matrix products reach.
      tokens: the tokens per microbatch in this step, counted as
        `serialize_num_microbatches.tokens_per_microbatch_per_replica` does.
    """
    _, backward = work.computation(gpu, switches, utilisation)
    return math.ceil(2 * work.copy_seconds(gpu) * tokens / backward)
