"""Performs runs of `t5_mesh_transformer`: reads the flags, checks the run, and runs its mode.

    command      the steps of a run: configure, list or check, run
    configure    sets modules, data folders, vocabulary and gin of the process; `reset` undoes it
    preflight    checks of mode, data, batch and checkpoints, before the model is built
    tpu_checks   checks of the machine, the TPU and the configured run before a run on a TPU
    host_pipeline   the input function of a run, and whether a TPU's hosts can run it
    weights      the initial checkpoint of a run, and the export at its end
    arguments    the arguments of Mesh TensorFlow's `run`
    specify      the run specification of a configured run
    modes        the table from mode and engine to the function that runs it
    model_api    the modes of T5's Model API
    stream_writing  writes the batches of a run in training order
    train_steps  converts --finetune_steps and --epochs to the last step
    run_files    functions that the gin files in gin/runs/ bind

Importing this package imports nothing. All of its modules except tpu_checks import TensorFlow.
"""
