"""Trains and evaluates T0 with Mesh TensorFlow or PyTorch: tasks, caching, training, evaluation.

The modules and packages have an order, in which data flows through them. Each imports only itself
and those before it. docs/architecture.md lists them in this order, with inputs and outputs.

Importing this package, `t0.files`, `t0.prompts`, `t0.sources`, `t0.catalogue`, `t0.checkpoints` or
`t0.reports` does not import TensorFlow.
"""

__version__ = "1.0.0"
