"""T0 on Mesh TensorFlow: prompts become SeqIO tasks, tasks become caches, models and rankings.

The rooms, in the order the data flows (each imports itself and rooms before it, never after):
`machine`, `errors`, `compat`, `files`, `config`, `prompts`, `sources`, `catalogue`, `tasks`,
(`seqio_tasks`), `caching`, `feeding`, `checkpoints`, `mesh`, `training`, `scoring`, `inference`,
`reports`, `run`, `cli`; and `testing`, for tests. docs/architecture.md has what each
takes and hands on.

Importing this package, `t0.files`, `t0.prompts`, `t0.sources`, `t0.catalogue`, `t0.checkpoints` or
`t0.reports` does not import TensorFlow.
"""

__version__ = "0.1.0"
