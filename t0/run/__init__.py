"""Performs runs of `t5_mesh_transformer`: reads the flags, checks the run, and runs its mode.

    command      performs a run: configures it, checks it or lists its configuration, starts it
    configure    sets modules, data folders, vocabulary and gin; `reset` undoes the changes
    flag_checks  checks the flags against each other, before TensorFlow is imported
    parsed_run   the record of a run that is parsed and not checked yet
    checks       the list of all checks of a run
    findings     collects notes and faults, so that all faults are reported together
    binding_checks, data_checks, checkpoint_checks, evaluation_checks, host_checks   the checks
    tpu_checks   checks the machine, the TPU and the configured run before a run on a TPU
    initial_checkpoint  converts a run's initial checkpoint, and exports the model at its end
    run_arguments       the arguments of Mesh TensorFlow's `run`
    mesh_settings  names settings of Mesh TensorFlow that a run without a TPU does not read
    spec_from_gin       converts a configured run to a run specification, for an engine without gin
    run_records  builds the files that describe a run, for an engine without gin
    modes        the table from mode to the function that runs it
    mesh_modes   calls Mesh TensorFlow's own `run`, on a TPU and for runs that our code does not support
    model_api    the modes of T5's Model API
    configured_run        the record of a run that is configured and checked
    task_evaluation       modes `eval` and `score_eval`: ranks, decodes or measures each task
    models                opens the model of a run on either engine
    whole_evaluation      the run of `t0 eval`
    transformers_evaluation   the evaluation of models that are not a T5
    row_prediction        the run of `t0 predict`
    gpu_plan     plans a training run on GPUs
    stream_writing  writes the batches of a run in training order
    model_card   writes the README.md of a model that is converted for the Hugging Face hub
    train_steps  converts --finetune_steps and --epochs to the last step
    run_files    functions that the gin files in gin/runs/ bind

Importing this package imports none of its modules. All of them except tpu_checks import TensorFlow.
"""
