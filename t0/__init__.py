"""T0 on Mesh TensorFlow: prompted SeqIO tasks, caching, training, rank evaluation and reports.

The subpackages, in the order in which data flows (each imports only itself and those before it):
`machine`, `errors`, `compat`, `files`, `config`, `prompts`, `sources`, `catalogue`, `tasks`,
(`seqio_tasks`), `caching`, `feeding`, `checkpoints`, `mesh`, `training`, `scoring`, `inference`,
`reports`, `run` and `cli`. The subpackage `testing` is for tests. docs/architecture.md describes
the inputs and outputs of each subpackage.

Importing this package, `t0.files`, `t0.prompts`, `t0.sources`, `t0.catalogue`, `t0.checkpoints` or
`t0.reports` does not import TensorFlow.
"""

__version__ = "0.1.0"
