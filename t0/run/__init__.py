"""Runs: `t5_mesh_transformer` from its flags to the function that carries its mode out.

    command      the order of a run: configure, list or check, carry out
    configure    sets modules, data folders, vocabulary and gin of the process; `reset` undoes it
    preflight    preflight checks: mode, data, batch and checkpoints, before anything is built
    tpu_checks   checks of the machine, the TPU and the configured run before a run on a TPU
    host_pipeline   the input function of a run, and whether a TPU's hosts can run it
    weights      the checkpoint that a run begins with, and the export at its end
    arguments    the arguments that Mesh TensorFlow's `run` would be called with
    specify      the run specification of a configured run
    modes        the table from mode and engine to the function that carries it out
    model_api    the modes of T5's Model API
    train_steps  --finetune_steps and --epochs as a step to stop at
    run_files    functions that the gin files in gin/runs/ bind

Importing this package imports nothing; its modules but tpu_checks import TensorFlow.
"""
