"""Trains models with Mesh TensorFlow: in our own loop, or on a TPU with TensorFlow's estimator.

    from t0.training import loop
    from t0.training.graph import TrainingSpec

    loop.train(spec, data, loop.LoopOptions(train_steps=12_200))

loop            trains with Mesh TensorFlow in one session
stepping        the training loop that both engines share: steps, evaluation, checkpoints
estimator       trains on a TPU with TensorFlow's estimator
graph           builds the training step in TensorFlow: model, gradients, optimizer
loss_normalization  the weights of tokens in a loss that is averaged over tokens or sequences
losses          cross entropy and z-loss in float32, and the sums over each batch that are recorded
randomness      random numbers that depend only on seed and step
optimizers      AdamW, momentum SGD and others; applies the updates of any optimizer
adafactor       Mesh TensorFlow's Adafactor in fewer passes over the weights
schedules       learning rate schedules
checkpointing   writes and restores checkpoints
model_info      writes the list of a model's variables, model-info.txt
model_directory the lock, the configuration and the retained checkpoints of a model directory
resume_file     writes and reads the resume state next to a checkpoint
warm_start      fills variables from another run's checkpoint
evaluation      measures the held-out loss and the task metrics during training
metric_values   the numeric values of a task's metrics, by name
stopping        the best evaluation, early stopping, the time limit, SIGTERM
recorder        writes progress lines, metrics.jsonl and TensorBoard event files
start_report    the lines printed at the start of a run: its size, memory and data
export          writes the last checkpoint as a Hugging Face folder

Importing this package imports none of its modules. Ten modules are shared with other engines and do
not import TensorFlow: loss_normalization, metric_values, model_directory, model_info, recorder,
resume_file, schedules, start_report, stepping and stopping.
"""
