"""Trains Mesh TensorFlow's models: by our own loop on this machine, by an estimator on a TPU.

    from t0.training import loop
    from t0.training.options import LoopOptions, TrainingSpec

    loop.train(spec, data, LoopOptions(train_steps=12_200))

loop            our own loop: takes the steps, evaluates and saves
stepping        the steps of a run, whatever computes them
estimator       training on a TPU, by TensorFlow's estimator
options         what a run trains (`TrainingSpec`) and what its loop does (`LoopOptions`)
graph           the training step as a TensorFlow graph: model, gradients, optimizer
losses          the loss in float32, and the sums that are recorded with it
randomness      random numbers that depend on seed and step alone
optimizers      applies the updates of any optimizer; Adam and others
adafactor       Mesh TensorFlow's Adafactor in few passes over the weights
schedules       learning rate schedules
checkpointing   a run's model directory: checkpoints and configuration
resume_file     the resume state beside a checkpoint
kept_checkpoints  which checkpoints stay
warm_start      fills variables from another run's checkpoint
evaluation      held-out loss and task metrics during training
metric_values   the values of a task's metrics that are numbers, by name
stopping        the best evaluation, early stopping, the time limit, SIGTERM
recorder        lines of progress, metrics.jsonl
recorder_hook   the same for a run that TensorFlow's estimator trains
event_files     TensorBoard's event files
start_report    the lines at a run's start: its size, memory and data
step_memory     the memory of a training step by formulas
directory_lock  one trainer at a time in a model directory
export          the last checkpoint as a Hugging Face folder

Importing this package imports none of its modules. What other engines share imports no TensorFlow:
event_files, kept_checkpoints, metric_values, recorder, resume_file, schedules, start_report,
stepping, stopping and directory_lock.
"""
