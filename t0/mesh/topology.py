"""TPU slices by name: chips, cores, hosts, memory, peak FLOP/s, links; and a device assignment.

    >>> slice_ = topology("v3-512")
    >>> slice_.chips, slice_.cores, slice_.hosts      # chips along X, Y, Z
    ((16, 16, 1), 512, 64)
    >>> device_assignment(topology("v3-8")).num_replicas      # TensorFlow's own class
    8

None of this needs a TPU. Slices of v2 and v3 are 2-D (Z is 1), those of v4 are 3-D. Every chip has
two cores, and each core runs a program; v4's "megacore" (one program for both cores) is not
modeled. The numbers for each generation are Google's: cloud.google.com/tpu/docs/v2, v3, v4 (compute
and HBM of a chip). Link speeds are from Jouppi et al. 2020, "A domain-specific supercomputer for
training deep neural networks" (v2: 4 links of 496 Gbit/s each way; v3: 656), and from v4's
all-reduce bandwidth (1.1 PB/s over 4,096 chips of 6 links).
"""

import dataclasses
import functools
import itertools
import math
import re
from typing import Any

import numpy as np

from t0.errors import UserError, unknown_name

CORES_PER_CHIP = 2
CORES_PER_HOST = 8
_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Generation:
    """The memory, peak FLOP/s and link speed of one core of a TPU generation.

    Attributes:
      hbm_bytes: high-bandwidth memory of a core (half of its chip's).
      reserved_bytes: the part that XLA reserves; its out-of-memory messages report the rest
        ("15.48G hbm" of 16 on v3).
      peak_flops: bfloat16 matrix FLOP/s of a core (half of its chip's).
      link_bytes_per_second: speed of one inter-chip link in one direction.
    """

    hbm_bytes: int
    reserved_bytes: int
    peak_flops: float
    link_bytes_per_second: float


GENERATIONS = {
    "v2": Generation(8 * _GIB, int(0.52 * _GIB), 23e12, 62e9),
    "v3": Generation(16 * _GIB, int(0.52 * _GIB), 61.5e12, 82e9),
    "v4": Generation(16 * _GIB, int(0.52 * _GIB), 137.5e12, 45e9),
}

# Name -> chips along X, Y, Z. The gin files with the same names are in gin/mesh/.
SLICES: dict[str, tuple[int, int, int]] = {
    "v2-8": (2, 2, 1),
    "v2-32": (4, 4, 1),
    "v2-128": (8, 8, 1),
    "v2-256": (8, 16, 1),
    "v2-512": (16, 16, 1),
    "v3-8": (2, 2, 1),
    "v3-32": (4, 4, 1),
    "v3-64": (4, 8, 1),
    "v3-128": (8, 8, 1),
    "v3-256": (8, 16, 1),
    "v3-512": (16, 16, 1),
    "v3-1024": (16, 32, 1),
    "v3-2048": (32, 32, 1),
    "v4-8": (2, 2, 1),
    "v4-16": (2, 2, 2),
    "v4-32": (2, 2, 4),
    "v4-64": (2, 4, 4),
    "v4-128": (4, 4, 4),
    "v4-256": (4, 4, 8),
    "v4-512": (4, 8, 8),
    "v4-1024": (8, 8, 8),
    "v4-2048": (8, 8, 16),
    "v4-4096": (8, 16, 16),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of a TPU pod.

    Attributes:
      name: the slice's name, such as "v3-512".
      chips: the number of chips along X, Y and Z.
      generation: the memory and speed of each of its cores.
    """

    name: str
    chips: tuple[int, int, int]
    generation: Generation

    @property
    def cores(self) -> int:
        """The number of cores; each runs one program."""
        return math.prod(self.chips) * CORES_PER_CHIP

    @property
    def hosts(self) -> int:
        """The number of hosts; each has four chips, in a 2 x 2 square."""
        return max(1, self.cores // CORES_PER_HOST)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The physical shape in TensorFlow's order: X, Y, Z, cores of a chip."""
        return (*self.chips, CORES_PER_CHIP)

    @property
    def order(self) -> tuple[int, int, int, int]:
        """The physical shape in the order in which cores are numbered: Z, Y, X, cores of a chip."""
        x, y, z = self.chips
        return (z, y, x, CORES_PER_CHIP)

    @property
    def usable_bytes(self) -> int:
        """The memory of a core that a program can use."""
        return self.generation.hbm_bytes - self.generation.reserved_bytes


def topology(name: str) -> Topology:
    """Returns the slice with that name; a shape such as "16x16" means a v3 slice of those chips.

    Raises:
      UserError: for an unknown name, with the list of known names.
    """
    if name in SLICES:
        return Topology(name, SLICES[name], GENERATIONS[name.partition("-")[0]])
    if re.fullmatch(r"\d+x\d+", name):
        x, y = map(int, name.split("x"))
        if x * y and all(size == 1 or size % 2 == 0 for size in (x, y)):
            return Topology(name, (x, y, 1), GENERATIONS["v3"])
        raise UserError(f"TPU topology '{name}': chips along each side must be 1 or even")
    raise unknown_name("TPU topology", str(name), SLICES, f"Known: {', '.join(SLICES)}")


@functools.lru_cache(maxsize=8)
def device_assignment(slice_: Topology) -> Any:
    """Returns TensorFlow's `DeviceAssignment` over the simulated devices of a slice.

    TensorFlow's own function assigns them, as for a TPUEstimator: replica i is the i-th core in the
    order Z, Y, X, core. Each host has a 2 x 2 square of chips.
    """
    from t0.compat import tpu_device_assignment, tpu_topology

    sizes = slice_.chips
    square = [range(min(2, sizes[0])), range(min(2, sizes[1]))]
    corners = itertools.product(range(0, sizes[0], 2), range(0, sizes[1], 2), range(sizes[2]))
    hosts = [
        [
            (x + dx, y + dy, z, core)
            for dx, dy in itertools.product(*square)
            for core in range(CORES_PER_CHIP)
        ]
        for x, y, z in corners
    ]
    devices = tpu_topology.Topology(
        mesh_shape=np.array(slice_.shape, np.int32), device_coordinates=np.array(hosts, np.int32)
    )
    return tpu_device_assignment.device_assignment(devices, num_replicas=slice_.cores)
