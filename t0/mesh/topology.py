"""Lists TPU slices by name, with their chips, cores, hosts, memory, peak FLOP/s and links.

    >>> slice_ = topology("v3-512")
    >>> slice_.chips, slice_.cores, slice_.hosts      # chips along X, Y, Z
    ((16, 16, 1), 512, 64)
    >>> device_assignment(topology("v3-8")).num_replicas      # TensorFlow's own class
    8

This module does not need a TPU. Slices of v2 and v3 are 2-D (Z is 1), and slices of v4 are 3-D.
Every chip has two cores, and each core runs its own program. The "megacore" of v4 (one program for
both cores) is not modeled. The compute and HBM of each generation's chip are Google's numbers:
cloud.google.com/tpu/docs/v2, v3, v4. The link speeds of v2 and v3 are from Jouppi et al. 2020, "A
domain-specific supercomputer for training deep neural networks" (4 links per chip; in each
direction 496 Gbit/s for v2, 656 Gbit/s for v3). The link speed of v4 follows from its all-reduce
bandwidth (1.1 PB/s over 4,096 chips with 6 links each).
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
      hbm_bytes: high-bandwidth memory of a core (half of its chip's memory).
      reserved_bytes: the part of this memory that XLA reserves. XLA's out-of-memory messages report
        the rest. For the 16 GiB of a v3 core, they report "15.48G hbm".
      peak_flops: FLOP/s of a core in bfloat16 matrix products (half of its chip's FLOP/s).
      link_bytes_per_second: the speed of one inter-chip link in one direction.
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

# Name of a slice -> its chips along X, Y, Z. The gin files of the same names are in gin/mesh/.
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

# Zones of Google Cloud in November 2026, as in docs/tpu.md: a generation's zones with slices of all
# sizes, and its further zones that only have slices of one host. Zones of v2 are not listed.
_ZONES = {"v3": ("europe-west4-a",), "v4": ("us-central2-b",)}
_ZONES_OF_ONE_HOST = {"v3": ("us-central1-a", "us-central1-b")}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of a TPU pod.

    Attributes:
      name: the slice's name, such as "v3-512".
      chips: the number of chips along X, Y and Z.
      generation: the memory and speed of each of the slice's cores.
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
        """The number of hosts; each has a 2 x 2 square of chips."""
        return max(1, self.cores // CORES_PER_HOST)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The sizes of the slice in TensorFlow's order: X, Y, Z, cores of a chip."""
        return (*self.chips, CORES_PER_CHIP)

    @property
    def order(self) -> tuple[int, int, int, int]:
        """The sizes of the slice in the order of core numbers: Z, Y, X, cores of a chip."""
        x, y, z = self.chips
        return (z, y, x, CORES_PER_CHIP)

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones of Google Cloud that have the slice; () if this module does not list them."""
        generation = self.name.partition("-")[0] if self.name in SLICES else "v3"
        further = _ZONES_OF_ONE_HOST.get(generation, ()) if self.hosts == 1 else ()
        return (*further, *_ZONES.get(generation, ()))

    @property
    def usable_bytes(self) -> int:
        """The bytes of a core's memory that a program can use."""
        return self.generation.hbm_bytes - self.generation.reserved_bytes


def topology(name: str) -> Topology:
    """Returns the slice with a name such as "v3-512"; "16x16" is a v3 slice of 16 x 16 chips.

    Raises:
      UserError: if the name is unknown, or the number of chips along a side is neither 1 nor even.
        For an unknown name, the message lists the known names.
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

    TensorFlow's own function assigns the devices, as for a TPUEstimator. Cores are numbered along
    Z, then Y, then X, then within a chip. Replica i is core i. Each host has a 2 x 2 square of
    chips.
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
