"""Runs: `t5_mesh_transformer` from its flags to the program that carries its mode out.

    command      the order of a run: configure, list or check, carry out
    configure    modules, data folders, vocabulary and gin of the process; `reset` takes them back
    preflight    checks before anything is built
    weights      which checkpoint a run begins with, and the export at its end
    arguments    what Mesh TensorFlow's `run` would be called with
    modes        the table from mode and engine to the function that carries it out
    model_api    the same for T5's Model API
    train_steps  --finetune_steps and --epochs as a step to stop at
    run_files    functions that the gin files of gin/runs/ bind

Importing this package imports nothing; its modules import TensorFlow.
"""
