"""Trains Mesh TensorFlow's models: by our own loop on this machine, by an estimator on a TPU.

    from t0.training import loop
    from t0.training.graph import TrainingSpec

    loop.train(spec, data, loop.LoopOptions(train_steps=12_200))

loop            our own loop in TensorFlow: fills the variables, takes the steps
stepping        the steps of a run on either engine: records, evaluates and saves
estimator       training on a TPU, by TensorFlow's estimator
graph           the training step as a TensorFlow graph: model, gradients, optimizer
losses          the loss in float32, and the sums that are recorded with it
randomness      random numbers that depend on seed and step only
optimizers      applies the updates of any optimizer; Adam and others
adafactor       Mesh TensorFlow's Adafactor in few passes over the weights
schedules       learning rate schedules
checkpointing   writes and restores checkpoints
model_directory the lock, the configuration and the kept checkpoints of a model directory
resume_file     the resume state next to a checkpoint
warm_start      fills variables from another run's checkpoint
evaluation      held-out loss and task metrics during training
metric_values   the values of a task's metrics that are numbers, by name
stopping        the best evaluation, early stopping, the time limit, SIGTERM
recorder        lines of progress, metrics.jsonl, TensorBoard's event files
start_report    the lines at a run's start: its size, memory and data
export          the last checkpoint as a Hugging Face folder

Importing this package imports none of its modules. The modules that other engines share import no
TensorFlow: metric_values, model_directory, recorder, resume_file, schedules, start_report, stepping
and stopping.
"""
