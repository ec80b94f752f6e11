"""Prints what `t5_mesh_transformer --tpu=NAME` passes to Mesh TensorFlow's `run`, without a TPU.

`--tpu=NAME` and the other words of the command line are given to this program. The facts about the
machine are made up, and `run` is not called: its arguments and gin's bindings are printed.
"""

import sys

from absl import logging


def main() -> None:
    """Prints the arguments, and then all bindings as they are in an operative config."""
    from t0 import compat
    from t0.cli import mesh_transformer
    from t0.run import tpu_checks

    def check_machine(tpu: str, **others: object) -> tpu_checks.Machine:
        return tpu_checks.Machine(tpu=tpu, environment={})

    tpu_checks.check_machine, tpu_checks.check_run = check_machine, lambda *_, **__: None
    compat.apply()

    def run(**arguments: object) -> None:
        for name in sorted(arguments):
            print(f"{name} = {arguments[name]}")
        print(compat.gin.config_str())

    compat.mesh_utils.run = run
    logging.set_verbosity(logging.ERROR)
    mesh_transformer.main(["t5_mesh_transformer", *sys.argv[1:]])
