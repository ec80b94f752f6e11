"""Caching: registered SeqIO tasks become tokenised records in SeqIO's cache layout.

A plan decides what is written (`plan`), a runner obeys it (`local`: processes of this machine;
`beam_runner`: Apache Beam), `run` sees a task published once all of its splits are whole:

    from t0.caching.plan import Request
    from t0.caching.run import cache
    from t0.caching.unit import Options, Setup

    cache(
        Request(output_cache_dir="/data/cache", tasks=["super_glue_rte_.*"]),
        Options(),
        Setup(module_import=["t0.seqio_tasks"]),
        num_workers=8,
    )

Two engines make the records. Tasks of prompts with T0's own preprocessors go through `ranges`,
which needs no TensorFlow: `compiled` tells them and cuts their datasets into ranges of rows. All
other SeqIO tasks go through `worker`, a shard of their source at a time: `general` plans that.
Either writes parts, of which `ledger` keeps account and which `merge` joins.

Assumes that the tasks' modules can be imported by name in every process. The modules that import
SeqIO apply `t0.compat` themselves, so that importing this package, or a worker of `ranges`, does
without TensorFlow.
"""
