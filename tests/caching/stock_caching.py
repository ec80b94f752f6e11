"""Runs SeqIO's own caching on the DirectRunner.

python -m tests.caching.stock_caching OUT BASE_SEED TASK...
"""

import importlib.util
import sys
import types

from t0 import compat

compat.apply("seqio")

import apache_beam as beam  # noqa: E402
from absl import flags  # noqa: E402
from seqio.scripts import cache_tasks_main  # noqa: E402

from tests.caching import toy_caching_tasks  # noqa: E402, F401

CASTAGNOLI = 0x82F63B78


def crc32c(data):
    """The checksum that Beam takes from a package which SeqIO does not ask for."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (CASTAGNOLI if value & 1 else 0)
    return value ^ 0xFFFFFFFF


if not importlib.util.find_spec("google_crc32c"):
    sys.modules["google_crc32c"] = types.ModuleType("google_crc32c")
    sys.modules["google_crc32c"].value = crc32c

flags.FLAGS(["stock", f"--base_seed={sys.argv[2]}", "--min_shards=3"])
with beam.Pipeline() as pipeline:
    cache_tasks_main.run_pipeline(pipeline, sys.argv[3:], sys.argv[1])
