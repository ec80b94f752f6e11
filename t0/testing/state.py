"""Restores the global state of a process after a test, and defines the settings of a tiny model.

with registries_restored(), gin_restored():
    import my_tasks
"""

import contextlib
from collections.abc import Iterator

# Gin bindings of a T5 1.1 that trains in milliseconds. Pass each binding as --gin_param, together
# with a --gin_file from models/. The bindings replace the sizes in that file.
TINY_MODEL = ("d_model = 16", "d_ff = 32", "d_kv = 8", "num_heads = 2", "num_layers = 1")


@contextlib.contextmanager
def registries_restored() -> Iterator[None]:
    """Restores SeqIO's registries of tasks and mixtures at the end of the context."""
    from t0.compat import seqio

    registries = (seqio.TaskRegistry._REGISTRY, seqio.MixtureRegistry._REGISTRY)
    before = [dict(registry) for registry in registries]
    try:
        yield
    finally:
        for registry, content in zip(registries, before, strict=True):
            registry.clear()
            registry.update(content)


@contextlib.contextmanager
def gin_restored() -> Iterator[None]:
    """Clears gin's bindings before and after the context, and restores its search paths."""
    from t0.compat import gin, gin_config

    before = list(gin_config._LOCATION_PREFIXES)
    gin.clear_config()
    try:
        yield
    finally:
        gin.clear_config()
        gin_config._LOCATION_PREFIXES[:] = before
