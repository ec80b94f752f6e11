"""`t5_mesh_transformer` in a process that has no task registered, as one without --module_import.

The server of commands has imported T0's tasks before it forks.
"""

from t0.cli import mesh_transformer
from t0.compat import seqio


def main():
    for registry in (seqio.TaskRegistry, seqio.MixtureRegistry):
        for name in list(registry.names()):
            registry.remove(name)
    mesh_transformer.console_entry_point()
