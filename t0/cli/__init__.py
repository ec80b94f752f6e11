"""The commands: `seqio_cache_tasks`, `t5_mesh_transformer` and `t0 <verb>`.

Each module here parses its flags and makes one call into another package of t0. A verb's module is
imported only when its verb is chosen, so `t0 --help` and `t0 doctor` run without TensorFlow.
"""
