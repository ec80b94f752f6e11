"""Trains and evaluates T0 with Mesh TensorFlow: tasks, caching, training, rank evaluation, reports.

The modules and subpackages form layers, in the order in which data flows through them. Each layer
imports only itself and the layers before it: `machine`, `errors`, `compat`, `files`, `config`,
`prompts`, `sources`, `catalogue`, `tasks`, the top-level package `seqio_tasks`, `caching`,
`feeding`, `checkpoints`, `mesh`, `training`, `scoring`, `inference`, `reports`, `run` and `cli`.
The subpackage `testing` is for tests. docs/architecture.md describes the inputs and outputs of each
layer.

Importing this package, `t0.files`, `t0.prompts`, `t0.sources`, `t0.catalogue`, `t0.checkpoints` or
`t0.reports` does not import TensorFlow.
"""

__version__ = "1.0.0"
