"""The commands: `seqio_cache_tasks`, `t5_mesh_transformer` and `t0 <verb>`.

Each module parses the flags of a command, and then calls another package of t0. The module of a
verb is only imported if the user types this verb. So `t0 --help` and `t0 doctor` run without
TensorFlow.
"""
