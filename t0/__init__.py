"""Trains and evaluates T0 with Mesh TensorFlow or PyTorch: tasks, caching, training, evaluation.

The modules and subpackages form layers, in the order in which data flows through them. Each layer
imports only itself and the layers before it. The layers are `machine`, `errors`, `absent_classes`,
`text_tables`, `progress`, `compat`, `files`, `config`, `prompts`, `sources`, `catalogue`, `tasks`,
the top-level package `seqio_tasks`, `recipes`, `caching`, `feeding`, `checkpoints`, `mesh`,
`training`, `evaluation`, `inference`, `torch`, `overlap`, `reports`, `lm_eval`, `run`, `rehearsal` and
`cli`. There is one exception: a worker process of `torch` calls a command in `cli`. The subpackage
`testing` is for tests. docs/architecture.md describes the inputs and outputs of each layer.

Importing this package, `t0.files`, `t0.prompts`, `t0.sources`, `t0.catalogue`, `t0.checkpoints` or
`t0.reports` does not import TensorFlow.
"""

__version__ = "1.0.0"
