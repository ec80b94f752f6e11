"""Lists GPUs, with their memory and peak FLOP/s from data sheets.

    find("a100-80")                                 # a name for `t0 plan --engine=torch --gpu=`
    find_by_device_name("NVIDIA A100-SXM4-80GB")    # PyTorch's name; None if it is not listed

The FLOP/s are for dense matrix products of bfloat16 numbers, summed in float32. Data sheets also
have a number "with sparsity", which is twice as high, but T5's weights are not sparse. FLOP/s for
float32 activations are not listed.
"""

import dataclasses

from t0.errors import unknown_name


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A type of GPU, with its memory and peak FLOP/s.

    Attributes:
      name: the name of the GPU in the flag `--gpu`.
      memory_gib: the memory in GiB.
      teraflops: the peak TFLOP/s of dense bfloat16 products; None if the GPU does not compute
        bfloat16 products.
      devices: PyTorch's names for this GPU.
      source: the NVIDIA document in which these numbers are published.
    """

    name: str
    memory_gib: int
    teraflops: float | None
    devices: tuple[str, ...]
    source: str

    @property
    def bytes(self) -> int:
        """The memory in bytes."""
        return self.memory_gib * 2**30


GPUS = (
    Gpu(
        "v100-32",
        32,
        None,
        ("Tesla V100-SXM2-32GB", "Tesla V100-SXM3-32GB", "Tesla V100-PCIE-32GB"),
        "V100 data sheet (2020)",
    ),
    Gpu("t4", 16, None, ("Tesla T4",), "T4 data sheet (2019)"),
    Gpu(
        "a100-40",
        40,
        312.0,
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
        "A100 data sheet (2021)",
    ),
    Gpu(
        "a100-80",
        80,
        312.0,
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"),
        "A100 data sheet (2021)",
    ),
    Gpu("h100-80", 80, 989.0, ("NVIDIA H100 80GB HBM3",), "H100 data sheet (2023), SXM"),
    Gpu("h200-141", 141, 989.0, ("NVIDIA H200",), "H200 data sheet (2023), SXM"),
    Gpu("l4", 24, 121.0, ("NVIDIA L4",), "L4 data sheet (2023)"),
    Gpu("a10", 24, 125.0, ("NVIDIA A10",), "A10 data sheet (2021)"),
    Gpu("rtx-3090", 24, 71.0, ("NVIDIA GeForce RTX 3090",), "GA102 whitepaper (2020)"),
    Gpu("rtx-4090", 24, 165.2, ("NVIDIA GeForce RTX 4090",), "Ada whitepaper (2022)"),
)


def find(name: str) -> Gpu:
    """Returns the GPU with this name in the table, such as "a100-80".

    Raises:
      UserError: if the name is unknown. The message contains the most similar names.
    """
    match = next((gpu for gpu in GPUS if gpu.name == name.lower()), None)
    if match is None:
        raise unknown_name("GPU", name, [gpu.name for gpu in GPUS], "(--gpu)")
    return match


def find_by_device_name(device: str) -> Gpu | None:
    """Returns the GPU with this device name in PyTorch; None if it is not in the table."""
    return next((gpu for gpu in GPUS if device in gpu.devices), None)
