"""What is global in a process, as it was before a test; and a tiny model's configuration.

with registries_restored(), gin_restored():
    import my_tasks
"""

import contextlib
from collections.abc import Iterator

# Bindings of a T5.1.1 that trains in milliseconds, for --gin_param: after a file of models/.
TINY_MODEL = (
    "d_model = 16",
    "d_ff = 32",
    "d_kv = 8",
    "num_heads = 2",
    "num_layers = 1",
)


class Killed(BaseException):
    """Stands for SIGKILL in a test that stays in one process: no `except Exception` tidies up."""


@contextlib.contextmanager
def registries_restored() -> Iterator[None]:
    """Takes back what is registered with SeqIO meanwhile."""
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
    """Begins and ends without gin bindings; gin looks for files where it did before."""
    from t0.compat import gin, gin_config

    before = list(gin_config._LOCATION_PREFIXES)
    gin.clear_config()
    try:
        yield
    finally:
        gin.clear_config()
        gin_config._LOCATION_PREFIXES[:] = before
